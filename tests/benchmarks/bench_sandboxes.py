"""Sandboxes over HTTP beside a bare bubblewrap loop that does the same in the same run.

The bare loop is what one would write by hand for one machine: overlay mount, bubblewrap, a command entered
by nsenter from a shell that joins the cgroups first, kill, unmount, remove. The service adds idempotency,
jobs, limits on output, authentication and two HTTP hops. Driver, orchestrator and agent are processes of
their own; rounds of both alternate, so that both meet the same weather.
"""

import asyncio
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from orchard.injector.agent import kernel
from orchard.injector.agent.local import overlay
from orchard.injector.agent.local.cgroups import Cgroups, ControlGroup
from orchard.injector.agent.local.first_process import open_program
from orchard.injector.client import AsyncSandbox, AsyncSandboxClient

CYCLES = 40
EXECS = 200
CONCURRENT = 200


class Bare:
    """One sandbox by hand. It shows `/usr` read-only in place of an image: less than the service does."""

    def __init__(self, place: Path, cgroups: Cgroups, program: int, name: str) -> None:
        self._place = place / name
        self._group: ControlGroup = cgroups.make(name, memory=16 << 30, pids=4096, cores=4)
        for directory in ("upper", "work", "root"):
            (self._place / directory).mkdir(parents=True)
        root = self._place / "root"
        overlay.mount(root, [place / "base"], upper=self._place / "upper", work=self._place / "work")
        info, info_writer = os.pipe()
        ready, ready_writer = os.pipe()
        line = [
            "bwrap",
            "--unshare-pid",
            "--unshare-ipc",
            "--unshare-uts",
            "--unshare-net",
            "--unshare-cgroup",
        ]
        line += ["--die-with-parent", "--as-pid-1", "--cap-drop", "ALL", "--bind", str(root), "/"]
        line += [
            "--ro-bind",
            "/usr",
            "/usr",
            "--proc",
            "/proc",
            "--dev",
            "/dev",
            "--info-fd",
            str(info_writer),
        ]
        for descriptor in (info_writer, program):
            os.set_inheritable(descriptor, True)
        self._bubblewrap = subprocess.Popen(
            [*line, "--", f"/proc/self/fd/{program}"], stdout=ready_writer, pass_fds=(info_writer, program)
        )
        for writer in (info_writer, ready_writer):
            os.close(writer)
        os.read(ready, 1)
        with os.fdopen(info) as text:
            self._pid = json.load(text)["child-pid"]
        os.close(ready)

    def run(self, command: str) -> int:
        joins = "".join(f"echo 0 > {path}; " for path in self._group.entrances)
        enter = f"exec nsenter -t {self._pid} -m -p -n -i -u -C -- /usr/bin/bash -c {command}"
        return subprocess.run(["sh", "-c", joins + enter], capture_output=True, check=False).returncode

    def remove(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        self._bubblewrap.wait()
        kernel.unmount(str(self._place / "root"))
        self._group.remove()
        shutil.rmtree(self._place)


def _base(place: Path) -> None:
    base = place / "base"
    for name in ("proc", "dev", "usr", "tmp", "workspace"):
        (base / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        (base / name).symlink_to(f"usr/{name}")


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


async def _atimed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    await work()  # type: ignore[misc]
    return time.perf_counter() - started


def _report(name: str, value: float, ceiling: float | None, unit: str = "ms") -> None:
    line = {"name": name, "value": round(value, 2), "unit": unit}
    if ceiling is not None:
        line |= {"ceiling": round(ceiling, 2), "ratio": round(value / ceiling, 2)}
    print(json.dumps(line), flush=True)  # noqa: T201


def _percentiles(name: str, ours: list[float], bare: list[float]) -> None:
    for percentile in (50, 90, 99):
        cut = percentile - 1
        value = statistics.quantiles(ours, n=100)[cut] * 1000
        ceiling = statistics.quantiles(bare, n=100)[cut] * 1000
        _report(f"{name} p{percentile}", value, ceiling)


async def _cycle(client: AsyncSandboxClient) -> None:
    sandbox = await client.create_sandbox("host")
    job = await sandbox.exec("true")
    assert job.succeeded
    await sandbox.delete()


async def _all_at_once(client: AsyncSandboxClient) -> tuple[float, float, float]:
    made: list[AsyncSandbox] = []

    async def create() -> None:
        made.extend(await asyncio.gather(*(client.create_sandbox("host") for _ in range(CONCURRENT))))

    async def run() -> None:
        assert all(job.succeeded for job in await asyncio.gather(*(one.exec("true") for one in made)))

    async def delete() -> None:
        await asyncio.gather(*(one.delete() for one in made))

    return await _atimed(create), await _atimed(run), await _atimed(delete)


async def _drive(url: str, place: Path, cgroups: Cgroups) -> None:
    program = open_program(os.uname().machine)
    cycles: list[float] = []
    bare_cycles: list[float] = []
    execs: list[float] = []
    bare_execs: list[float] = []

    def bare_cycle() -> None:
        sandbox = Bare(place, cgroups, program, "bare")
        assert sandbox.run("true") == 0
        sandbox.remove()

    async with AsyncSandboxClient(url) as client:
        await _cycle(client)
        bare_cycle()
        for _ in range(CYCLES):
            cycles.append(await _atimed(lambda: _cycle(client)))
            bare_cycles.append(_timed(bare_cycle))
        _percentiles("sandbox create + first exec + delete", cycles, bare_cycles)
        bare = Bare(place, cgroups, program, "bare")
        async with await client.create_sandbox("host") as sandbox:
            for _ in range(EXECS):
                execs.append(await _atimed(lambda: sandbox.exec("true")))
                bare_execs.append(_timed(lambda: bare.run("true")))
        bare.remove()
        _percentiles("sandbox exec round trip", execs, bare_execs)

        together: list[Bare] = []
        bare_create = _timed(
            lambda: together.extend(Bare(place, cgroups, program, f"bare{n}") for n in range(CONCURRENT))
        )
        bare_exec = _timed(lambda: [one.run("true") for one in together])
        bare_delete = _timed(lambda: [one.remove() for one in together])
        create, run, delete = await _all_at_once(client)
        for name, ours, theirs in (
            ("create", create, bare_create),
            ("exec in", run, bare_exec),
            ("delete", delete, bare_delete),
        ):
            _report(f"{CONCURRENT} sandboxes at once: {name} all", ours, theirs, "s")


def main() -> None:
    """Print one JSON line for each figure. Needs root."""
    # Before any thread: mounts of the bare loop stay ours, as those of the agent stay its own.
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount("", "/", None, kernel.MS_REC | kernel.MS_SLAVE)
    place = Path(tempfile.mkdtemp(prefix="bench-sandboxes-"))
    cgroups = Cgroups(place)
    state, port_file = place / "state", place / "port"
    _base(place)
    line = [
        "-m",
        "orchard.injector.orchestrator",
        "--open",
        "--state",
        str(state),
        "--port-file",
        str(port_file),
    ]
    service = subprocess.Popen([sys.executable, *line], stderr=subprocess.DEVNULL)
    try:
        while not port_file.exists():
            assert service.poll() is None, "the orchestrator ended"
            time.sleep(0.01)
        asyncio.run(_drive(f"http://127.0.0.1:{port_file.read_text().strip()}", place, cgroups))
    finally:
        service.terminate()
        service.wait()
        subprocess.run(
            [sys.executable, "-m", "orchard.injector.agent", "--state", str(state), "--stop"], check=True
        )
        cgroups.close()
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
