"""Half an hour of refusals over 5,000 queued rollouts costs none; `tests.chaos.resting` prints the rates."""

from pathlib import Path

import pytest

from tests.chaos.resting import Size, run


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_an_outage_of_half_an_hour_costs_no_rollout_and_hardly_a_call(tmp_path: Path) -> None:
    size = Size(rollouts=5000, throttled=1200, down=600, after=120)
    report = await run(tmp_path, size)
    assert (report.aborted, report.lost) == (0, 0)
    assert 0 < report.calls < size.throttled + size.down, "fewer than one call a second"
    assert report.sandboxes == 0
    assert report.finished > 0
