"""What `status` and `watch` read from the tables: work of rollouts that run, and proven cheating."""

import asyncio
import subprocess
import sys
from io import StringIO
from typing import Any

import msgspec
import pytest
from rich.console import Console

from orchard.actions.campaign_hints import hints
from orchard.actions.campaign_rows import CampaignRows, read_rows
from orchard.actions.campaign_status import InQueues, ModelWork, PipelineView, _view
from orchard.schemas.blobs import INLINE_LIMIT, BlobRef
from orchard.schemas.campaigns import CampaignRecord, CampaignState, RolloutRequest
from orchard.schemas.events import RolloutStarted, payload
from orchard.schemas.messages import MessageNode
from orchard.schemas.outcomes import Reward
from orchard.schemas.tasks import IMPOSSIBLE
from orchard.storage.blobs import BlobStore
from orchard.storage.reader import open_tables, position
from orchard.streams.records import StoredEvent
from orchard.terminal.campaign_tables import campaign_line, status_table
from orchard.workers.attempts.reopen import cancelled
from orchard.workers.episode.large_messages import slimmed
from tests.orchard.conftest import Command
from tests.pipelines.datasets.conftest import connection, keep
from tests.trajectory_log import CAMPAIGN, TIME, Author, llm_call

__all__ = ["connection", "keep"]

RECORD = CampaignRecord(
    spec=BlobRef(sha256="0" * 64, size=1), spec_hash="h", size=3, state=CampaignState.RUNNING
)
_IDLE: tuple[InQueues, str, list[Any]] = (InQueues(), "", [])


def read(store: str, running: list[str], capped: list[str]) -> CampaignRows:
    """What the tables say of the campaign, to their end."""
    with open_tables(store) as tables:
        return read_rows(tables, [CAMPAIGN], {CAMPAIGN: running}, capped, position(store))


@pytest.mark.long
async def test_a_rollout_that_runs_shows_its_turns_tokens_and_cost(keep: Any) -> None:
    author = Author()
    done, runs = author.rollout(0, ["ls"], resolved=True), author.rollout(1, ["ls"], resolved=True)[:-1]
    ids = [events[0].rollout_id or "" for events in (done, runs)]
    calls = [author.event(llm_call(turn), rollout) for rollout in ids for turn in (1, 2)]
    store = await keep([*done[:-1], *runs, *calls, done[-1]])
    rows = read(store, ids, [CAMPAIGN])
    capped = msgspec.structs.replace(RECORD, max_cost_usd=2.0)
    view = _view(CAMPAIGN, capped, rows, InQueues(running=frozenset(ids[1:])), "", [])
    assert "cap: 1.00 USD of 2.00 USD are spent, all attempts counted" in campaign_line(view)
    assert view.live == ModelWork(turns=2, tokens=220, cost_usd=0.5)
    assert (view.ended.turns, view.waiting, view.running) == (1, 1, 1)
    assert "not ended: 2 turns, 220 tokens, 0.50 USD" in campaign_line(view)
    parked = _view(CAMPAIGN, capped, read(store, [], [CAMPAIGN]), InQueues(delayed=1), "", [])
    assert (parked.live, parked.running, parked.delayed) == (view.live, 0, 1)
    assert view.score is not None and (view.score.value, view.score.tasks) == (1.0, 1)


async def test_the_cost_in_status_is_that_of_all_attempts(keep: Any) -> None:
    author = Author()
    *events, outcome = author.rollout(0, ["ls"], resolved=True, attempt=2)
    rollout = outcome.rollout_id or ""
    dead = [
        author.event(RolloutStarted(worker="w", request_sequence=1, deliveries=1), rollout),
        author.event(llm_call(1), rollout),
    ]
    calls = [author.event(llm_call(turn), rollout, 2) for turn in (1, 2)]
    data = msgspec.json.decode(outcome.data) | {"cost_usd": 0.5}
    outcome = msgspec.structs.replace(outcome, data=msgspec.Raw(msgspec.json.encode(data)))
    view = _view(CAMPAIGN, RECORD, read(await keep([*dead, *events, *calls, outcome]), [], []), *_IDLE)
    assert (view.ended.cost_usd, view.cost_usd, view.priced) == (0.5, 0.75, True)


@pytest.mark.parametrize(("price", "known"), [(0.25, True), (None, False)])
async def test_a_rollout_that_ended_without_its_worker_leaves_no_sum_that_looks_whole(
    keep: Any, price: float | None, known: bool
) -> None:
    author = Author()
    request, started, *_ = author.rollout(0, ["ls"], resolved=True)
    rollout = request.rollout_id or ""
    data = payload(request)
    assert isinstance(data, RolloutRequest)
    begun = StoredEvent(sequence=2, subject="s", event=started, raw=b"", time=TIME)
    ended = cancelled(data, begun, "test")
    store = await keep([request, started, author.event(llm_call(1, cost_usd=price), rollout), ended])
    view = _view(CAMPAIGN, RECORD, read(store, [], []), *_IDLE)
    assert (view.ended.priced, view.ended.cost_usd) == (False, None)
    assert (view.cost_usd, view.priced) == (price, known)
    screen = Console(width=200, file=StringIO())
    screen.print(status_table([view], PipelineView(), 200))
    assert f" {'0.25' if known else '-'} " in screen.file.getvalue()  # type: ignore[attr-defined]


async def test_a_model_that_is_not_told_of_its_tools_is_named_once(keep: Any) -> None:
    author = Author()
    runs = author.rollout(0, ["ls"], resolved=True)[:-1]
    rollout = runs[0].rollout_id or ""
    calls = [
        author.event(msgspec.structs.replace(llm_call(turn), tools_left_out=told), rollout)
        for turn, told in ((1, None), (2, True), (3, True), (4, False))
    ]
    view = _view(CAMPAIGN, RECORD, read(await keep([*runs, *calls]), [], []), InQueues(), "", [])
    (sentence,) = (hint for hint in hints(view, PipelineView()) if "not told of its tools" in hint)
    assert "m at endpoint default" in sentence


@pytest.mark.long
async def test_reading_the_tables_does_not_import_pandas(keep: Any) -> None:
    """Arrow does in many places, for as long as everything else that `status` does takes."""
    store = await keep(Author().rollout(0, ["ls"], resolved=True))
    script = (
        "import sys\n"
        "from orchard.actions.campaign_rows import read_rows\n"
        "from orchard.schemas.positions import START\n"
        "from orchard.storage.reader import log_end, open_tables\n"
        f"with open_tables({store!r}) as tables:\n"
        f"    assert log_end({store!r})[1]\n"
        "    assert read_rows(tables, ['demo'], {'demo': ['x']}, ['demo'], START).outcomes\n"
        "print(*{'pandas', 'aiohttp', 'pyarrow.dataset'} & sys.modules.keys())"
    )
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


async def test_impossible_tasks_that_were_passed_are_counted(keep: Any) -> None:
    author, events = Author(), []
    for sample, hack in enumerate((1.0, 0.0, 0.0)):
        *before, outcome = author.rollout(sample, ["ls"], resolved=False)
        reward = Reward(value=-1.0, resolved=False, grader="swe-tests", parts={"hack": hack})
        data = msgspec.json.decode(outcome.data)
        data["task_source"] = IMPOSSIBLE
        outcome = msgspec.structs.replace(outcome, data=msgspec.Raw(msgspec.json.encode(data)))
        events += [*before, author.event(reward, outcome.rollout_id or ""), outcome]
    view = _view(CAMPAIGN, RECORD, read(await keep(events), [], []), InQueues(), "", [])
    assert (view.tried_impossible, view.hacks) == (3, 1)
    assert "1 of 3 rollouts of impossible tasks passed (33.3%)" in " ".join(hints(view, PipelineView()))


async def test_a_rollout_is_shown_with_what_lies_in_blobs(keep: Any, command_line: Command) -> None:
    author = Author()
    events = author.rollout(0, ["ls", "echo found"], resolved=True)
    store = await keep()
    for at, event in enumerate(events):
        node = payload(event)
        if isinstance(node, MessageNode) and node.tool_calls:
            thought = msgspec.structs.replace(
                node, reasoning="It hides in the parser. " + "Hm. " * INLINE_LIMIT
            )
            data = slimmed(thought, BlobStore(store))
            events[at] = msgspec.structs.replace(event, data=msgspec.Raw(msgspec.json.encode(data)))
    assert "rest_blob" in "".join(bytes(event.data).decode() for event in events)
    await keep(events)
    done = command_line("show", events[0].rollout_id or "", store=store)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("It hides in the parser.") == 2
    assert "echo found" in done.stdout


@pytest.mark.long
async def test_commands_about_a_name_that_is_not_there_fail(keep: Any, command_line: Command) -> None:
    store = await keep(Author().rollout(0, ["ls"], resolved=True))
    for words, says in (
        ("rl groups nosuch", "the run 'nosuch' has no group yet"),
        ("rl what-if nosuch", "'nosuch' has no graded rollout"),
    ):
        done = command_line(*words.split(), store=store)
        assert (done.returncode, says in done.stderr) == (1, True), done.stderr
