"""What must not train: settings, reasons, and patterns of names. Imports neither tables nor blobs."""

import re
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from fnmatch import translate
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from orchard.pipelines.tasks.errors import TaskError

_WILDCARD = re.compile(r"[*?[]")
_COMMENT = re.compile(r"(^|\s)#.*")


class HeldOut(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Evaluation tasks, which never train: neither they nor tasks that are nearly the same."""

    tasks: tuple[str, ...] = ()
    """Patterns over sources, ids and repositories of tasks in the store, for example `terminal-bench-2`."""
    evaluations: bool = True
    """Hold out also the tasks of every evaluation in the log (`orchard eval`)."""
    similarity: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.5
    """Share of common shingles, of statements or of gold patches, from which two tasks count as nearly the
    same."""
    repos: bool = False
    """Also hold out every task of the repositories of held-out tasks."""


class TaskColumns(NamedTuple):
    """A task, by its columns in the tables."""

    task_id: str
    source: str
    repo: str


class Reason(msgspec.Struct, frozen=True):
    """Why a task does not train."""

    name: str
    """Name of the reason: `held_out`, `near_held_out` or `held_out_repo`."""
    of: str
    """Id of the held-out task."""


def listed(patterns: Sequence[str], directory: Path) -> tuple[str, ...]:
    """Patterns with each `@FILE` replaced by that file's lines, but for empty ones and comments (from `#` at
    the start of a line or after a space). A file is looked for from `directory`. Raises TaskError for one
    that cannot be read."""
    found: list[str] = []
    for pattern in patterns:
        if not pattern.startswith("@"):
            found.append(pattern)
            continue
        file = directory / pattern[1:]
        try:
            lines = file.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise TaskError(f"{file}, a list of what is excluded, cannot be read: {error}") from error
        found += filter(None, (_COMMENT.sub("", line).strip() for line in lines))
    return tuple(found)


def matches(patterns: Iterable[str], names: AbstractSet[str]) -> dict[str, set[str]]:
    """Names that match each pattern: equal ones, which may have brackets themselves, or matches by
    wildcards. Only wildcards are compared with every name: a list of benchmarks names thousands of
    tasks."""
    found = {pattern: {pattern} & names for pattern in patterns}
    for pattern in filter(_WILDCARD.search, found):
        found[pattern].update(filter(re.compile(translate(pattern)).match, names))
    return found
