"""`make demo-claw ARGS="--start 1"`: what a further start shares with the first, and what is its own."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from examples.domains.claw import left_over
from examples.run import example, filled


def test_a_further_start_has_the_worlds_of_the_first_and_runs_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHARD_CONFIG", "")
    found = []
    for start in (0, 1):
        made, values = example("claw", str(tmp_path), seed=3, start=start)
        step = next(step for step in made.steps if step["do"] == "rl")
        found.append((made.directory, values["models"], filled(step, values | {"prompted": ["a"]})))
    (directory, models, ours), (other, again, theirs) = found
    assert directory == other and models != again and Path(again).is_relative_to(directory)
    assert {key for key in ours if ours[key] != theirs[key]} == {"run", "model", "out", "seed"}
    assert ours["seed"] == 3, "the first start has the seed itself"


def test_prompts_are_what_no_rollout_of_the_solver_passed() -> None:
    ids = ["a", "b", "c", "d"]
    assert left_over(ids, {"b", "d", "other"}, least=2) == ["a", "c"]
    assert left_over(ids, {"a", "b", "d"}, least=2) == ids, "too few for a step"
