"""The table of a GPU: refused without one, and tried on a CPU."""

import subprocess
import sys

import pytest
import torch

COMMAND = [sys.executable, "-m", "tests.benchmarks.gpu"]


@pytest.mark.long
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_machine_without_a_gpu_is_refused_in_one_sentence():
    run = subprocess.run(COMMAND, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr.startswith("there is no GPU here: ") and run.stderr.count("\n") == 1


@pytest.mark.slow
def test_every_row_is_measured_at_the_tiny_size():
    run = subprocess.run([*COMMAND, "--size", "tiny", "--cpu"], capture_output=True, text=True, check=True)
    table = [line for line in run.stdout.splitlines() if line.startswith("| ")]
    assert len(table) == 12 and "not measured" not in run.stdout
    assert "loss of two examples" in run.stdout
    assert "8 answers with and without graphs: 64 of 64 tokens alike" in run.stdout
