"""`make test-programs`: each program that installs here solves a real task and fails one, network blocked,
and the same at a desk with services where it takes an MCP server. Then all are on the PATH of one sandbox.

The program is the real package, its model a script (`upstream.py`) behind the worker's gateway. It needs the
network for PyPI and npm, once: layers stay in `.venv/programs`. Names of programs as arguments choose some.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from orchard.injector.client import AsyncSandboxClient
from orchard.schemas.campaigns import Timeouts
from orchard.schemas.events import RolloutFinished, payload
from orchard.schemas.outcomes import ExitStatus
from orchard.streams.server import embedded
from orchard.streams.settings import NatsSettings
from orchard.workers.harnesses.programs.acp import with_client
from orchard.workers.harnesses.programs.catalog import PROGRAMS
from orchard.workers.harnesses.programs.layers import Layer, layers_among, stored_images
from tests.attempts_world import world
from tests.programs.claw import CALLS, outcome
from tests.programs.on_path import COMMANDS, missing
from tests.programs.upstream import Upstream
from tests.sandbox_service import LocalService
from tests.tiny_tasks import IMAGE, build_tiny_image, tiny_task

ROOT = Path(__file__).parents[2]
STATE = ROOT / ".venv" / "programs"
FIX = "sed 's/left - right/left + right/' arithmetic/mod_1.py > new && mv new arithmetic/mod_1.py"
SPOIL = "sed 's/left - right/left * right/' arithmetic/mod_1.py > new && mv new arithmetic/mod_1.py"
"""Not `sed -i`: Qwen Code refuses to edit a file that its model did not read."""
SUBMIT = "git diff > patch.txt; echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat patch.txt"
"""Of mini-swe-agent; other programs end with what the model says next."""
SUPPLIED = "ZEROCLAW"
"""Variable with the path of the one program that is in no package."""
TIMEOUTS = Timeouts(command=60.0, creation=120.0, grading=120.0, rollout=900.0)


def main() -> int:
    """Run those named, or all; says what it skips. Returns 1 when one failed."""
    failed = []
    wanted = sys.argv[1:] or [program.name for program in PROGRAMS]
    for name in wanted:
        if name == "zeroclaw" and SUPPLIED not in os.environ:
            print(
                f"skipped: {name}: {SUPPLIED} does not name its binary, which no package index has",
                flush=True,
            )
            continue
        if complaint := _missing(name):
            print(f"{name} cannot be installed: {complaint}", flush=True)
            failed.append(name)
            continue
        for command, reward in ((FIX, 1.0), (SPOIL, -1.0)):
            problem = asyncio.run(_outcome(name, command, reward))
            print(f"{name}, reward {reward:+g}: {problem or 'as it should be'}", flush=True)
            failed += [name] if problem else []
        if with_client(next(each for each in PROGRAMS if each.name == name)).mcp is not None:
            for calls, reward in ((CALLS, 1.0), (CALLS[:2], -1.0)):
                problem = asyncio.run(outcome(name, STATE / "sandboxes", calls, reward))
                print(f"{name} at a desk, reward {reward:+g}: {problem or 'as it should be'}", flush=True)
                failed += [name] if problem else []
    if layers := [layer for layer in _installed() if layer.program in wanted and layer.program in COMMANDS]:
        problem = asyncio.run(missing(layers, STATE / "sandboxes"))
        names = ", ".join(layer.program for layer in layers)
        print(f"on the PATH of one sandbox, {names}: {problem or 'as it should be'}", flush=True)
        failed += ["the PATH"] if problem else []
    print(f"failed: {', '.join(failed)}" if failed else "no program failed")
    return bool(failed)


def _installed() -> list[Layer]:
    """The newest layer of each program."""
    layers = [layer for layer, _ in layers_among(stored_images(STATE / "sandboxes"))]
    return list({layer.program: layer for layer in reversed(layers)}.values())


def _missing(name: str) -> str:
    """Why it is not installed; empty when it is."""
    if any(layer.program == name for layer in _installed()):
        return ""
    supplied = os.environ.get(SUPPLIED) if name == "zeroclaw" else None
    line = [sys.executable, "-m", "orchard", "--state", str(STATE), "harness", "install", name]
    line += ["--from", supplied] if supplied else []
    done = subprocess.run(line, stderr=subprocess.PIPE, text=True, check=False)
    return done.stderr.strip() if done.returncode else ""


async def _outcome(name: str, command: str, reward: float) -> str:
    """What is wrong with a rollout of this program; empty when nothing is."""
    with tempfile.TemporaryDirectory(prefix="orchard-programs-") as place:
        service = LocalService(STATE / "sandboxes")
        try:
            async with (
                embedded(Path(place) / "nats", NatsSettings()) as server,
                world(server.url, service.url, Path(place) / "store", ()) as here,
                Upstream((command, *([SUBMIT] if name == "mini-swe-agent-cli" else []))).served() as model,
            ):
                await _image(here.sandboxes)
                (rollout,) = await here.submit(
                    tiny_task(1), harnesses=(name,), max_tries=1, timeouts=TIMEOUTS
                )
                async with here.working(base_url=model.url):
                    data = payload((await here.outcomes(rollout, seconds=900.0))[rollout])
                await here.rows("select 1")
                line = [sys.executable, "-m", "orchard", "--store", str(here.store), "show", rollout]
                shown = await asyncio.to_thread(subprocess.run, line, capture_output=True, text=True)
                layers = layers_among(await here.sandboxes.list_images())
                image = next(layer for layer, _ in layers if layer.program == name)
        finally:
            service.stop()
    if not isinstance(data, RolloutFinished):
        return f"aborted: {data}"
    if (data.reward, data.exit_status) != (reward, ExitStatus.FINISHED):
        last = model.requests[-1]["messages"][-2:]
        return f"reward {data.reward}, {data.exit_status}, submission {data.submission!r}, at last {last}"
    if (data.harness_version, data.harness_digest) != (image.version, image.digest):
        return f"the log names version {data.harness_version} and layer {data.harness_digest}"
    if shown.returncode or command not in shown.stdout.replace("\\'", "'"):
        return f"`orchard show` does not show the command: {shown.stderr or shown.stdout}"
    return ""


async def _image(client: AsyncSandboxClient) -> None:
    if IMAGE not in [image.name for image in await client.list_images()]:
        await build_tiny_image(client, 2)


if __name__ == "__main__":
    sys.exit(main())
