"""Training metrics in the real MLflow and the real Weights & Biases, without a server or a network."""

from pathlib import Path

import mlflow
import pytest

from orchard.actions.tracking import Tracking
from orchard.configuration.config import TrackingSettings
from tests.training_facts import started, step


def told(settings: TrackingSettings, place: Path) -> Tracking:
    """A run that is killed after its third step and resumed from the second, as trackers hear of it."""
    for first, last in ((1, 3), (3, 5)):
        with Tracking(settings, place) as tracking:
            tracking.put(started(resumed_step=first - 1))
            for number in range(first, last + 1):
                tracking.put(step(number))
    return tracking


def test_mlflow_has_each_step_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "MLFLOW_ALLOW_FILE_STORE", "true"
    )  # servers have databases; the skinny package has none
    uri = (tmp_path / "runs").as_uri()

    tracking = told(TrackingSettings(to="mlflow", mlflow_uri=uri, project="p"), tmp_path)

    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("p")
    (run,) = client.search_runs([experiment.experiment_id])
    losses = [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, "loss")]
    assert losses == [(number, 1.0 / number) for number in range(1, 6)]
    assert run.data.params["model"] == "m"
    assert run.info.status == "FINISHED"
    assert not tracking.given_up


def test_weights_and_biases_resumes_the_run_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")

    tracking = told(TrackingSettings(to="wandb"), tmp_path)

    assert not tracking.given_up
    files = list((tmp_path / "tracking" / "wandb").glob("offline-run-*/run-first.wandb"))
    assert files and all(file.stat().st_size for file in files)
