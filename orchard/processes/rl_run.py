"""Runs reinforcement learning as processes: coordinator, trainer and, unless it is external, the policy
server.

Each is a command of its own and keeps nothing that the log does not have, so whichever dies is started again.
"""

import asyncio
import os
import sys
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import msgspec

from orchard.actions.reporter import SILENT, Reporter
from orchard.actions.session import Session
from orchard.configuration.access import AccessError, check_team
from orchard.configuration.config import ConfigError
from orchard.pipelines.models.errors import ModelError
from orchard.pipelines.policy.families import check_directory, has_experts
from orchard.pipelines.policy.serving import SLOTS
from orchard.pipelines.rl.coordinator import RunError, begin
from orchard.pipelines.rl.engines import ServingEngine
from orchard.pipelines.rl.plan import RunPlan
from orchard.pipelines.rl.policies import NEWEST, Newest, read_newest
from orchard.pipelines.rl.runs import (
    UNMATCHED,
    choose_held_out,
    choose_tasks,
    choose_traps,
    make_plan,
    planned,
    planned_by,
    without_held_out,
)
from orchard.pipelines.rl.scoring import run_rubrics
from orchard.pipelines.rl.settings import BY_PASS_RATE, EngineKind, RlSettings, RouterReplay, TaskPool
from orchard.pipelines.rl.stepping import RunStopped
from orchard.pipelines.tasks.protection import WITHOUT_LABEL, without_label
from orchard.processes.signals import die_with_parent
from orchard.schemas.queues import Queue
from orchard.storage.reader import open_tables
from orchard.streams.tasks import end
from orchard.streams.topology import declare
from orchard.workers.harnesses import get_harness, version_of
from orchard.workers.llm.scoring import ScoringEndpoint
from orchard.workers.llm.settings import EndpointSettings

RESTART_SECONDS = 1.0
STOP_SECONDS = 60.0
SERVING_POLL_SECONDS = 0.1
TRIES = 3
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


async def enter(session: Session, settings: RlSettings, told: Reporter = SILENT) -> tuple[RunPlan, int]:
    """The run's plan and where its events begin; put into the log now, or there already.

    Raises RunError where the log has another plan under the name, ConfigError for an unknown team and for
    experts that cannot be replayed.
    """
    _check_replay(session, settings)
    async with session.connection("rl") as connection:
        await declare(connection, session.config.nats, [])
        known = await planned(connection, session.blobs, settings.run)
        team = _team(session, settings, known[0] if known else None)
        settings = msgspec.structs.replace(settings, team=team)
        queue = Queue(domain=settings.domain, priority=settings.priority, team=team)
        await declare(connection, session.config.nats, [queue], session.config.teams)
        if known is not None:
            plan, start = known
            if not planned_by(settings, plan):
                raise RunError(
                    f"run {settings.run!r} exists with another plan in {session.config.store}: choose "
                    "another name or --store, or repeat its settings"
                )
            return plan, start
        await session.committed(connection)
        store, left_out = session.config.store, Counter[str]()
        held_out = await asyncio.to_thread(choose_held_out, store, settings.eval_tasks)
        pool = without_held_out(settings.tasks, held_out)
        tasks = await asyncio.to_thread(choose_tasks, store, pool, left_out)
        if idle := left_out.pop(UNMATCHED, 0):
            told.note(f"{idle} patterns of `tasks.exclude` name no task of the store")
        if unknown := left_out.pop(WITHOUT_LABEL, 0):
            told.note(without_label(unknown))
        if pool.measured_in is None and _by_pass_rate(pool):
            told.note(
                "no task is left out by its pass rate, as the preset has it: `tasks.measured_in` names the "
                "campaign that measured"
            )
        for reason, number in sorted((+left_out).items()):
            told.note(f"{number} tasks are no prompts: {reason}")
        if settings.process is not None:
            with open_tables(store, views=["rubrics"]) as tables:
                run_rubrics(tables, tasks, settings.process)
        if (teacher := teacher_endpoint(session, settings)) is not None:
            from orchard.pipelines.models.directories import load_tokenizer  # the coordinator needs no torch
            from orchard.pipelines.rl.teacher import check_tokenizer

            try:
                await check_tokenizer(teacher, load_tokenizer(settings.model), settings.model)
            finally:
                await teacher.close()
        traps = await asyncio.to_thread(choose_traps, store, settings.impossible)
        plan = make_plan(settings, tasks, traps, held_out)
        version, _ = version_of(get_harness(plan.harness))
        plan = msgspec.structs.replace(plan, harness_version=version)
        return plan, await begin(connection, session.blobs, plan)


def _check_replay(session: Session, settings: RlSettings) -> None:
    """Raises ConfigError for an endpoint that is not asked for the experts that a replay needs."""
    if settings.router_replay is not RouterReplay.ROLLOUT or settings.engine is EngineKind.VLLM:
        return  # for vLLM it is an option of the server, not of requests
    if not _policy_endpoint(session, settings).extra_body.get("return_routed_experts"):
        raise ConfigError(
            '`router_replay = "rollout"` needs the experts of each answer: add return_routed_experts = true '
            f"to extra_body of [endpoints.{settings.endpoint}]"
        )


def _team(session: Session, settings: RlSettings, plan: RunPlan | None) -> str:
    """Team of the run's rollouts: that of its plan, whoever resumes it. Raises RunError where the settings
    name another one, ConfigError for one that is not configured."""
    if plan is not None and settings.team not in ("", plan.team):
        began = f"with team {plan.team}" if plan.team else "without a team"
        raise RunError(
            f"run {settings.run!r} began {began} and cannot change to {settings.team}: leave `team` out, or "
            "choose another name"
        )
    team = settings.team or session.principal.team if plan is None else plan.team
    try:
        check_team(team, session.config.teams)
    except AccessError as error:
        raise ConfigError(str(error)) from error
    return team


def _by_pass_rate(pool: TaskPool) -> bool:
    return any(getattr(pool, key) != getattr(TaskPool(), key) for key in BY_PASS_RATE)


def check_served(settings: RlSettings) -> None:
    """Raises ModelError where the policy server does not run the run's model, or the settings ask for experts
    that it has not; DatasetError where it cannot serve its chat template."""
    _check_experts(settings)
    if settings.engine is EngineKind.ORCHARD:
        from orchard.pipelines.policy.conversations import Prompts

        directory = Path(_newest(settings).path)
        check_directory(directory)
        Prompts.load(directory)


def _check_experts(settings: RlSettings) -> None:
    adapted = settings.lora is not None and settings.lora.experts
    if (adapted or settings.router_replay) and has_experts(Path(settings.model)) is False:
        key = "lora.experts" if adapted else "router_replay"
        raise ModelError(
            f"{settings.model} has no experts: leave `{key}` out, or train a model such as Qwen3-30B-A3B"
        )


def _newest(settings: RlSettings) -> Newest:
    """The run's newest policy, else the model from which it starts."""
    return read_newest(Path(settings.out)) or Newest(path=settings.model, version=0)


def _policy_endpoint(session: Session, settings: RlSettings) -> EndpointSettings:
    """Endpoint of the run's policies. Raises ConfigError when it is not configured."""
    endpoint = session.config.endpoints.get(settings.endpoint)
    if endpoint is None:
        raise ConfigError(
            f"no endpoint is named {settings.endpoint!r}: add [endpoints.{settings.endpoint}] with base_url, "
            "for example http://127.0.0.1:8800/v1, and extra_body = { return_token_ids = true }"
        )
    return endpoint


def server_address(session: Session, settings: RlSettings) -> str:
    """Address of the policy server without the version path. Raises ConfigError if it is not configured."""
    return _address(_policy_endpoint(session, settings).base_url)


def serving_engines(session: Session, settings: RlSettings) -> list[ServingEngine]:
    """Servers of the policy's endpoint, with its API key. Raises ConfigError if it is not configured."""
    endpoint = _policy_endpoint(session, settings)
    return [
        ServingEngine(
            settings.engine,
            address,
            settings.run,
            key=os.environ.get(endpoint.api_key_env or ""),
            adapter=settings.served_as if settings.lora is not None else None,
        )
        for address in dict.fromkeys(map(_address, (endpoint.base_url, *endpoint.replicas)))
    ]


def teacher_endpoint(session: Session, settings: RlSettings) -> ScoringEndpoint | None:
    """The teacher of a run that distills. Raises ConfigError if its endpoint is not configured,
    InfrastructureError without its key."""
    if (distill := settings.distill) is None:
        return None
    endpoint = session.config.endpoints.get(distill.endpoint)
    if endpoint is None:
        raise ConfigError(
            f"no endpoint is named {distill.endpoint!r}: add [endpoints.{distill.endpoint}] with the "
            "teacher's base_url, or name another in `distill.endpoint`"
        )
    return ScoringEndpoint(distill.endpoint, endpoint, distill.teacher, distill.wire)


def _address(url: str) -> str:
    return url.rstrip("/").removesuffix("/v1")


class RunProcesses:
    """Child processes of one run. The kernel kills them if this process dies."""

    def __init__(
        self, session: Session, settings: RlSettings, file: Path, server: str, told: Reporter = SILENT
    ) -> None:
        self._told = told
        self._directory = Path(settings.out)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._settings = settings
        orchard = [sys.executable, "-P", "-m", "orchard", "--store", session.config.store]
        orchard += ["--state", str(session.directory)]
        self._commands: dict[str, list[str]] = {
            "coordinator": [*orchard, "rl", "coordinator", "--served", str(file)],
            "trainer": [*orchard, "rl", "trainer", str(file)],
        }
        self._server = server
        address = urlsplit(server)
        self._port = address.port
        if settings.engine is EngineKind.ORCHARD and address.hostname in _LOOPBACK:
            self._commands["server"] = [sys.executable, "-P", "-m", "orchard.pipelines.policy"]

    async def run(self) -> None:
        """Runs until coordinator and trainer have finished. Raises RunError if one fails for good,
        RunStopped if it ended the run."""
        tasks = {name: asyncio.create_task(self._keep(name)) for name in self._commands}
        work = {tasks["coordinator"], tasks["trainer"]}
        try:
            while work:
                await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
                for name in [name for name, task in tasks.items() if task.done()]:
                    task = tasks.pop(name)
                    task.result()
                    work.discard(task)
        finally:
            await asyncio.gather(*map(end, tasks.values()))

    async def _keep(self, name: str) -> None:
        """Restarts a child until it succeeds, ends the run, or fails TRIES times in a row."""
        if name == "coordinator" and "server" in self._commands:
            await self._serving()  # what was asked for earlier would abort for want of a server
        failures = 0
        while True:
            code = await self._child(name)
            if code == 0:
                return
            failures = failures + 1 if code > 0 else 0
            log = self._directory / f"{name}.log"
            if code == RunStopped.exit_code:
                raise RunStopped(f"{_last_line(log)} (all of it: {log})")
            if failures == TRIES:
                raise RunError(f"the {name} failed {TRIES} times: {_last_line(log)} (all of it: {log})")
            self._told.note(f"the {name} ended with {code} and is started again")
            await asyncio.sleep(RESTART_SECONDS)

    async def _serving(self) -> None:
        """Waits until the policy server answers; the run's other checks notice one that cannot start."""
        async with aiohttp.ClientSession() as client:
            while True:
                try:
                    async with client.get(f"{self._server}/health") as reply:
                        if reply.status == 200:
                            return
                except aiohttp.ClientError:
                    pass  # not listening yet
                await asyncio.sleep(SERVING_POLL_SECONDS)

    async def _child(self, name: str) -> int:
        """Runs a child once and returns its exit code."""
        with (self._directory / f"{name}.log").open("ab") as output:
            child = await asyncio.create_subprocess_exec(
                *self._command(name), stdout=output, stderr=output, preexec_fn=die_with_parent
            )
        (self._directory / f"{name}.pid").write_text(str(child.pid))
        try:
            return await child.wait()
        finally:
            if child.returncode is None:
                child.terminate()
                await self._ended(child)

    async def _ended(self, child: asyncio.subprocess.Process) -> None:
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await child.wait()
        except TimeoutError:
            child.kill()
            await child.wait()

    def _command(self, name: str) -> list[str]:
        """Command line of a child; the policy server's names the newest policy."""
        command = self._commands[name]
        if name != "server":
            return command
        policy = _newest(self._settings)
        options = {
            "name": self._settings.served_as,
            "version": policy.version,
            "run": self._settings.run,
            "port": self._port,
            "threads": self._settings.threads,
            "slots": min(SLOTS, self._settings.max_in_flight),
            "newest-file": self._directory / NEWEST,
        }
        flags = [part for option, value in options.items() for part in (f"--{option}", str(value))]
        return [*command, policy.path, *flags, "--prefix-cache"]


def _last_line(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].removeprefix("error: ") if lines else "it said nothing"
