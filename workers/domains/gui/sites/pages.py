"""What a site's content answers a browser with, and what it is: decisions without I/O."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from orchard.schemas.sites import Records


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page to render."""

    name: str
    """Which page it is, as the oracle knows it: `product:17`. It stands in `body`, unseen."""
    title: str
    template: str
    """Below `templates/`."""
    data: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200


@dataclass(frozen=True)
class Redirect:
    """See another page, by its path."""

    to: str


@dataclass(frozen=True)
class File:
    """A download."""

    name: str
    text: str
    media_type: str = "text/csv"


@dataclass(frozen=True)
class Link:
    """An entry of a site's navigation."""

    key: str
    label: str
    path: str


Reply = Page | Redirect | File | dict[str, Any]
"""The last is JSON for a page's script."""


class Missing(Exception):
    """There is no such page."""


class Content(Protocol):
    """One site, from its seed: its pages and its records. It has one visitor, and no clock."""

    title: str
    host: str
    """Made-up host name."""
    links: tuple[Link, ...]
    screen: tuple[int, int] | None
    """Pixels that it is made for; None: any."""

    def records(self) -> Records:
        """What happened: what is equal at the beginning of each attempt, and what tasks are graded by."""

    def get(self, path: str, query: Mapping[str, str]) -> Reply:
        """A page. Raises Missing. It changes nothing in the records."""

    def post(self, path: str, form: Mapping[str, str]) -> Reply:
        """What a form or a script sent. Raises Missing; what is filled in wrongly is a page that says so."""


def missing_number(text: str) -> int:
    """A number in a path. Raises Missing."""
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise Missing(text)
    return int(text)


def clean(text: str, limit: int = 500) -> str:
    """What was typed into a field: one line, single spaces."""
    return " ".join(text.split())[:limit]
