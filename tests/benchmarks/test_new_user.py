"""The path of a new user works from end to end in this installation."""

import sys
from pathlib import Path

import pytest

from tests.benchmarks.new_user import measured


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_each_step_of_a_new_user_works(tmp_path: Path) -> None:
    steps = await measured(tmp_path, tasks=2, installed=Path(sys.prefix))
    quick_start = ["quick start: first graded rollout", "quick start: whole"]
    own = ["try", "submit", "watch", "install for training", "tokenizer", "dataset build", "report"]
    assert [step.name for step in steps] == ["clone", "install", *quick_start, "up, and the page open", *own]
