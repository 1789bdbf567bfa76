"""Serves one site over HTTP for one attempt, on loopback of the worker's process."""

import asyncio
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from aiohttp import web
from jinja2 import Environment, PackageLoader, StrictUndefined

from orchard.schemas.gui import Records, SiteSpec
from orchard.workers.domains.gui.sites.appearance import layout_of, style, theme_of
from orchard.workers.domains.gui.sites.catalog import content_of
from orchard.workers.domains.gui.sites.pages import File, Missing, Redirect, SitePage, SiteResponse

SLOW = 3.0
"""Delay of each page of a slow site, in seconds."""
LARGEST_FORM = 256 * 1024
REQUESTS = 10_000
"""Maximum requests in one attempt; later ones are answered with 429."""
_STATIC = {"site.css": "text/css", "map.js": "text/javascript", "ledger.js": "text/javascript"}
_MISSING = SitePage(name="missing", title="Not found", template="missing.html", status=404)
_POLICY = "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; form-action 'self'"


class OpenSite:
    """A site that is being served. Its records are kept here, out of reach of its visitor."""

    def __init__(self, site: SiteSpec) -> None:
        self.site = site
        self._content = content_of(site)
        self._tiny = site.name == "tiny"
        self.host = self._content.host
        """A made-up host name, which the browser must resolve to `port` of loopback."""
        self.port = 0
        self._consented = site.fault != "consent"
        self._requests = 0
        environment = Environment(
            loader=PackageLoader(__package__ or "", "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
        )
        environment.globals["enumerate"] = enumerate
        self._templates = environment
        app = web.Application(client_max_size=LARGEST_FORM)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)

    @property
    def origin(self) -> str:
        return f"http://{self.host}"

    async def start(self) -> int:
        """Starts listening and returns the port on loopback."""
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]
        return self.port

    def records(self) -> Records:
        return self._content.records()

    async def close(self) -> None:
        await self._runner.cleanup()

    async def __aenter__(self) -> "OpenSite":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _handle(self, request: web.Request) -> web.Response:
        self._requests += 1
        if self._requests > REQUESTS:
            return web.Response(status=429, text="too many requests")
        response = await self._answer(request)
        response.headers["Content-Security-Policy"] = _POLICY
        response.headers["Cache-Control"] = "no-store"
        return response

    async def _answer(self, request: web.Request) -> web.Response:
        name = request.path.removeprefix("/")
        if request.method == "GET" and name == "look.css":
            look = "" if self._tiny else style(theme_of(self.site.theme))
            return web.Response(text=look, content_type="text/css")
        if request.method == "GET" and name in _STATIC:
            text = files(__package__ or "").joinpath("static", name).read_text("utf-8")
            return web.Response(text=text, content_type=_STATIC[name])
        match self.site.fault:
            case "captcha":
                return self._rendered("captcha.html", {"site": self._content.title}, 403)
            case "down":
                return self._rendered("down.html", {}, 503)
            case "slow":
                await asyncio.sleep(SLOW)
        try:
            return self._written(await self._reply(request))
        except (Missing, UnicodeDecodeError):
            return self._written(_MISSING)

    async def _reply(self, request: web.Request) -> SiteResponse:
        if request.method in ("GET", "HEAD"):
            return self._content.get(request.path, dict(request.query))
        if request.method != "POST":
            raise Missing(request.method)
        try:
            given = await request.post()
        except (ValueError, LookupError) as error:  # no form, or in no encoding that there is
            raise Missing(request.path) from error
        form = {key: value for key, value in given.items() if isinstance(value, str)}
        if request.path == "/-/consent":
            self._consented = True
            return Redirect("/")
        return self._content.post(request.path, form)

    def _written(self, reply: SiteResponse) -> web.Response:
        match reply:
            case Redirect(to):
                return web.Response(status=303, headers={"Location": to})
            case File(name, text, media_type):
                named = {"Content-Disposition": f'attachment; filename="{name}"'}
                return web.Response(text=text, content_type=media_type, headers=named)
            case SitePage():
                return self._rendered(reply.template, {**self._frame(reply), **reply.data}, reply.status)
            case _:
                return web.json_response(reply)

    def _frame(self, page: SitePage) -> dict[str, Any]:
        layout = None if self._tiny else layout_of(self.site.layout)
        return {
            "title": page.title,
            "site": self._content.title,
            "page_name": page.name,
            "links": self._content.links,
            "classes": layout.classes if layout else "",
            "reverse": layout.reverse if layout else False,
            "consent": not self._consented,
        }

    def _rendered(self, template: str, data: Mapping[str, Any], status: int) -> web.Response:
        text = self._templates.get_template(template).render(data)
        return web.Response(text=text, content_type="text/html", charset="utf-8", status=status)


def open_site(site: SiteSpec) -> OpenSite:
    """Makes a site in its initial state; `start` serves it. Raises KeyError for an unknown layout or
    theme."""
    if site.name != "tiny":
        layout_of(site.layout), theme_of(site.theme)
    return OpenSite(site)
