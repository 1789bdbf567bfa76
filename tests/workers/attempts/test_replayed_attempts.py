"""A second attempt does not pay twice: deaths of workers and sandboxes on a real queue, in real sandboxes."""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from orchard.actions.campaign_status import PipelineView, read_status
from orchard.actions.session import Session
from orchard.cli.reading import show_rollout
from orchard.configuration.config import load
from orchard.pipelines.campaigns.commands import Campaigns
from orchard.schemas.campaigns import Budget
from orchard.schemas.events import RolloutAborted, RolloutFinished, SandboxCreated, payload
from orchard.schemas.subjects import done_subject
from orchard.storage.digest import store_digests
from orchard.storage.spending import spent_now
from orchard.storage.upkeep.maintenance import rebuild_derived, rebuild_events
from orchard.streams.campaigns import CampaignBook
from orchard.streams.publisher import Publisher
from orchard.streams.replay import replay
from orchard.streams.server import EmbeddedServer
from orchard.terminal.campaign_tables import campaign_table
from orchard.terminal.console import console
from orchard.workers.attempts import retries
from orchard.workers.harnesses import get_harness
from tests.attempts_world import QUICK_RETRIES, SECONDS, World, seed_of, world
from tests.sandbox_service import LocalService
from tests.tiny_tasks import tiny_service, tiny_task

COMMANDS = (
    "cat arithmetic/mod_1.py",
    "ls arithmetic",
    "python3 -m unittest -v 2>&1",  # prints how long it took
    "git log --format=%s",
    "sed -i 's/left - right/left + right/' arithmetic/mod_1.py",
    "git diff --stat",
    "grep -n total arithmetic/mod_1.py",
    "cat README",
    "git status --short",
)
TURNS = len(COMMANDS) + 1
"""The last one submits."""
SECOND, THIRD = 2, 3
"""Numbers of the attempts after one and two that were released."""
MESSAGES = (
    "select role, regexp_replace(content, ' in [0-9.]+s', ' in no time'), turn from messages "
    "where rollout_id = '{}' order by sequence"
)
"""Without the ids of the nodes, which follow from the contents."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalService]:
    async with tiny_service(tmp_path_factory.mktemp("replayed") / "state") as service:
        yield service


@pytest.fixture
async def place(
    nats_server: EmbeddedServer, service: LocalService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    monkeypatch.setattr(retries, "ROLLOUTS", QUICK_RETRIES)
    async with world(nats_server.url, service.url, tmp_path / "store", COMMANDS) as made:
        yield made


def dying(place: World, rollout: str, *deaths: int) -> None:
    """End the rollout's sandbox when the turn is asked about, on so many of its first requests."""

    def at(turn: int) -> None:
        async def die(seed: int) -> None:
            if seed == seed_of(rollout) and place.model.asked[seed, turn] <= deaths.count(turn):
                await place.left(rollout, turn - 1)
                await place.end_sandbox(rollout)

        place.model.hooks[turn] = die

    for turn in set(deaths):
        at(turn)


def asked(**twice: int) -> Counter[int]:
    """Each turn once, and those named as `t5=2` as often as they say."""
    return Counter({turn: twice.get(f"t{turn}", 1) for turn in range(1, TURNS + 1)})


async def finished(place: World, rollout: str) -> RolloutFinished:
    data = payload((await place.outcomes(rollout))[rollout])
    assert isinstance(data, RolloutFinished), data
    return data


async def test_after_a_dead_sandbox_the_rollout_is_the_one_it_would_have_been(
    place: World, tmp_path: Path
) -> None:
    calm, hit = await place.submit(tiny_task(1), samples=2)
    dying(place, hit, 7)
    async with place.working():
        first, second = await finished(place, calm), await finished(place, hit)
        async with asyncio.timeout(SECONDS):  # its outcome is known: the trail is of no use any more
            while await Publisher(place.connection).replay_pointers.find(hit) is not None:
                await asyncio.sleep(0.05)

    # Turn 7 ended its sandbox for all that is known, so it is asked about again; no earlier one is.
    assert place.model.turns(seed_of(calm)) == asked()
    assert place.model.turns(seed_of(hit)) == asked(t7=2)
    assert await place.rows(MESSAGES.format(calm)) == await place.rows(MESSAGES.format(hit))
    same = ("reward", "resolved", "submission", "exit_status", "turns", "llm_calls")
    assert [getattr(first, name) for name in same] == [getattr(second, name) for name in same]
    assert second.resolved is True
    assert (second.prompt_tokens, second.cost_usd) == (
        first.prompt_tokens,
        pytest.approx(first.cost_usd),
    )

    # What was saved is counted, and each call of the trajectory is there once, whoever made it.
    assert (first.inherited_turns, second.inherited_turns) == (0, 6)
    assert await place.rows(
        "select from_attempt, turns, messages, divergence, prompt_tokens + completion_tokens "
        "from tables.attempts_all where kind = 'inherited'"
    ) == [(1, 6, 2 + 2 * 6, "", second.inherited_tokens)]
    saved = await place.rows(
        f"select sum(prompt_tokens + completion_tokens), sum(cost_usd) from llm_calls "
        f"where rollout_id = '{hit}' and attempt = 1"
    )
    assert saved == [(second.inherited_tokens, pytest.approx(second.inherited_cost_usd))]
    assert await place.rows(
        "select rollout_id, count(*), count(distinct turn) from llm_calls group by 1 order by 2, 1"
    ) == [(name, TURNS, TURNS) for name in sorted([calm, hit])]
    assert await place.rows("select attempt, turn from llm_calls_all where abandoned") == [(1, 7)]
    assert await place.rows(
        "select inherited_from, count(*) from messages where inherited_from is not null group by 1"
    ) == [(1, 14)]
    live = store_digests(str(place.store))
    (tmp_path / "rebuilt").mkdir()
    await rebuild_events(str(tmp_path / "rebuilt"), place.connection)
    rebuild_derived(str(tmp_path / "rebuilt"))
    assert store_digests(str(tmp_path / "rebuilt")) == live


@pytest.mark.long
async def test_a_worker_that_is_killed_leaves_its_turns_to_the_next(
    place: World, capsys: pytest.CaptureFixture[str]
) -> None:
    (rollout,) = await place.submit(tiny_task(1))
    first = place.worker_process("first")
    following = []

    async def kill(_: int) -> None:
        if not following:
            await place.left(rollout, 5)
            first.send_signal(signal.SIGKILL)
            following.append(place.worker_process("second"))

    place.model.hooks[6] = kill
    try:
        outcome = await finished(place, rollout)
    finally:
        for process in (first, *following):
            process.kill()
            process.wait()

    assert place.model.turns() == asked(t6=2)  # its first answer was on its way when nobody was left
    assert (outcome.inherited_turns, outcome.turns, outcome.resolved) == (5, TURNS, True)
    assert (await place.outcomes(rollout))[rollout].attempt == 2
    assert await place.rows("select attempt, ending, inherited_turns from attempts order by 1") == [
        (1, "lost", 0),
        (2, "completed", 5),
    ]
    session = Session(load({"store": str(place.store)}))
    show_rollout(session, rollout, full=False)
    shown = capsys.readouterr().out
    assert shown.count("(replayed from attempt 1)") == 2 + 2 * 5 - 1  # the last answer's result came too late
    assert "inherited_tokens" in shown
    found = await CampaignBook(place.connection).get("demo")
    assert found is not None
    view = (await read_status(session, place.connection, {"demo": found[0]}, {})).campaigns[0]
    assert (view.saved.turns, view.saved.tokens) == (5, outcome.inherited_tokens)
    console.print(campaign_table(view, PipelineView()))
    assert "replayed from dead attempts: 5 turns" in capsys.readouterr().out


@pytest.mark.long
async def test_what_the_world_does_differently_ends_the_adoption(place: World) -> None:
    place.model.commands = (*COMMANDS[:3], "date +%N", *COMMANDS[4:])
    (rollout,) = await place.submit(tiny_task(1))
    dying(place, rollout, 7)
    async with place.working():
        outcome = await finished(place, rollout)

    # The message that asked for the time is kept: it answers messages that were equal.
    assert place.model.turns() == asked(t5=2, t6=2, t7=2)
    assert (outcome.inherited_turns, outcome.turns) == (4, TURNS)
    ((divergence, leaf),) = await place.rows(
        "select divergence, leaf from tables.attempts_all where kind = 'inherited'"
    )
    assert "date +%N" in divergence
    assert await place.rows(f"select role, turn from messages where node_id = '{leaf}'") == [("assistant", 4)]
    assert await place.rows("select role, inherited_from from messages where turn = 4 order by sequence") == [
        ("assistant", 1),
        ("tool", None),
    ]


@pytest.mark.long
async def test_an_attempt_inherits_what_another_has_inherited(place: World) -> None:
    (rollout,) = await place.submit(tiny_task(1), max_tries=4)
    dying(place, rollout, 4, 8)
    async with place.working():
        outcome = await finished(place, rollout)

    assert place.model.turns() == asked(t4=2, t8=2)
    assert (outcome.inherited_turns, outcome.llm_calls) == (7, TURNS)
    assert await place.rows(
        "select inherited_from, count(*) from messages where role = 'assistant' group by 1 order by 1"
    ) == [(1, 3), (SECOND, 4), (None, 3)]
    assert await place.rows("select attempt, count(*) from llm_calls group by 1 order by 1") == [
        (1, 3),
        (SECOND, 4),
        (THIRD, 3),
    ]


@pytest.mark.long
async def test_a_record_that_kills_is_replayed_once(place: World) -> None:
    (rollout,) = await place.submit(tiny_task(1), max_tries=4)
    dying(place, rollout, 5, 5)
    async with place.working():
        outcome = await finished(place, rollout)

    assert place.model.turns() == asked(t1=2, t2=2, t3=2, t4=2, t5=3)
    assert (outcome.inherited_turns, outcome.resolved) == (0, True)
    assert await place.rows("select attempt, inherited_turns from attempts order by 1") == [
        (1, 0),
        (SECOND, 4),
        (THIRD, 0),
    ]


@pytest.mark.long
async def test_a_worker_that_drains_while_it_replays_leaves_the_record_as_it_was(place: World) -> None:
    (rollout,) = await place.submit(tiny_task(1), max_tries=4)
    replayed = asyncio.Event()

    async def die_then_drain(seed: int) -> None:
        if place.model.asked[seed, 5] == 1:
            await place.left(rollout, 4)
            await place.end_sandbox(rollout)
        elif place.model.asked[seed, 5] == 2:
            replayed.set()
            await asyncio.Event().wait()

    place.model.hooks[5] = die_then_drain
    async with place.working():
        await asyncio.wait_for(replayed.wait(), SECONDS)
    async with place.working():
        outcome = await finished(place, rollout)

    assert place.model.turns() == asked(t5=3)
    assert outcome.inherited_turns == 4


@pytest.mark.long
async def test_a_dead_grading_costs_no_call(place: World) -> None:
    (rollout,) = await place.submit(tiny_task(1))

    async def end_grading() -> None:
        async for stored in replay(
            place.connection, subjects="orchard.events.*.*.sandbox.created", follow=True
        ):
            created = stored.event and payload(stored.event)
            if isinstance(created, SandboxCreated) and created.purpose == "grading":
                await place.sandboxes.delete_sandbox(created.sandbox_id)
                return

    async with place.working(), asyncio.TaskGroup() as tasks:
        tasks.create_task(end_grading())
        outcome = await finished(place, rollout)

    assert place.model.turns() == asked()
    assert (outcome.inherited_turns, outcome.resolved) == (TURNS, True)
    assert outcome.submission.startswith("diff --git")
    assert await place.rows("select attempt, ending from attempts order by 1") == [
        (1, "released"),
        (SECOND, "completed"),
    ]


@pytest.mark.long
async def test_a_rollout_aborted_and_resumed_again_and_again_does_not_pay_twice_either(place: World) -> None:
    (rollout,) = await place.submit(tiny_task(1), max_tries=1)
    dying(place, rollout, 5, 7)
    outcomes: list[RolloutAborted | RolloutFinished] = []
    async with place.working(), asyncio.timeout(SECONDS):
        async for stored in replay(place.connection, subjects=done_subject(rollout), follow=True):
            outcome = stored.event and payload(stored.event)
            if not isinstance(outcome, RolloutAborted | RolloutFinished):
                continue  # reopened, by the resume
            outcomes.append(outcome)
            if isinstance(outcome, RolloutFinished):
                break
            async for _ in Campaigns(place.connection, place.blobs).resume("demo"):
                pass

    assert [type(each) for each in outcomes] == [RolloutAborted, RolloutAborted, RolloutFinished]
    assert place.model.turns() == asked(t5=2, t7=2)
    assert (outcome.inherited_turns, outcome.resolved) == (6, True)


@pytest.mark.long
async def test_budgets_count_what_was_inherited(place: World) -> None:
    (rollout,) = await place.submit(tiny_task(1), budget=Budget(steps=8))
    dying(place, rollout, 6)
    async with place.working():
        outcome = await finished(place, rollout)

    assert (outcome.turns, outcome.inherited_turns, outcome.exit_status.value) == (8, 5, "step_limit")


@pytest.mark.long
async def test_a_campaign_may_refuse_it(place: World) -> None:
    (rollout,) = await place.submit(tiny_task(1), replay_attempts=False)

    async def end(seed: int) -> None:
        if place.model.asked[seed, 4] == 1:
            await place.end_sandbox(rollout)

    place.model.hooks[4] = end
    async with place.working():
        outcome = await finished(place, rollout)

    assert place.model.turns() == asked(t1=2, t2=2, t3=2, t4=2)
    assert (outcome.inherited_turns, outcome.inherited_cost_usd) == (0, None)
    from_stream = await spent_now(place.connection, str(place.store), "demo")
    [(paid, calls)] = await place.rows("select sum(cost_usd), count(*) from llm_calls_all")
    from_tables = await spent_now(place.connection, str(place.store), "demo")
    assert calls == sum(asked(t1=2, t2=2, t3=2, t4=2).values())
    assert from_stream.usd == pytest.approx(paid) == from_tables.usd > outcome.cost_usd


@pytest.mark.long
async def test_nothing_is_shared_across_a_change_of_what_the_endpoint_is_asked(place: World) -> None:
    (rollout,) = await place.submit(tiny_task(1))
    changed = asyncio.Event()

    async def die(seed: int) -> None:
        if place.model.asked[seed, 4] == 1:
            await place.left(rollout, 3)
            changed.set()
            await asyncio.Event().wait()  # the worker is cancelled here, as one that is killed

    place.model.hooks[4] = die
    async with place.working():
        await asyncio.wait_for(changed.wait(), SECONDS)
    async with place.working(extra_body={"top_k": 20}):
        outcome = await finished(place, rollout)

    assert place.model.turns() == asked(t1=2, t2=2, t3=2, t4=2)
    assert outcome.inherited_turns == 0


@pytest.mark.long
async def test_words_of_a_package_are_named_in_events_and_replayed_without_tools_too(place: World) -> None:
    """What the model is asked, and so the record, is that of the version that the outcome names."""
    names = ("mini-swe-agent", "mini-swe-agent-text")
    called, written = await place.submit(tiny_task(1), harnesses=names)
    dying(place, written, 4)
    async with place.working():
        outcomes = [await finished(place, called), await finished(place, written)]
    assert [one.resolved for one in outcomes] == [True, True]
    for name, one in zip(names, outcomes, strict=True):
        harness = get_harness(name)
        assert (one.harness_version, one.harness_digest) == (harness.version, harness.digest)
        assert len(one.harness_digest or "") == 64
    assert place.model.turns(seed_of(written)) == asked(t4=2)
    assert outcomes[1].inherited_turns == 3
    roles = f"select distinct role from messages where rollout_id = '{written}' order by 1"
    assert await place.rows(roles) == [("assistant",), ("system",), ("user",)]
