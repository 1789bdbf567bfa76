"""`orchard rl` on a real pipeline, with its processes killed under it: see tests/chaos/rl.py."""

import os
from pathlib import Path

import pytest

from tests.chaos.rl import RlReport, Size, run


@pytest.mark.slow
async def test_a_run_under_kills_trains_on_every_group_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("ORCHARD_ENDPOINTS__")]:
        monkeypatch.delenv(name)
    report: RlReport = await run(tmp_path / "store", Size(steps=2, group=2, kills=3), seed=12)
    assert report.faults == []
    assert report.groups == 4
    assert sum(report.kills.values()) == 3
    assert report.looks > 0
