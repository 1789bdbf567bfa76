"""A set of tasks, as an evaluation or a run of RL names it."""

from typing import Annotated

import msgspec

Positive = Annotated[int, msgspec.Meta(ge=1)]


class TaskSet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One set of tasks with a score of its own: all tasks of a source, or some of them."""

    source: str
    """Source of the tasks, which `orchard tasks list` shows."""
    name: str = ""
    """Name of the set in the tables; empty: the source."""
    repo: str | None = None
    """Only tasks of this repository."""
    ids: tuple[str, ...] = ()
    """Ids of the only tasks that are taken; `*` matches anything."""
    limit: Positive | None = None
    """Maximum number of tasks, drawn by `seed`."""
    seed: int = 0
    """Seed of that draw."""
    published: Positive | None = None
    """Number of tasks of the published benchmark: a plan says how many of them are missing."""
    unproven: bool = False
    """Take tasks that `orchard tasks validate` has not proven, too."""

    @property
    def title(self) -> str:
        """The set's name in the tables."""
        return self.name or self.source
