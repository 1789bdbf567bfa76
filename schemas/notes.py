"""Notes of people on rollouts, and tags on campaigns: what somebody saw, beside what was graded."""

import msgspec


class RolloutNoted(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody wrote a note on a rollout. It changes no reward, pass rate or grade."""

    author: str
    """Name of the author, as given."""
    text: str = ""
    """What the author says."""
    labels: tuple[str, ...] = ()
    """Labels that the rollout gets."""
    removed_labels: tuple[str, ...] = ()
    """Labels that the rollout loses."""
    score: float | None = None
    """The author's score in [0, 1]; it replaces their earlier one."""
    turn: int | None = None
    """Turn that the text is about; None: the whole rollout."""


class CampaignTagged(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody added tags to a campaign, or removed some. They change no result."""

    author: str
    """Name of the author, as given."""
    tags: tuple[str, ...] = ()
    """Tags that the campaign gets."""
    removed_tags: tuple[str, ...] = ()
    """Tags that the campaign loses."""
