"""`make demo-matrix`, small: a base, one policy of each harness, three harnesses, one of them a program.

Too little training to repair much: what is seen is that a policy speaks the form of the harness that it was
taught in, and that the whole of it runs, stops and goes on.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from examples.run import example, run
from orchard.configuration.config import ConfigError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

TAUGHT = ("orchard-bash", "mini-swe-agent-text")
UNSEEN = "mini-swe-agent-cli"
SMALL: dict[str, Any] = {
    "tasks": 24,
    "lessons": 24,
    "held_out": 4,
    "functions": 24,
    "kinds": ["larger", "smaller"],
    "seeds": 1,
    "slots": 4,
    "base_epochs": 20,
    "epochs": 24,
    "threads": 1,
}


def test_a_model_learns_the_form_of_the_harness_it_sees(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    _stopped_in_the_middle(store)
    demo, values = example("matrix", store, **SMALL)
    results = asyncio.run(run(demo, values))["results"]

    models, report = values["policies"], demo.directory / "report"
    assert {(cell.harness, cell.model) for cell in results.cells} == set(product((*TAUGHT, UNSEEN), models))
    assert {(cell.requested, cell.graded) for cell in results.cells} == {(4, 4)}, "none aborted, none open"
    malformed = {(cell.harness, cell.model): cell.malformed for cell in results.cells}
    for taught, model in zip(TAUGHT, models, strict=True):
        other = next(harness for harness in TAUGHT if harness != taught)
        assert malformed[other, model] == 4, "the form of the other harness is not known"
        assert malformed[taught, model] < 4, "its own is"
    assert "Paired differences" in (report / "report.md").read_text()
    assert (report / "matrix.png").stat().st_size > 10_000
    assert len(list((report / "preds").iterdir())) == 6
    with pytest.raises(ConfigError, match="repeat them, or choose another --store"):
        asyncio.run(run(*example("matrix", store, **SMALL | {"lessons": 23})))


def _stopped_in_the_middle(store: str) -> None:
    """A first run, with Ctrl-C once the oracle has begun."""
    code = (
        "import asyncio, json, sys; from examples.run import example, run; "
        "asyncio.run(run(*example('matrix', sys.argv[1], **json.loads(sys.argv[2]))))"
    )
    line = [sys.executable, "-c", code, store, json.dumps(SMALL)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for said in process.stdout:
            if "3. the oracle" in said:
                os.kill(process.pid, signal.SIGINT)
                break
        process.stdout.read()
    assert process.returncode != 0
