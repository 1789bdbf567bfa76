"""Checkpoints that continue bit for bit: weights, optimizer, random states and the position in the data.

One directory for each, `step-<n>`; it gets its name only when it is whole. Sharded runs write one file
for each process (torch.distributed.checkpoint) and may resume with another number of processes.
"""

import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import msgspec
import torch
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)

from orchard.pipelines.sft.processes import Processes
from orchard.pipelines.sft.settings import TrainingError
from orchard.schemas.training import TrainingStep

_POSITION = "position.json"
_PREFIX = "step-"
_TRAINED = StateDictOptions(ignore_frozen_params=True, strict=False)
"""Options that leave frozen weights out of a checkpoint: the model that a run starts from has them."""


class TrainingPosition(msgspec.Struct, frozen=True, kw_only=True):
    """The position of a fine-tuning run."""

    settings_hash: str
    dataset_sha256: str
    step: int = 0
    """Optimizer steps done; the next batch follows from it."""
    tokens: int = 0
    trained_tokens: int = 0

    def after(self, step: TrainingStep) -> "TrainingPosition":
        """The position after `step`."""
        return msgspec.structs.replace(
            self,
            step=step.step,
            tokens=self.tokens + step.tokens,
            trained_tokens=self.trained_tokens + step.trained_tokens,
        )


class Stand(Protocol):
    """The position of a run of any kind; a msgspec struct."""

    @property
    def step(self) -> int: ...


S = TypeVar("S", bound=Stand)


class Checkpoints(Generic[S]):
    """The checkpoints of one run, below `directory`; `kind` is the type of its positions."""

    def __init__(self, directory: Path, processes: Processes, keep: int, kind: type[S]) -> None:
        self._directory = directory
        self._processes = processes
        self._keep = keep
        self._kind = kind

    def save(self, model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer], position: S) -> None:
        """Write a checkpoint and delete the oldest ones above the number to keep. All processes call it."""
        place = self._directory / f"{_PREFIX}{position.step:08}"
        temporary = self._directory / f".{place.name}.partial"
        if self._processes.first:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
        self._processes.wait()
        weights, moments = get_state_dict(model, optimizers, options=_TRAINED)
        with _quiet():
            state_dict_saver.save(
                {"model": weights, "optimizer": moments},
                checkpoint_id=temporary,
                no_dist=self._processes.count == 1,
            )
        torch.save(_random_states(), temporary / f"random-{self._processes.rank}.pt")
        self._processes.wait()
        if self._processes.first:
            (temporary / _POSITION).write_bytes(msgspec.json.encode(position))
            shutil.rmtree(place, ignore_errors=True)
            temporary.rename(place)
            for old in self._places()[: -self._keep]:
                shutil.rmtree(old)
        self._processes.wait()

    def newest(self) -> S | None:
        """Position of the newest checkpoint; None when there is none."""
        places = self._places()
        if not places:
            return None
        return msgspec.json.decode((places[-1] / _POSITION).read_bytes(), type=self._kind)

    def load(self, model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Load the newest checkpoint into model and optimizer. All processes call it."""
        place = self._places()[-1]
        weights, moments = get_state_dict(model, optimizers, options=_TRAINED)
        # Tensors are loaded in place; what is no tensor comes back in the dictionary that is given.
        state: dict[str, Any] = {"model": weights, "optimizer": moments}
        with _quiet():
            state_dict_loader.load(state, checkpoint_id=place, no_dist=self._processes.count == 1)
        set_state_dict(
            model,
            optimizers,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
            options=_TRAINED,
        )
        states = place / f"random-{self._processes.rank}.pt"
        if states.exists():  # not where the run now has more processes
            _set_random_states(torch.load(states))

    def _places(self) -> list[Path]:
        return sorted(self._directory.glob(f"{_PREFIX}*"))


def same_run(checkpoint: TrainingPosition, start: TrainingPosition, out: Path) -> None:
    """Raise TrainingError where a checkpoint belongs to other settings or data than the run's start."""
    for what, then, now in (
        ("another configuration", checkpoint.settings_hash, start.settings_hash),
        ("another dataset", checkpoint.dataset_sha256, start.dataset_sha256),
    ):
        if then != now:
            raise TrainingError(
                f"the checkpoint in {out} is of {what} ({then[:12]}, now {now[:12]}): choose another `out`, "
                "or delete that directory"
            )


def whole_weights(model: torch.nn.Module, processes: Processes) -> dict[str, Any] | None:
    """All weights on the CPU, in the first process of a sharded run; None where nothing is sharded."""
    if processes.count == 1:
        return None
    return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences the warning that one process is one process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _random_states() -> dict[str, Any]:
    return {
        "cpu": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }


def _set_random_states(states: dict[str, Any]) -> None:
    torch.set_rng_state(states["cpu"])
    if states["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
