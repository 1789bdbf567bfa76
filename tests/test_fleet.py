"""A fleet, small: the campaign of `python -m tests.chaos.fleet`, over three servers, with kills."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("streams", ["1", "4"])
@pytest.mark.timeout(900)
@pytest.mark.needs_root("control groups of sandboxes")
async def test_every_request_has_one_outcome_whoever_was_killed(tmp_path: Path, streams: str) -> None:
    words = ["--rollouts", "120", "--kills", "4", "--workers", "3", "--slots", "8", "--max-age", "60"]
    words += ["--event-streams", streams]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.chaos.fleet", *words, "--store", str(tmp_path / "fleet")),
        cwd=Path(__file__).parent.parent,
        env={name: value for name, value in os.environ.items() if not name.startswith("ORCHARD_")},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
    )
    said, _ = await process.communicate()
    report = json.loads(said)

    assert (report["findings"], report["lost"], report["doubled"]) == ([], 0, 0)
    assert report["finished"] == 120
    assert report["kills"] == {"worker": 2, "nats": 1, "writer": 1}
    assert report["workers_started"] > 3, "who was killed was replaced"
    assert process.returncode == 0
