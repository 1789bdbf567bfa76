"""The step-budget curriculum: short rollouts until the score stops rising, longer ones from then on. Pure."""

from collections.abc import Sequence
from statistics import fmean
from typing import Annotated

import msgspec

Count = Annotated[int, msgspec.Meta(ge=1)]


class StepCurriculum(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When rollouts may take more steps than the run's `budget.steps`, with which it begins."""

    steps: Count
    """Maximum steps of a rollout from then on."""
    window: Count = 10
    """Optimizer steps over which the score is averaged."""
    rise: Annotated[float, msgspec.Meta(ge=0)] = 0.01
    """The score rises while one window's mean is more than this above that of the window before."""


def stopped_rising(scores: Sequence[float], settings: StepCurriculum) -> bool:
    """Whether the newest window of scores is no better than the one before; False while there are too few."""
    if len(scores) < 2 * settings.window:
        return False
    newest, before = scores[-settings.window :], scores[-2 * settings.window : -settings.window]
    return fmean(newest) <= fmean(before) + settings.rise
