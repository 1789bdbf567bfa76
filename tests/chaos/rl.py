"""`python -m tests.chaos.rl`: kill processes and sandboxes at random through a reinforcement-learning run.

Then prove that the groups trained on have no repeat and no gap, that no rollout was lost, and that none which
aborted is in a group.

The kills are spaced by progress. The same code, smaller, is a test (tests/orchard/test_rl_chaos.py).
"""

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from orchard.configuration.run_files import UpRecord, running
from orchard.injector.client import AsyncSandboxClient
from orchard.injector.errors import SandboxError
from orchard.pipelines.rl.policies import read_newest
from orchard.pipelines.tasks.registry import TaskRegistry
from orchard.storage.reader import open_tables
from orchard.streams.publisher import Publisher
from tests.chaos.checks import no_processes
from tests.chaos.world import QUICK, pipeline, session_for
from tests.pipelines.policy.small_models import write_model
from tests.tiny_tasks import build_tiny_image, tiny_task

RUN = "chaos-rl"
TASKS = 4
KINDS = ("coordinator", "trainer", "server", "worker", "nats", "sandbox")
DEADLINE_SECONDS = 900.0

# What the trainer should have had: all groups of the log that nobody dropped, in its order.
_EXPECTED = f"select group_id from groups where run = '{RUN}' and dropped is null order by sequence"
_WITHOUT_REWARD = f"""
select count(*) from (select unnest(members, recursive := true) from groups where run = '{RUN}') m
left join rollouts r on r.rollout_id = m.rollout_id and r.attempt = m.attempt where r.reward is null
"""
_REFILLED = f"select count(distinct superseded_sequence) from reopenings where campaign = '{RUN}'"
_TRAINED = f"select groups from policies where run = '{RUN}' and kind = 'updated' order by version"


@dataclass
class RlReport:
    """What a run did and what was found."""

    kills: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    groups: int = 0
    rollouts: int = 0
    aborted: int = 0
    refilled: int = 0
    """Aborted rollouts whose slot was given another."""
    looks: int = 0
    """How often conservation was looked at while it ran."""
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Size:
    """How much of everything."""

    steps: int = 12
    prompts: int = 2
    group: int = 4
    kills: int = 12
    workers: int = 2
    slots: int = 2


def configure(store: Path, model: Path, size: Size) -> Path:
    """Write the configuration of the pipeline and of the run; the latter's file."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    pipeline_file = store / "orchard.toml"
    pipeline_file.write_text(
        f'[endpoints.policy]\nbase_url = "http://127.0.0.1:{port}/v1"\nmax_tries = 12\n'
        "extra_body = { return_token_ids = true, logprobs = true }\n"
    )
    os.environ["ORCHARD_CONFIG"] = str(pipeline_file)
    file = store / "rl.toml"
    file.write_text(
        f'run = "{RUN}"\nmethod = "fixed"\nmodel = "{model}"\nout = "{store / "rl"}"\n'
        'harness = "mini-swe-agent-compact"\ntasks = { ids = ["tiny-*"], unproven = true }\n'
        f"prompts_per_step = {size.prompts}\nsteps = {size.steps}\nlr = 1e-4\ncontext = 4096\n"
        "max_tokens = 16\nthreads = 1\nstaleness = 4\nmax_tries = 1\n"  # what fails is refilled
        "budget = { steps = 3 }\ntimeouts = { command = 20.0, rollout = 120.0 }\n"
        f"bar = {{ size = {size.group}, budget = {size.group} }}\n"
    )
    return file


async def run(store: Path, size: Size, seed: int) -> RlReport:
    """The whole experiment; the report's `faults` are empty when every promise held."""
    report, chance, started = RlReport(), random.Random(seed), time.monotonic()
    store.mkdir(parents=True, exist_ok=True)
    file = configure(store, write_model(store / "model"), size)
    session = session_for(store)
    async with pipeline(store, size.workers, size.slots):
        async with session.sandboxes() as client:
            await build_tiny_image(client, TASKS)
        async with session.connection("chaos") as connection:
            registry = TaskRegistry(Publisher(connection), session.blobs)
            await registry.register(tiny_task(number) for number in range(TASKS))
            await session.committed(connection)
        with (store / "rl.log").open("ab") as log:
            child = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "orchard", "--store", str(store), "rl", str(file)),
                env={**os.environ, **QUICK},
                stdout=log,
                stderr=log,
            )
        try:
            async with session.sandboxes() as client:
                await _disturb(store, client, child, size, chance, report)
        finally:
            if child.returncode is None:
                child.send_signal(signal.SIGINT)
                await child.wait()
        if child.returncode:
            report.faults.append(
                f"orchard rl ended with {child.returncode}: {(store / 'rl.log').read_text()[-2000:]}"
            )
        async with session.connection("chaos") as connection:
            await session.committed(connection)
    report.seconds = time.monotonic() - started
    report.faults += no_processes(store)
    _check(store, size, report)
    return report


async def _disturb(
    store: Path,
    client: AsyncSandboxClient,
    child: asyncio.subprocess.Process,
    size: Size,
    chance: random.Random,
    report: RlReport,
) -> None:
    """Kill something after every few rollouts, the first ones included; look at conservation all the time."""
    whole = size.steps * size.prompts * size.group
    kinds: list[str] = []
    deadline = time.monotonic() + DEADLINE_SECONDS
    while child.returncode is None:
        if time.monotonic() > deadline:
            report.faults.append(f"not over after {DEADLINE_SECONDS:g} s")
            return
        finished = await asyncio.to_thread(_look, store, report)
        done = sum(report.kills.values())
        if done < size.kills and finished * (size.kills + 1) >= (done + 1) * whole:
            kinds = kinds or chance.sample(KINDS, len(KINDS))
            kind = kinds.pop()
            if await _destroy(client) if kind == "sandbox" else _kill(store, kind):
                report.kills[kind] += 1
            else:
                kinds.insert(0, kind)  # none of it runs now: the next look tries another
        try:
            await asyncio.wait_for(asyncio.shield(child.wait()), 0.3)
        except TimeoutError:
            continue


def _look(store: Path, report: RlReport) -> int:
    """Whether all rollouts are accounted for now; how many are finished."""
    with open_tables(str(store)) as tables:
        rows = tables.execute(
            "select requested, finished, aborted, open, holds from conservation where campaign = ?", [RUN]
        ).fetchall()
    report.looks += 1
    for requested, finished, aborted, still_open, holds in rows:
        if not holds or requested != finished + aborted + still_open:
            report.faults.append(
                f"{requested} requested, {finished} + {aborted} + {still_open} accounted for"
            )
        return int(finished)
    return 0


async def _destroy(client: AsyncSandboxClient) -> bool:
    """Delete all sandboxes, if some are in use."""
    try:
        found = await client.list_sandboxes()
        for sandbox in found:
            await client.delete_sandbox(sandbox.sandbox_id)
    except SandboxError:
        return False  # the service is away
    return bool(found)


def _kill(store: Path, kind: str) -> bool:
    """SIGKILL one process of a kind, if one runs."""
    record = running(store)
    if kind in ("worker", "nats"):
        if not isinstance(record, UpRecord):
            return False
        pids = [pid for name, pid in record.children.items() if name.split("-")[0] == kind]
    else:
        file = store / "rl" / f"{kind}.pid"
        pids = [int(file.read_text())] if file.exists() else []
    for pid in pids[:1]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False  # it is just being started again
        return True
    return False


def _check(store: Path, size: Size, report: RlReport) -> None:
    """What the log says was trained on."""
    with open_tables(str(store)) as tables:
        updates = [list(groups) for (groups,) in tables.sql(_TRAINED).fetchall()]
        expected = [name for (name,) in tables.sql(_EXPECTED).fetchall()]
        report.rollouts, report.aborted = tables.sql(
            f"select count(*), count(*) filter (status = 'aborted') from rollouts where campaign = '{RUN}'"
        ).fetchall()[0]
        without_reward = tables.sql(_WITHOUT_REWARD).fetchall()[0][0]
        report.refilled = tables.sql(_REFILLED).fetchall()[0][0]
        holds = tables.sql(f"select holds from conservation where campaign = '{RUN}'").fetchall()
        twice = tables.sql("select count(*) - count(distinct sequence) from events").fetchall()[0][0]
        steps = [
            n
            for (n,) in tables.sql(f"select step from policy_steps where run = '{RUN}' order by 1").fetchall()
        ]
    trained = [name for groups in updates for name in groups]
    report.steps, report.groups = len(updates), len(trained)
    if len(trained) != len(set(trained)):
        report.faults.append(f"groups trained twice: {[n for n, c in Counter(trained).items() if c > 1]}")
    if trained != expected[: len(trained)]:
        report.faults.append(f"trained {trained} instead of {expected[: len(trained)]}")
    if len(trained) != size.steps * size.prompts:
        report.faults.append(f"{len(trained)} groups trained instead of {size.steps * size.prompts}")
    if steps != list(range(1, size.steps + 1)):
        report.faults.append(f"the log has figures of the steps {steps}")
    if without_reward:
        report.faults.append(f"{without_reward} members of groups have no reward")
    if holds != [(True,)]:
        report.faults.append(f"conservation at the end: {holds}")
    if twice:
        report.faults.append(f"{twice} events stored twice")
    newest = read_newest(store / "rl")
    if newest is None or newest.version != size.steps:
        report.faults.append(f"the newest policy is {newest}")


def main() -> None:
    """Full size from the command line; exit code 1 when a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("steps", "prompts", "group", "kills", "workers", "slots"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Size, name))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--store", type=Path, help="kept for a look afterwards; a temporary one otherwise")
    options = vars(parser.parse_args())
    store, seed = options.pop("store"), options.pop("seed")
    with tempfile.TemporaryDirectory(prefix="orchard-chaos-") as temporary:
        report = asyncio.run(run(store or Path(temporary) / "store", Size(**options), seed))
    sys.stdout.write(json.dumps(msgspec.to_builtins(report), indent=1) + "\n")
    sys.exit(1 if report.faults else 0)


if __name__ == "__main__":
    main()
