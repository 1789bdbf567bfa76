"""`CLAW_EVAL=CHECKOUT python -m tests.claw_eval.compare`: each task here and under Claw-Eval's own runner.

    python -m tests.claw_eval.compare --out results --tasks 'T0*' --agents idle diligent

Three scripted agents do each task that imports, in a sandbox, with the checkout's services and graders and a
scripted judge over HTTP; so does the checkout's own runner in another. Scores must be equal to 1e-3. Results
are kept in `--out`, and what is there is not run again.
"""

import argparse
import asyncio
import fnmatch
import io
import json
import os
import sys
import tarfile
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import msgspec

from orchard.injector.client import AsyncSandboxClient
from orchard.pipelines.domains.claw.claw_eval import CheckoutOptions, read_checkout
from orchard.pipelines.domains.swe import layout
from orchard.pipelines.domains.swe.environments import Environments
from orchard.pipelines.domains.swe.packages import PackageCache
from orchard.schemas.messages import ToolCall
from orchard.schemas.outcomes import AbortCause, ExitStatus, Reward
from orchard.schemas.tasks import Task
from orchard.storage.blobs import BlobStore
from orchard.workers.episode.sandboxes import SandboxMachine
from orchard.workers.episode.settings import JudgeSettings
from orchard.workers.episode.worlds import WorldContext, open_world
from orchard.workers.failures import InfrastructureError
from orchard.workers.graders import grade
from orchard.workers.judges.ruling import Judges
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.settings import EndpointSettings
from tests.claw_eval import agents
from tests.injector.conftest import Service

REQUIREMENTS = (
    *("pydantic>=2", "pyyaml>=6", "openai>=1", "httpx>=0.27", "fastapi>=0.115", "uvicorn>=0.30"),
    *("pypdf", "trafilatura>=1.8", "requests>=2.28", "Pillow>=10", "pdf2image>=1.16"),
)
"""Of the checkout's package, its mock services and its sandbox's server."""
EQUAL = 1e-3
SCORES = ("completion", "robustness", "safety", "task_score")
_BATCH, _SLOTS = 6, 2
_HERE = Path(__file__).parent
_CHECKOUT = "/opt/claw-eval"

Run = tuple[str, str]
"""Directory of the task, and agent."""


class Results:
    """Results of one side, a line each, kept in a file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        lines = file.read_text().splitlines() if file.is_file() else []
        self.found: dict[Run, dict[str, Any]] = {}
        for line in lines:
            self._take(json.loads(line))

    def _take(self, result: dict[str, Any]) -> None:
        self.found[result["task"], result["agent"]] = result

    def add(self, result: dict[str, Any]) -> None:
        """Keep one."""
        self._take(result)
        with self._file.open("a") as out:
            out.write(json.dumps(result) + "\n")


class Sandboxes:
    """Sandboxes of the image with the checkout's packages."""

    def __init__(self, client: AsyncSandboxClient) -> None:
        self._client = client

    @asynccontextmanager
    async def open(self, image: str, purpose: str = "") -> AsyncIterator[SandboxMachine]:
        """One of them."""
        del purpose
        # Some mock services list a set, in an order that hangs on the process's hash seed.
        seed = {"PYTHONHASHSEED": "0"}
        async with await self._client.create_sandbox(image, memory="3Gi", cpu="2", env=seed) as made:
            yield SandboxMachine(made)


async def theirs(
    sandboxes: Sandboxes, image: str, checkout: Path, wanted: Sequence[Run], kept: Results
) -> None:
    """Run what is missing under the checkout's own runner."""
    missing = [run for run in wanted if run not in kept.found]
    async with AsyncExitStack() as stack:
        for number in range(0, len(missing), _BATCH):
            if not number:
                machine = await stack.enter_async_context(sandboxes.open(image))
                await _bring(machine, checkout)
            batch = missing[number : number + _BATCH]
            ran = await machine.run(
                f"{layout.PYTHON} /opt/reference/reference.py {_CHECKOUT} 2>/tmp/log",
                timeout=1800.0,
                cwd=_CHECKOUT,
                env={"PYTHONPATH": f"{_CHECKOUT}/src", "no_proxy": "localhost,127.0.0.1"},
                stdin=json.dumps(batch),
            )
            for line in ran.output.splitlines():
                kept.add(json.loads(line))
                sys.stdout.write(f"theirs {line[:160]}\n")
            if ran.returncode:
                raise SystemExit((await machine.read("/tmp/log")).decode()[-3000:])


async def _bring(machine: SandboxMachine, checkout: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in ("src", "mock_services", "tasks"):
            archive.add(checkout / name, name)
    await machine.write("/tmp/checkout.tar", packed.getvalue())
    await machine.run(
        f"mkdir -p {_CHECKOUT} && tar -xf /tmp/checkout.tar -C {_CHECKOUT}", timeout=120.0, cwd="/"
    )
    for name in ("agents.py", "reference.py"):
        await machine.write(f"/opt/reference/{name}", (_HERE / name).read_bytes())


async def ours(
    sandboxes: Sandboxes, blobs: BlobStore, tasks: dict[str, Task], wanted: Sequence[Run], kept: Results
) -> None:
    """Run what is missing here."""
    server, url = agents.serve()
    waiting = asyncio.Queue[Run]()
    for run in wanted:
        if run not in kept.found:
            waiting.put_nowait(run)

    async def work(models: ModelClient) -> None:
        while not waiting.empty():
            task, agent = waiting.get_nowait()
            result: dict[str, Any] = {"task": task, "agent": agent}
            try:
                result |= (await _play(sandboxes, blobs, models, tasks[task], agent)).parts
            except InfrastructureError as error:
                if error.cause is AbortCause.SANDBOX_UNAVAILABLE:  # of this machine: another run tries again
                    continue
                result["error"] = f"{error.cause}: {error.detail}"
            kept.add(result)
            sys.stdout.write(f"ours {json.dumps(result)[:300]}\n")

    async with (
        ModelClient({"default": EndpointSettings(base_url=url)}) as models,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(_SLOTS):
            group.create_task(work(models))
    server.shutdown()


async def _play(
    sandboxes: Sandboxes, blobs: BlobStore, models: ModelClient, task: Task, agent: str
) -> Reward:
    async def publish(_: msgspec.Struct) -> None: ...

    messages: list[dict[str, Any]] = [{"role": "user", "content": task.statement}]
    async with sandboxes.open(task.image) as machine:
        opening = WorldContext(
            task=task,
            machine=machine,
            seed=1,
            name="r.1",
            publish=publish,
            blobs=blobs,
            sandbox=sandboxes.open,
            command_seconds=30.0,
        )
        async with open_world(opening) as world:
            for _ in range(20):
                text, calls = agents.AGENTS[agent](list(world.tools), messages)
                made = agents.tool_calls(calls, len(messages))
                message: dict[str, Any] = {"role": "assistant", "content": text}
                messages.append({**message, "tool_calls": made} if made else message)
                for call in made:
                    function = call["function"]
                    asked = ToolCall(id=call["id"], name=function["name"], arguments=function["arguments"])
                    _, shown = await world.call(asked)
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": shown})
                if not made:
                    break
            submission = await world.hand_in(ExitStatus.FINISHED, messages)
    async with sandboxes.open(task.image) as grading:
        judges = Judges(models, JudgeSettings(model=agents.JUDGE), publish)
        return await grade(
            task,
            submission,
            grading,
            timeout=300.0,
            blobs=blobs,
            pristine=lambda: nullcontext(grading),
            judges=judges,
        )


def differences(theirs: Results, ours: Results, wanted: Sequence[Run]) -> Iterator[str]:
    """A line for each run that is not the same on both sides."""
    for run in wanted:
        left, right = theirs.found.get(run, {"error": "not run"}), ours.found.get(run, {"error": "not run"})
        if "error" in left or "error" in right:
            if ("error" in left) != ("error" in right) or "not run" in (
                left.get("error"),
                right.get("error"),
            ):
                yield f"{run}: theirs {left.get('error')}; ours {right.get('error')}"
            continue
        apart = [
            f"{name} {left[name]:.4f} {right[name]:.4f}"
            for name in SCORES
            if abs(left[name] - right[name]) > EQUAL
        ]
        if apart:
            yield f"{run}: theirs and ours {', '.join(apart)}"


async def main() -> int:
    """Returns 1 when something is not equal."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkout", type=Path, default=os.environ.get("CLAW_EVAL"))
    parser.add_argument("--out", type=Path, default=Path("claw-eval-results"))
    parser.add_argument("--tasks", nargs="*", default=["*"])
    parser.add_argument("--agents", nargs="*", default=list(agents.AGENTS))
    parser.add_argument("--sides", nargs="*", default=["theirs", "ours"])
    given = parser.parse_args()
    if given.checkout is None:
        sys.stdout.write("not run: CLAW_EVAL names no checkout of Claw-Eval\n")
        return 0
    given.out.mkdir(parents=True, exist_ok=True)
    checkout = given.checkout.resolve()
    with tempfile.TemporaryDirectory(prefix="orchard-claw-eval-") as place:
        service = Service(given.out.resolve() / "sandboxes")
        try:
            async with AsyncSandboxClient(service.url) as client:
                environments = Environments(client, PackageCache(given.out / "packages"))
                image = await environments.image(REQUIREMENTS)
                blobs = BlobStore(Path(place))
                read = read_checkout(checkout, blobs.put, CheckoutOptions(image=image, python=layout.PYTHON))
                sys.stdout.write(f"{len(read.tasks)} import, {len(read.left_out)} are left out\n")
                tasks = {
                    task.world.settings["checkout"]["directory"].rpartition("/")[2]: task
                    for task in read.tasks
                }
                names = [name for name in tasks if any(fnmatch.fnmatch(name, each) for each in given.tasks)]
                wanted = [(name, agent) for name in names for agent in given.agents]
                left, right = Results(given.out / "theirs.jsonl"), Results(given.out / "ours.jsonl")
                if "theirs" in given.sides:
                    await theirs(Sandboxes(client), image, checkout, wanted, left)
                if "ours" in given.sides:
                    await ours(Sandboxes(client), blobs, tasks, wanted, right)
        finally:
            service.stop()
    apart = list(differences(left, right, wanted))
    sys.stdout.write("\n".join([*apart, f"{len(wanted) - len(apart)} of {len(wanted)} runs are equal", ""]))
    return bool(apart)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
