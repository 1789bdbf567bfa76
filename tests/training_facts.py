"""Facts of a training run that nobody ran."""

from orchard.schemas.training import TrainingStarted, TrainingStep


def started(*, resumed_step: int = 0) -> TrainingStarted:
    """The run `first` of five steps began, or went on."""
    return TrainingStarted(
        run="first",
        config_hash="c",
        dataset_sha256="d",
        model="m",
        parameters=3,
        steps=5,
        resumed_step=resumed_step,
    )


def step(number: int) -> TrainingStep:
    """One of its steps; the loss is 1 / number."""
    return TrainingStep(
        run="first",
        step=number,
        loss=1.0 / number,
        lr=0.1,
        grad_norm=1.0,
        tokens=10,
        trained_tokens=5,
        seconds=0.1,
    )
