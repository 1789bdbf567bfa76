"""The interface of a site's content, and the responses that it returns to the engine. No I/O."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from orchard.schemas.gui import Records

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class SitePage:
    name: str
    """Identifies the page for the oracle (`product:17`); it stands in `body` but is not visible."""
    title: str
    template: str
    """Path of the file below `templates/`."""
    data: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200


@dataclass(frozen=True)
class Redirect:
    """Sends the browser to another path of the site."""

    to: str


@dataclass(frozen=True)
class File:
    name: str
    text: str
    media_type: str = "text/csv"


@dataclass(frozen=True)
class Link:
    key: str
    label: str
    path: str


SiteResponse = SitePage | Redirect | File | dict[str, Any]
"""A dict is sent as JSON to a page's script."""


class Missing(Exception):
    """The site has no such page."""


class SiteContent(Protocol):
    """A site made from a seed: its pages and its records. It has one visitor and no clock."""

    title: str
    host: str
    """A made-up host name, which ends in `.test`."""
    links: tuple[Link, ...]
    screen: tuple[int, int] | None
    """The viewport in pixels that the site is made for; None means any."""

    def records(self) -> Records:
        """Returns what happened so far. All attempts begin with equal records, and tasks are graded by
        them."""

    def get(self, path: str, query: Mapping[str, str]) -> SiteResponse:
        """Returns a page and leaves the records unchanged. Raises Missing."""

    def post(self, path: str, form: Mapping[str, str]) -> SiteResponse:
        """Handles what a form or a script sent; invalid input returns a page that says so. Raises Missing."""


def missing_number(text: str) -> int:
    """Parses a number in a path. Raises Missing."""
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise Missing(text)
    return int(text)


def clean(text: str, limit: int = 500) -> str:
    """Normalizes typed text: one line, single spaces."""
    return " ".join(text.split())[:limit]


def paged(found: Sequence[T], number: str, size: int) -> tuple[Sequence[T], int, int]:
    """Returns one page of what was found, its number from 1, and the number of pages. A `number` from a query
    that is missing or out of range gives the nearest page."""
    pages = max(-(-len(found) // size), 1)
    asked = int(number) if number.isascii() and number.isdecimal() and len(number) < 5 else 1
    page = min(max(asked, 1), pages)
    return found[(page - 1) * size : page * size], page, pages
