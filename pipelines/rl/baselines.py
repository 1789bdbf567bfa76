"""Turns the rewards of a group into advantages. No torch."""

from collections.abc import Sequence
from statistics import fmean, stdev

import msgspec

from orchard.pipelines.rl.loss_settings import Baseline
from orchard.pipelines.sft.settings import Positive, Tokens

STD_EPSILON = 1e-6


class Overlong(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a long answer costs: DAPO's soft overlong punishment, https://arxiv.org/abs/2503.14476, equation
    13, over all tokens that the policy said in a rollout."""

    limit: Tokens
    """Tokens from which on the whole penalty is due."""
    buffer: Tokens
    """Tokens below `limit` over which the penalty rises from 0, linearly."""
    penalty: Positive = 1.0
    """Penalty, which is subtracted from the reward before advantages are made."""

    def __post_init__(self) -> None:
        if self.buffer > self.limit:
            raise ValueError(f"overlong.buffer {self.buffer} is above overlong.limit {self.limit}: lower it")


def shaped(reward: float, tokens: int, overlong: Overlong | None) -> float:
    """The reward of a rollout in which the policy said so many tokens, less the penalty for its length."""
    if overlong is None:
        return reward
    over = (tokens - overlong.limit + overlong.buffer) / overlong.buffer
    return reward - overlong.penalty * min(max(over, 0.0), 1.0)


def advantages(
    rewards: Sequence[float],
    groups: Sequence[str],
    baseline: Baseline = Baseline.NORMALIZED,
) -> list[float]:
    """Advantages of `baseline` within each group; by default (r - mean) / (std + 1e-6), std with N - 1.

    Groups are told apart by their id alone. Raises ValueError for a group with fewer than two rollouts.
    """
    members: dict[str, list[float]] = {}
    for reward, group in zip(rewards, groups, strict=True):
        members.setdefault(group, []).append(reward)
    if small := [group for group, known in members.items() if len(known) < 2]:
        raise ValueError(f"group {small[0]} has fewer than two rollouts: filter it out first")
    moments = {group: (fmean(known), _scale(known, baseline)) for group, known in members.items()}
    found = []
    for reward, group in zip(rewards, groups, strict=True):
        mean, scale = moments[group]
        found.append((reward - mean) / scale)
    return found


def _scale(rewards: Sequence[float], baseline: Baseline) -> float:
    """The divisor of r - mean in a group."""
    match baseline:
        case Baseline.NORMALIZED:
            return stdev(rewards) + STD_EPSILON
        case Baseline.MEAN:
            return 1.0
        case Baseline.LEAVE_ONE_OUT:  # r - mean of the others = (r - mean) N / (N - 1)
            return 1 - 1 / len(rewards)
