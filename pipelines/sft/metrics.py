"""Reports of a running run: JSON lines, and a plot at the end."""

from pathlib import Path
from typing import Protocol

import msgspec

from orchard.schemas.training import TrainingFinished, TrainingStarted, TrainingStep
from orchard.storage.durable import write_whole

Fact = TrainingStarted | TrainingStep | TrainingFinished


class Sink(Protocol):
    """Takes the facts of a run, in order."""

    def put(self, fact: Fact) -> None: ...


class JsonLines:
    """Writes one line for each step into a file. A resumed run cuts off what came after its checkpoint."""

    def __init__(self, path: Path, after_step: int) -> None:
        kept = [step for step in read_steps(path) if step.step <= after_step] if path.exists() else []
        write_whole(path.parent, path.name, b"".join(_line(step) for step in kept))
        self._path = path

    def put(self, fact: Fact) -> None:
        if isinstance(fact, TrainingStep):
            with self._path.open("ab") as file:
                file.write(_line(fact))


def read_steps(path: Path) -> list[TrainingStep]:
    """The steps in a metrics file; a last line that a kill cut short is left out."""
    lines = path.read_bytes().split(b"\n")[:-1]
    return [msgspec.json.decode(line, type=TrainingStep) for line in lines]


def plot_steps(steps: list[TrainingStep], path: Path, title: str) -> None:
    """Draw loss, learning rate and gradient norm over the steps as PNG."""
    import matplotlib  # only here, as it takes a second to import

    matplotlib.use("Agg")
    from matplotlib import pyplot

    numbers = [step.step for step in steps]
    figure, (upper, lower) = pyplot.subplots(2, 1, figsize=(8, 6), sharex=True, height_ratios=(2, 1))
    upper.plot(numbers, [step.loss for step in steps], color="tab:blue", linewidth=1)
    upper.set_ylabel("loss (nats per trained token)")
    upper.set_title(title)
    upper.grid(alpha=0.3)
    lower.plot(numbers, [step.grad_norm for step in steps], color="tab:gray", linewidth=1)
    lower.set_ylabel("gradient norm")
    lower.set_xlabel("optimizer step")
    rate = lower.twinx()
    rate.plot(numbers, [step.lr for step in steps], color="tab:orange", linewidth=1)
    rate.set_ylabel("learning rate", color="tab:orange")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _line(step: TrainingStep) -> bytes:
    return msgspec.json.encode(step) + b"\n"
