"""Synthesis in four steps on real queues, with real sandboxes and a seeded author over the real wire."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from orchard.domains.claw.synthesis import SEEDED
from orchard.pipelines.datasets.build import build
from orchard.pipelines.datasets.settings import CandidateSource, DatasetSettings
from orchard.pipelines.domains.claw.author import DRAFT_MISTAKES, IDEA_MISTAKES, MODEL, Author, mistake_of
from orchard.pipelines.domains.claw.drafts import Idea, words, wrong
from orchard.pipelines.domains.claw.loop import Run, SynthesisGoal, queue_of
from orchard.pipelines.domains.claw.report import Report, table
from orchard.schemas.events import payload
from orchard.schemas.llm_calls import ModelKind
from orchard.schemas.subjects import EVENTS_PREFIX
from orchard.schemas.synthesis import Check, SynthesisAction, SynthesisStep
from orchard.schemas.tasks import Task
from orchard.storage.blobs import BlobStore
from orchard.streams.claims import Claims
from orchard.streams.publisher import Publisher
from orchard.streams.replay import replay
from orchard.streams.server import EmbeddedServer
from orchard.streams.topology import declare
from orchard.workers.attempts.dependencies import AttemptDependencies
from orchard.workers.episode.sandboxes import SandboxSettings
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.settings import EndpointSettings, Price
from tests.attempts_world import SECONDS, SETTINGS, World, world
from tests.injector.conftest import Service
from tests.pipelines.datasets.conftest import tokenizer as tokenizer

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


async def synthesized(pipeline: World, run: str, **wanted: object) -> tuple[list[Task], Report]:
    """What a run makes."""
    await declare(pipeline.connection, SETTINGS, [queue_of(run)])
    price = Price(prompt=1.0, completion=2.0)
    async with (
        Author() as author,
        ModelClient(
            {SEEDED.endpoint: EndpointSettings(base_url=author.url, prices={MODEL: price})}
        ) as models,
        Claims(pipeline.connection, queue_of(run)) as claims,
    ):
        dependencies = AttemptDependencies(
            worker="test",
            publisher=Publisher(pipeline.connection),
            blobs=BlobStore(str(pipeline.store)),
            sandboxes=pipeline.sandboxes,
            sandbox_settings=SandboxSettings(),
            models=models,
        )
        settings = {"author": SEEDED, "solver": SEEDED, "rollouts": 1, **wanted}
        wish = SynthesisGoal(run=run, **settings)  # type: ignore[arg-type]
        made = Run(pipeline.connection, dependencies, wish)
        return await made.make(claims), made.report


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
        subjects = f"{EVENTS_PREFIX}.{run}.*.synthesis.step"
        async for stored in replay(pipeline.connection, subjects=subjects, follow=True):
            step = payload(stored.event) if stored.event else None
            if isinstance(step, SynthesisStep) and step.step is wanted:
                return


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
