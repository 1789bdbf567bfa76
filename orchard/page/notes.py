"""Takes notes from the page's form."""

from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, unquote

from aiohttp import web

from orchard.actions.notes import add_note, campaign_of, checked, labels_of
from orchard.configuration.config import ConfigError
from orchard.page.rollouts import BadFilter
from orchard.schemas.notes import RolloutNoted

if TYPE_CHECKING:
    from orchard.page.server import PageSite

T = TypeVar("T", int, float)
COOKIE = "orchard-author"
"""Keeps the name of who writes, for the next form."""


def author_of(request: web.Request) -> str:
    """Name that the browser gave with its last note."""
    return unquote(request.cookies.get(COOKIE, ""))[:100]


class NoteForm:
    """Route of the form; `Access` checks token and origin."""

    def __init__(self, site: "PageSite") -> None:
        self._site = site

    def register(self, app: web.Application) -> None:
        app.router.add_post("/rollouts/{id}/notes", self.add)

    async def add(self, request: web.Request) -> web.Response:
        """Publishes the note and redirects to where it stands."""
        name = await self._site.rollout_id(request.match_info["id"])
        given = {key: str(value) for key, value in (await request.post()).items()}
        try:
            note = checked(_note(given))
        except ConfigError as error:
            raise BadFilter(str(error)) from error
        campaign = await self._site.tables.ask(campaign_of, name)
        if waiting := await add_note(self._site.session, name, campaign, note):
            return await self._site.page(request, "noted.html", rollout_id=name, waiting=waiting)
        reply = web.Response(status=303, headers={"Location": f"/rollouts/{name}#notes"})
        reply.set_cookie(COOKIE, quote(note.author), httponly=True, samesite="Strict", max_age=365 * 86400)
        return reply


def _note(given: dict[str, str]) -> RolloutNoted:
    return RolloutNoted(
        author=given.get("author", ""),
        text=given.get("text", "").replace("\r\n", "\n"),
        labels=labels_of([given.get("labels", "")]),
        removed_labels=labels_of([given.get("removed", "")]),
        score=_number(given, "score", float),
        turn=_number(given, "turn", int),
    )


def _number(given: dict[str, str], name: str, kind: type[T]) -> T | None:
    text = given.get(name, "").strip()
    try:
        return kind(text) if text else None
    except ValueError:
        raise BadFilter(f"{name} is {text[:40]!r}: write a number, or nothing") from None
