"""Serves the page: routes and their handlers."""

import asyncio
import json
import logging
import os
import secrets
import socket
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import duckdb
import msgspec
from aiohttp import web

from orchard.actions import rollout as rollouts_
from orchard.actions.audit import NotAllowed
from orchard.actions.campaign_rows import made_and_proven
from orchard.actions.session import Session
from orchard.configuration.access import AccessError, People, own_team
from orchard.configuration.config import ConfigError
from orchard.configuration.run_files import RunFiles
from orchard.injector.orchestrator.origins import is_loopback
from orchard.page import full_content, searching
from orchard.page.access import Access
from orchard.page.actions import Actions
from orchard.page.base_path import below, local_path
from orchard.page.campaign_table import GROUPS, CampaignFacts, CampaignQuery, choices, facts_of, rows_of
from orchard.page.campaigns import CampaignWatch, Overview
from orchard.page.notes import NoteForm, author_of
from orchard.page.overviews import NAV, Overviews, number
from orchard.page.pictures import served_type
from orchard.page.rendering import Renderer
from orchard.page.rollouts import BadFilter, Query
from orchard.page.search_index import SearchIndex
from orchard.page.side_by_side import parting, read_both
from orchard.page.tables import Tables
from orchard.page.tokens import COLOURS, PAGE_TOKENS, open_tokenizer
from orchard.page.tokens import read as read_tokens
from orchard.pipelines.campaigns.commands import CampaignError
from orchard.pipelines.tasks.errors import TaskError
from orchard.schemas.addresses import check_base_path
from orchard.schemas.blobs import BlobRef
from orchard.schemas.positions import Position
from orchard.storage.errors import StorageError
from orchard.streams.errors import StreamsError
from orchard.streams.tasks import end

if TYPE_CHECKING:
    from tokenizers import Tokenizer

log = logging.getLogger(__name__)

HOST, PORT = "127.0.0.1", 8780
LIVE_SECONDS = 0.5
"""Seconds between checks for changes while a page is open."""
HEARTBEAT_SECONDS = 15.0
STREAMED = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
"""Headers of server-sent events; the last one asks nginx to pass each on at once."""


class PageSite:
    """Handlers of one store's pages."""

    def __init__(
        self, session: Session, access: Access, tokenizer: "Tokenizer | None" = None, base: str = ""
    ) -> None:
        """Takes a `tokenizer` for the text of tokens; without one, only ids are shown. `base` is the path
        that a proxy serves the page below. Raises ValueError if it is none."""
        self.session, self.access, self._tokenizer = session, access, tokenizer
        self._base = check_base_path(base)
        self.tables = Tables(session.config.store)
        self.watch = CampaignWatch(session, self.tables)
        self.renderer = Renderer(session.config.store)
        self.search_index = SearchIndex(session.config.store, RunFiles(session.directory).search_index)
        self._reading: asyncio.Task[None] | None = None
        self._facts: tuple[Position | None, dict[str, CampaignFacts]] = (None, {})
        """Facts of the campaigns, with the position of the tables that they were read at."""
        self._choices: tuple[Position | None, dict[str, list[str]]] = (None, {})
        """Values of the filters, read at such a position too."""
        self._stopping = asyncio.Event()

    def application(self) -> web.Application:
        app = web.Application(middlewares=[below(self._base), self.access.middleware(), self._errors()])
        self._register(app)
        if self._base:
            passed_on = web.Application()
            self._register(passed_on)
            app.add_subapp(self._base, passed_on)
        app.on_startup.append(self._start)
        app.on_shutdown.append(self._shutdown)
        app.on_cleanup.append(self._close)
        return app

    def _register(self, app: web.Application) -> None:
        app.router.add_get("/", self.campaigns)
        app.router.add_get("/rollouts", self.rollouts)
        app.router.add_get("/rollouts/{id}", self.rollout)
        app.router.add_get("/rollouts/{id}/events", self.events)
        app.router.add_get("/rollouts/{id}/tokens", self.tokens)
        app.router.add_get("/rollouts/{id}/messages/{node}", self.message)
        app.router.add_get("/rollouts/{id}/parts/{other}", self.parts)
        app.router.add_get("/rollouts/{id}/diff", self.submission)
        app.router.add_get("/rollouts/{id}/log", self.test_log)
        app.router.add_get("/rollouts/{id}/pictures/{sha256}", self.picture)
        app.router.add_get("/live", self.live)
        Overviews(self).register(app)
        Actions(self).register(app)
        NoteForm(self).register(app)
        app.router.add_get("/health", self.health)
        app.router.add_get("/static/{name}", self.static)

    async def _start(self, _: web.Application) -> None:
        self.watch.start()

    async def _shutdown(self, _: web.Application) -> None:
        self._stopping.set()

    async def _close(self, _: web.Application) -> None:
        if self._reading is not None:
            await end(self._reading)
        await self.watch.close()
        await self.tables.close()
        self.search_index.close()

    async def _read_words(self) -> None:
        """Runs steps of the index until it has all messages; other queries run between them."""
        await self.tables.position()
        while not await self.tables.ask(self.search_index.step, self.tables.reached):
            await self.tables.position()

    def acting(self, request: web.Request) -> Session:
        """The session of the user who sent a request that changes something."""
        return Session(self.session.config, self.access.acting(request), via="page")

    # --- pages -----------------------------------------------------------------------------------

    async def campaigns(self, request: web.Request) -> web.Response:
        overview = await self.watch.newest()
        query = CampaignQuery.of(request.query)
        if self._facts[0] != self.tables.reached:
            self._facts = self.tables.reached, await self.tables.ask(facts_of)
        found = rows_of(overview.campaigns, self._facts[1])
        shown = {"query": query, "grouped": query.applied(found), "choices": choices(found), "groups": GROUPS}
        shown["tasks_made"] = await self.tasks_made(overview)
        live = ("version", overview.version)
        return await self.page(request, "campaigns.html", overview=overview, **shown, live=live)

    async def rollouts(self, request: web.Request) -> web.Response:
        query, live = Query.of(request.query), await self.live_log()
        found = await self.tables.ask(searching.answer, self.search_index, query, self.tables.reached)
        if self._choices[0] != self.tables.reached:
            self._choices = self.tables.reached, await self.tables.ask(searching.choices)
        if found.read < 1 and (self._reading is None or self._reading.done()):
            self._reading = asyncio.create_task(self._read_words())
        shown = {"query": query, "found": found, "choices": self._choices[1]}
        shown["tasks_made"] = await self.tasks_made(await self.watch.newest())
        return await self.page(request, "rollouts.html", **shown, live=None if query.after else live)

    async def rollout(self, request: web.Request) -> web.Response:
        name = await self._rollout_id(request)
        view = rollouts_.RolloutView(
            attempt=number(request, "attempt"),
            leaf=request.query.get("leaf") or None,
            as_of=number(request, "as_of"),
            turn=number(request, "turn"),
            find=request.query.get("find", "").strip(),
        )
        now = await self.live_log()
        found = await self.tables.ask(rollouts_.read, name, view)
        more = await asyncio.to_thread(self.renderer.rollout, found, view, self.session.blobs)
        live = now if found.outcome is None and view.as_of is None else None
        return await self.page(request, "rollout.html", **more, author=author_of(request), live=live)

    async def events(self, request: web.Request) -> web.Response:
        """Lists events of a rollout by sequence."""
        name = await self._rollout_id(request)
        found, after = await self.tables.ask(rollouts_.events, name, number(request, "after") or 0)
        return await self.page(request, "events.html", rollout_id=name, events=found, after=after)

    async def tokens(self, request: web.Request) -> web.Response:
        """Shows tokens of one answer of the policy."""
        name, by = await self._rollout_id(request), request.query.get("by", COLOURS[0])
        if by not in COLOURS:
            raise BadFilter(f"by {by[:40]!r} is unknown: choose one of {', '.join(COLOURS)}")
        start, attempt = number(request, "start") or 0, number(request, "attempt")
        node = request.query.get("node")
        found = await self.tables.ask(
            read_tokens, self.session.blobs, self._tokenizer, name, attempt, node, start, by
        )
        shown = {"by": by, "colours": COLOURS, "part": PAGE_TOKENS, "known": self._tokenizer is not None}
        as_table = request.query.get("as") == "table"
        return await self.page(request, "tokens.html", found=found, as_table=as_table, **shown)

    async def parts(self, request: web.Request) -> web.Response:
        """Redirects to the turn in which two rollouts part, side by side."""
        both = [await self.rollout_id(request.match_info[side]) for side in ("id", "other")]
        at = parting(*await self.tables.ask(read_both, *both, 0)) or 0
        raise web.HTTPFound(f"/beside?{urlencode({'a': both[0], 'b': both[1], 'turn': at})}#turn-{at}")

    async def message(self, request: web.Request) -> web.Response:
        """Sends a whole message as plain text."""
        name, node = await self._rollout_id(request), request.match_info["node"]
        found = await self.tables.ask(full_content.message, name, node)
        if found is None:
            raise web.HTTPNotFound
        return _text(await asyncio.to_thread(self.renderer.whole_message, found, self.session.blobs))

    async def submission(self, request: web.Request) -> web.Response:
        """Sends the whole submission as plain text."""
        name = await self._rollout_id(request)
        found = await self.tables.ask(full_content.submission, name)
        return _text(await self._blob_or(found, "submission"))

    async def test_log(self, request: web.Request) -> web.Response:
        """Sends the tests' whole output as plain text."""
        name = await self._rollout_id(request)
        found = await self.tables.ask(full_content.test_log, name)
        return _text(await self._blob_or(found, "log"))

    async def picture(self, request: web.Request) -> web.Response:
        """Sends a picture in a message of the rollout."""
        name, sha256 = await self._rollout_id(request), request.match_info["sha256"]
        if not await self.tables.ask(full_content.has_picture, name, sha256):
            raise web.HTTPNotFound(text="no message of this rollout has this picture\n")
        data = await asyncio.to_thread(self.session.blobs.get, BlobRef(sha256=sha256, size=0))
        kind = served_type(data)
        if kind is None:
            raise web.HTTPNotFound(text="this is no picture that is shown\n")
        headers = {"Cache-Control": "private, max-age=31536000, immutable"}
        return web.Response(body=data, content_type=kind, headers=headers)

    async def live(self, request: web.Request) -> web.StreamResponse:
        """Sends a server-sent event at each change, with the position of the tables."""
        reply = web.StreamResponse(headers=STREAMED)
        await reply.prepare(request)
        with suppress(ConnectionError):  # the browser has left
            await self._tell(reply)
        return reply

    async def _tell(self, reply: web.StreamResponse) -> None:
        told, quiet = None, 0.0
        while not self._stopping.is_set():
            now = await self.watch.newest()
            if (now.version, now.position) != told:
                told, quiet = (now.version, now.position), 0.0
                said = json.dumps({"position": now.position, "version": now.version})
                await reply.write(f"event: changed\ndata: {said}\n\n".encode())
            elif quiet >= HEARTBEAT_SECONDS:
                quiet = 0.0
                await reply.write(b": still here\n\n")
            quiet += LIVE_SECONDS
            try:
                async with asyncio.timeout(LIVE_SECONDS):
                    await self._stopping.wait()
            except TimeoutError:
                continue

    async def health(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def static(self, request: web.Request) -> web.Response:
        """Sends a static file."""
        found = self.renderer.static(request.match_info["name"])
        if found is None:
            raise web.HTTPNotFound
        body, kind = found
        return web.Response(
            body=body, content_type=kind, charset="utf-8", headers={"Cache-Control": "max-age=31536000"}
        )

    # --- parts -----------------------------------------------------------------------------------

    async def page(self, request: web.Request, template: str, **values: Any) -> web.Response:
        """Renders a page. `live`: kind and current value of the number that an open page follows at
        `/live`."""
        values = {"live": None, **values}
        values |= {"may_change": self.access.may_change(request), "path": local_path(request)}
        values |= {"nav": NAV, "report": None}
        text = await asyncio.to_thread(self.renderer.page, template, values)
        body, where = text.encode("utf-8", "replace"), {"Orchard-Position": str(self.tables.reached)}
        return web.Response(body=body, content_type="text/html", charset="utf-8", headers=where)

    async def live_log(self) -> tuple[str, int]:
        """Kind and number that pages of current tables follow. Ask before what the page shows is read: a
        commit in between would never be shown."""
        return "position", await self.tables.position()

    async def tasks_made(self, overview: Overview) -> tuple[int, int] | None:
        """Numbers of tasks, and of those that are proven, before the first campaign; None after it."""
        return None if overview.campaigns else await self.tables.ask(made_and_proven)

    async def rollout_id(self, given: str) -> str:
        """Completes the id of a rollout. Raises HTTPNotFound."""
        try:
            return await self.tables.ask(rollouts_.find, given or "-")  # no id begins so
        except rollouts_.UnknownName as error:
            raise web.HTTPNotFound from error

    async def _rollout_id(self, request: web.Request) -> str:
        """Id of the request's rollout; redirects from a prefix. Raises HTTPNotFound."""
        given = request.match_info["id"]
        found = await self.rollout_id(given)
        if found != given:
            raise web.HTTPFound(f"/rollouts/{found}")
        return found

    async def _blob_or(self, found: tuple[str, str | None] | None, what: str) -> bytes:
        if found is None or not any(found):
            raise web.HTTPNotFound(text=f"this rollout has no {what}\n")
        text, sha256 = found
        if sha256 is None:
            return text.encode("utf-8", "replace")
        return await asyncio.to_thread(self.session.blobs.get, BlobRef(sha256=sha256, size=0))

    def _errors(self) -> Callable[..., Any]:
        @web.middleware
        async def show(request: web.Request, handler: Callable[..., Any]) -> web.StreamResponse:
            try:
                reply: web.StreamResponse = await handler(request)
                return reply
            except web.HTTPNotFound as error:
                said = error.text if error.text and "404" not in error.text else "There is no such page."
                return await self._failure(request, 404, said)
            except (BadFilter, CampaignError, StorageError, StreamsError, ConfigError, TaskError) as error:
                known: dict[type[Exception], int] = {
                    BadFilter: 400,
                    CampaignError: 409,
                    NotAllowed: 403,
                    TaskError: 404,
                }
                status = known.get(type(error), 503)
                return await self._failure(request, status, str(error))
            except web.RequestPayloadError:
                return await self._failure(request, 400, "The form is not encoded as its headers say.")
            except duckdb.OutOfMemoryException:
                log.warning("%s needs more memory than the page may have", request.path_qs)
                said = "This needs more memory than the page may have: ask for less, such as one campaign."
                return await self._failure(request, 503, said)

        return show

    async def _failure(self, request: web.Request, status: int, said: str) -> web.Response:
        reply = await self.page(request, "failure.html", status=status, said=said)
        reply.set_status(status)
        return reply


def _text(body: bytes) -> web.Response:
    """Response of plain text that browsers do not interpret."""
    return web.Response(body=body, content_type="text/plain", charset="utf-8")


def _token(file: Path) -> str:
    """Reads or creates the token of this state directory, which stays the same so that addresses stay
    valid."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with (
        suppress(FileExistsError),
        os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as new,
    ):
        new.write(secrets.token_urlsafe(24))
    return file.read_text().strip()


async def serve(
    session: Session,
    *,
    host: str = HOST,
    port: int | socket.socket = PORT,
    private: bool = False,
    hosts: Collection[str] = (),
    tokenizer: Path | None = None,
    base: str = "",
    told: Callable[[str, str], None],
    stop: asyncio.Event,
) -> None:
    """Serves until `stop` is set, on a port or on an open socket. `told` receives the address and the one
    with the token. `tokenizer` is a model's directory; `base` the path below which a proxy serves the page.
    Raises ConfigError for a bad base, and if the port is not free."""
    loopback = is_loopback(host)
    token = await asyncio.to_thread(_token, RunFiles(session.directory).page_token)
    config = session.config
    try:
        people = People(config.access.people, config.teams) if config.access.people else None
    except AccessError as error:
        raise ConfigError(str(error)) from error
    settings = msgspec.structs.replace(config.access, team=own_team(config.access, config.teams))
    access = Access(token, loopback=loopback, private=private, hosts=hosts, settings=settings, people=people)
    opened = await asyncio.to_thread(open_tokenizer, tokenizer) if tokenizer else None
    try:
        site = PageSite(session, access, opened, base)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    runner = web.AppRunner(site.application(), handle_signals=False, access_log=None)
    await runner.setup()
    try:
        try:
            if isinstance(port, socket.socket):
                await web.SockSite(runner, port).start()
            else:
                await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise ConfigError(
                f"nothing can listen on {host}:{port} ({error.strerror}): pass --port"
            ) from error
        at = runner.addresses[0][1]
        name = f"[{host}]" if ":" in host else host
        url = f"http://{name}:{at}{check_base_path(base)}/"
        told(url if loopback and not (private or people) else f"{url}?token={token}", f"{url}?token={token}")
        await stop.wait()
    finally:
        await runner.cleanup()
