"""Faults through a campaign, in a minute; `make chaos` is the full size."""

from pathlib import Path

import pytest

from tests.chaos.faults import chosen
from tests.chaos.run import run


@pytest.mark.slow
async def test_quick_faults_lose_nothing_double_nothing_and_give_no_false_reward(tmp_path: Path) -> None:
    kinds = chosen("kill,stop,poison,pause,sandbox")
    report = await run(
        tmp_path / "store", rollouts=30, workers=3, slots=2, faults=8, kinds=kinds, tasks=5, seed=3
    )
    assert report.findings == []
    assert report.finished == 30
    # A fault hits nothing where, say, every claim of a stopped worker's ended meanwhile.
    assert set(report.faults) == {kind.name for kind in kinds}
    assert sum(report.faults.values()) >= 6
    assert report.attempts >= 30
