"""`orchard rl` on a real pipeline, killed while it evaluates its policies: each version has one evaluation,
and the best is that of a run that was left alone."""

import asyncio
import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from orchard.actions.session import Session
from orchard.pipelines.rl.policies import BEST, read_newest
from orchard.pipelines.tasks.registry import TaskRegistry
from orchard.processes.signals import die_with_parent
from orchard.schemas.campaigns import EvaluationPlanned, RolloutRequest
from orchard.schemas.events import Event, payload
from orchard.schemas.groups import PolicyEvaluated
from orchard.schemas.subjects import EVENTS_PREFIX
from orchard.streams.publisher import Publisher
from orchard.streams.replay import replay
from tests.chaos.world import QUICK, pipeline, session_for
from tests.pipelines.policy.small_models import write_model
from tests.tiny_tasks import build_tiny_image
from tests.versioned_answers import GATES, HELD_OUT, PLUGINS, SOLVED, shut, versioned_tasks

ROOT = str(Path(__file__).parents[2])
SECONDS = 500.0


class Place:
    """A store with a pipeline, and the runs on it."""

    def __init__(self, store: Path, model: Path) -> None:
        self.store, self.model = store, model
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        file = store / "orchard.toml"
        file.write_text(
            f'[endpoints.policy]\nbase_url = "http://127.0.0.1:{port}/v1"\nmax_tries = 12\n'
            f"extra_body = {{ return_token_ids = true, logprobs = true }}\n{PLUGINS}"
        )
        self.environment = {**os.environ, **QUICK, "PYTHONPATH": ROOT, "ORCHARD_CONFIG": str(file)}
        gates = store / "gates"
        gates.mkdir()
        self.environment[GATES] = str(gates)

    def out(self, run: str) -> Path:
        return self.store / run

    async def begin(self, run: str) -> asyncio.subprocess.Process:
        """`orchard rl`, to begin the run or to resume it."""
        file = self.store / f"{run}.toml"
        file.write_text(
            f'run = "{run}"\nmethod = "fixed"\nmodel = "{self.model}"\nout = "{self.out(run)}"\n'
            'harness = "versioned"\ntasks = { sources = ["learned"], unproven = true }\n'
            'eval_every = 1\neval_tasks = [{ source = "held", unproven = true }]\n'
            "prompts_per_step = 1\nsteps = 3\nlr = 1e-4\ncontext = 4096\nmax_tokens = 8\nthreads = 1\n"
            "bar = { size = 2, budget = 2 }\nmax_in_flight = 8\nahead = 0\noversample = 1.0\n"
        )
        with (self.store / f"{run}.log").open("ab") as log:
            return await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "orchard", "--store", str(self.store), "rl", str(file)),
                env=self.environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,
            )

    @asynccontextmanager
    async def dying(self, run: str) -> AsyncIterator[None]:
        """The run goes on until the block ends, by SIGKILL."""
        process = await self.begin(run)
        try:
            yield
            assert process.returncode is None, self.said(run)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()

    def said(self, run: str) -> str:
        return " ".join((self.store / f"{run}.log").read_text().split())

    def halt(self, run: str, child: str) -> None:
        """Stop a child of the run where it is, until the run is killed with it."""
        os.kill(int((self.out(run) / f"{child}.pid").read_text()), signal.SIGSTOP)


async def events(session: Session, *subjects: str) -> AsyncIterator[Event]:
    """The log from its begin, then what comes."""
    async with session.reading_connection("test") as connection:
        async for stored in replay(connection, subjects=subjects, follow=True):
            if stored.event is not None:
                yield stored.event


async def ended(session: Session, evaluation: str, number: int) -> None:
    """Wait until so many rollouts of an evaluation have an outcome."""
    found = set()
    async with aclosing(events(session, f"{EVENTS_PREFIX}.done.>")) as following:
        async for event in following:
            if event.campaign == evaluation:
                found.add(event.rollout_id)
            if len(found) == number:
                return


async def scored(session: Session, run: str, version: int) -> None:
    """Wait until a version has its score in the log."""
    async with aclosing(events(session, f"{EVENTS_PREFIX}.{run}.*.policy.evaluated")) as following:
        async for event in following:
            if isinstance(fact := payload(event), PolicyEvaluated) and fact.version == version:
                return


async def of_run(session: Session, run: str) -> list[msgspec.Struct]:
    """What the log has of a run and its evaluations."""
    async with session.reading_connection("test") as connection:
        found = [stored.event async for stored in replay(connection) if stored.event]
    return [
        payload(event) for event in found if event.campaign == run or f"{run}-v" in (event.campaign or "")
    ]


async def left_alone(place: Place, run: str) -> None:
    process = await place.begin(run)
    try:
        assert await process.wait() == 0, place.said(run)
    finally:
        if process.returncode is None:
            process.kill()


async def killed_thrice(place: Place, session: Session, run: str) -> None:
    gates = {version: shut(version) for version in (1, 2, 3)}
    try:
        async with place.dying(run):
            # Between the score of version 1, which becomes the best, and the name of the best.
            await ended(session, f"{run}-v1", HELD_OUT - 1)
            place.halt(run, "trainer")
            gates.pop(1)()
            await scored(session, run, 1)
            assert (best := read_newest(place.out(run), BEST)) is not None and best.version == 0
        async with place.dying(run):
            # In the middle of the evaluation of version 2.
            await ended(session, f"{run}-v2", HELD_OUT - 1)
        assert (best := read_newest(place.out(run), BEST)) is not None and best.version == 1
        gates.pop(2)()
        async with place.dying(run):
            # Between the last outcome of version 3, the last one, and its score.
            await ended(session, f"{run}-v3", HELD_OUT - 1)
            place.halt(run, "coordinator")
            gates.pop(3)()
            await ended(session, f"{run}-v3", HELD_OUT)
        evaluated = [fact for fact in await of_run(session, run) if isinstance(fact, PolicyEvaluated)]
        assert [fact.version for fact in evaluated] == [0, 1, 2]
        await left_alone(place, run)
    finally:
        for opened in gates.values():
            opened()


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_each_version_has_one_evaluation_and_the_best_is_the_same_wherever_the_run_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("ORCHARD_ENDPOINTS__")]:
        monkeypatch.delenv(name)
    store = tmp_path / "store"
    store.mkdir()
    place = Place(store, write_model(store / "model"))
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
    session = session_for(store)
    async with (
        pipeline(store, workers=1, slots=HELD_OUT, environment=place.environment),
        asyncio.timeout(SECONDS),
    ):
        async with session.sandboxes() as client:
            await build_tiny_image(client, 1)
        async with session.connection("test") as connection:
            await TaskRegistry(Publisher(connection), session.blobs).register(versioned_tasks())
            await session.committed(connection)
        await left_alone(place, "alone")
        await killed_thrice(place, session, "killed")
        for name in ("alone", "killed"):
            facts = await of_run(session, name)
            evaluated = [fact for fact in facts if isinstance(fact, PolicyEvaluated)]
            assert [(fact.version, fact.resolved, fact.graded) for fact in evaluated] == [
                (version, solved, HELD_OUT) for version, solved in SOLVED.items()
            ]
            assert sum(isinstance(fact, EvaluationPlanned) for fact in facts) == len(SOLVED)
            asked = Counter(
                fact.rollout_id
                for fact in facts
                if isinstance(fact, RolloutRequest) and fact.campaign.startswith(f"{name}-v")
            )
            assert set(asked.values()) == {1} and len(asked) == len(SOLVED) * HELD_OUT
            best = read_newest(place.out(name), BEST)
            assert best is not None and best.version == 1, "the first of versions 1 and 3, which are equal"
            assert (Path(best.path) / "config.json").exists()
            assert "best on held-out tasks: version 1" in place.said(name)
