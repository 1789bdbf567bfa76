"""The HTTP side of the policy server: OpenAI's routes, weight reload, health and metrics."""

import asyncio
import hmac
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
import torch
from aiohttp import web

from orchard.injector.operations import JSON
from orchard.injector.orchestrator.origins import is_loopback, refusal
from orchard.pipelines.datasets.errors import DatasetError
from orchard.pipelines.models.errors import ModelError
from orchard.pipelines.policy.conversations import Prompts
from orchard.pipelines.policy.engine import EngineSettings, GenerationEngine, Overloaded, Stopping
from orchard.pipelines.policy.pictures import RequestPictures, Shown
from orchard.pipelines.policy.replies import chat_reply, completion_reply
from orchard.pipelines.policy.requests import (
    BadRequest,
    ChatRequest,
    CompletionRequest,
    ReloadRequest,
    read_body,
)
from orchard.pipelines.policy.running import Ends, Generated
from orchard.pipelines.policy.sampling import Sampling
from orchard.pipelines.policy.weights import load_weights
from orchard.pipelines.vision.places import picture_urls
from orchard.pipelines.vision.reading import BadPicture, PictureReader

BODY_LIMIT = 64 * 2**20
RETRY_SECONDS = 1
_STOP_TAIL = 16

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class PolicyServer:
    """One model behind `host:port` (port 0: any free one). An async context manager."""

    def __init__(
        self,
        directory: Path,
        *,
        name: str = "policy",
        version: int = 0,
        run: str = "",
        settings: EngineSettings | None = None,
        dtype: torch.dtype = torch.float32,
        host: str = "127.0.0.1",
        port: int = 0,
        api_key: str | None = None,
        drain_seconds: float = 30.0,
        blind: bool = False,
        hosts: Collection[str] = (),
    ) -> None:
        """Loads the weights. `hosts` are names that it is asked by beside its own.

        Raises ModelError or DatasetError for a directory that cannot be served.
        """
        self.name, self.host, self.port = name, host, port
        self._run = run
        self._hosts = hosts
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._dtype = dtype
        self._api_key = api_key
        self._drain_seconds = drain_seconds
        self._prompts = Prompts.load(directory)
        model = load_weights(directory, device=self._device, dtype=dtype)
        self._pictures = RequestPictures(PictureReader.load(directory) if model.tower else None, blind=blind)
        self.engine = GenerationEngine(model, version, settings or EngineSettings())
        self._reloading = asyncio.Lock()
        self._draining = False
        app = web.Application(client_max_size=BODY_LIMIT, middlewares=[self._guard])
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_post("/admin/reload", self._reload)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, handler_cancellation=True)

    @property
    def url(self) -> str:
        """Base URL with the version path, which clients expect."""
        return f"http://{self.host}:{self.port}/v1"

    async def start(self) -> None:
        self.engine.start()
        await self._runner.setup()
        await web.TCPSite(self._runner, self.host, self.port).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Refuse new requests, finish the running ones within the drain time, close."""
        self._draining = True
        await asyncio.to_thread(self.engine.stop, self._drain_seconds)
        await self._runner.cleanup()

    async def __aenter__(self) -> "PolicyServer":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _health(self, _: web.Request) -> web.Response:
        if self._draining or self.engine.ended.done():
            return web.json_response({"status": "stopping"}, status=503)
        figures = self.engine.figures
        return web.json_response(
            {
                "status": "healthy",
                "model": self.name,
                "policy_version": self.engine.version,
                "run": self._run,
                "running": figures.running,
                "waiting": figures.waiting,
            }
        )

    async def _models(self, _: web.Request) -> web.Response:
        context = self.engine.settings.context
        entry = {"id": self.name, "object": "model", "created": 0, "owned_by": "orchard"}
        return web.json_response({"object": "list", "data": [entry | {"max_model_len": context}]})

    async def _chat(self, request: web.Request) -> web.Response:
        body = read_body(await request.read(), ChatRequest)
        self._check_model(body.model)
        tools = body.tools or []
        try:
            pictures = await self._pictures.pictures(picture_urls(body.messages))
            tokens = self._pictures.tokens(pictures)
            prompt = self._prompts.prompt(body.messages, tools, tokens)
        except (DatasetError, KeyError, TypeError, AttributeError) as error:
            raise BadRequest(f"the messages cannot be written as a prompt: {error}") from error
        except BadPicture as error:
            raise BadRequest(str(error)) from error
        (generated,) = await self._generate_all([(prompt, pictures)], body)
        message = self._prompts.answer(body.messages, tools, prompt, generated.ids)
        if body.stops:
            message = msgspec.structs.replace(message, content=_before(message.content, body.stops))
        created = int(time.time())
        return _json(chat_reply(self.name, body, self._prompts, prompt, generated, message, created))

    async def _complete(self, request: web.Request) -> web.Response:
        body = read_body(await request.read(), CompletionRequest)
        self._check_model(body.model)
        prompts = self._token_prompts(body)
        scored = body.prompt_logprobs is not None
        answers = await self._generate_all([(prompt, ()) for prompt in prompts], body, scored=scored)
        texts = [_before(self._prompts.text(answer.ids), body.stops) for answer in answers]
        created = int(time.time())
        return _json(completion_reply(self.name, body, self._prompts, prompts, answers, texts, created))

    def _token_prompts(self, body: CompletionRequest) -> list[list[int]]:
        """The prompts of a request as token ids. Raises BadRequest where ids and lists of ids are mixed."""
        if isinstance(body.prompt, str):
            return [self._prompts.tokens(body.prompt)]
        lists = [part for part in body.prompt if isinstance(part, list)]
        ids = [part for part in body.prompt if not isinstance(part, list)]
        if lists and ids:
            raise BadRequest("the prompt mixes token ids and lists of them: send the one or the other")
        return lists or [ids]

    async def _reload(self, request: web.Request) -> web.Response:
        """Load new weights, whatever their version: a run may go back to an older policy."""
        body = read_body(await request.read(), ReloadRequest)
        started = time.monotonic()
        try:
            async with self._reloading:
                version = await self._exchange(Path(body.path), body.version)
                self._run = body.run
        except (ModelError, ValueError) as error:
            raise BadRequest(f"the weights cannot be used: {error}") from error
        return web.json_response({"policy_version": version, "seconds": time.monotonic() - started})

    async def load(self, directory: Path, version: int) -> None:
        """Serve the weights in `directory`, unless those of this version or a newer one are served by
        now. Raises ModelError or ValueError for unusable weights."""
        async with self._reloading:
            if version > self.engine.version:
                await self._exchange(directory, version)

    async def _exchange(self, directory: Path, version: int) -> int:
        """Load beside the running weights, then exchange between two steps. One at a time, in order."""
        model = await asyncio.to_thread(load_weights, directory, device=self._device, dtype=self._dtype)
        return await asyncio.wrap_future(self.engine.reload(model, version))

    async def _metrics(self, _: web.Request) -> web.Response:
        figures = msgspec.structs.asdict(self.engine.figures)
        gauges = {name: figures.pop(name) for name in ("running", "waiting")}
        gauges["version"] = self.engine.version
        lines = []
        for kind, values in (("counter", figures), ("gauge", gauges)):
            suffix = "_total" if kind == "counter" else ""
            for name, value in values.items():
                lines += [
                    f"# TYPE orchard_policy_{name}{suffix} {kind}",
                    f"orchard_policy_{name}{suffix} {value}",
                ]
        return web.Response(text="\n".join(lines) + "\n", content_type="text/plain")

    async def _generate_all(
        self,
        prompts: Sequence[tuple[Sequence[int], Sequence[Shown]]],
        body: ChatRequest | CompletionRequest,
        *,
        scored: bool = False,
    ) -> list[Generated]:
        """Generate an answer to each prompt; when the client disconnects, or one is refused, the others leave
        the batch."""
        sampling = body.sampling(self._prompts.stop_ids, self.engine.settings.context)
        ends, futures = self._ends(body.stops), list[Future[Generated]]()
        try:
            for prompt, pictures in prompts:
                futures.append(
                    self._submit(
                        prompt,
                        sampling,
                        ends,
                        pictures,
                        scored=scored,
                        routed=bool(body.return_routed_experts),
                    )
                )
            return [await asyncio.wrap_future(future) for future in futures]
        except BaseException:
            for future in futures:
                future.cancel()
            raise

    def _submit(
        self,
        prompt: Sequence[int],
        sampling: Sampling,
        ends: Ends | None,
        pictures: Sequence[Shown],
        *,
        scored: bool,
        routed: bool,
    ) -> Future[Generated]:
        try:
            return self.engine.submit(prompt, sampling, ends, pictures, scored=scored, routed=routed)
        except ValueError as error:
            code = "context_length_exceeded" if "context length" in str(error) else None
            raise BadRequest(str(error), code) from error

    def _ends(self, stops: Sequence[str]) -> Ends | None:
        """Whether the newest tokens complete one of these texts."""
        if not stops:
            return None
        tail = max(map(len, stops)) + _STOP_TAIL

        def ends(ids: Sequence[int]) -> bool:
            # A token is one byte or more: this many of them hold the longest stop text and what cuts it.
            text = self._prompts.text(ids[-4 * tail :])
            return any(stop in text for stop in stops)

        return ends

    def _check_model(self, name: str) -> None:
        if name != self.name:
            raise BadRequest(
                f"the model {name!r} is not served here, {self.name!r} is", "model_not_found", 404
            )

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check access, and answer errors in OpenAI's form. Requests that a browser sends on behalf of
        any page are refused."""
        strange = refusal(request, loopback=is_loopback(self.host), hosts=self._hosts)
        if strange is not None:
            return _error(*strange)
        if self._api_key is not None and request.path != "/health":
            given = request.headers.get("Authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode(), self._api_key.encode()):
                return _error(401, "the key is missing or wrong")
        if request.body_exists and request.content_type != JSON:
            return _error(415, f"the header Content-Type must be {JSON}")
        try:
            return await handler(request)
        except BadRequest as error:
            return _error(error.status, str(error), error.code)
        except web.RequestPayloadError:
            return _error(400, "the body is not encoded as its headers say")
        except Overloaded:
            most = self.engine.settings.waiting
            return _error(503, f"{most} requests wait already: try again", "overloaded")
        except Stopping:
            return _error(503, "the server is stopping: try again", "stopping")


def _before(text: str, stops: Sequence[str]) -> str:
    """The text up to the first of the stop texts in it."""
    return min((text.partition(stop)[0] for stop in stops), key=len, default=text)


def _json(reply: dict[str, Any]) -> web.Response:
    reply["id"] = f"policy-{uuid.uuid4().hex}"
    return web.Response(body=msgspec.json.encode(reply), content_type="application/json")


def _error(status: int, message: str, code: str | None = None) -> web.Response:
    kind = "invalid_request_error" if status < 500 else "server_error"
    headers = {"Retry-After": str(RETRY_SECONDS)} if status == 503 else {}
    error = {"message": message, "type": kind, "param": None, "code": code}
    return web.json_response({"error": error}, status=status, headers=headers)
