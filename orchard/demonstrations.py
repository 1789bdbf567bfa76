"""What the demonstrations share: a place in the store, a policy server, campaigns, the time of each step."""

import asyncio
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from orchard.actions.campaigns import resume_campaign, submit_campaign
from orchard.actions.datasets import announce
from orchard.actions.session import Session
from orchard.actions.tasks import registry
from orchard.configuration.config import Config, ConfigError, load
from orchard.pipelines.campaigns.commands import OtherPlan
from orchard.pipelines.campaigns.scores import Score, Tally, score
from orchard.pipelines.domains.swe.packages import PackageCache
from orchard.pipelines.domains.swe.repair_image import build_repair_image
from orchard.pipelines.domains.swe.repairs import SOURCE, Split
from orchard.pipelines.tasks.registry import known_hashes, read_task_refs
from orchard.processes.up import die_with_parent
from orchard.schemas.campaigns import Budget, CampaignSpec, ModelSpec, TaskRef, Timeouts
from orchard.schemas.tasks import Task
from orchard.storage.reader import open_tables
from orchard.terminal.campaigns import watch_campaign
from orchard.terminal.console import console
from orchard.workers.oracle.behaviours import DEFAULT_MIX

if TYPE_CHECKING:
    from orchard.pipelines.datasets.settings import DatasetSettings

HARNESS = "mini-swe-agent-compact"
ENDPOINT = "policy"
ANSWER_TOKENS = 160
BUDGET = Budget(steps=8, cost_usd=0.0)
TIMEOUTS = Timeouts(command=10.0)
SERVER_SECONDS = 300.0


class CommandFailed(RuntimeError):
    """A command of a demonstration did not end well."""

    def __init__(self, command: str, code: int) -> None:
        super().__init__(f"`{command}` ended with exit code {code}: run it again to go on")
        self.code = code


class Demonstration:
    """One demonstration in a directory `name` of the store."""

    def __init__(
        self,
        store: str,
        name: str,
        *,
        workers: int,
        slots: int,
        mix: Mapping[str, float] = DEFAULT_MIX,
        endpoints: Sequence[str] = (ENDPOINT,),
        domain: str = "swe",
    ) -> None:
        """`mix` is the oracle's; `endpoints` are of policy servers, one each; workers serve one `domain`."""
        self.directory = Path(store).absolute() / name
        self.directory.mkdir(parents=True, exist_ok=True)
        self.seconds: dict[str, float] = {}
        """Of each step."""
        self.ports = {endpoint: _free_port() for endpoint in endpoints}
        self.config = self._configuration(store, workers, slots, mix, domain)

    def _configuration(
        self, store: str, workers: int, slots: int, mix: Mapping[str, float], domain: str
    ) -> Config:
        """The configuration of all processes: the policy server is an endpoint like any other."""
        file = self.directory / "orchard.toml"
        file.write_text(
            f'[up]\nworkers = {workers}\n\n[worker]\nslots = {slots}\ndomain = "{domain}"\n\n[oracle.mix]\n'
            + "".join(f"{behaviour} = {share}\n" for behaviour, share in mix.items())
            + "".join(
                f'\n[endpoints.{endpoint}]\nbase_url = "http://127.0.0.1:{port}/v1"\n'
                "extra_body = { return_token_ids = true, logprobs = true }\n"
                for endpoint, port in self.ports.items()
            )
        )
        os.environ["ORCHARD_CONFIG"] = str(file)  # the children of `up` read it too
        return load({"store": store})

    async def campaign(self, session: Session, spec: CampaignSpec) -> None:
        """Run a campaign to its end, or what is left of it, until its results are in the tables. ConfigError
        where an earlier demonstration left another under this name."""
        try:
            await submit_campaign(session, spec)
        except OtherPlan as error:
            raise ConfigError(
                f"{session.config.store} has a demonstration with other settings, in campaign {spec.name}: "
                "repeat them, or choose another --store"
            ) from error
        await resume_campaign(session, spec.name)
        await watch_campaign(session, spec.name, every=1.0)
        async with session.connection("demo") as connection:
            await session.committed(connection)

    async def sampled(
        self,
        session: Session,
        name: str,
        model: Path,
        tasks: list[TaskRef],
        *,
        temperature: float,
        samples: int,
        max_tokens: int = ANSWER_TOKENS,
    ) -> None:
        """A campaign of `model` on these tasks."""
        spec = ModelSpec(
            name="policy",
            endpoint=ENDPOINT,
            temperature=temperature,
            max_tokens=max_tokens,
            logprobs=True,
        )
        async with self.serving(model):
            await self.campaign(session, campaign_of(name, tasks, spec, samples))

    @asynccontextmanager
    async def serving(
        self, model: Path, name: str = "policy", endpoint: str = ENDPOINT, *, blind: bool = False
    ) -> AsyncIterator[None]:
        """Serve a model by this name at one of the endpoints, for as long as the block runs; `blind`, with
        black pictures."""
        port_file, log_file = (self.directory / f"{endpoint}.{kind}" for kind in ("port", "log"))
        port_file.unlink(missing_ok=True)
        options = ["--port", str(self.ports[endpoint]), "--port-file", str(port_file), "--name", name]
        options += ["--blind"] if blind else []
        command = [sys.executable, "-P", "-m", "orchard.pipelines.policy", str(model), *options]
        with log_file.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *command, stderr=log, stdout=log, preexec_fn=die_with_parent
            )
        try:
            try:
                async with asyncio.timeout(SERVER_SECONDS):
                    while not port_file.exists():
                        if process.returncode is not None:
                            raise RuntimeError(f"the policy server ended: see {log_file}")
                        await asyncio.sleep(0.05)
            except TimeoutError:
                raise RuntimeError(f"the policy server was not ready in time: see {log_file}") from None
            yield
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()

    async def repair_world(
        self, session: Session, train: Sequence[Task], held_out: Sequence[Task]
    ) -> tuple[list[TaskRef], list[TaskRef]]:
        """Register repair tasks and make the image that they run in; both splits as the store has them."""
        async with session.sandboxes() as client:
            await build_repair_image(
                client, PackageCache(session.directory / "packages"), [*train, *held_out]
            )
        async with registry(session) as tasks:
            await tasks.register(
                [*train, *held_out], await asyncio.to_thread(known_hashes, session.config.store)
            )
        async with session.connection("demo") as connection:
            await session.committed(connection)
        return (
            repair_refs(session.config.store, Split.TRAIN, train),
            repair_refs(session.config.store, Split.HELD_OUT, held_out),
        )

    async def tokenizer(
        self,
        session: Session,
        campaigns: Sequence[str],
        vocabulary: int,
        *,
        schemas: bool = True,
        pictures: bool = False,
        out: Path | None = None,
    ) -> Path:
        """A tokenizer trained on what the log of some campaigns says; where it lies. `schemas` and
        `pictures` as in `train_tokenizer`."""
        from orchard.pipelines.datasets.corpus import log_texts
        from orchard.pipelines.datasets.tokenizer import train_tokenizer

        out = out or self.directory / "tokenizer"
        if not out.is_dir():
            with open_tables(session.config.store) as tables:
                texts = log_texts(tables, campaigns, 1_000_000)
                await asyncio.to_thread(
                    train_tokenizer, texts, vocabulary, out, schemas=schemas, pictures=pictures
                )
        return out

    async def dataset(self, session: Session, settings: "DatasetSettings", out: Path) -> int:
        """A dataset as `orchard dataset build` makes it, announced in the log; how many examples."""
        from orchard.pipelines.datasets.build import build

        began = time.monotonic()
        manifest = await asyncio.to_thread(build, session.config.store, settings, out, processes=2)
        await announce(session, manifest, time.monotonic() - began)
        return manifest.rows

    async def fine_tune(self, run: str, out: Path, lr: float, **settings: object) -> None:
        """`orchard sft` in a process of its own, as a user would, with the demonstrations' optimizer."""
        file = out.with_name(f"{out.name}.toml")
        lines = {
            "run": run,
            "out": str(out),
            **settings,
            "context": 4096,
            "optimizer": "muon",
            "lr": lr,
            "min_lr": lr / 20,
            "warmup": 0.05,
            "weight_decay": 0.05,
            "beta2": 0.95,
        }
        file.write_text("".join(f"{key} = {_toml(value)}\n" for key, value in lines.items()))
        await self.command("sft", str(file))

    async def command(self, *words: str) -> None:
        """An `orchard` command in a process of its own, as a user would; it ends before a cancellation does.
        Raises CommandFailed when it fails."""
        where = ["--store", self.config.store, "--state", str(self.config.directory)]
        command = [sys.executable, "-P", "-m", "orchard", *where, *words]
        process = await asyncio.create_subprocess_exec(*command, preexec_fn=die_with_parent)
        try:
            code = await process.wait()
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()
        if code:
            raise CommandFailed(" ".join(command), code)

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Show the title of what follows, and note its time."""
        console.rule(title)
        began = time.monotonic()
        yield
        self.seconds[title] = time.monotonic() - began


def campaign_of(
    name: str, tasks: list[TaskRef], model: ModelSpec, samples: int, harnesses: tuple[str, ...] = (HARNESS,)
) -> CampaignSpec:
    """A campaign in the demonstrations' limits."""
    return CampaignSpec(
        name=name,
        tasks=tuple(tasks),
        harnesses=harnesses,
        models=(model,),
        samples=samples,
        budget=BUDGET,
        timeouts=TIMEOUTS,
    )


def repair_refs(store: str, split: Split, among: Sequence[Task] | None = None) -> list[TaskRef]:
    """The repair tasks that the store has, or those of them that are `among` some."""
    prefix, wanted = f"repair-{split}-", None if among is None else {task.task_id for task in among}
    refs = read_task_refs(store, source=SOURCE, only_valid=False)
    return [
        ref for ref in refs if ref.task_id.startswith(prefix) and (wanted is None or ref.task_id in wanted)
    ]


def campaign_score(store: str, campaign: str) -> Score:
    """pass@1 of a campaign, with its interval. Aborted rollouts are in no count."""
    query = """
        select count(resolved), count(*) filter (resolved) from rollouts
        where campaign = ? and resolved is not null group by task_id order by task_id
    """
    with open_tables(store) as tables:
        rows = tables.execute(query, [campaign]).fetchall()
    return score([Tally(graded=graded, resolved=resolved) for graded, resolved in rows])


def _toml(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
