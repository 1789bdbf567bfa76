"""Running one scenario of the driver against a service, with eyes on the service's processes."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.sandbox_service import Usage, reset_peak, usage

ROOT = Path(__file__).parents[3]
Row = dict[str, Any]


@dataclass
class Run:
    """What the driver measured and the service used meanwhile."""

    seconds: dict[str, list[float]]
    failures: dict[str, int]
    extra: dict[str, Any]
    cpu: dict[str, float]
    """Seconds of processor time by process; the spawner's include all commands."""
    peak: dict[str, int]
    """Bytes resident at most."""
    phases: dict[str, dict[str, Usage]] = field(default_factory=dict)
    """What each process held when the driver stopped to let us look."""

    @property
    def failed(self) -> int:
        """Operations that did not get the right answer."""
        return sum(self.failures.values())


def percentile(seconds: list[float], share: float) -> float:
    """The smallest value that at least `share` of all do not exceed, in milliseconds."""
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000


def drive(
    scenario: str, url: str, watched: Mapping[str, psutil.Process], *options: str, root: Path = ROOT
) -> Run:
    """Run the scenario in a process of its own, by the driver of the checkout `root`. Raises
    CalledProcessError when the driver fails."""
    command = [sys.executable, "-m", "tests.benchmarks.sandboxes.driver", scenario, url, *options]
    driver = subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    assert driver.stdin is not None
    phases: dict[str, dict[str, Usage]] = {}
    document: dict[str, Any] = {}
    for line in driver.stdout:
        document = json.loads(line)
        if "phase" not in document:
            continue
        if document["phase"] == "ready":
            for process in watched.values():
                reset_peak(process)
        phases[str(document["phase"])] = {name: usage(process) for name, process in watched.items()}
        driver.stdin.write("\n")
        driver.stdin.flush()
    if driver.wait():
        raise subprocess.CalledProcessError(driver.returncode, command)
    after = {name: usage(process) for name, process in watched.items()}
    before = phases.pop("ready")
    return Run(
        seconds=document["seconds"],
        failures=document["failures"],
        extra=document["extra"],
        cpu={name: after[name].cpu - before[name].cpu for name in watched}
        | {"driver": document["extra"].pop("driver cpu")},
        peak={name: held.peak for name, held in after.items()},
        phases=phases,
    )


def row(part: str, figure: str, value: float, unit: str, run: Run, goal: float | None = None) -> Row:
    """One line of the tables."""
    made = {"part": part, "figure": figure, "value": value, "unit": unit, "goal": goal, "failed": run.failed}
    return made | ({"failures": run.failures} if run.failures else {})


def latencies(part: str, run: Run, goals: dict[str, float] | None = None) -> Iterator[Row]:
    """Percentiles of each operation of a run."""
    for name, seconds in run.seconds.items():
        for share in (0.5, 0.95):
            goal = (goals or {}).get(name)
            figure = f"{name} p{share * 100:.0f} of {len(seconds):,}"
            yield row(part, figure, percentile(seconds, share), "ms", run, goal)


def rates(part: str, run: Run, size: int) -> Iterator[Row]:
    """How fast a file of `size` bytes goes up and down."""
    for name in ("upload", "download"):
        yield row(part, f"{name}, median", size / 1e3 / percentile(run.seconds[name], 0.5), "MB/s", run)
