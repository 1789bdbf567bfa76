"""The oracle's behaviour in a rollout, drawn from the request's seed and the task, so that it repeats."""

import random
from collections.abc import Mapping
from enum import StrEnum


class Behaviour(StrEnum):
    RESOLVES = "resolves"
    WRONG_EDIT = "wrong_edit"
    """Explores well, then edits wrongly and submits."""
    GIVES_UP = "gives_up"
    MALFORMED = "malformed"
    """Makes calls that do not parse: now and then on the way to a good end, or until the harness stops it."""
    RECOVERS = "recovers"
    """Resolves a repair task from whatever another model has done before it, as a teacher that takes over;
    other tasks as RESOLVES does. It is in no mix unless one names it."""
    OUT_OF_STEPS = "out_of_steps"
    """Explores until the steps run out, sometimes after the right edit."""


DEFAULT_MIX: dict[str, float] = {
    Behaviour.RESOLVES: 0.5,
    Behaviour.WRONG_EDIT: 0.25,
    Behaviour.GIVES_UP: 0.05,
    Behaviour.MALFORMED: 0.1,
    Behaviour.OUT_OF_STEPS: 0.1,
}


def checked_mix(mix: Mapping[str, float]) -> dict[Behaviour, float]:
    """Returns the mix with its names checked. Raises ValueError for one that cannot be drawn from."""
    known = ", ".join(Behaviour)
    try:
        checked = {Behaviour(name): weight for name, weight in mix.items()}
    except ValueError as error:
        raise ValueError(f"{error} of the oracle: use {known}") from None
    if any(weight < 0 for weight in checked.values()) or not sum(checked.values()) > 0:
        raise ValueError(
            f"the weights of the oracle's mix are {dict(mix)}: use weights of 0 or more, not all 0"
        )
    return checked


def draw(mix: Mapping[Behaviour, float], seed: int, task_id: str) -> Behaviour:
    names = sorted(mix)
    return chance(seed, task_id, "behaviour").choices(names, [mix[name] for name in names])[0]


def chance(seed: int, task_id: str, purpose: str) -> random.Random:
    """Returns a generator of its own for each purpose, so that one decision does not shift another."""
    return random.Random(f"{seed}:{task_id}:{purpose}")
