"""The pipeline's tax counts whole process trees, and compares equal work."""

import json
import os
import subprocess
import sys

import pytest

from tests.benchmarks.bench_tax import process_times, spent
from tests.benchmarks.run import BENCHMARKS, ROOT

BURN = "import time\nwhile time.process_time() < 0.3: pass"


def test_the_time_of_a_grandchild_that_ended_is_counted() -> None:
    before = process_times()
    subprocess.run(["sh", "-c", f"{sys.executable} -c '{BURN}'; true"], check=True)
    _, ended = spent(before, process_times(), os.getpid())
    assert ended >= 0.25, "half a tick of the clock is lost for each process"


def test_a_child_that_still_runs_is_counted_with_what_it_did() -> None:
    before = process_times()
    program = f"{BURN}\nprint('done', flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == b"done\n"
        _, since = spent(before, process_times(), os.getpid())
        child.communicate(b"\n")
    assert since >= 0.25


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_tiny_run_gives_every_figure() -> None:
    """The campaign and the script come to the same turns and commands, or it fails."""
    words = [sys.executable, "-m", "tests.benchmarks.bench_tax"]
    words += ["--tasks", "2", "--samples", "1", "--rounds", "1", "--idle", "1"]
    done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    figures = {line["name"]: line for line in map(json.loads, done.stdout.splitlines())}
    assert figures["campaign over plain script"]["ceiling"] == 1.15
    for part in ("worker", "writer", "nats", "agent", "orchestrator", "commands in sandboxes"):
        assert figures[f"campaign: {part}"]["value"] > 0, part
    assert figures["campaign: commands in sandboxes"]["ceiling"] > 0
    assert "tax" in BENCHMARKS
