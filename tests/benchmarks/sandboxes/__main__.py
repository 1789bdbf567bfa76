"""`make bench-sandboxes`: figures of the sandbox service, on this machine and in Pods where a cluster is.

Driver, orchestrator and agent are processes of their own. Every figure says how many operations it is of and
how many of them failed; a failure is an answer that is not the right one, too. Written to
docs/benchmarks/sandboxes.md and .json with the machine and the command. Nothing is asserted.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import psutil
from rich.console import Console

from tests.benchmarks.run import PAGES, machine, number
from tests.benchmarks.sandboxes import goals as beside
from tests.benchmarks.sandboxes.measuring import Row, drive, latencies, rates, row
from tests.kubernetes.images import NoImage
from tests.kubernetes.node import NoNode, running_node
from tests.sandbox_service import LocalService

MIB = 2**20
SIZE = 30_000_000
ENDURANCE = (1_000, 5_000, 10_000)

console = Console()


def show(made: Row) -> None:
    """A figure as it comes."""
    line = f"  {made['figure']}: {number(made['value'])} {made['unit']}, {made['failed']} failed"
    console.print(line, highlight=False)
    if "failures" in made:
        console.print(f"    {made['failures']}", markup=False)


@contextmanager
def service() -> Iterator[LocalService]:
    """A fresh service on an empty state directory."""
    with tempfile.TemporaryDirectory(prefix="orchard-bench-") as place:
        running = LocalService(Path(place) / "state")
        try:
            yield running
        finally:
            running.stop()


def goals(_local: LocalService) -> Iterator[Row]:
    """What the service is to reach, each figure beside the ceiling of this run."""
    yield from beside.goals(service)


def execs(local: LocalService) -> Iterator[Row]:
    """One command after the other in one sandbox."""
    for client, options in (("SDK", ()), ("bare HTTP", ("--bare",))):
        run = drive("execs", local.url, local.processes(), "--count", "500", *options)
        yield from latencies(f"exec, {client}", run)


def cycles(local: LocalService) -> Iterator[Row]:
    """Create until ready, exec, delete, one sandbox after the other."""
    run = drive("cycles", local.url, local.processes(), "--count", "100")
    yield from latencies("create, exec, delete", run, {"claim": 20.0})


def cold(_local: LocalService) -> Iterator[Row]:
    """The first sandbox of a service on an empty state directory: layers are made, images looked at."""
    runs = []
    for _ in range(5):
        with service() as fresh:
            runs.append(drive("cycles", fresh.url, fresh.processes(), "--count", "1", "--cold"))
    together = runs[0]
    for run in runs[1:]:
        together.seconds["claim"] += run.seconds["claim"]
        together.failures |= run.failures
    together.seconds = {"claim": together.seconds["claim"]}
    yield from latencies("first sandbox of a new service", together)


def fleets(local: LocalService) -> Iterator[Row]:
    """Many at once, all alive together."""
    for count, commands, options in (
        (200, "builtins", ()),
        (1000, "builtins", ()),
        (1000, "builtins", ("--bare",)),
        (1000, "programs", ()),
    ):
        client = "bare HTTP" if options else "SDK"
        arguments = ("--count", str(count), "--commands", commands, *options)
        run = drive("fleet", local.url, local.processes(), *arguments)
        part = f"{count:,} at once, four commands each ({commands}), {client}"
        goal = 15.0 if count == 1000 and commands == "builtins" else None
        yield row(part, "alive together", run.extra["alive together"], "", run)
        yield row(part, "create, four commands, delete: all", run.extra["wall"], "s", run, goal)
        for phase in ("create all", "exec all", "delete all"):
            yield row(part, phase, run.extra[phase], "s", run)
        yield from latencies(part, run)
        for name, seconds in run.cpu.items():
            yield row(part, f"processor time, {name}", seconds, "s", run)
        yield row(part, "processor time, all together", sum(run.cpu.values()), "s", run)
        for name in ("orchestrator", "agent"):
            yield row(part, f"peak resident, {name}", run.peak[name] / MIB, "MiB", run)


def transfers(local: LocalService) -> Iterator[Row]:
    """A large file up and down, contents compared."""
    before = {name: process.memory_info().rss for name, process in local.processes().items()}
    run = drive("transfer", local.url, local.processes(), "--count", "10", "--size", str(SIZE))
    part = f"file of {SIZE / 1e6:.0f} MB"
    yield from rates(part, run, SIZE)
    for name in ("orchestrator", "agent"):
        grown = (run.peak[name] - before[name]) / MIB
        yield row(part, f"resident more while doing so, {name}", grown, "MiB", run)


def endurance(_local: LocalService) -> Iterator[Row]:
    """Memory over ten thousand commands, each with a kilobyte of output."""
    for sandboxes in (1, 100):
        with service() as fresh:
            watched = fresh.processes()
            arguments = ("--count", str(ENDURANCE[-1]), "--sandboxes", str(sandboxes), "--stops")
            run = drive("endurance", fresh.url, watched, *arguments, *map(str, ENDURANCE))
            part = f"{ENDURANCE[-1]:,} execs in {sandboxes} sandbox{'es' if sandboxes > 1 else ''}"
            for name in ("orchestrator", "agent", "spawner"):
                for stop in ENDURANCE:
                    held = run.phases[str(stop)][name]
                    yield row(part, f"{name} after {stop:,}: resident", held.resident / MIB, "MiB", run)
            for name in ("orchestrator", "agent"):
                held = run.phases[str(ENDURANCE[-1])][name]
                yield row(part, f"{name} after {ENDURANCE[-1]:,}: descriptors", held.descriptors, "", run)
            yield row(part, "commands a second", len(run.seconds["exec"]) / run.extra["wall"], "1/s", run)


def pods(_local: LocalService) -> Iterator[Row]:
    """The same in Pods, where KUBECONFIG's cluster or a test node can be had."""
    command = [sys.executable, "-m", "tests.benchmarks.sandboxes.pods"]
    if "KUBECONFIG" in os.environ:
        yield from _told(command, {})
        return
    try:
        with running_node() as node:
            yield from _told(node.inside(*command), {"KUBECONFIG": str(node.kubeconfig)})
    except (NoNode, NoImage) as reason:
        console.print(f"  not measured: {reason}", markup=False)


def _told(command: list[str], variables: dict[str, str]) -> Iterator[Row]:
    """What the benchmark in Pods prints."""
    asked = subprocess.run(
        command, env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True, check=True
    )
    for line in asked.stdout.splitlines():
        yield json.loads(line)


PARTS: dict[str, Callable[[LocalService], Iterator[Row]]] = {
    part.__name__: part for part in (goals, execs, cycles, cold, fleets, transfers, endurance, pods)
}


def render(rows: list[Row], about: dict[str, str], command: str, when: str) -> str:
    """The figures as Markdown, a table for each part."""
    lines = ["# The sandbox service", "", f"Measured {when} by `{command}`.", ""]
    lines += [f"- {key}: {value}" for key, value in about.items() if key != "versions"]
    ours = [one for one in rows if one["part"] == beside.PART]
    lines += beside.render(ours, number) if ours else []
    part = ""
    for one in (one for one in rows if one not in ours):
        if one["part"] != part:
            part = one["part"]
            lines += ["", f"## {part}", "", "| figure | value | unit | goal | failed |"]
            lines += ["|---|---:|---|---:|---:|"]
        cells = [one["figure"], number(one["value"]), one["unit"], number(one["goal"]), str(one["failed"])]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure all parts, or those named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="all when none is named")
    parser.add_argument("--out", type=Path, default=None, help="page to write")
    options = parser.parse_args()
    page = "sandboxes-goals.md" if options.parts == ["goals"] else "sandboxes.md"
    out: Path = options.out or PAGES / page
    rows: list[Row] = []
    for name in options.parts or PARTS:
        console.print(f"[bold]{name}[/]: {PARTS[name].__doc__}")
        with service() as local:
            for made in PARTS[name](local):
                show(made)
                rows.append(made)
    when = datetime.now(UTC).strftime("%Y-%m-%d")
    words = shlex.join(sys.argv[1:])
    command = f'make bench-sandboxes ARGS="{words}"' if words else "make bench-sandboxes"
    about = machine() | {"load when it ended": f"{os.getloadavg()[0]:.1f} on {psutil.cpu_count()} cores"}
    out.with_suffix(".json").write_text(
        json.dumps({"measured": when, "command": command, "machine": about, "figures": rows}, indent=1) + "\n"
    )
    out.write_text(render(rows, about, command, when))
    console.print(f"written: {out}")


if __name__ == "__main__":
    main()
