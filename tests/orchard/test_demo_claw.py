"""`orchard demo-claw --start`: what a further start shares with the first, and what it has of its own."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from orchard.demo_claw import TRAINED, ClawDemo, ClawSettings


def test_a_further_start_has_the_worlds_of_the_first_and_runs_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHARD_CONFIG", "")
    first, again = (ClawDemo(str(tmp_path), ClawSettings(seed=3, start=start)) for start in (0, 1))
    assert first.directory == again.directory and first.name(TRAINED) == again.name(TRAINED)
    ours, theirs = first._recipe(["a"]), again._recipe(["a"])
    assert {key for key in ours if ours[key] != theirs[key]} == {"run", "model", "out", "seed"}
    assert first.report != again.report and again.report.is_relative_to(again.directory)
    assert ours["seed"] == 3, "the first start has the seed itself"


def test_prompts_are_what_no_rollout_of_the_solver_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHARD_CONFIG", "")
    demo = ClawDemo(str(tmp_path), ClawSettings(prompts=2))
    ids = ["a", "b", "c", "d"]
    monkeypatch.setattr(demo, "_solved", lambda: {"b", "d", "other"})
    assert demo._unsolved(ids) == ["a", "c"]
    monkeypatch.setattr(demo, "_solved", lambda: {"a", "b", "d"})
    assert demo._unsolved(ids) == ids, "too few for a step"
