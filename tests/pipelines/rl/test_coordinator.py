"""The coordinator over a real NATS server, with workers and a trainer that only publish what theirs would."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from orchard.pipelines.rl.bar import BarSettings
from orchard.pipelines.rl.coordinator import Coordinator, RunError, begin, subjects
from orchard.pipelines.rl.frugal import FrugalSettings
from orchard.pipelines.rl.plan import RunPlan, StepCurriculum, plan_hash
from orchard.pipelines.rl.progress import RunProgress, as_rollout
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import Budget, ModelSpec, RolloutRequest, TaskRef
from orchard.schemas.events import Event, RolloutAborted, RolloutFinished, make_event, payload
from orchard.schemas.groups import (
    BudgetRaised,
    GroupAssembled,
    GroupOutcome,
    PolicyUpdated,
    SkipReason,
)
from orchard.schemas.llm_calls import ModelKind
from orchard.schemas.outcomes import AbortCause, ExitStatus, RolloutStatus
from orchard.schemas.protection import Protected
from orchard.schemas.queues import Queue
from orchard.storage.blobs import BlobStore
from orchard.streams.claims import Claims
from orchard.streams.connection import Connection, connect
from orchard.streams.entries import FIRST, rollout_entry
from orchard.streams.publisher import Publisher
from orchard.streams.replay import replay
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings, TeamSettings
from orchard.streams.topology import declare

TEAMS = {"rl": TeamSettings()}
FRUGAL = FrugalSettings(decay=1.0)
Judge = Callable[[RolloutRequest, int], float | None]
"""The reward of a rollout's n-th try, None when it is aborted."""


@pytest.fixture
async def connection(nats_server: EmbeddedServer) -> AsyncIterator[Connection]:
    settings = NatsSettings(ack_wait=1.5, heartbeat=0.3)
    async with connect(settings, name="test", url=nats_server.url) as opened:
        await declare(opened, settings, [Queue()])
        yield opened


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return BlobStore(str(tmp_path / "store"))


def plan(**changes: object) -> RunPlan:
    tasks = tuple(
        TaskRef(task_id=f"t{number}", source="test", repo="a/b", blob=BlobRef(sha256="0" * 64, size=1))
        for number in range(7)
    )
    given = RunPlan(
        name="run",
        tasks=tasks,
        harness="h",
        model=ModelSpec(name="m"),
        bar=BarSettings(size=4, budget=8, stride=4, interval=(0.5, 0.5), max_aborts=2),
        prompts_per_step=3,
        steps=4,
        max_in_flight=40,
    )
    return msgspec.structs.replace(given, **changes)


LABELS = (Protected.VALUE, None)
"""Of the rewards of rollouts with an even and an odd sample."""
UNANSWERED = -0.5
"""The reward by which a judge says that the time ran out while the model owed an answer."""


def outcome(request: RolloutRequest, attempt: int, reward: float | None) -> Event:
    facts = {
        "task_id": request.task.task_id,
        "task_source": "test",
        "repo": "a/b",
        "harness": "h",
        "model": "m",
        "model_kind": ModelKind.MODEL,
        "sample": request.sample,
        "worker": "w",
        "started_at": datetime.now(UTC),
        "seconds": 1.0,
        "completion_tokens": 10 + request.sample % 5,
    }
    data: RolloutFinished | RolloutAborted
    if reward is None:
        data = RolloutAborted(**facts, cause=AbortCause.SANDBOX_DIED)
    else:
        data = RolloutFinished(
            **facts,
            status=RolloutStatus.COMPLETED,
            exit_status=ExitStatus.SUBMITTED if reward != UNANSWERED else ExitStatus.UNANSWERED,
            reward=reward,
            resolved=reward > 0,
            protected=LABELS[request.sample % 2],
        )
    return make_event(
        data,
        id=f"{request.rollout_id}.{attempt}.done",
        source="orchard/test",
        campaign=request.campaign,
        rollout_id=request.rollout_id,
        attempt=attempt,
    )


@asynccontextmanager
async def workers(
    connection: Connection, judge: Judge, count: int = 4, queues: Sequence[Queue] = (Queue(),)
) -> AsyncIterator[Counter[str]]:
    """Claim loops that publish outcomes under the fence, as workers do; how often each rollout was run."""
    runs: Counter[str] = Counter()
    publisher = Publisher(connection)

    async def loop(claims: Claims) -> None:
        while True:
            claim = await claims.next(timeout=5.0)
            if claim is None:
                continue
            request = msgspec.json.decode(claim.body, type=RolloutRequest)
            last = await publisher.outcome(request.rollout_id)
            if last is None or last.sequence == request.fence:
                runs[request.rollout_id] += 1
                number = runs[request.rollout_id]
                await publisher.terminal(outcome(request, number, judge(request, number)), request.fence)
            await claim.complete()

    async with Claims(connection, queues[0], queues[1:], TEAMS) as claims:
        tasks = [asyncio.create_task(loop(claims)) for _ in range(count)]
        try:
            yield runs
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def train(connection: Connection, run: RunPlan, start: int) -> None:
    """Take groups in the order of the log, a step's worth at a time."""
    progress, publisher, version = RunProgress(run), Publisher(connection), 0
    async for stored in replay(connection, start, subjects=subjects(run.name), follow=True):
        if stored.event is None:
            continue
        progress.apply(stored.event, stored.sequence)
        batch = [group.group_id for group in progress.ready if not group.degenerate][: run.prompts_per_step]
        if len(batch) == run.prompts_per_step and not progress.evaluation_due:
            version += 1
            update = PolicyUpdated(
                run=run.name, version=version, step=version, groups=tuple(batch), position=stored.sequence
            )
            event = make_event(
                update, id=f"{run.name}.policy.{version}", source="orchard/test", campaign=run.name
            )
            await publisher.event(event)
            progress.apply(event, 0)
        if progress.finished:
            return


async def finished(connection: Connection, run: RunPlan, start: int) -> RunProgress:
    """The run's progress as the log has it now."""
    progress = RunProgress(run)
    async for stored in replay(connection, start, subjects=subjects(run.name)):
        if stored.event is not None:
            progress.apply(stored.event, stored.sequence)
    return progress


def fair(request: RolloutRequest, _: int) -> float:
    return random.Random(request.rollout_id).choice([1.0, -1.0])


async def test_a_run_ends_with_every_group_that_the_plan_asks_for(
    connection: Connection, blobs: BlobStore
) -> None:
    run = plan()
    start = await begin(connection, blobs, run)
    async with asyncio.timeout(60), workers(connection, fair) as runs:
        await asyncio.gather(train(connection, run, start), Coordinator(connection, run).run(start))
    progress = await finished(connection, run, start)
    assert len(progress.trained) == run.groups
    assert set(runs.values()) == {1}
    for name in progress.trained:
        group = progress.groups[name]
        assert len(group.members) == 4 and group.positive in (1, 2, 3)
        assert sum(member.reward > 0 for member in group.members) == group.positive
        samples = {run.request(group.prompt, slot).rollout_id: slot for slot in range(run.slots)}
        even = {member.rollout_id for member in group.members if samples[member.rollout_id] % 2 == 0}
        assert group.protected == dict.fromkeys(even, Protected.VALUE)
    assert {progress.groups[name].prompt for name in progress.dropped}.isdisjoint(
        progress.groups[name].prompt for name in progress.trained
    )


async def test_a_run_of_a_team_has_its_share_beside_a_campaign_of_thousands(
    connection: Connection, blobs: BlobStore
) -> None:
    """It ends while most of the campaign still waits, which was there before."""
    queues = [Queue(team=team) for team in ("", *TEAMS)]
    await declare(connection, connection.settings, queues, TEAMS)
    run, campaign = plan(team="rl", steps=2), plan(name="campaign")
    await Publisher(connection).offer_all(
        [rollout_entry(campaign.request(prompt, 0), FIRST) for prompt in range(5_000)]
    )
    start = await begin(connection, blobs, run)
    async with asyncio.timeout(120), workers(connection, fair, queues=queues) as runs:
        await asyncio.gather(train(connection, run, start), Coordinator(connection, run).run(start))
    theirs = {campaign.request(prompt, 0).rollout_id for prompt in range(5_000)}
    assert theirs & runs.keys() and not theirs <= runs.keys()


@pytest.mark.parametrize("first", [None, UNANSWERED], ids=["aborted", "unanswered"])
async def test_rollouts_that_train_nobody_are_refilled_in_their_slots_and_never_count(
    connection: Connection, blobs: BlobStore, first: float | None
) -> None:
    run = plan(steps=2)
    start = await begin(connection, blobs, run)

    def judge(request: RolloutRequest, number: int) -> float | None:
        return first if number == 1 and request.sample % 8 == 2 else fair(request, number)

    async with asyncio.timeout(60), workers(connection, judge) as runs:
        await asyncio.gather(train(connection, run, start), Coordinator(connection, run).run(start))
    progress = await finished(connection, run, start)
    assert max(runs.values()) == 2
    assert all(group.aborted == 1 for group in progress.groups.values())
    assert all(
        member.attempt == runs[member.rollout_id]
        for group in progress.groups.values()
        for member in group.members
    )


def test_a_rollout_whose_answer_did_not_come_trains_only_where_that_is_asked_for() -> None:
    run = plan()
    event = outcome(run.request(0, 0), 1, UNANSWERED)
    data = payload(event)
    assert as_rollout(data).status is RolloutStatus.ABORTED
    assert as_rollout(data, unanswered=True).reward == UNANSWERED
    assert plan_hash(run) != plan_hash(msgspec.structs.replace(run, unanswered=True))


async def test_a_prompt_that_infrastructure_never_lets_finish_fails_with_its_causes(
    connection: Connection, blobs: BlobStore
) -> None:
    run = plan(steps=1)
    start = await begin(connection, blobs, run)
    bad = run.task_of(0).task_id

    def judge(request: RolloutRequest, number: int) -> float | None:
        return None if request.task.task_id == bad else fair(request, number)

    async with asyncio.timeout(60), workers(connection, judge):
        await asyncio.gather(train(connection, run, start), Coordinator(connection, run).run(start))
    progress = await finished(connection, run, start)
    assert {failure.task_id for failure in progress.failed.values()} == {bad}
    assert set(progress.failed[0].causes) == {"sandbox_died"}
    assert len(progress.trained) == run.groups


class Mortal(Publisher):
    """Dies instead of the publication after the next `left` ones."""

    def __init__(self, connection: Connection, left: int) -> None:
        super().__init__(connection)
        self._left = left

    async def event(self, event: Event) -> int:
        self._left -= 1
        if self._left < 0:
            raise asyncio.CancelledError
        return await super().event(event)


@pytest.mark.long
@pytest.mark.parametrize("method", [{}, {"frugal": FRUGAL}], ids=["bar", "frugal"])
async def test_coordinators_killed_at_any_point_decide_every_prompt_once(
    connection: Connection, blobs: BlobStore, method: dict[str, object]
) -> None:
    """Each is cancelled after a few of its publications, wherever that is; two always run at once."""
    run = plan(steps=3, **method)
    start = await begin(connection, blobs, run)
    dice = random.Random(1)

    def judge(request: RolloutRequest, number: int) -> float | None:
        unlucky = random.Random(f"{request.rollout_id}.{number}").random() < 0.1
        return None if unlucky else fair(request, number)

    async def mortal() -> None:
        while True:
            coordinator = Coordinator(connection, run)
            left = dice.randint(1, 12)
            coordinator._publisher = Mortal(connection, left)
            with suppress(asyncio.CancelledError):
                await coordinator.run(start)
                return

    async with asyncio.timeout(120), workers(connection, judge):
        await asyncio.gather(train(connection, run, start), mortal(), mortal())
    decided: Counter[str] = Counter()
    async for stored in replay(connection, start, subjects="orchard.events.decided.run.*"):
        decided[stored.subject] += 1
    progress = await finished(connection, run, start)
    assert set(decided.values()) == {1}
    assert len(progress.trained) == run.groups
    graded = {
        place.rollout_id
        for prompt in progress.prompts.values()
        for place in prompt.places.values()
        if not place.running
    }
    asked = {place.rollout_id for prompt in progress.prompts.values() for place in prompt.places.values()}
    assert len(asked) == len(graded) + progress.in_flight
    members = [member.rollout_id for group in progress.groups.values() for member in group.members]
    assert len(members) == len(set(members)), "no rollout is in two groups"


async def test_frugal_sampling_says_of_every_prompt_what_it_did_and_why(
    connection: Connection, blobs: BlobStore
) -> None:
    """One task is never solved, one always; the others now and then."""
    run = plan(steps=8, frugal=FRUGAL)
    start = await begin(connection, blobs, run)
    hopeless, trivial = (run.tasks[at].task_id for at in (0, 1))

    def judge(request: RolloutRequest, number: int) -> float:
        known = {hopeless: -1.0, trivial: 1.0}.get(request.task.task_id)
        return fair(request, number) if known is None else known

    async with asyncio.timeout(60), workers(connection, judge):
        await asyncio.gather(train(connection, run, start), Coordinator(connection, run).run(start))
    progress = await finished(connection, run, start)
    assert len(progress.trained) == run.groups
    for number, decision in progress.decisions.items():
        own = [place.rollout_id for place in progress.prompts[number].places.values()]
        named = [member.rollout_id for member in decision.members]
        assert decision.generated == len(own) and decision.reason and decision.gain is not None
        if decision.outcome is GroupOutcome.ONE_CLASS:
            assert decision.degenerate and not named and decision.task_id not in progress.trained
        else:
            assert decision.outcome is GroupOutcome.MIXED and decision.task_id not in (hopeless, trivial)
            assert set(own) <= set(named) and len(named) == len(own) + (decision.carried or 0)
            assert 4 <= len(named) <= 8 and 0 < decision.positive < len(named)
    reasons = {skip.task_id: skip.reason for skip in progress.skipped.values()}
    assert (reasons[hopeless], reasons[trivial]) == (SkipReason.NEAR_ZERO, SkipReason.NEAR_ONE)
    assert all(0 < skip.probability < 1 for skip in progress.skipped.values())
    visits = Counter(group.task_id for group in progress.decisions.values())
    assert visits[hopeless] < visits[run.tasks[2].task_id] > visits[trivial]
    assert not progress.dropped, "nothing of one class is made into a group to be dropped"


async def test_what_a_prompt_left_over_joins_the_next_group_of_its_task(
    connection: Connection, blobs: BlobStore
) -> None:
    """The first prompt of each task fails throughout, so its rollouts are failures that wait."""
    run = plan(steps=1, ahead=3, frugal=msgspec.structs.replace(FRUGAL, give_up=4, explore=1.0))
    start = await begin(connection, blobs, run)

    def judge(request: RolloutRequest, _: int) -> float:
        prompt, slot = run.place_of(request.sample)
        return -1.0 if prompt < len(run.tasks) or slot else 1.0

    async with asyncio.timeout(60), workers(connection, judge):
        await asyncio.gather(train(connection, run, start), Coordinator(connection, run).run(start))
    progress = await finished(connection, run, start)
    carried = [group for group in progress.groups.values() if group.carried]
    assert carried and {(len(group.members), group.generated, group.carried) for group in carried} == {
        (8, 4, 4)
    }
    for group in carried:
        earlier = {run.place_of(sample)[0] for sample in _samples(progress, group)} - {group.prompt}
        assert {run.task_of(number) for number in earlier} == {run.task_of(group.prompt)}


def _samples(progress: RunProgress, group: GroupAssembled) -> list[int]:
    named = {member.rollout_id for member in group.members}
    return [
        progress.plan.sample_of(number, slot)
        for number, prompt in progress.prompts.items()
        for slot, place in prompt.places.items()
        if place.rollout_id in named
    ]


async def test_a_budget_is_raised_once_though_its_coordinator_is_killed(
    connection: Connection, blobs: BlobStore
) -> None:
    """Every rollout of a prompt has the same budget, and what is asked for is what the log says."""
    curriculum = StepCurriculum(steps=30, window=1, rise=1.0)
    run = plan(steps=5, budget=Budget(steps=15), curriculum=curriculum)
    start = await begin(connection, blobs, run)
    dice = random.Random(2)

    async def mortal() -> None:
        while True:
            coordinator = Coordinator(connection, run)
            coordinator._publisher = Mortal(connection, dice.randint(1, 12))
            with suppress(asyncio.CancelledError):
                await coordinator.run(start)
                return

    async with asyncio.timeout(60), workers(connection, fair):
        await asyncio.gather(train(connection, run, start), mortal())
    raised, asked = [], []
    async for stored in replay(connection, start, subjects=subjects("run")):
        fact = payload(stored.event) if stored.event else None
        if isinstance(fact, BudgetRaised):
            raised.append(fact)
        elif isinstance(fact, RolloutRequest):
            asked.append((run.place_of(fact.sample)[0], fact.budget.steps))
    (only,) = raised
    assert only.version >= 2 and {prompt >= only.prompt for prompt, _ in asked} == {True, False}
    assert all(steps == (30 if prompt >= only.prompt else 15) for prompt, steps in asked)


async def test_rollouts_wait_for_the_trainer(connection: Connection, blobs: BlobStore) -> None:
    run = plan(steps=5, ahead=0, oversample=1.0)
    start = await begin(connection, blobs, run)
    coordinator = Coordinator(connection, run)
    async with asyncio.timeout(60), workers(connection, lambda request, _: (-1.0) ** request.sample):
        following = asyncio.create_task(coordinator.run(start))
        while len((await finished(connection, run, start)).ready) < run.prompts_per_step:
            await asyncio.sleep(0.02)
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
    assert len(coordinator.progress.prompts) == run.prompts_per_step


async def test_no_rollout_is_asked_for_before_the_newest_policy_is_served(
    connection: Connection, blobs: BlobStore
) -> None:
    run = plan(steps=2, ahead=0)
    start = await begin(connection, blobs, run)
    served, asked = asyncio.Event(), list[int]()

    async def wait_for(version: int) -> None:
        asked.append(version)
        await served.wait()

    async with asyncio.timeout(60), workers(connection, fair):
        running = asyncio.create_task(Coordinator(connection, run, wait_for).run(start))
        while not asked:
            await asyncio.sleep(0.02)
        assert not (await finished(connection, run, start)).prompts
        served.set()
        await asyncio.gather(train(connection, run, start), running)
    assert asked == sorted(asked) and set(asked) == {0, 1}


async def test_another_plan_under_the_same_name_is_refused(connection: Connection, blobs: BlobStore) -> None:
    start = await begin(connection, blobs, plan())
    assert await begin(connection, blobs, plan()) == start
    with pytest.raises(RunError, match="exists with another plan"):
        await begin(connection, blobs, plan(steps=5))


class TestPlan:
    def test_every_pass_has_every_task_once_in_an_order_of_its_own(self) -> None:
        run = plan()
        first, second = ([run.task_of(turn * 7 + place).task_id for place in range(7)] for turn in range(2))
        assert sorted(first) == sorted(second) and first != second

    def test_places_and_samples_are_one_to_one(self) -> None:
        run = plan()
        places = [(prompt, slot) for prompt in range(5) for slot in range(8)]
        samples = [run.sample_of(*place) for place in places]
        assert [run.place_of(sample) for sample in samples] == places
        assert len({run.request(*place).rollout_id for place in places}) == len(places)

    @pytest.mark.parametrize(
        ("counts", "expected"),
        [
            ({"trained": 0, "ready": 0, "undecided": 0, "in_flight": 0}, 8),
            ({"trained": 0, "ready": 0, "undecided": 8, "in_flight": 32}, 0),
            ({"trained": 0, "ready": 6, "undecided": 0, "in_flight": 0}, 0),
            ({"trained": 9, "ready": 0, "undecided": 0, "in_flight": 0}, 4),
            ({"trained": 0, "ready": 0, "undecided": 0, "in_flight": 33}, 1),
        ],
    )
    def test_what_is_begun_follows_from_what_is_missing(self, counts: dict[str, int], expected: int) -> None:
        assert plan().prompts_to_open(**counts) == expected
