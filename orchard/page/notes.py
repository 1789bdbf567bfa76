"""Takes notes on rollouts and tags of campaigns from the page's forms."""

from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, unquote

from aiohttp import web

from orchard.actions.notes import add_notes, campaign_of, checked, known_campaign, labels_of, tag_campaign
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
    """Routes of the forms; `Access` checks token and origin."""

    def __init__(self, site: "PageSite") -> None:
        self._site = site

    def register(self, app: web.Application) -> None:
        app.router.add_post("/rollouts/{id}/notes", self.add)
        app.router.add_post("/campaigns/{name:.+}/tags", self.tag)

    async def add(self, request: web.Request) -> web.Response:
        """Publishes the note and redirects to where it stands."""
        name = await self._site.rollout_id(request.match_info["id"])
        given = {key: str(value) for key, value in (await request.post()).items()}
        try:
            note = checked(_note(given))
        except ConfigError as error:
            raise BadFilter(str(error)) from error
        campaign = await self._site.tables.ask(campaign_of, name)
        waiting = await add_notes(self._site.session, {name: campaign}, note)
        return await self._done(request, f"/rollouts/{name}", "#notes", note.author, waiting)

    async def tag(self, request: web.Request) -> web.Response:
        """Publishes tags of a campaign and redirects to it."""
        given = await request.post()
        author = str(given.get("author", ""))
        try:
            name = await self._site.tables.ask(known_campaign, request.match_info["name"])
            tags, removed = (labels_of([str(given.get(key, ""))]) for key in ("tags", "removed"))
            waiting = await tag_campaign(self._site.session, name, author, tags, removed)
        except ConfigError as error:
            raise BadFilter(str(error)) from error
        return await self._done(request, f"/campaigns/{quote(name)}", "", author, waiting)

    async def _done(
        self, request: web.Request, where: str, part: str, author: str, waiting: str
    ) -> web.Response:
        """Redirects to a part of a page, which shows what was said, or says for what that waits."""
        if waiting:
            return await self._site.page(request, "noted.html", back=where, waiting=waiting)
        reply = web.Response(status=303, headers={"Location": where + part})
        reply.set_cookie(COOKIE, quote(author), httponly=True, samesite="Strict", max_age=365 * 86400)
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
