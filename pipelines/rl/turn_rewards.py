"""Rubric process reward: rewards of turns beside the outcome's advantage. No torch.

What a turn is given or loses by the judge is at most `weight` of the size of its rollout's own advantage. So
no score turns a failure into a success, and a group without contrast stays without a gradient.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import Annotated

import msgspec

Share = Annotated[float, msgspec.Meta(gt=0, le=1)]


class ProcessReward(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Scores of turns by rubrics, which `orchard values rubrics` has written and `orchard values worker`
    gives."""

    teacher: str
    """Layer of rubrics; each task of the run needs one."""
    model: str
    """Judge that scores turns."""
    endpoint: str = "default"
    """Endpoint of the judge, in the configuration of the annotators."""
    weight: Share = 0.3
    """Maximum of what scores add to, or take from, the advantage of a turn, as a share of its size."""
    limit: Share = 0.25
    """Reward of a turn, less the mean of its group's turns, at which the maximum is reached: rewards are
    clipped there."""

    @property
    def layer(self) -> str:
        """Layer of annotations that the scores belong to."""
        return f"rubric:{self.model}"


def turn_advantages(
    outcomes: Sequence[float],
    groups: Sequence[str],
    rewards: Sequence[Sequence[float]],
    process: ProcessReward,
) -> list[list[float]]:
    """The advantage of each turn of each rollout: A + weight * |A| * clip((r - mean) / limit, -1, 1), with
    the mean over all scored turns of the group. A rollout without scores has no entry: its turns have A."""
    of_group: dict[str, list[float]] = {}
    for group, own in zip(groups, rewards, strict=True):
        of_group.setdefault(group, []).extend(own)
    means = {group: fmean(known) for group, known in of_group.items() if known}
    return [
        [
            outcome + process.weight * abs(outcome) * _clipped((reward - means[group]) / process.limit)
            for reward in own
        ]
        for outcome, group, own in zip(outcomes, groups, rewards, strict=True)
    ]


def _clipped(value: float) -> float:
    return max(-1.0, min(1.0, value))
