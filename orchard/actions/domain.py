"""What a domain adds to the front door: commands, ways to make and import tasks, and how its rollouts read.

The core names no domain. It asks the records, whose references are loaded at first use. Records of Orchard's
own domains are in `orchard/domains/*/__init__.py`; a package of others declares an entry point of the group
`orchard.front_domains`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from orchard.workers.discovery import load, records

GROUP = "orchard.front_domains"
"""Entry points of other packages' records."""


@dataclass(frozen=True, kw_only=True)
class TaskRoute:
    """A way of `orchard tasks synthesize` or `orchard tasks import`, which the first word chooses."""

    run: str
    """Function `(session, words, ...)`; its further parameters become options of the command."""
    words: tuple[str, ...] = ()
    """First words that choose it; without any it takes what no other route does."""
    title: str = ""
    """Name in the help of its options: `With TITLE: ...`."""
    argument: str
    """Help of the first word."""
    second: str = ""
    """Help of the word after it."""
    summary: str
    """Its part of the command's first sentence."""
    details: str = ""
    """Its part of the command's help."""
    examples: tuple[str, ...] = ()
    limit: int = 0
    """Tasks that are made unless the command line says how many; 0 where that has no such option."""


@dataclass(frozen=True, kw_only=True)
class FrontDomain:
    """What a domain adds to command line and page; references are `module:attribute`."""

    name: str
    commands: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Command to the module that has it, by a function `register`, and the sentence that the help shows."""
    task_commands: tuple[str, ...] = ()
    """Modules with a function `register` that adds commands to `orchard tasks`."""
    synthesis: TaskRoute | None = None
    """Its way of `orchard tasks synthesize`."""
    imports: TaskRoute | None = None
    """Its way of `orchard tasks import`."""
    rollout_tables: str = ""
    """Function `(tables, rollout_id, attempt)` that gives what a terminal shows beside the messages."""
    submission: str = ""
    """Function `(text)`: what to show of a submission of its own kind, perhaps nothing; None for others."""
    solution: str = ""
    """Function `(task)`: what is known of a solution of its own kind; empty for other tasks."""


@cache
def domains() -> tuple[FrontDomain, ...]:
    """All records: first those that take what names no domain, then by name."""
    found = {record.name: record for record in reversed(records("orchard.domains", GROUP, FrontDomain))}
    return tuple(sorted(found.values(), key=_order))


def _order(record: FrontDomain) -> tuple[bool, str]:
    return bool(record.synthesis is None or record.synthesis.words), record.name


def answers(part: str, *given: object) -> list[Any]:
    """What the function that each domain names in a field answers."""
    return [load(reference)(*given) for each in domains() if (reference := getattr(each, part))]


def submission_text(submission: str) -> str | None:
    """What to show of a submission that is a record; None for one that is text itself, as a patch is."""
    return next((text for text in answers("submission", submission) if text is not None), None)
