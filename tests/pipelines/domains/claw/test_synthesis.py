"""Synthesis in four steps on real queues, with real sandboxes and a seeded author over the real wire."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchard.domains.claw.synthesis import SEEDED
from orchard.pipelines.datasets.build import build
from orchard.pipelines.datasets.settings import CandidateSource, DatasetSettings
from orchard.pipelines.domains.claw.author import DRAFT_MISTAKES, IDEA_MISTAKES, MODEL, Author, mistake_of
from orchard.pipelines.domains.claw.drafts import Idea, read_draft, words, wrong
from orchard.pipelines.domains.claw.loop import Run, SynthesisGoal, SynthesisSlot, next_of, slots_wanted
from orchard.pipelines.domains.claw.report import Report, table
from orchard.pipelines.domains.claw.steps import QUEUE, Artefacts, StepWorker, queue_of, step_entry
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import ModelSpec
from orchard.schemas.events import payload
from orchard.schemas.llm_calls import ModelKind
from orchard.schemas.outcomes import AbortCause
from orchard.schemas.queues import Queue
from orchard.schemas.subjects import EVENTS_PREFIX
from orchard.schemas.synthesis import Check, SynthesisAction, SynthesisRequest, SynthesisStep
from orchard.schemas.tasks import Task
from orchard.streams import names
from orchard.streams.claims import Claims
from orchard.streams.consumer import Consumer, RetryPolicy
from orchard.streams.entries import FIRST
from orchard.streams.publisher import Publisher
from orchard.streams.reading import bounds
from orchard.streams.replay import replay
from orchard.streams.server import EmbeddedServer
from orchard.streams.topology import declare
from orchard.workers.attempts.deadletters import DeadLetters
from orchard.workers.attempts.dependencies import AttemptDependencies
from orchard.workers.episode.sandboxes import SandboxSettings
from orchard.workers.failures import InfrastructureError
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.settings import EndpointSettings, Price
from tests.attempts_world import SECONDS, SETTINGS, World, world
from tests.injector.conftest import Service
from tests.killing import killed_in_the_middle
from tests.pipelines.datasets.conftest import tokenizer as tokenizer

ANSWERS = f"{EVENTS_PREFIX}.answered.synthesis"
ANY = ModelSpec(name=MODEL)
"""The seeded author as a model that every worker reaches."""
EXPECTED = {
    "duplicate_idea": {Check.DUPLICATE},
    "infeasible_idea": {Check.INFEASIBLE},
    "unsafe_idea": {Check.UNSAFE},
    "bad_fixture": {Check.WORLD_INVALID},
    "unknown_tool": {Check.REFERENCE_REFUSED},
    "broken_script": {Check.SCRIPT_FAILED},
    "network_script": {Check.SCRIPT_FAILED},
    "wrong_expectation": {Check.REFERENCE_FAILS},
    "impossible_goal": {Check.WORLD_INVALID, Check.REFERENCE_REFUSED, Check.REFERENCE_FAILS},
    "passes_on_nothing": {Check.EMPTY_PASSES},
    "blind_script": {Check.MUTATION_SURVIVES},
    "flaky_script": {Check.REPLAY_DIFFERS},
    "vague_statement": {Check.NO_VALID_RUN},
    "no_json": {Check.UNREADABLE},
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = Service(tmp_path_factory.mktemp("synthesis") / "state")
    yield service
    service.stop()


@pytest.fixture
async def pipeline(nats_server: EmbeddedServer, service: Service, tmp_path: Path) -> AsyncIterator[World]:
    async with world(nats_server.url, service.url, tmp_path / "store", []) as made:
        yield made


@asynccontextmanager
async def stepping(
    pipeline: World, author: Author, queue: Queue = QUEUE, slots: int = 2
) -> AsyncIterator[Consumer]:
    """A consumer of the queue, not begun."""
    endpoint = EndpointSettings(base_url=author.url, prices={MODEL: Price(prompt=1.0, completion=2.0)})
    endpoints = {SEEDED.endpoint: endpoint, ANY.endpoint: endpoint}
    await declare(pipeline.connection, SETTINGS, [queue])
    async with ModelClient(endpoints) as models, Claims(pipeline.connection, queue) as claims:
        dependencies = AttemptDependencies(
            worker="test",
            publisher=Publisher(pipeline.connection),
            blobs=pipeline.blobs,
            sandboxes=pipeline.sandboxes,
            sandbox_settings=SandboxSettings(),
            models=models,
        )
        handlers = {QUEUE.kind: StepWorker(dependencies)}
        yield Consumer(claims, DeadLetters(pipeline.connection), handlers, slots=slots)


async def synthesized(
    pipeline: World, run: str, *, slots: int = 2, **wanted: object
) -> tuple[list[Task], Report]:
    """What a run makes."""
    settings = {"author": SEEDED, "solver": SEEDED, "rollouts": 1, **wanted}
    wish = SynthesisGoal(run=run, **settings)  # type: ignore[arg-type]
    queue = queue_of(run, wish.author)
    async with Author() as author, stepping(pipeline, author, queue, slots) as consumer:
        made = Run(pipeline.connection, pipeline.blobs, wish)
        return await made.make(consumer), made.report


def seed_with(*mistakes: str | None, slots: int = 4) -> int:
    """A seed whose first slots have these mistakes, in any order."""
    return next(
        seed
        for seed in range(100_000)
        if sorted(str(mistake_of(seed, slot, 0.3)) for slot in range(slots)) == sorted(map(str, mistakes))
    )


@pytest.mark.long
async def test_tasks_are_proven_mistakes_are_caught_and_every_artefact_is_an_event(
    pipeline: World, tokenizer: str, tmp_path: Path
) -> None:
    seed = seed_with(None, None, "blind_script", "infeasible_idea")
    tasks, report = await synthesized(pipeline, "first", tasks=2, seed=seed)
    assert len(tasks) == 2 and len({task.task_id for task in tasks}) == 2
    assert report.missed == []
    caught = dict(report.caught.keys())
    assert caught == {"blind_script": Check.MUTATION_SURVIVES, "infeasible_idea": Check.INFEASIBLE}
    assert {row.mistake for row in table(report)} == set(caught)
    assert all((report.cost(step.slot) or 0) > 0 for step in report.accepted) and (report.cost_each or 0) > 0

    rows = await pipeline.rows(
        "select step, count(*), count(artefact_sha256), bool_and(model_kind = 'oracle') from synthesis "
        "where step in ('propose', 'write', 'refine') group by 1 order by 1"
    )
    assert all(artefacts == number and oracle for _, number, artefacts, oracle in rows)
    states = await pipeline.rows("select task_id, state from tasks order by 1")
    assert states == sorted((task.task_id, "valid") for task in tasks)
    rollouts = await pipeline.rows("select distinct campaign, harness, model_kind from rollouts")
    assert rollouts == [("first", "claw-react", "oracle")]

    settings = DatasetSettings(
        name="assistants",
        tokenizer=tokenizer,
        pairs=True,
        source=CandidateSource(model_kinds=(ModelKind.ORACLE,)),
    )
    built = await asyncio.to_thread(build, str(pipeline.store), settings, tmp_path / "data")
    ((turns, resolved),) = await pipeline.rows(
        "select sum(turns)::int, count(*) filter (resolved) from rollouts where resolved"
    )
    assert (built.rows, built.resolved) == (turns, turns) and resolved > 0

    again, _ = await synthesized(pipeline, "first", tasks=2, seed=seed)
    assert again == tasks, "the same command again finds all done"

    line = ("--limit", "2", "--seed", str(seed), "--run", "killed", "--rollouts", "1")
    process = pipeline.process("tasks", "synthesize", "claw", *line)
    await stepped(pipeline, "killed", SynthesisAction.PROVE)
    process.kill()
    process.wait()
    for left in await pipeline.sandboxes.list_sandboxes({"campaign": "killed"}):
        await pipeline.sandboxes.delete_sandbox(left.sandbox_id)  # else it is there for its five minutes
    other, after = await synthesized(pipeline, "killed", tasks=2, seed=seed)
    assert other == tasks, "the same seed gives the same tasks, also to a run that was killed"
    assert after.caught == report.caught and after.proposals == report.proposals
    ends = await pipeline.rows(
        "select slot, count(*) from synthesis where campaign = 'killed' and step in ('accept', 'reject') "
        "group by 1 order by 1"
    )
    assert ends == [(slot, 1) for slot in range(report.proposals)], (
        "nothing is lost, and nothing is there twice"
    )


async def stepped(pipeline: World, run: str, wanted: SynthesisAction) -> None:
    """Wait until a run has done such a step."""
    async with asyncio.timeout(SECONDS):
        async for step in steps(pipeline, run, follow=True):
            if step.step is wanted:
                return


async def steps(pipeline: World, run: str, *, follow: bool = False) -> AsyncIterator[SynthesisStep]:
    async for stored in replay(pipeline.connection, subjects=f"{ANSWERS}.>", follow=follow):
        step = payload(stored.event) if stored.event and stored.event.campaign == run else None
        if isinstance(step, SynthesisStep):
            yield step


def a_request(step: SynthesisAction, **changes: Any) -> SynthesisRequest:
    asked = next_of(SynthesisGoal(run="one", author=ANY, solver=ANY), 0, SynthesisSlot(), [])
    assert isinstance(asked, SynthesisRequest)
    return msgspec.structs.replace(asked, step=step, rollouts=2, **changes)


async def a_draft(pipeline: World) -> BlobRef:
    """What an author wrote who made no mistake."""
    text = Author(mistakes=0.0).answer("write", 0, 0, 0)
    return await Artefacts(pipeline.blobs).put({"read": read_draft(text)})


@pytest.mark.long
async def test_a_worker_that_is_killed_costs_the_rollout_that_it_was_in(pipeline: World) -> None:
    """The step has two rollouts; the outcome of the first stays, and the second is run by another worker."""
    asked = a_request(SynthesisAction.SOLVE, draft=await a_draft(pipeline))

    async def one_is_done() -> None:
        async for _ in replay(pipeline.connection, subjects=f"{EVENTS_PREFIX}.done.>", follow=True):
            return

    await declare(pipeline.connection, SETTINGS, [QUEUE])
    async with Author() as author:
        environment = {**pipeline.environment, "ORCHARD_ENDPOINTS__DEFAULT__BASE_URL": author.url}
        await Publisher(pipeline.connection).offer(step_entry(asked, FIRST))
        await killed_in_the_middle(("worker", "--kinds", "synthesis"), environment, one_is_done())
        assert [step async for step in steps(pipeline, "one")] == []
        async with stepping(pipeline, author) as consumer, asyncio.TaskGroup() as group:
            group.create_task(consumer.run())
            await stepped(pipeline, "one", SynthesisAction.SOLVE)
            consumer.drain()
    [step] = [step async for step in steps(pipeline, "one")]
    assert step.check is None and step.detail.endswith("of 2 rollouts pass")
    started = replay(pipeline.connection, subjects=f"{EVENTS_PREFIX}.started.>")
    attempts = [(stored.event.rollout_id, stored.event.attempt) async for stored in started if stored.event]
    first = attempts[0][0]
    assert attempts.count((first, 1)) == 1 and (first, 2) not in attempts


async def test_an_answer_that_is_in_the_log_is_not_asked_for_again(
    pipeline: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is a second one accepted, of a worker that was presumed dead."""
    answers = Counter[str]()
    true = Author.answer

    def counted(author: Author, step: str, seed: int, slot: int, turn: int) -> str:
        answers[step] += 1
        return true(author, step, seed, slot, turn)

    monkeypatch.setattr(Author, "answer", counted)
    entry = step_entry(a_request(SynthesisAction.PROPOSE), FIRST)
    async with (
        Author() as author,
        stepping(pipeline, author) as consumer,
        asyncio.TaskGroup() as group,
        asyncio.timeout(SECONDS),
    ):
        group.create_task(consumer.run())
        for _ in range(2):
            await Publisher(pipeline.connection).offer(entry)
            while (await bounds(pipeline.connection, names.WORK)).messages:
                await asyncio.sleep(0.02)
        consumer.drain()
    assert answers == {"propose": 1}
    assert [step.step async for step in steps(pipeline, "one")] == [SynthesisAction.PROPOSE]


@pytest.mark.long
async def test_a_slot_whose_step_is_a_dead_letter_is_given_up(
    pipeline: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(worker: StepWorker, request: SynthesisRequest) -> SynthesisStep:
        if request.slot == 0:
            raise InfrastructureError(AbortCause.SANDBOX_UNAVAILABLE, "no sandbox today")
        return await true(worker, request)

    true = StepWorker._done
    monkeypatch.setattr(StepWorker, "_done", fails)
    monkeypatch.setattr(StepWorker, "retries", RetryPolicy(on=(InfrastructureError,), first=0.05, most=1))
    monkeypatch.setattr("orchard.streams.answers.LOOK_SECONDS", 0.2)
    async with pipeline.kept():
        tasks, report = await synthesized(
            pipeline, "given-up", tasks=1, author=ANY, solver=ANY, seed=seed_with(None, None, slots=2)
        )
    assert len(tasks) == 1
    [rejected] = report.rejected
    assert (rejected.slot, rejected.check) == (0, Check.INFRASTRUCTURE)
    assert "no sandbox today" in rejected.detail
    [letter] = await DeadLetters(pipeline.connection).list()
    assert letter.subject.startswith(QUEUE.subject)


def test_more_is_proposed_when_too_little_was_accepted() -> None:
    goal = SynthesisGoal(run="r", author=SEEDED, solver=SEEDED, tasks=3, most=2)
    ends = [
        SynthesisStep(slot=0, turn=0, step=step) for step in (SynthesisAction.ACCEPT, SynthesisAction.REJECT)
    ]
    accepted, rejected = (SynthesisSlot([end]) for end in ends)
    assert slots_wanted(goal, {}) == 5
    assert slots_wanted(goal, dict.fromkeys(range(4), accepted)) == 5, "one of them is open"
    assert slots_wanted(goal, dict.fromkeys(range(5), accepted)) == 5
    assert slots_wanted(goal, dict(enumerate([accepted, *[rejected] * 4]))) == 9
    assert slots_wanted(goal, dict.fromkeys(range(10), rejected)) == 10, "twice as many as tasks, at most"


def test_ideas_in_any_script_are_told_apart() -> None:
    def idea(title: str, goal: str) -> Idea:
        return Idea(title=title, goal=goal, services=("mail",))

    known = [words(idea("回复张伟的邮件", "告诉他会议改到周五")), words(idea("Отпуск", "Напиши Анне"))]
    assert wrong(idea("支付电费账单", "从转账账户付清电费"), known) is None
    assert wrong(idea("Счёт", "Оплати воду"), known) is None
    assert wrong(idea("回复 张伟 的邮件", "告诉他会议改到周五!"), known) == (
        Check.DUPLICATE,
        "an earlier idea says the same",
    )


def test_the_author_makes_at_least_eight_kinds_of_mistakes_in_three_of_ten_proposals() -> None:
    made = [mistake_of(1, slot, 0.3) for slot in range(2_000)]
    assert set(made) - {None} == {*IDEA_MISTAKES, *DRAFT_MISTAKES} and len(EXPECTED) >= 8
    assert 0.27 < sum(each is not None for each in made) / len(made) < 0.33


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_192_tasks_are_proven_and_every_seeded_mistake_is_caught(pipeline: World) -> None:
    tasks, report = await synthesized(pipeline, "whole", tasks=192, seed=1, slots=4)
    assert len({msgspec.json.encode(task) for task in tasks}) == 192
    assert report.missed == []
    assert set(EXPECTED) == {mistake for mistake, _ in report.caught} - {"(not seeded)"}
    for mistake, check in report.caught:
        assert mistake == "(not seeded)" or check in EXPECTED[mistake]
    for row in table(report):
        print(f"{row.mistake:20} {row.check:20} {row.times}")  # noqa: T201
    print(f"{report.proposals} proposals, {len(report.mistaken)} mistaken, {len(report.rejected)} rejected")  # noqa: T201
    assert 0.25 < len(report.mistaken) / report.proposals < 0.35
    again, _ = await synthesized(pipeline, "again", tasks=192, seed=1, slots=3)
    assert again == tasks, "the same seed gives the same tasks, however steps overlap"
    ended = {one.slot for one in [*report.accepted, *report.rejected]}
    assert len(ended) == report.proposals and SynthesisAction.ACCEPT in {one.step for one in report.accepted}
