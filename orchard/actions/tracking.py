"""Training metrics where people have them: TensorBoard's files, MLflow, Weights & Biases, by their packages.

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
from orchard.schemas.training import PolicyStep, TrainingFinished, TrainingStarted, TrainingStep

log = logging.getLogger(__name__)

Fact = TrainingStarted | TrainingStep | TrainingFinished | PolicyStep

_PACKAGES = {"tensorboard": "tensorboard", "mlflow": "mlflow-skinny", "wandb": "wandb"}
"""What to install for each tracker."""


class Tracker(Protocol):
    """One run in one place."""

    last: int
    """The newest step that it has; 0 without any."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Take the figures of a step after `last`."""

    def close(self) -> None:
        """Nothing more comes."""


class TensorBoard:
    """Event files in DIRECTORY/RUN, one for each command: they are shown as one curve."""

    def __init__(self, directory: Path, run: str, first: int) -> None:
        """`first` is the first step that will come: what older files have from it on is not shown."""
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
    """One run of an experiment, found again by its name."""

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
    """One run of a project, resumed by its name. Its own variables (WANDB_MODE, WANDB_API_KEY) hold."""

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
    """A sink of facts for all trackers that are configured; a context manager."""

    def __init__(self, settings: TrackingSettings, state: Path) -> None:
        """Raises ConfigError for a package that is not installed, naming it."""
        self._settings = settings
        self._directory = Path(settings.directory) if settings.directory else state / "tracking"
        self._trackers: dict[str, Tracker] = {}
        self.given_up: set[str] = set()
        """Those that failed."""
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
        """Tell every tracker."""
        match fact:
            case TrainingStarted():
                self._open(fact.run, fact.resumed_step + 1, _params(fact))
            case PolicyStep() if not self._trackers and not self.given_up:
                self._open(fact.run, fact.step, {})
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


def _params(fact: TrainingStarted) -> dict[str, str]:
    return {name: str(value) for name, value in msgspec.to_builtins(fact).items() if name != "resumed_step"}
