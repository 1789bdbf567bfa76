"""Sends training metrics to TensorBoard's files, MLflow and Weights & Biases by their own packages.

The log has every figure anyway (views `training_steps` and `policy_steps`). So what a tracker does not take
is a warning and training goes on, and steps that a resumed run tells again are passed over.
"""

import importlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from orchard.configuration.config import ConfigError, TrackingSettings
from orchard.schemas.groups import PolicyEvaluated
from orchard.schemas.training import PolicyStep, TrainingFinished, TrainingStarted, TrainingStep

log = logging.getLogger(__name__)

Fact = TrainingStarted | TrainingStep | TrainingFinished | PolicyStep | PolicyEvaluated

_PACKAGES = {"tensorboard": "tensorboard", "mlflow": "mlflow-skinny", "wandb": "wandb"}
"""Package of each tracker."""


class Tracker(Protocol):
    """A run in one tracker."""

    last: int
    """Newest recorded step; 0 without any."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Records the metrics of a step after `last`."""

    def close(self) -> None:
        """Closes the run."""


class TensorBoard:
    """Writes event files in DIRECTORY/RUN, one for each command; TensorBoard shows them as one curve."""

    def __init__(self, directory: Path, run: str, first: int) -> None:
        """Opens a file; `first` is the next step: later ones in older files are not shown."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(directory / run), purge_step=first)
        self.last = first - 1

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class MLflow:
    """Records a run of an experiment, which is found again by its name."""

    def __init__(self, uri: str | None, project: str, run: str, params: Mapping[str, str]) -> None:
        mlflow = importlib.import_module("mlflow")

        self._client = mlflow.MlflowClient(tracking_uri=uri)
        known = self._client.get_experiment_by_name(project)
        experiment = known.experiment_id if known else self._client.create_experiment(project)
        found = self._client.search_runs(
            [experiment], filter_string=f"tags.`mlflow.runName` = '{run}'", max_results=1
        )
        self._run = (found[0] if found else self._client.create_run(experiment, run_name=run)).info.run_id
        for name, value in params.items():
            self._client.log_param(self._run, name, value)
        history = self._client.get_metric_history(self._run, "loss") if found else []
        self.last = max((metric.step for metric in history), default=0)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._client.log_metric(self._run, name, value, step=step)

    def close(self) -> None:
        self._client.set_terminated(self._run)


class WandB:
    """Records a run of a project, which is resumed by its name. W&B's variables (WANDB_MODE,
    WANDB_API_KEY) apply."""

    def __init__(self, directory: Path, project: str, run: str, params: Mapping[str, str]) -> None:
        wandb = importlib.import_module("wandb")

        directory.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=project, id=run, name=run, resume="allow", config=dict(params), dir=str(directory)
        )
        self.last = max(int(self._run.step) - 1, 0)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class Tracking:
    """Sends facts to all configured trackers; a context manager."""

    def __init__(self, settings: TrackingSettings, state: Path) -> None:
        """Opens the trackers. Raises ConfigError for a package that is not installed."""
        self._settings = settings
        self._directory = Path(settings.directory) if settings.directory else state / "tracking"
        self._trackers: dict[str, Tracker] = {}
        self.given_up: set[str] = set()
        """Names of trackers that failed."""
        for name in settings.names:
            try:
                importlib.import_module(name)
            except ImportError:
                raise ConfigError(
                    f"tracking.to names {name}, which is not installed: pip install {_PACKAGES[name]}"
                ) from None

    def __enter__(self) -> "Tracking":
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self._trackers):
            self._try(name, lambda tracker: tracker.close())

    def put(self, fact: Fact) -> None:
        """Sends a fact to every tracker."""
        match fact:
            case TrainingStarted():
                self._open(fact.run, fact.resumed_step + 1, _params(fact))
            case PolicyStep() if not self._trackers and not self.given_up:
                self._open(fact.run, fact.step, {})
            case PolicyEvaluated() if not self._trackers and not self.given_up:
                self._open(fact.run, fact.version, {})
        if isinstance(fact, PolicyEvaluated):
            for name in list(self._trackers):
                self._try(name, lambda tracker: _log_evaluation(tracker, fact))
        if isinstance(fact, TrainingStep | PolicyStep):
            for name in list(self._trackers):
                self._try(name, lambda tracker: _log(tracker, fact))

    def _open(self, run: str, first: int, params: Mapping[str, str]) -> None:
        settings = self._settings
        for name in settings.names:
            try:
                if name == "tensorboard":
                    self._trackers[name] = TensorBoard(self._directory, run, first)
                elif name == "mlflow":
                    self._trackers[name] = MLflow(settings.mlflow_uri, settings.project, run, params)
                else:
                    self._trackers[name] = WandB(self._directory, settings.project, run, params)
            except Exception as error:  # other people's code, over networks: nothing of it may end a run
                self._give_up(name, error)

    def _try(self, name: str, action: Any) -> None:
        try:
            action(self._trackers[name])
        except Exception as error:  # as above
            self._give_up(name, error)

    def _give_up(self, name: str, error: Exception) -> None:
        self._trackers.pop(name, None)
        self.given_up.add(name)
        log.warning("%s takes no metrics of this run any more; the log has them (%s)", name, error)


def _log(tracker: Tracker, fact: TrainingStep | PolicyStep) -> None:
    if fact.step > tracker.last:
        figures = msgspec.to_builtins(fact)
        known = {name: float(value) for name, value in figures.items() if isinstance(value, int | float)}
        tracker.log(fact.step, {name: value for name, value in known.items() if name != "step"})


def _log_evaluation(tracker: Tracker, fact: PolicyEvaluated) -> None:
    """Record the score of a policy version at the step that made it, which is recorded already."""
    figures = {"score": fact.score, "low": fact.low, "high": fact.high}
    if fact.version >= tracker.last and fact.score is not None:
        tracker.log(
            fact.version, {f"held_out/{name}": value for name, value in figures.items() if value is not None}
        )


def _params(fact: TrainingStarted) -> dict[str, str]:
    return {name: str(value) for name, value in msgspec.to_builtins(fact).items() if name != "resumed_step"}
