"""The soak of the local sandbox service in small; `make soak` is the full size."""

from pathlib import Path

import pytest

from tests.soak.engine import Plan, Soak
from tests.soak.local import LocalLeg


@pytest.mark.slow
async def test_faults_of_every_kind_leave_nothing_behind_and_no_wrong_answer(tmp_path: Path) -> None:
    plan = Plan(
        seed=7,
        slots=6,
        operations=300,
        seconds=200.0,
        fault_every=(5, 12),
        checkpoints=2,
        calm_from=1.0,
    )
    async with LocalLeg(tmp_path) as leg:
        record = await Soak(leg, plan).run()
    assert record.findings == []
    assert record.total >= 300
    assert set(record.faults) == set(leg.faults)
    assert [rest.left for rest in record.checkpoints] == [[], []]
