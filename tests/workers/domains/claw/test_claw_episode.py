"""Rollouts at a desk: real queue, real sandboxes, a scripted model; the audit log in the tables."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from orchard.actions.session import Session
from orchard.cli.reading import show_rollout
from orchard.configuration.config import Config
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import Budget, Timeouts
from orchard.schemas.claw import ClawBundle
from orchard.schemas.events import RolloutAborted, RolloutFinished, payload
from orchard.schemas.outcomes import AbortCause, ExitStatus
from orchard.streams.server import EmbeddedServer
from orchard.workers.attempts import retries
from orchard.workers.domains.claw import engine
from tests.attempts_world import QUICK_RETRIES, World, seed_of, world
from tests.claw_world import STEPS, Assistant, desk_task
from tests.sandbox_service import LocalService

PLAN: dict[str, Any] = {"harnesses": ("claw-react",), "timeouts": Timeouts()}
"""Time enough for the agent on any machine: who is too slow has no outcome."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalService]:
    made = LocalService(tmp_path_factory.mktemp("claw") / "state")
    yield made
    made.stop()


@pytest.fixture
async def place(
    nats_server: EmbeddedServer, service: LocalService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    monkeypatch.setattr(retries, "ROLLOUTS", QUICK_RETRIES)
    monkeypatch.setattr(engine, "SLOW", (0.0, 0.01))
    async with (
        world(nats_server.url, service.url, tmp_path / "store", ()) as made,
        Assistant().served() as model,
    ):
        made.model = model
        yield made


async def _outcome(place: World, task: Any = None, **changes: Any) -> RolloutFinished | RolloutAborted:
    settings = {**PLAN, "max_tries": 1, **changes}
    (rollout,) = await place.submit(task or desk_task(), **settings)
    async with place.working():
        data = payload((await place.outcomes(rollout))[rollout])
    assert isinstance(data, RolloutFinished | RolloutAborted)
    return data


async def _bundle(place: World, data: RolloutFinished) -> ClawBundle:
    text = data.submission
    if data.submission_blob is not None:
        text = place.blobs.get(data.submission_blob).decode()
    return msgspec.json.decode(text, type=ClawBundle)


@pytest.mark.long
async def test_a_task_is_solved_and_every_call_is_in_the_log_and_in_the_bundle(
    place: World, capsys: pytest.CaptureFixture[str]
) -> None:
    data = await _outcome(place)
    assert isinstance(data, RolloutFinished), data
    assert (data.exit_status, data.reward, data.turns) == (ExitStatus.FINISHED, 1.0, 4)
    rows = await place.rows(
        "select number, service, operation, status, face, injected from service_calls order by number"
    )
    assert rows == [
        (1, "mail", "list_messages", 200, "harness", None),
        (2, "mail", "get_message", 200, "harness", None),
        (3, "contacts", "list_contacts", 200, "harness", None),
        (4, "mail", "send_message", 200, "harness", None),
    ]
    bundle = await _bundle(place, data)
    assert [entry.sequence for entry in bundle.audit] == [1, 2, 3, 4]
    assert {path: seen.text for path, seen in bundle.snapshot.items()} == {
        "notes/todo.txt": "ask Diana\n",
        "plan.txt": "write to Tom\n",
    }
    assert bundle.answer == "I wrote to Tom."
    assert [message["role"] for message in bundle.messages][:2] == ["system", "user"]
    assert [len(bundle.initial["mail"]["messages"]), len(bundle.state["mail"]["messages"])] == [1, 2]
    [(tools,)] = await place.rows("select distinct tools_sha256 from llm_calls")
    offered = msgspec.json.decode(place.blobs.get(BlobRef(sha256=tools, size=0)))
    assert {"mail_send_message", "Bash"} <= {tool["function"]["name"] for tool in offered}
    show_rollout(Session(Config(store=str(place.store))), "", full=False)
    said = " ".join(capsys.readouterr().out.split())
    assert "claw: resolved, 4 of 4 tests passed" in said and "task_score: 1" in said
    assert "services used" in said and '"initial"' not in said, "a table in place of the bundle"


async def test_an_answer_without_a_word_is_an_empty_one(place: World) -> None:
    """What endpoints are told in its place is no answer."""
    assert isinstance(place.model, Assistant)
    place.model.steps, place.model.answer = [], ""
    data = await _outcome(place)
    assert isinstance(data, RolloutFinished)
    bundle = await _bundle(place, data)
    assert (bundle.answer, bundle.messages[-1]["content"]) == ("", "")


@pytest.mark.long
async def test_what_a_model_gets_wrong_is_an_answer_and_it_may_go_on(place: World) -> None:
    wrong = [
        [
            ("mail_shred", {}),
            ("mail_get_message", "{"),
            ("Read", {"file_path": "none"}),
            ("Bash", {"cmd": 1}),
        ],
        [("Edit", {"file_path": "notes/todo.txt", "old_string": "ask", "new_string": "tell"})],
        [("Bash", {"command": "cat notes/todo.txt; exit 3"}), ("Glob", {"pattern": "*.txt"})],
        [("Grep", {"pattern": "t.ll", "path": "notes"}), ("Read", {"file_path": "notes/todo.txt"})],
        [
            ("Write", {"file_path": path, "content": "x"})
            for path in ("notes", "/", "notes/todo.txt/x", "x" * 300, "/proc/x", "/dev/null")
        ],
    ]
    assert isinstance(place.model, Assistant)
    place.model.steps = [*wrong, *STEPS]
    data = await _outcome(place)
    assert isinstance(data, RolloutFinished) and data.reward == 1.0
    shown = [
        text
        for (text,) in await place.rows("select content from messages where role = 'tool' order by sequence")
    ]
    assert shown[0] == '{"error":"there is no tool \'mail_shred\'"}'
    assert "not JSON" in shown[1]
    assert shown[2] == "Error: there is no file /workspace/desk/none"
    assert shown[3] == "Error: the argument command is missing"
    assert shown[5] == "tell Diana\n\n[exit code 3]"
    assert shown[6] == "/workspace/desk/notes/todo.txt"
    assert shown[7] == "/workspace/desk/notes/todo.txt:1:tell Diana"
    assert shown[8].startswith("     1\ttell Diana")
    assert shown[9] == "Error: /workspace/desk/notes: Is a directory"
    assert all(text.startswith("Error: /") for text in shown[9:15]), "an abort would buy another attempt"
    errors = await place.rows(
        "select tool, status, service from service_calls where status >= 400 order by number"
    )
    assert errors == [("mail_shred", 404, ""), ("mail_get_message", 400, "mail")]


async def test_limits_are_the_tasks_unless_the_campaign_lifts_them(place: World) -> None:
    assert isinstance(place.model, Assistant)
    place.model.steps = [[("mail_list_messages", {})]] * 6
    task = desk_task(turns=3)
    data = await _outcome(place, task)
    assert isinstance(data, RolloutFinished)
    assert (data.exit_status, data.turns, data.reward) == (ExitStatus.STEP_LIMIT, 3, -1.0)
    data = await _outcome(place, task, name="lifted", budget=Budget(steps=0, wall_seconds=600.0))
    assert isinstance(data, RolloutFinished)
    assert (data.exit_status, data.turns) == (ExitStatus.FINISHED, 7)


async def test_an_answer_that_comes_after_the_wall_clock_is_none(place: World) -> None:
    """The paper's rule: what exceeds its budget is aborted, and all its turns are excluded."""
    data = await _outcome(place, budget=Budget(steps=0, wall_seconds=0.000001))
    assert isinstance(data, RolloutAborted) and data.cause is AbortCause.WALL_CLOCK
    place.model.commands, place.model.steps = (), ()  # type: ignore[attr-defined]
    data = await _outcome(place, name="last", budget=Budget(steps=0, wall_seconds=0.000001))
    assert isinstance(data, RolloutAborted) and data.cause is AbortCause.WALL_CLOCK
    assert await place.rows("select count(*) from rewards_all") == [(0,)]


async def test_a_world_that_cannot_be_opened_aborts_before_any_model_is_asked(place: World) -> None:
    data = await _outcome(place, desk_task(services={"fax": {}}))
    assert isinstance(data, RolloutAborted)
    assert data.cause is AbortCause.INVALID_REQUEST
    assert "there is no service 'fax'" in data.detail
    assert not place.model.asked


async def test_samples_of_one_task_meet_different_errors_and_each_its_own_again(place: World) -> None:
    assert isinstance(place.model, Assistant)
    place.model.steps = [[("mail_get_message", {"message_id": "none"})] * 20]
    rollouts = await place.submit(desk_task(error_rate=0.4), samples=2, **PLAN)
    async with place.working(slots=2):
        await place.outcomes(*rollouts)
    rows = await place.rows(
        "select rollout_id, list(coalesce(injected, '') order by number) from service_calls group by 1"
    )
    for rollout, found in rows:
        injected = engine.Injection(seed_of(rollout), 0.4)
        drawn = [injected.draw(number) for number in range(1, 21)]
        assert found == [each.kind if each and not each.spoils else "" for each in drawn]
    assert rows[0][1] != rows[1][1]


@pytest.mark.long
async def test_a_worker_that_is_killed_costs_nothing_and_the_accepted_log_is_of_one_attempt(
    place: World,
) -> None:
    """SIGKILL after the letter was sent: the next attempt's world is new, and its log is whole and alone."""
    reached = asyncio.Event()
    go_on = asyncio.Event()

    async def hold(_seed: int) -> None:
        reached.set()
        await go_on.wait()

    place.model.hooks[len(STEPS) + 1] = hold
    (rollout,) = await place.submit(desk_task(), **PLAN)
    async with place.kept():
        first = place.worker_process("first")
        try:
            await asyncio.wait_for(reached.wait(), 100)
        finally:
            first.send_signal(signal.SIGKILL)
            await asyncio.to_thread(first.wait)
    go_on.set()
    place.model.hooks.clear()
    async with place.working():
        data = payload((await place.outcomes(rollout))[rollout])
    assert isinstance(data, RolloutFinished) and data.reward == 1.0
    logs = await place.rows(
        "select attempt, abandoned, list(number order by number), "
        "count(*) filter (tool = 'mail_send_message') from service_calls_all group by 1, 2 order by 1"
    )
    assert logs == [(1, True, [1, 2, 3, 4], 1), (2, False, [1, 2, 3, 4], 1)]
    accepted = await place.rows("select distinct attempt, count(*) over () from service_calls")
    assert accepted == [(2, 4)]
    bundle = await _bundle(place, data)
    sent = [each for each in bundle.state["mail"]["messages"] if each["folder"] == "sent"]
    assert (len(sent), len(bundle.audit), data.inherited_turns) == (1, 4, 3)
    asked = place.model.turns(seed_of(rollout))
    assert [asked[turn] for turn in (1, 2, 3)] == [1, 1, 1]
    [(holds,)] = await place.rows("select holds from conservation")
    assert holds
