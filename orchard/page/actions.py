"""Changes that the page makes: pause, resume or cancel a campaign, requeue a dead letter; each is
confirmed."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple

from aiohttp import web

from orchard.actions.audit import begin
from orchard.actions.campaigns import cancel_campaign, pause_campaign, resume_campaign
from orchard.actions.session import Session
from orchard.page.rollouts import BadFilter
from orchard.schemas.access import UserRole
from orchard.workers.attempts.deadletters import DeadLetters

if TYPE_CHECKING:
    from orchard.page.server import PageSite


class ConfirmedAction(NamedTuple):
    """A change, and the texts that ask for its confirmation."""

    question: str
    consequence: str
    do: Callable[[Session, str], Awaitable[object]]


async def _requeue(session: Session, sequence: str) -> None:
    if not sequence.isdecimal():
        raise BadFilter(
            f"{sequence[:40]!r} is not the sequence number of a dead letter: choose one on the page /status"
        )
    async with session.connection("page") as connection:
        await begin(session, connection, "dead requeue", UserRole.OPERATE, options={"sequence": sequence})
        await DeadLetters(connection).requeue(int(sequence))


ACTIONS = {
    "pause": ConfirmedAction(
        "Pause the campaign", "Running rollouts finish; no new ones start.", pause_campaign
    ),
    "resume": ConfirmedAction(
        "Resume the campaign",
        "Open rollouts go back to the queue, and those that infrastructure aborted are tried again.",
        resume_campaign,
    ),
    "cancel": ConfirmedAction(
        "Cancel the campaign",
        "Running and waiting rollouts abort at once with the cause `cancelled`. Resume brings them back.",
        cancel_campaign,
    ),
    "requeue": ConfirmedAction(
        "Requeue the dead letter", "The request goes back to the queue, with new attempts.", _requeue
    ),
}


class Actions:
    """Routes of changes: GET shows the confirmation, POST makes the change. `Access` checks token and
    origin."""

    def __init__(self, site: "PageSite") -> None:
        self._site = site

    def register(self, app: web.Application) -> None:
        app.router.add_get("/do/{action}", self.ask)
        app.router.add_post("/do/{action}", self.do)

    async def ask(self, request: web.Request) -> web.Response:
        """Shows the confirmation."""
        action, name = self._chosen(request), request.query.get("of", "")
        return await self._site.page(
            request, "confirm.html", action=action, verb=request.match_info["action"], name=name
        )

    async def do(self, request: web.Request) -> web.Response:
        """Makes the change and redirects to the page that shows its effect."""
        action = self._chosen(request)
        name = str((await request.post()).get("of", ""))
        await action.do(self._site.acting(request), name)
        where = "/status" if request.match_info["action"] == "requeue" else "/"
        return web.Response(status=303, headers={"Location": where})

    def _chosen(self, request: web.Request) -> ConfirmedAction:
        action = ACTIONS.get(request.match_info["action"])
        if action is None:
            raise web.HTTPNotFound
        return action
