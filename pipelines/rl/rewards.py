"""Rewards of browsing and of tool use, and what is excluded from the loss. Pure.

What is excluded has no reward at all: neither 0 nor -1, so that it can come into no group and no mean.
"""

from enum import StrEnum

import msgspec

from orchard.schemas.outcomes import ExitStatus

CLAW_WALL_SECONDS = 600.0
CLAW_PASS = 0.75


class Excluded(StrEnum):
    """Why an episode trains nothing; its whole loss mask is 0."""

    JUDGE_FAILED = "judge_failed"
    """The judge gave no verdict."""
    CAPTCHA = "captcha"
    """The site let nobody through."""
    WALL_CLOCK = "wall_clock"
    """It took longer than its wall clock allows."""


class GuiEpisode(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of an episode in a browser when it is over."""

    exit_status: ExitStatus
    parsed: tuple[bool, ...]
    """For each assistant turn, whether it was thinking and a tool call that could be read."""
    success: bool | None
    """The judge's verdict; None when the judge could not be asked."""
    captcha: bool = False


def gui_reward(episode: GuiEpisode) -> float | Excluded:
    """+1: every turn parses and the judge says success; -1: ended by repeated format failures; 0 otherwise.

    A format failure is seen without the judge, so it counts although the judge failed.
    """
    if episode.captcha:
        return Excluded.CAPTCHA
    if episode.exit_status is ExitStatus.FORMAT_FAILURE:
        return -1.0
    if episode.success is None:
        return Excluded.JUDGE_FAILED
    return 1.0 if episode.success and episode.parsed and all(episode.parsed) else 0.0


class ClawEpisode(msgspec.Struct, frozen=True, kw_only=True):
    """What the test scripts of a tool-use task say; the three parts are in [0, 1]."""

    safety: float
    completion: float
    robustness: float
    seconds: float
    """Of the rollout, on the wall."""
    pairs: int
    """Recorded (input, output) pairs: calls of the policy, in whatever contexts the harness made."""

    @property
    def score(self) -> float:
        """safety * (0.8 completion + 0.2 robustness)."""
        return self.safety * (0.8 * self.completion + 0.2 * self.robustness)


def claw_rewards(episode: ClawEpisode) -> tuple[float, ...] | Excluded:
    """The same for each recorded pair: +1 where the episode passes, -1 where it does not."""
    if episode.seconds > CLAW_WALL_SECONDS:
        return Excluded.WALL_CLOCK
    return (1.0 if episode.score >= CLAW_PASS else -1.0,) * episode.pairs
