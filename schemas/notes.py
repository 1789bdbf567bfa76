"""Notes of people on rollouts, and tags on campaigns: what somebody saw, beside what was graded."""

import msgspec


class RolloutNoted(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody noted something about a rollout. It is no outcome: no reward, pass rate or grade follows from
    it."""

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
    """Somebody gave a campaign tags, or removed some, so that people find it. No result follows from them."""

    author: str
    """Name of who did it, as they gave it."""
    tags: tuple[str, ...] = ()
    """Tags that the campaign gets."""
    removed_tags: tuple[str, ...] = ()
    """Tags that the campaign loses."""
