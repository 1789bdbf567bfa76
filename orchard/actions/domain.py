"""Records of what a domain adds to commands and page: commands, task routes, and how its rollouts are shown.

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
"""Entry-point group of other packages' records."""


@dataclass(frozen=True, kw_only=True)
class TaskRoute:
    """A way of `orchard tasks synthesize` or `orchard tasks import`, which the first word chooses."""

    run: str
    """Function `(session, words, ...)`; its further parameters become options of the command."""
    words: tuple[str, ...] = ()
    """First words that choose the route; a route without any takes all other words."""
    title: str = ""
    """Name of the route in the help of its options: `With TITLE: ...`."""
    argument: str
    """Help of the first word."""
    second: str = ""
    """Help of the word after it."""
    summary: str
    """Part of the command's first sentence."""
    details: str = ""
    """Part of the command's help after the first sentence."""
    examples: tuple[str, ...] = ()
    limit: int = 0
    """Default number of tasks; 0 if the route has no such option."""


@dataclass(frozen=True, kw_only=True)
class FrontDomain:
    """Extensions of command line and page by a domain; references are `module:attribute`."""

    name: str
    commands: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Commands by name: the module whose function `register` adds each, and its sentence of help."""
    facts: str = ""
    """Function `()` that returns the type of what a command prints with `--json`, by command."""
    task_commands: tuple[str, ...] = ()
    """Modules with a function `register` that adds commands to `orchard tasks`."""
    synthesis: TaskRoute | None = None
    """Route of `orchard tasks synthesize`."""
    imports: TaskRoute | None = None
    """Route of `orchard tasks import`."""
    checks: str = ""
    """Function `()` that returns a check of the machine for `doctor`: what, whether it is good, what it says,
    and the remedy."""
    rollout_tables: str = ""
    """Function `(tables, rollout)` that returns further tables of a `ShownRollout` for a terminal."""
    submission: str = ""
    """Function `(text)` that formats a submission of the domain's kind; None for others."""
    solution: str = ""
    """Function `(task)` that describes a solution of the domain's kind; empty for other tasks."""


@cache
def domains() -> tuple[FrontDomain, ...]:
    """Returns all records by name; those with a route that takes all other words come first."""
    return tuple(sorted(records("orchard.domains", GROUP, FrontDomain).values(), key=_order))


def _order(record: FrontDomain) -> tuple[bool, str]:
    return bool(record.synthesis is None or record.synthesis.words), record.name


def answers(part: str, *given: object) -> list[Any]:
    """Results of the functions that the domains name in a field."""
    return [load(reference)(*given) for each in domains() if (reference := getattr(each, part))]


def submission_text(submission: str) -> str | None:
    """Text of a submission that is a record; None if the submission itself is text, such as a patch."""
    return next((text for text in answers("submission", submission) if text is not None), None)
