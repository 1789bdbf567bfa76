"""`make bench-sandboxes`: figures of the sandbox service, on this machine and in Pods where a cluster is.

Driver, orchestrator and agent are processes of their own. Every figure says how many operations it is of and
how many of them failed; a failure is an answer that is not the right one, too. Written to
docs/benchmarks/sandboxes.md and .json with the machine and the command. Nothing is asserted.
"""

import argparse
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from tests.benchmarks.run import RESULTS, machine, number
from tests.benchmarks.sandboxes.measuring import Run, drive, percentile
from tests.sandbox_service import LocalService

Row = dict[str, Any]
MIB = 2**20
SIZE = 30_000_000
ENDURANCE = (1_000, 5_000, 10_000)

console = Console()


@contextmanager
def service() -> Iterator[LocalService]:
    """A fresh service on an empty state directory."""
    with tempfile.TemporaryDirectory(prefix="orchard-bench-") as place:
        running = LocalService(Path(place) / "state")
        try:
            yield running
        finally:
            running.stop()


def row(part: str, figure: str, value: float, unit: str, run: Run, goal: float | None = None) -> Row:
    """One line of the tables, printed as it comes."""
    made = {"part": part, "figure": figure, "value": value, "unit": unit, "goal": goal, "failed": run.failed}
    console.print(f"  {figure}: {number(value)} {unit}, {run.failed} failed", highlight=False)
    if run.failures:
        made["failures"] = run.failures
        console.print(f"    {run.failures}", markup=False)
    return made


def latencies(part: str, run: Run, goals: dict[str, float] | None = None) -> Iterator[Row]:
    """Percentiles of each operation of a run."""
    for name, seconds in run.seconds.items():
        for share in (0.5, 0.95):
            goal = (goals or {}).get(name)
            figure = f"{name} p{share * 100:.0f} of {len(seconds):,}"
            yield row(part, figure, percentile(seconds, share), "ms", run, goal)


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
        for name in ("orchestrator", "agent"):
            yield row(part, f"peak resident, {name}", run.peak[name] / MIB, "MiB", run)


def transfers(local: LocalService) -> Iterator[Row]:
    """A large file up and down, contents compared."""
    before = {name: process.memory_info().rss for name, process in local.processes().items()}
    run = drive("transfer", local.url, local.processes(), "--count", "10", "--size", str(SIZE))
    part = f"file of {SIZE / 1e6:.0f} MB"
    for name in ("upload", "download"):
        yield row(part, f"{name}, median", SIZE / 1e3 / percentile(run.seconds[name], 0.5), "MB/s", run)
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


PARTS: dict[str, Callable[[LocalService], Iterator[Row]]] = {
    part.__name__: part for part in (execs, cycles, cold, fleets, transfers, endurance)
}


def render(rows: list[Row], about: dict[str, str], command: str, when: str) -> str:
    """The figures as Markdown, a table for each part."""
    lines = ["# The sandbox service", "", f"Measured {when} by `{command}`.", ""]
    lines += [f"- {key}: {value}" for key, value in about.items() if key != "versions"]
    part = ""
    for one in rows:
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
    parser.add_argument("--out", type=Path, default=RESULTS / "sandboxes.md", help="page to write")
    options = parser.parse_args()
    rows: list[Row] = []
    for name in options.parts or PARTS:
        console.print(f"[bold]{name}[/]: {PARTS[name].__doc__}")
        with service() as local:
            rows += PARTS[name](local)
    when = datetime.now(UTC).strftime("%Y-%m-%d")
    words = shlex.join(sys.argv[1:])
    command = f'make bench-sandboxes ARGS="{words}"' if words else "make bench-sandboxes"
    about = machine() | {"load when it ended": f"{os.getloadavg()[0]:.1f} on {psutil.cpu_count()} cores"}
    options.out.with_suffix(".json").write_text(
        json.dumps({"measured": when, "command": command, "machine": about, "figures": rows}, indent=1) + "\n"
    )
    options.out.write_text(render(rows, about, command, when))
    console.print(f"written: {options.out}")


if __name__ == "__main__":
    main()
