"""The oracle's HTTP server: stateless, because the conversation says which task and which turn it is."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import Any

import msgspec
from aiohttp import web

from orchard.schemas.identity import digest
from orchard.schemas.tasks import Task
from orchard.workers.domains.gui.sites import oracle as sites
from orchard.workers.domains.swe.oracle.script import turn
from orchard.workers.domains.swe.oracle.statements import StatementIndex
from orchard.workers.llm.answers import ORACLE_FINGERPRINT
from orchard.workers.oracle import annotator
from orchard.workers.oracle.behaviours import DEFAULT_MIX, Behaviour, checked_mix, draw
from orchard.workers.oracle.replies import Reply, chunks, text_of, usage, whole
from orchard.workers.oracle.turns import Turn, as_text, block_label

MODEL = "oracle"
BODY_LIMIT = 256 * 1024 * 1024


class _Ask(msgspec.Struct):
    """The fields of a request that the oracle looks at; it accepts all others."""

    messages: list[dict[str, Any]]
    model: str = MODEL
    tools: list[dict[str, Any]] | None = None
    seed: int | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None


class _Refused(Exception):
    """A request that the oracle cannot answer."""

    def __init__(self, why: str, status: int = 400, code: str | None = None) -> None:
        super().__init__(why)
        self.status = status
        self.code = code


class OracleServer:
    """Serves `/v1/models` and `/v1/chat/completions` on `host:port` (port 0: any free one).

    `tasks` is called for all tasks when the server starts and again whenever a conversation matches none.
    The model `oracle` behaves by the `mix`; `oracle/<behaviour>` always in that one way. Requests with the
    tools of a browser are played on generated sites, and need no tasks.
    Raises ValueError for a mix that cannot be drawn from, OSError when the port is taken.
    """

    def __init__(
        self,
        tasks: Callable[[], Iterable[Task]],
        mix: Mapping[str, float] = DEFAULT_MIX,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self._index = StatementIndex(tasks)
        self._mix = checked_mix(mix)
        self._host = host
        self.port = port
        """The one asked for; the real one once the server runs."""
        self._reading = asyncio.Lock()
        app = web.Application(client_max_size=BODY_LIMIT)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)

    @property
    def url(self) -> str:
        """The base URL that OpenAI clients take."""
        return f"http://{self._host}:{self.port}/v1"

    async def start(self) -> None:
        """Read the tasks and listen."""
        await asyncio.to_thread(self._index.reload)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self.port).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Stop listening and close all connections."""
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
            ask = msgspec.json.decode(await request.read(), type=_Ask)
            reply = await self._reply(ask)
        except msgspec.DecodeError as error:
            return _error(400, f"the request is not a chat completion: {error}")
        except _Refused as refused:
            return _error(refused.status, str(refused), refused.code)
        if ask.stream:
            return await _stream(request, reply, bool((ask.stream_options or {}).get("include_usage")))
        return web.Response(body=msgspec.json.encode(whole(reply)), content_type="application/json")

    async def _reply(self, ask: _Ask) -> Reply:
        """Values of steps where the conversation asks for them, else the next turn of the rollout."""
        names = [(tool.get("function") or {}).get("name") for tool in ask.tools or ()]
        if sites.about_sites(names) and ask.model.partition("/")[0] == MODEL:
            try:
                return await sites.reply_to(
                    ask.messages, model=ask.model, seed=ask.seed or 0, tools=ask.tools or ()
                )
            except sites.UnanswerableRequest as refused:
                raise _Refused(str(refused)) from refused
        behaviour = self._forced(ask.model)
        if behaviour is None and ask.model != MODEL:
            raise _Refused(f"there is no model {ask.model!r}", 404, "model_not_found")
        if not ask.tools and (asked := _annotation(ask.messages)):
            task = await self._task([{"role": "user", "content": annotator.unbarred(asked)}])
            said = Turn(text=annotator.annotate(task, asked))
            return _as_reply(ask, "annotator", said, [task.task_id, asked])
        label = None if names else block_label(_spoken(ask.messages, "system", "user"))
        if "bash" not in names and label is None:
            raise _Refused(
                "the oracle plays through a tool named `bash` or blocks of bash in the text: the request has "
                "neither"
            )
        task, seed = await self._task(ask.messages), ask.seed or 0
        if behaviour is None:
            behaviour = draw(self._mix, seed, task.task_id)
        roles = [message.get("role") for message in ask.messages]
        number = roles.count("assistant")
        if label is not None:  # such a harness leaves out an answer that it cannot act on
            number += sum(pair == ("user", "user") for pair in pairwise(roles))
        said = turn(task, behaviour, seed, number)
        if label is not None:
            said = as_text(said, label)
        return _as_reply(ask, behaviour, said, [task.task_id, behaviour, seed, number])

    def _forced(self, model: str) -> Behaviour | None:
        prefix, _, name = model.partition("/")
        return Behaviour(name) if prefix == MODEL and name in list(Behaviour) else None

    async def _task(self, messages: list[dict[str, Any]]) -> Task:
        text = _spoken(messages, "user")
        task = self._index.find(text)
        if task is None:
            async with self._reading:
                await asyncio.to_thread(self._index.reload)
            task = self._index.find(text)
        if task is None:
            raise _Refused("no task that the oracle knows has its statement in this conversation")
        return task


def _spoken(messages: list[dict[str, Any]], *roles: str) -> str:
    """The text of all messages of these roles."""
    return "\n".join(text_of(message) for message in messages if message.get("role") in roles)


def _as_reply(ask: _Ask, behaviour: str, said: Turn, identity: list[object]) -> Reply:
    return Reply(
        id=f"oracle-{digest(identity, 12)}",
        model=ask.model,
        fingerprint=f"{ORACLE_FINGERPRINT}/{behaviour}",
        turn=said,
        usage=usage(ask.messages, ask.tools or [], said),
    )


def _annotation(messages: list[dict[str, Any]]) -> str | None:
    """The prompt that asks for values of steps, where this conversation is about that."""
    first = next((text_of(message) for message in messages if message.get("role") == "user"), "")
    return first if annotator.is_annotation(first) else None


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
