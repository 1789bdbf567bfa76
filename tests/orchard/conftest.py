"""One running pipeline for the tests of the front door: `orchard up` with tiny tasks in its store."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from orchard.actions.session import Session
from orchard.cli.app import main
from orchard.pipelines.campaigns.commands import Campaigns
from orchard.pipelines.tasks.registry import TaskRegistry
from orchard.schemas.campaigns import Budget, CampaignSpec, ModelSpec, TaskRef, Timeouts
from orchard.schemas.llm_calls import ModelKind
from orchard.storage.reader import open_tables
from orchard.streams.publisher import Publisher
from tests.chaos.world import QUICK, pipeline, session_for
from tests.tiny_tasks import build_tiny_image, tiny_task

TASKS = 3
KEY_VARIABLE, KEY = "TEST_MODEL_KEY", "sk-nobody-may-see-this"
ENDPOINT = {
    "ORCHARD_ENDPOINTS__DEFAULT__BASE_URL": "http://127.0.0.1:9/v1",
    "ORCHARD_ENDPOINTS__DEFAULT__MAX_TRIES": "1",
    "ORCHARD_ENDPOINTS__DEFAULT__API_KEY_ENV": KEY_VARIABLE,
    KEY_VARIABLE: KEY,
}
"""An endpoint at a port where nobody listens."""


@dataclass
class Running:
    """The pipeline, and what tests do with it."""

    session: Session
    refs: Sequence[TaskRef]

    @property
    def store(self) -> str:
        return self.session.config.store

    def spec(self, name: str, samples: int = 1, **changes: object) -> CampaignSpec:
        """A campaign over the tiny tasks, played by the oracle unless changed."""
        fields: dict[str, object] = {
            "name": name,
            "tasks": tuple(self.refs),
            "harnesses": ("orchard-bash",),
            "models": (ModelSpec(name="oracle", endpoint="oracle", kind=ModelKind.ORACLE),),
            "samples": samples,
            "budget": Budget(steps=12),
            "timeouts": Timeouts(command=20.0, creation=60.0, grading=60.0, rollout=300.0),
            "max_tries": 1,
        }
        return CampaignSpec(**{**fields, **changes})  # type: ignore[arg-type]

    async def submit(self, spec: CampaignSpec) -> None:
        """Offer every rollout of the campaign."""
        async with self.session.connection("test") as connection:
            async for _ in Campaigns(connection, self.session.blobs).submit(spec):
                pass

    def sql(self, query: str) -> list[tuple[object, ...]]:
        """Rows of a query over the store as it is."""
        with open_tables(self.store, views=query) as tables:
            return tables.sql(query).fetchall()

    def outcomes(self, campaign: str) -> list[tuple[object, ...]]:
        """Status and cause of each outcome."""
        return self.sql(f"select status, cause from rollouts where campaign = '{campaign}'")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """`orchard up` with two workers, an endpoint that nobody serves, and the tiny tasks."""
    store = tmp_path_factory.mktemp("pipeline") / "store"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENDPOINT.items():
            patch.setenv(name, value)
        session = session_for(store)
        async with pipeline(store, workers=2, slots=2):
            async with session.sandboxes() as client:
                await build_tiny_image(client, TASKS)
            async with session.connection("test set-up") as connection:
                registry = TaskRegistry(Publisher(connection), session.blobs)
                refs = await registry.register(tiny_task(number) for number in range(TASKS))
                await session.committed(connection)
            yield Running(session, refs)


Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def command_line(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """As `orchard`, in this process, which is a second quicker: for commands that end with a mistake."""

    def run(
        *words: str, store: str | Path | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        where = [] if store is None else ["--store", str(store)]
        arguments = ["orchard", *where, *words]
        mask = os.umask(0o077)
        try:
            with monkeypatch.context() as patch:
                patch.setattr(sys, "argv", arguments)
                for name, value in {**QUICK, **variables}.items():
                    patch.setenv(name, value)
                capfd.readouterr()
                with pytest.raises(SystemExit) as end:
                    main()
        finally:
            os.umask(mask)
        said = capfd.readouterr()
        return subprocess.CompletedProcess(arguments, int(end.value.code or 0), said.out, said.err)

    return run


@pytest.fixture(scope="session")
def orchard() -> Command:
    """Runs the command line in a process of its own; output as text."""

    def run(
        *words: str, store: str | Path | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        where = [] if store is None else ["--store", str(store)]
        return subprocess.run(
            [sys.executable, "-m", "orchard", *where, *words],
            env={**os.environ, **QUICK, **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    return run
