"""A rollout's page for somebody who decides: its outline, the tests that decided, the tree of its diff."""

import re
from pathlib import Path

import aiohttp
import msgspec
import pytest

from orchard.actions.rollout_turns import turns_of
from orchard.page.deciding import grouped
from orchard.page.outline import command_of, title_of
from orchard.page.texts import diff, diff_tree
from orchard.schemas import events as e
from orchard.schemas.messages import ToolResult
from orchard.schemas.tasks import SWETests, Task
from orchard.storage.blobs import BlobStore
from tests.orchard.page.conftest import Serve, stored
from tests.orchard.page.test_numbers import text_of
from tests.trajectory_log import Author

TASK = Task(
    task_id="t1",
    source="s",
    repo="a/b",
    image="i",
    statement="Sums of empty lists should be 0.",
    grading=SWETests(
        test_patch="", test_command="", fail_to_pass=("new", "gone"), pass_to_pass=("old", "kept")
    ),
)
TESTS = {"kept": "SKIPPED", "gone": "MISSING", "old": "FAILED", "new": "PASSED", "other": "ERROR"}


def _failing(made: list[e.Event], turn: int) -> list[e.Event]:
    """The same rollout, in which the command of a turn failed."""
    found = []
    for event in made:
        node = e.payload(event)
        if getattr(node, "role", "") == "tool" and node.turn == turn:
            failed = msgspec.structs.replace(node, result=ToolResult(returncode=2, seconds=0.1))
            event = msgspec.structs.replace(event, data=msgspec.Raw(msgspec.json.encode(failed)))
        found.append(event)
    return found


@pytest.mark.long
async def test_what_decides_comes_first(tmp_path: Path, serve: Serve) -> None:
    (tmp_path / "store").mkdir()
    blob = BlobStore(str(tmp_path / "store")).put(msgspec.json.encode(TASK))
    author = Author()
    commands = ["ls", "make test", "cat a", "make test"]
    made = _failing(author.rollout(0, commands, resolved=False, tests=TESTS, blob=blob), 2)
    other = author.rollout(1, ["ls", "cat a"], resolved=True, blob=blob)
    a, b = made[0].rollout_id or "", other[0].rollout_id or ""
    store = await stored(tmp_path, [*made, *other])
    async with serve(store) as url, aiohttp.ClientSession(url) as http:

        async def page(path: str) -> str:
            async with http.get(path) as reply:
                assert reply.status == 200, path
                return await reply.text()

        html = await page(f"/rollouts/{a}")
        assert html.index("Sums of empty lists") < html.index("You repair programs.")
        leaps = re.findall(r'<a href="([^"]*)">', html.partition('class="leaps"')[2].partition("</p>")[0])
        assert leaps == [
            f"/rollouts/{a}?turn=2#turn-2",
            f"/rollouts/{a}?turn=4#turn-4",
            "#tests",
            f"/rollouts/{a}/parts/{b}",
        ]
        async with http.get(leaps[-1], allow_redirects=False) as reply:
            assert reply.headers["Location"] == f"/beside?a={a}&b={b}&turn=2#turn-2"
        outline = text_of(html.partition('aria-label="Outline"')[2].partition("</nav>")[0])
        assert "2 make test 1 failed ? s · ? tok" in outline, "no call was recorded: nobody knows its time"
        said = text_of(html.partition('<section id="tests"')[2])
        order = ["had to pass and did not 1 MISSING gone", "passed before and broke 1 FAILED old"]
        order += ["failed, and counted for nothing 1 ERROR other", "had to pass and did 1 PASSED new"]
        assert sorted(order, key=said.index) == order
        assert "cost unknown" in text_of(html)
        alike = html.partition('id="alike"')[2].partition("</section>")[0]
        links = [link.replace("&amp;", "&") for link in re.findall(r'href="([^"]*)"', alike)]
        assert [("<b>1</b> match" in await page(link)) for link in links] == [True] * 3
        assert [link.partition("?")[2].partition("=")[0] for link in links] == ["failing", "failing", "text"]


def test_without_a_task_every_failed_test_decided() -> None:
    assert [(g.title, g.decided) for g in grouped({"a": "PASSED", "b": "FAILED"}, None)] == [
        ("failed", True),
        ("passed", False),
    ]
    assert grouped({}, TASK) == []


def test_what_is_unknown_of_a_turn_stays_unknown() -> None:
    row = {"turn": 1, "time": None, "asked": None, "returncode": None, "timed_out": None, "seconds": None}
    nodes = {"a": {**row, "node_id": "a", "role": "assistant", "parent": None, "sequence": 1}}
    (turn,) = turns_of(["a"], nodes, {})
    assert (turn.model, turn.command, turn.wait, turn.seconds, turn.cost_usd) == (None, 0.0, None, None, None)
    assert title_of(turn) == "no call"


def test_the_title_of_a_call_is_its_command_though_it_is_cut() -> None:
    assert command_of('{"command": "grep -n \\"x\\" a.py\\nls"}') == 'grep -n "x" a.py\nls'
    assert command_of('{"command": "echo aaaa') == "echo aaaa"
    assert command_of('{"path": "a.py"}') == '{"path": "a.py"}'


def test_changed_files_are_a_tree() -> None:
    names = ("src/pkg/deep/a.py", "src/pkg/deep/b.py", "README.md", "src/pkg/deep/x/y/c.py")
    text = "".join(f"diff --git a/{n} b/{n}\n--- a/{n}\n+++ b/{n}\n@@ -1 +1 @@\n-a\n+b\n" for n in names)
    assert [(row.depth, row.name, row.number) for row in diff_tree(diff(text))] == [
        (0, "README.md", 3),
        (0, "src/pkg/deep/", 0),
        (1, "a.py", 1),
        (1, "b.py", 2),
        (1, "x/y/", 0),
        (2, "c.py", 4),
    ]
