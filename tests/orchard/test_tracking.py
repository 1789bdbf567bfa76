"""Training metrics in TensorBoard's files; of others, `make test-adapters ARGS=tracking` has tests."""

import logging
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from orchard.actions import tracking as module
from orchard.actions.tracking import Tracking
from orchard.configuration.config import ConfigError, TrackingSettings, checked
from orchard.schemas.groups import PolicyEvaluated
from orchard.schemas.training import PolicyStep
from tests.training_facts import started, step

SETTINGS = TrackingSettings(to="tensorboard")


def test_a_resumed_run_is_one_curve_without_what_the_kill_lost(tmp_path: Path) -> None:
    for first, last in ((1, 4), (3, 5)):
        with Tracking(SETTINGS, tmp_path) as tracking:
            tracking.put(started(resumed_step=first - 1))
            for number in range(first, last + 1):
                tracking.put(step(number))

    shown = EventAccumulator(str(tmp_path / "tracking" / "first"))
    shown.Reload()
    assert [point.step for point in shown.Scalars("loss")] == [1, 2, 3, 4, 5]
    assert [point.value for point in shown.Scalars("loss")] == pytest.approx([1 / n for n in range(1, 6)])
    assert set(shown.Tags()["scalars"]) >= {"loss", "lr", "grad_norm", "tokens"}


def test_the_score_of_a_policy_is_at_the_step_that_made_it_however_often_it_is_told(tmp_path: Path) -> None:
    zeros = dict.fromkeys(PolicyStep.__struct_fields__, 0)
    for _ in range(2):
        with Tracking(SETTINGS, tmp_path) as tracking:
            for version in range(3):
                if version:
                    tracking.put(PolicyStep(**{**zeros, "run": "rl", "step": version, "version": version}))  # type: ignore[arg-type]
                tracking.put(
                    PolicyEvaluated(
                        run="rl", version=version, evaluation=f"rl-v{version}", tasks=4, graded=4, resolved=1,
                        ungraded=0, score=version / 4, low=0.0, high=0.8,
                    )
                )  # fmt: skip

    shown = EventAccumulator(str(tmp_path / "tracking" / "rl"))
    shown.Reload()
    points = [(point.step, point.value) for point in shown.Scalars("held_out/score")]
    assert points == [(0, 0.0), (1, 0.25), (2, 0.5)]
    assert set(shown.Tags()["scalars"]) >= {"held_out/low", "held_out/high", "pass_rate"}


def test_what_cannot_be_written_is_a_warning_and_training_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "tracking").write_text("a file where a folder should be")
    with caplog.at_level(logging.WARNING), Tracking(SETTINGS, tmp_path) as tracking:
        tracking.put(started())
        tracking.put(step(1))
        tracking.put(step(2))

    (warning,) = [record.message for record in caplog.records if record.name == module.__name__]
    assert warning.startswith("tensorboard takes no metrics of this run any more; the log has them")


def test_nothing_is_written_where_nothing_is_asked_for(tmp_path: Path) -> None:
    with Tracking(TrackingSettings(), tmp_path) as tracking:
        tracking.put(started())
        tracking.put(step(1))

    assert list(tmp_path.iterdir()) == []


def test_a_package_that_is_missing_is_named_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "mlflow", None)

    with pytest.raises(ConfigError, match="mlflow, which is not installed: pip install mlflow-skinny"):
        Tracking(TrackingSettings(to="tensorboard, mlflow"), tmp_path)


def test_an_unknown_tracker_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"tracking\.to names comet: choose from tensorboard, mlflow, wandb"
    ):
        checked({"tracking": {"to": "tensorboard,comet"}})
