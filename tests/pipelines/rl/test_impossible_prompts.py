"""Impossible tasks among the prompts of a run: at the share asked for, measured, never trained on."""

import asyncio
from collections import Counter
from typing import Any

import msgspec
import pytest

from orchard.cli.rl import _warn
from orchard.pipelines.campaigns.commands import requested_event
from orchard.pipelines.rl.bar import Assemble, BarSettings, Generate, GiveUp, decide
from orchard.pipelines.rl.coordinator import Coordinator, RunError, begin, subjects
from orchard.pipelines.rl.curves import hack_rates
from orchard.pipelines.rl.deciding import decide as decision
from orchard.pipelines.rl.feed import Feed
from orchard.pipelines.rl.frugal import FrugalSettings
from orchard.pipelines.rl.progress import RunProgress, RunPrompt
from orchard.pipelines.rl.runs import choose_traps, make_plan, planned_by
from orchard.pipelines.rl.what_if import graded_pools
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import TaskRef
from orchard.schemas.events import payload
from orchard.schemas.groups import GroupAssembled, GroupOutcome
from orchard.schemas.messages import TokenRecord, VersionRun
from orchard.schemas.outcomes import Reward
from orchard.schemas.tasks import IMPOSSIBLE
from orchard.storage.blobs import BlobStore
from orchard.storage.reader import open_tables
from orchard.streams.connection import Connection
from orchard.streams.replay import replay
from tests.pipelines.datasets.conftest import keep
from tests.pipelines.rl.test_bar import aborted, graded
from tests.pipelines.rl.test_coordinator import blobs, connection, fair, finished, plan, train, workers
from tests.pipelines.rl.test_feed import stored
from tests.pipelines.rl.written_log import TASKS, about, conversation, message, run_settings
from tests.pipelines.rl.written_log import finished as done
from tests.trajectory_log import CAMPAIGN, Author

__all__ = ["blobs", "connection", "keep"]

TRAPS = tuple(
    TaskRef(task_id=f"i{number}", source=IMPOSSIBLE, repo="a/b", blob=BlobRef(sha256="0" * 64, size=1))
    for number in range(3)
)


@pytest.mark.parametrize("share", [0.05, 0.1, 1 / 3, 0.9])
def test_any_number_of_prompts_has_the_share_that_was_asked_for(share: float) -> None:
    run = plan(impossible=share, traps=TRAPS)
    tasks = [run.task_of(prompt) for prompt in range(400)]
    for count in range(1, 401):
        asked = sum(task.source == IMPOSSIBLE for task in tasks[:count])
        assert abs(asked - share * count) <= 1
    for source, of in ((IMPOSSIBLE, TRAPS), ("test", run.tasks)):
        names = [task.task_id for task in tasks if task.source == source]
        assert all(len(set(names[at : at + len(of)])) == len(of) for at in range(0, 12, len(of)))
    places = [(prompt, slot) for prompt in range(60) for slot in range(8)]
    assert len({run.request(*place).rollout_id for place in places}) == len(places)


def test_without_a_share_prompts_are_as_they_were() -> None:
    run = plan()
    assert [run.task_of(prompt).task_id for prompt in range(7)] == ["t2", "t3", "t1", "t0", "t6", "t5", "t4"]


def test_of_an_impossible_task_one_stride_is_asked_and_nobody_is_a_member() -> None:
    bar = BarSettings(size=4, budget=8, stride=4, interval=(0.5, 0.5))
    assert decide([], bar, impossible=True) == Generate(slots=(0, 1, 2, 3))
    passed = [graded(1.0)] * 3
    assert decide([*passed, aborted("node_lost")], bar, impossible=True) == Generate(slots=(3,))
    for pool in ([*passed, graded(-1.0)], [graded(-1.0)] * 4):
        assert decide(pool, bar, impossible=True) == Assemble(
            slots=(), outcome=GroupOutcome.IMPOSSIBLE, positive=0, degenerate=True
        )


def test_of_an_impossible_task_frugal_sampling_asks_its_first_stride_in_the_prompts_own_slots() -> None:
    sizes = FrugalSettings(least=2, most=4, stride=2, give_up=4)
    run = make_plan(run_settings(impossible=0.5, bar=BarSettings(), frugal=sizes), TASKS, TRAPS)
    progress = RunProgress(run)
    progress.prompts[1] = RunPrompt()
    assert run.is_trap(1) and decision(progress, 1) == Generate(slots=(0, 1))


def test_an_impossible_task_of_which_too_many_were_aborted_is_never_trained_on() -> None:
    bar = BarSettings(size=4, budget=8, stride=8, interval=(0.5, 0.5), max_aborts=2)
    lost, passed = [aborted("node_lost")] * 3, [graded(1.0), graded(-1.0)] * 2
    assert decide([*passed, *lost, aborted(running=True)], bar, impossible=True) == Generate(slots=())
    found = decide([*passed, *lost, graded(-1.0)], bar, impossible=True)
    assert found == Assemble(slots=(), outcome=GroupOutcome.IMPOSSIBLE, positive=0, degenerate=True)
    assert isinstance(decide([aborted("node_lost")] * 8, bar, impossible=True), GiveUp)


async def test_a_run_trains_on_none_of_them_though_they_were_rewarded(
    connection: Connection, blobs: BlobStore
) -> None:
    run = plan(impossible=0.25, traps=TRAPS)
    start = await begin(connection, blobs, run)
    async with asyncio.timeout(300), workers(connection, fair) as runs:
        await asyncio.gather(train(connection, run, start), Coordinator(connection, run).run(start))
    progress = await finished(connection, run, start)
    assert len(progress.trained) == run.groups
    tasks = Counter(run.task_of(progress.groups[name].prompt).source for name in progress.trained)
    assert set(tasks) == {"test"}
    decided = []
    async for event in replay(connection, start, subjects=subjects(run.name)):
        fact = payload(event.event) if event.event else None
        if isinstance(fact, GroupAssembled) and fact.task_id.startswith("i"):
            decided.append((fact.outcome, fact.members, fact.degenerate, fact.generated))
    assert len(decided) >= 3
    assert set(decided) == {(GroupOutcome.IMPOSSIBLE, (), True, run.bar.step)}
    assert progress.finished and set(runs.values()) == {1}


@pytest.mark.parametrize("keep_degenerate", [True, False])
def test_no_trainer_is_given_one(tmp_path: Any, keep_degenerate: bool) -> None:
    """Neither with groups of one class, as in GRPO, nor without; and what was said in them is forgotten."""
    settings = run_settings(impossible=0.5, keep_degenerate=keep_degenerate)
    run = make_plan(settings, TASKS, TRAPS)
    assert [run.is_trap(prompt) for prompt in range(4)] == [False, True, False, True]
    feed = Feed(run, BlobStore(str(tmp_path)))
    events = []
    for slot in range(2):
        request = run.request(1, slot)
        said = [message(request, at, tokens) for at, tokens in enumerate(conversation(slot))]
        events += [requested_event(request), *said, done(request, -1.0)]
    group = GroupAssembled(
        run=run.name,
        group_id="run.1",
        prompt=1,
        task_id=run.task_of(1).task_id,
        outcome=GroupOutcome.IMPOSSIBLE,
        members=(),
        positive=0,
        degenerate=True,
        generated=2,
    )
    feed.take(stored([*events, about(run.request(1, 0), group, "decided")]))
    assert (feed.waiting, feed._messages, feed.progress.undecided) == ([], {}, [])


@pytest.mark.long
async def test_a_policy_that_surely_cheats_is_named_once_and_what_if_leaves_its_rollouts_out(
    keep: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    author, events = Author(), []
    for sample in range(9):
        tokens = TokenRecord(
            ids=(1,), logprobs=(-1.0,), versions=(VersionRun(start=0, version=1 + sample % 2),)
        )
        said = author.rollout(sample, ["ls"], resolved=False, tokens=lambda *_, tokens=tokens: tokens)
        *before, outcome = said
        hack = float(sample < 4)
        reward = Reward(value=-1.0, resolved=False, grader="swe-tests", parts={"hack": hack})
        data = msgspec.json.decode(outcome.data) | {"task_source": IMPOSSIBLE if sample < 8 else "test"}
        outcome = msgspec.structs.replace(outcome, data=msgspec.Raw(msgspec.json.encode(data)))
        events += [*before, author.event(reward, outcome.rollout_id or ""), outcome]
    store = await keep(events)
    with open_tables(store) as tables:
        rates = hack_rates(tables, CAMPAIGN)
        assert [len(pool) for pool in graded_pools(tables, CAMPAIGN).values()] == [1]
    assert [(rate.version, rate.hacked, rate.rollouts) for rate in rates] == [(1, 2, 4), (2, 2, 4)]
    settings, told = run_settings(run=CAMPAIGN, impossible=0.1), set[int]()
    for times in (1, 0):
        _warn(store, settings, told)
        assert capsys.readouterr().out.count("passes 2 of 4 impossible tasks") == 2 * times
    _warn(store, msgspec.structs.replace(settings, hack_limit=0.6), set())
    _warn(store, msgspec.structs.replace(settings, impossible=0.0), set())
    assert capsys.readouterr().out == ""


def test_a_store_without_any_is_told_so_and_a_changed_share_is_another_plan(tmp_path: Any) -> None:
    assert choose_traps(str(tmp_path), 0.0) == ()
    with pytest.raises(RunError, match="`orchard tasks impossible` makes some"):
        choose_traps(str(tmp_path), 0.1)
    none, some, more = (run_settings(impossible=share) for share in (0.0, 0.1, 0.2))
    plans = {0.0: make_plan(none, TASKS), 0.1: make_plan(some, TASKS, TRAPS[:1])}
    assert planned_by(none, plans[0.0]) and planned_by(some, plans[0.1])
    for settings, share in ((none, 0.1), (some, 0.0), (more, 0.1)):
        assert not planned_by(settings, plans[share])
    with pytest.raises(RunError, match="must be given together"):
        make_plan(run_settings(impossible=0.1), TASKS)
