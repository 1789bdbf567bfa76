"""Running one scenario of the driver against a service, with eyes on the service's processes."""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.sandbox_service import Usage, reset_peak, usage

ROOT = Path(__file__).parents[3]


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


def drive(scenario: str, url: str, watched: Mapping[str, psutil.Process], *options: str) -> Run:
    """Run the scenario in a process of its own. Raises CalledProcessError when the driver fails."""
    command = [sys.executable, "-m", "tests.benchmarks.sandboxes.driver", scenario, url, *options]
    driver = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
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
