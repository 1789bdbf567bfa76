"""The oracle's HTTP server. It is stateless: the conversation shows which task and which turn it is."""

from collections.abc import Callable, Iterable, Mapping
from pkgutil import resolve_name

import msgspec
from aiohttp import web

from orchard.schemas.tasks import Task
from orchard.workers.domain import domains
from orchard.workers.oracle.behaviours import DEFAULT_MIX, Behaviour, checked_mix
from orchard.workers.oracle.interface import MODEL, CannotPlay, MakePlayer, OraclePlayer, OracleRequest
from orchard.workers.oracle.replies import Reply, chunks, whole

BODY_LIMIT = 256 * 1024 * 1024


class OracleServer:
    """Serves `/v1/models` and `/v1/chat/completions` on `host:port` (port 0: any free one).

    Each domain's player answers the conversations that are about its tasks. `tasks` is called for all tasks
    when the server starts, and again whenever a conversation matches none. The model `oracle` behaves by the
    `mix`; `oracle/<behaviour>` always in that one way. Raises ValueError for a mix that cannot be drawn from,
    OSError when the port is taken.
    """

    def __init__(
        self,
        tasks: Callable[[], Iterable[Task]],
        mix: Mapping[str, float] = DEFAULT_MIX,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self._players = _players(tasks, checked_mix(mix))
        self._host = host
        self.port = port
        """The requested port; the real one once the server runs."""
        app = web.Application(client_max_size=BODY_LIMIT)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)

    @property
    def url(self) -> str:
        return f"http://{self._host}:{self.port}/v1"

    async def start(self) -> None:
        for player in self._players:
            await player.start()
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self.port).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def __aenter__(self) -> "OracleServer":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _models(self, _: web.Request) -> web.Response:
        names = [MODEL, *(f"{MODEL}/{behaviour}" for behaviour in Behaviour)]
        data = [{"id": name, "object": "model", "created": 0, "owned_by": "orchard"} for name in names]
        return web.json_response({"object": "list", "data": data})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        try:
            ask = msgspec.json.decode(await request.read(), type=OracleRequest)
            reply = await self._reply(ask)
        except msgspec.DecodeError as error:
            return _error(400, f"the request is not a chat completion: {error}")
        except CannotPlay as refused:
            return _error(refused.status, str(refused), refused.code)
        if ask.stream:
            return await _stream(request, reply, bool((ask.stream_options or {}).get("include_usage")))
        return web.Response(body=msgspec.json.encode(whole(reply)), content_type="application/json")

    async def _reply(self, request: OracleRequest) -> Reply:
        if request.model.partition("/")[0] != MODEL:
            raise CannotPlay(f"there is no model {request.model!r}: use {MODEL!r}", 404, "model_not_found")
        for player in self._players:
            if player.plays(request):
                return await player.reply(request)
        names = ", ".join(map(str, request.tool_names)) or "none"
        raise CannotPlay(
            f"no domain's part of the oracle plays a conversation with these tools ({names}) and messages"
        )


def _players(tasks: Callable[[], Iterable[Task]], mix: Mapping[Behaviour, float]) -> list[OraclePlayer]:
    makers: list[MakePlayer] = [resolve_name(each.oracle) for each in domains().values() if each.oracle]
    return [make(tasks, mix) for make in makers]


def _error(status: int, message: str, code: str | None = None) -> web.Response:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    return web.json_response({"error": error}, status=status)


async def _stream(request: web.Request, reply: Reply, include_usage: bool) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    for chunk in chunks(reply, include_usage):
        await response.write(chunk)
    await response.write_eof()
    return response
