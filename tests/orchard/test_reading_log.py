"""`from orchard import Log`: what a notebook asks."""

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from orchard import Log
from orchard.actions.reading import Arm, UnknownName
from orchard.actions.session import Session
from orchard.cli.reading import print_messages, show_rollout, turn_range
from orchard.configuration.config import Config, ConfigError
from orchard.schemas.events import payload
from tests.orchard.page.conftest import stored
from tests.orchard.page.test_page import talk_of
from tests.orchard.test_facts import check
from tests.trajectory_log import Author

ALL = sys.maxsize
NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebooks" / "reading.ipynb"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def store(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """A rollout with branches, and two campaigns over the same tasks."""
    events = talk_of(Author("talk"), 6)
    for name, each in (("first", 3), ("second", 2)):
        author = Author(name)
        for number in range(12):
            events += author.rollout(0, ["ls"], resolved=number % each == 0, task=f"t{number}")
    yield str(await stored(tmp_path_factory.mktemp("reading"), events))


def test_rollouts_are_a_relation(store: str) -> None:
    with Log(store) as log:
        assert len(log.rollouts(campaign="first", resolved=True).df()) == 4
        assert log.rollouts(campaign="second").filter("resolved").arrow().read_all().num_rows == 6
        assert log.rollouts(cause=None).aggregate("count(*)").fetchall() == [(25,)]
        with pytest.raises(ValueError, match="rollouts has no column 'reslved'"):
            log.rollouts(reslved=True)
        assert log.rollouts(campaign="x' or true --").fetchall() == []


def test_messages_are_found_by_first_digits_and_as_trees(store: str) -> None:
    with Log(store) as log:
        ((name,),) = log.rollouts(campaign="talk").select("rollout_id").fetchall()
        assert log.messages(name[:12]).columns == log.sql("select * from messages").columns
        main, subagent = log.tree(name[:12])
        assert [str(node.message.role) for node in main][:3] == ["system", "user", "assistant"]
        assert [node.message.content for node in subagent] == ["look into it", "looked"]
        assert subagent.children[0].kind == "subagent"
        forks = [node for node in main if len(node.children) > 1]
        assert [node.message.turn for node in forks] == [3]
        assert len([*main]) + 2 == len(log.messages(name).fetchall())
        with pytest.raises(UnknownName, match="no rollout starts with 'zz'"):
            log.messages("zz")
        with pytest.raises(UnknownName, match="more than one rollout"):
            log.tree("")


def test_arms_are_compared_by_task(store: str) -> None:
    with Log(store) as log:
        pair = log.compare("first", Arm("second", "mini-swe-agent", "m"))
        assert (pair.gained, pair.lost, pair.difference.tasks) == (4, 2, 12)
        assert pair.difference.value == pytest.approx(2 / 12)
        with pytest.raises(UnknownName, match="no task was graded in both"):
            log.compare("first", "nothing")


async def test_a_name_of_several_arms_is_asked_for_one(tmp_path: Path) -> None:
    author = Author("two")
    *begun, done = author.rollout(1, ["ls"], resolved=True)
    other = msgspec.structs.replace(payload(done), model="n")
    events = [*author.rollout(0, ["ls"], resolved=True), *begun, author.event(other, done.rollout_id or "")]
    events += Author("one").rollout(0, ["ls"], resolved=False)
    where = str(await stored(tmp_path, events))
    with Log(where) as log:
        with pytest.raises(UnknownName, match=r"two has 2 arms: .*\('two', 'mini-swe-agent', 'n'\)"):
            log.compare("one", "two")
        assert log.compare("one", Arm("two", "mini-swe-agent", "n")).gained == 1


def test_a_log_is_as_it_was_and_follows(store: str) -> None:
    with Log(store, as_of=0) as log:
        assert log.rollouts().fetchall() == []
    with Log(store) as log:
        log.refresh()
        assert log.groups("none").fetchall() == []


def test_the_notebook_runs(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHARD_STORE", store)
    known: dict[str, Any] = {}
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    for cell in cells:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), known)
    assert known["pair"].difference.tasks > 0
    assert known["main"].message.role == "system"


@pytest.mark.long
def test_show_has_turns_with_what_they_cost(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    session = Session(Config(store=store))
    with Log(store) as log:
        ((name,),) = log.rollouts(campaign="talk").select("rollout_id").fetchall()
        expected = log.messages(name).filter("turn between 2 and 3").fetchall()
    print_messages(session, name[:10], turn_range("2..3"))
    printed = capsys.readouterr().out.splitlines()
    for line in printed:
        check("show", line)
    lines = [json.loads(line) for line in printed]
    assert len(lines) == len(expected) > 3
    assert {line["turn"] for line in lines} == {2, 3}
    assert {line["call"]["completion_tokens"] for line in lines if line["role"] == "assistant"} == {3}
    show_rollout(session, name[:10], full=False, turns=turn_range("2"))
    said = capsys.readouterr().out
    assert "7 tokens read, 3 written  0.2500 USD  1.0 s" in said and "exit 0" in said
    assert "echo 1" in said and "echo 2" not in said


@pytest.mark.long
async def test_an_open_rollout_shows_all_attempts_and_a_graded_one_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    author = Author("open")
    first, second = (author.rollout(0, [f"try {n}"], resolved=True, attempt=n)[:-1] for n in (1, 2))
    name = first[0].rollout_id or ""
    directory = await stored(tmp_path, first + second[1:])
    show_rollout(Session(Config(store=str(directory))), name, full=False)
    said = capsys.readouterr().out
    assert "try 1" in said and "try 2" in said and "has no outcome yet" in said
    with Log(str(directory)) as log:
        (newest,) = log.tree(name)
    assert "try 2" in str([*newest]) and "try 1" not in str([*newest])
    await stored(tmp_path, author.rollout(0, [], resolved=True, attempt=2)[-1:])
    show_rollout(Session(Config(store=str(directory))), name, full=False)
    said = capsys.readouterr().out
    assert "try 1" not in said and "try 2" in said and "has no outcome yet" not in said


@pytest.mark.parametrize(
    ("text", "ends"), [("7", (7, 7)), ("3..9", (3, 9)), ("..9", (0, 9)), (None, (0, ALL))]
)
def test_turns_are_a_range(text: str | None, ends: tuple[int, int]) -> None:
    assert turn_range(text) == ends
    with pytest.raises(ConfigError, match="is not a range"):
        turn_range("x")
