"""The model client: one assistant message from any OpenAI-compatible endpoint, or a typed failure.

Retries are ours and not the library's, because only here is it known what a refusal means and how much
time is left. A call keeps its place at the endpoint while it waits to try again, so an endpoint in trouble
is asked less, not more.
"""

import asyncio
import logging
import math
import os
import random
import re
import socket
import ssl
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import certifi
import msgspec

from orchard.schemas.campaigns import ModelSpec
from orchard.schemas.decoding import TooDeep
from orchard.schemas.outcomes import AbortCause
from orchard.schemas.rests import Rest
from orchard.workers.failures import EndpointRests, InfrastructureError
from orchard.workers.llm.answers import (
    REASONING_FIELDS,
    Completion,
    MalformedAnswer,
    excerpt,
    read_completion,
    unparsed,
)
from orchard.workers.llm.concurrency import ConcurrencyLimit
from orchard.workers.llm.known_errors import meaning, samples_anew
from orchard.workers.llm.patience import LOOK_SECONDS, Patience, Trouble
from orchard.workers.llm.phases import Phase, Reached, phases
from orchard.workers.llm.questions import HELLO, Questions
from orchard.workers.llm.quoting import without_key
from orchard.workers.llm.refusals import ErrorBody, Meaning, error_body, error_of, pause, retry_after
from orchard.workers.llm.replicas import Replica, choose
from orchard.workers.llm.replies import ENCODINGS, ReplyTooLarge, WrongEncoding, body, error_text
from orchard.workers.llm.resting import LOOPBACK, host_of, is_held, rest_key, servers
from orchard.workers.llm.resting import QUESTION_SECONDS as REST_QUESTION_SECONDS
from orchard.workers.llm.rests import NoAnswer, Rests
from orchard.workers.llm.settings import EndpointSettings, Price, cost_usd, uncut
from orchard.workers.llm.streamed import assembled, is_stream
from orchard.workers.llm.tool_counts import QUESTION_SECONDS, ToolCounts, question
from orchard.workers.llm.unfinished import begun, cut_short

__all__ = [
    "Completion",
    "ContextLengthExceeded",
    "EndpointSettings",
    "ModelClient",
    "OutOfTime",
    "Price",
    "RequestRefused",
    "context_too_small",
]

log = logging.getLogger(__name__)

CONNECT_SECONDS = 15.0
_LONGEST_HEADER = 64 * 1024
_STREAM = "text/event-stream"
_DETAIL_LIMIT = 300
_NONE: Mapping[str, Any] = MappingProxyType({})
_AWAY = frozenset({502, 503, 504, 529})
"""Statuses of a server that is not there, is loading or has too much to do."""


class ContextLengthExceeded(Exception):
    """The conversation no longer fits the model: the task's token budget has run out, nobody failed."""


def context_too_small(error: ContextLengthExceeded) -> InfrastructureError:
    """The failure where it was the first prompt: that is configuration, and nothing the model did."""
    return InfrastructureError(
        AbortCause.CONTEXT_TOO_SMALL,
        f"the first prompt does not fit ({error}): serve the model with a larger context, lower max_tokens, "
        "or take a harness or tasks with shorter prompts",
    )


class OutOfTime(Exception):
    """The wall clock of the agent ran out while the model owed an answer."""


class RequestRefused(InfrastructureError):
    """The endpoint does not take this request (400, 422), whatever else it takes."""


class _Refusal(Exception):
    """One try that brought no completion: what was `said`, and the pause that the endpoint wants, in
    seconds."""

    anew = False
    """Whether it may lie in what was sampled: the same seed would sample it again."""

    def __init__(
        self, kind: Meaning, endpoint: str, said: str, asked: float | None, *, request: bool, certain: bool
    ) -> None:
        self.detail = f"endpoint {endpoint!r} {said}"
        super().__init__(self.detail)
        self.meaning = kind
        self.trouble = Trouble(said, asked, certain)
        self.request = request
        """Whether it is about what was asked, and not about the key, the model or the load."""


class ModelClient:
    """Calls models at the endpoints that the configuration names; used and closed in one event loop.

    With `rests` an endpoint that fails or says wait rests for the whole fleet, and calls to it raise
    EndpointRests or, if this client `waits`, go on after the rest.
    """

    def __init__(
        self, endpoints: Mapping[str, EndpointSettings], rests: Rests | None = None, *, waits: bool = False
    ) -> None:
        self._settings = dict(endpoints)
        self._open: dict[str, _Endpoint] = {}
        self._rests = rests
        self._waits = waits
        if rests is not None:
            for name, settings in self._settings.items():
                if settings.api_key_env is None or os.environ.get(settings.api_key_env):
                    ask = partial(self._question, name)
                    rests.attend(_key_of(settings), ask, len(servers(settings)))

    async def complete(
        self,
        spec: ModelSpec,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        *,
        seed: int,
        timeout: float,
        wall: float = math.inf,
        fields: Mapping[str, Any] = _NONE,
    ) -> Completion:
        """One assistant message that answers `messages`.

        `fields` are further ones of the request; what `spec` and the configuration set wins over them.
        `timeout`, in seconds, bounds all tries and the pauses between them, from the moment the call has its
        place at the endpoint. `wall` are the seconds that the agent has left: a try that takes longer raises
        OutOfTime. Raises also ContextLengthExceeded, or InfrastructureError with LLM_UNAVAILABLE (no answer
        in the tries or the time there were; an EndpointRests where the endpoint gives nobody any) or
        LLM_REFUSED (the request would be refused again: a RequestRefused where it is for what it asks).
        """
        endpoint = self._endpoint(spec.endpoint)
        return await endpoint.complete(
            spec, messages, tools, seed=seed, timeout=timeout, wall=wall, fields=fields
        )

    def recall(self, spec: ModelSpec, answer: Completion) -> None:
        """Learn from a recorded answer under which name its endpoint wants its reasoning back, before
        it has answered this process."""
        if answer.reasoning_field:
            self._endpoint(spec.endpoint).learn(answer)

    async def resting(self, endpoint: str) -> EndpointRests | None:
        """The rest of an endpoint that no call waits for, as the whole fleet knows it."""
        settings, rests = self._settings.get(endpoint), self._rests
        if settings is None or rests is None or self._waits:
            return None
        key = _key_of(settings)
        if rests.of(key) is not None:
            await rests.look(fresh=True)
        while (rest := rests.of(key)) is not None:
            if not is_held(age=rest.age, left=rest.left):
                return EndpointRests(key, endpoint, rest.left, rest.rest.reason)
            await rests.change(LOOK_SECONDS)
        return None

    async def rest_over(self, rest: EndpointRests) -> None:
        """Wait for the end of a rest."""
        while self._rests is not None and self._rests.of(rest.key) is not None:
            await self._rests.change(LOOK_SECONDS)

    async def _question(self, endpoint: str, rest: Rest) -> NoAnswer | None:
        return await self._endpoint(endpoint).question(rest.model, rest.probes)

    def asked(self, endpoint: str) -> dict[str, Any]:
        """What the configuration decides of every request to an endpoint: who is asked, and with what. Of its
        URL not the port, which a server that was started again may have changed."""
        settings = self._settings.get(endpoint)
        if settings is None:
            return {}
        url = urlsplit(settings.base_url)
        return {
            "server": [url.hostname, url.path],
            "fields": settings.extra_body,
            "reasoning": settings.reasoning_field,
        }

    async def close(self) -> None:
        """Close all connections."""
        for endpoint in self._open.values():
            await endpoint.close()
        self._open.clear()

    async def __aenter__(self) -> "ModelClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _endpoint(self, name: str) -> "_Endpoint":
        if name not in self._open:
            settings = self._settings.get(name)
            if settings is None:
                known = ", ".join(sorted(self._settings)) or "none"
                raise InfrastructureError(
                    AbortCause.LLM_REFUSED,
                    f"no endpoint is named {name!r} in the configuration (there is: {known}): "
                    f"add a section [endpoints.{name}] with its base_url",
                )
            self._open[name] = _Endpoint(name, settings, self._rests, waits=self._waits)
        return self._open[name]


class _Endpoint:
    """One endpoint: its connections, its window of calls, its secret."""

    def __init__(self, name: str, settings: EndpointSettings, rests: Rests | None, *, waits: bool) -> None:
        self.name = name
        self.settings = settings
        self._key = os.environ.get(settings.api_key_env, "") if settings.api_key_env else ""
        if settings.api_key_env and not self._key:
            raise InfrastructureError(
                AbortCause.LLM_REFUSED,
                f"endpoint {name!r} needs its key in the environment variable {settings.api_key_env}: set it",
            )
        self._replicas = [Replica(url) for url in servers(settings)]
        self._session: aiohttp.ClientSession | None = None
        self._limit = ConcurrencyLimit(settings.concurrency)
        self._patience = Patience(
            name, _key_of(settings), rests, self.question, waits=waits, restored=self._limit.restored
        )
        self._questions = Questions()
        self._tools = ToolCounts()
        self._reasoning_field = REASONING_FIELDS[0]
        """Where the newest answer had its reasoning."""

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _opened(self) -> aiohttp.ClientSession:
        """The session, of the loop that runs. Calls at once are limited by `concurrency`, not by connections;
        cookies are not kept, or a load balancer would send all rollouts to the server of the first."""
        if self._session is None:
            urls = [urlsplit(replica.url) for replica in self._replicas]
            tls = _trusted() if any(url.scheme == "https" for url in urls) else True
            self._session = aiohttp.ClientSession(
                headers={
                    "Accept": _STREAM if self.settings.stream else "application/json",
                    "Accept-Encoding": ENCODINGS,
                    "Authorization": f"Bearer {self._key or 'none'}",
                    "Content-Type": "application/json",
                },
                connector=aiohttp.TCPConnector(limit=0, ssl=tls),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                max_line_size=_LONGEST_HEADER,
                max_field_size=_LONGEST_HEADER,
                trace_configs=[phases()],
                trust_env=not all(url.hostname in LOOPBACK for url in urls),
            )
        return self._session

    def learn(self, answer: Completion) -> None:
        """Where this endpoint has reasoning."""
        self._reasoning_field = answer.reasoning_field or self._reasoning_field

    async def complete(
        self,
        spec: ModelSpec,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]],
        *,
        seed: int,
        timeout: float,
        wall: float,
        fields: Mapping[str, Any],
    ) -> Completion:
        began = time.monotonic()
        request = msgspec.json.encode({**fields, **self._body(spec, messages, tools, seed)})
        used = seed
        async with self._limit.place():
            deadline = time.monotonic() + timeout
            tries, failures = 0, 0
            while True:
                deadline += await self._patience.ready()
                tries += 1
                try:
                    with self._patience.asking() as started:
                        async with asyncio.timeout(wall if wall < math.inf else None) as clock:
                            answer = await self._try(request, spec.name, deadline, session=str(seed))
                except TimeoutError as error:
                    assert clock.expired()  # of any other a refusal is made
                    raise OutOfTime(f"no answer within the {wall:.1f} s that were left") from error
                except _Refusal as error:
                    wait = self._pause_after(error, tries, started)
                    failures += error.meaning is Meaning.TRANSIENT
                    spent = failures >= self.settings.max_tries or time.monotonic() + wait >= deadline
                    self._questions.refused(spec.name, request)
                    if await self._patience.rests(error.trouble, spec.name, started=started, spent=spent):
                        continue
                    if spent:
                        raise InfrastructureError(
                            AbortCause.LLM_UNAVAILABLE,
                            f"no completion in {tries} tries within {timeout:g} s; the last: {error.detail}",
                        ) from None
                    log.warning("try %d: %s; next in %.1f s", tries, error.detail, wait)
                    await asyncio.sleep(wait)
                    if error.anew:
                        used = seed + tries
                        request = msgspec.json.encode({**fields, **self._body(spec, messages, tools, used)})
                    continue
                self._limit.answered()
                self._patience.answered()
                self._questions.answered(spec.name, request)
                self.learn(answer)
                answer = msgspec.structs.replace(
                    answer,
                    tries=tries,
                    seconds=time.monotonic() - started,
                    seconds_waiting=started - began,
                    endpoint=self.name,
                    model=spec.name,
                    cost_usd=cost_usd(self.settings, spec.name, answer.usage),
                    seed=self._sent(used),
                )
                if not tools:
                    return answer
                until = min(deadline, started + wall)
                return await self._tools.told(answer, messages, partial(self._counted, spec, until))

    async def _counted(self, spec: ModelSpec, deadline: float) -> Completion | None:
        """The answer to the question whether `spec`'s model is told of tools; None where there is none."""
        request = msgspec.json.encode(self._body(*question(spec), 0))
        until = min(deadline, time.monotonic() + QUESTION_SECONDS)
        try:
            reply = await self._try(request, spec.name, until, session="")
        except _Refusal as error:
            log.warning("whether %r is told of its tools cannot be told: %s", spec.name, error.detail)
            return None
        return msgspec.structs.replace(reply, cost_usd=cost_usd(self.settings, spec.name, reply.usage))

    def _sent(self, seed: int) -> int | None:
        """The seed that a request really has: the configuration's, where it sets one."""
        sent = self.settings.extra_body.get("seed", seed)
        return sent if isinstance(sent, int) else None

    async def question(self, model: str, number: int = 0) -> NoAnswer | None:
        """Ask for one token: whatever the endpoint says of that is an answer, unless it is one that may pass.
        `number` counts the questions of a rest, and chooses among the endpoint's servers."""
        few_words = self._body(ModelSpec(name=model, max_tokens=1), [dict(HELLO)], [], 0)
        url = self._replicas[number % len(self._replicas)].url
        none: NoAnswer | None = None
        for request in self._questions.of(model, msgspec.json.encode(few_words)):
            try:
                await self._ask(url, request, model, time.monotonic() + REST_QUESTION_SECONDS)
            except _Refusal as error:
                if error.meaning not in (Meaning.TRANSIENT, Meaning.THROTTLED):
                    return None
                none = NoAnswer(error.trouble.said, error.trouble.asked)
                if error.trouble.certain:
                    return none
            else:
                return None
        return none if self._questions.believed(model, number) else None

    def _pause_after(self, refusal: _Refusal, tries: int, started: float) -> float:
        """Seconds until the next try; raises for a refusal that would be repeated."""
        if refusal.meaning is Meaning.CONTEXT_EXCEEDED:
            raise ContextLengthExceeded(refusal.detail) from None
        if refusal.meaning is Meaning.REFUSED:
            refused = RequestRefused if refusal.request else InfrastructureError
            raise refused(AbortCause.LLM_REFUSED, refusal.detail) from None
        if refusal.meaning is Meaning.THROTTLED:
            self._limit.throttled(started=started, now=time.monotonic())
        return pause(tries, refusal.trouble.asked, random.random())

    def _body(
        self, spec: ModelSpec, messages: list[dict[str, Any]], tools: list[dict[str, Any]], seed: int
    ) -> dict[str, Any]:
        """The request: only fields that were asked for, so that strict endpoints accept it, and those of
        `uncut`."""
        body: dict[str, Any] = {"model": spec.name, "messages": self._messages(messages), "seed": seed}
        body |= uncut(self.settings, spec)
        if tools:
            body["tools"] = tools
        for field in ("temperature", "top_p", "max_tokens"):
            value = getattr(spec, field)
            if value is not None:
                body[field] = value
        if spec.logprobs:
            body["logprobs"] = True
        if self.settings.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body | self.settings.extra_body

    def _messages(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """`reasoning_content` under the name that this endpoint reads, or taken out."""
        field = self.settings.reasoning_field
        name = self._reasoning_field if field is None else field
        sent = []
        for message in messages:
            kept = {key: value for key, value in message.items() if key != "reasoning_content"}
            if name and "reasoning_content" in message:
                kept[name] = message["reasoning_content"]
            sent.append(kept)
        return sent

    async def _try(self, request: bytes, model: str, deadline: float, *, session: str) -> Completion:
        """One request to the session's replica, and its answer; raises _Refusal for every other end."""
        replica = choose(self._replicas, session, time.monotonic())
        try:
            answer = await self._ask(replica.url, request, model, deadline)
        except _Refusal as error:
            log.debug("endpoint %r at %s: %s", self.name, host_of(replica.url), error.trouble.said)
            if error.meaning is Meaning.TRANSIENT:
                replica.failed(time.monotonic())
                raise
            replica.answered()
            if error.meaning is Meaning.UNPARSED:
                log.warning("%s: it counts as an answer without a call", error.detail)
                return unparsed()
            raise
        replica.answered()
        return answer

    async def _ask(self, url: str, request: bytes, model: str, deadline: float) -> Completion:
        left = max(deadline - time.monotonic(), 0.001)
        limits = aiohttp.ClientTimeout(total=None, connect=CONNECT_SECONDS)
        post, reached = self._opened().post, Reached()
        try:
            async with (
                asyncio.timeout(left),
                post(
                    f"{url}/chat/completions", data=request, timeout=limits, trace_request_ctx=reached
                ) as reply,
            ):
                reached.phase = Phase.ANSWERING
                most = self.settings.max_reply_bytes
                if not 200 <= reply.status < 300:
                    asked = retry_after(reply.headers, datetime.now(UTC))
                    told = error_of(await error_text(reply, most))
                    raise self._status_refusal(reply.status, told, model, asked)
                said = await body(reply, most)
            return read_completion(assembled(said) if is_stream(said) else said)
        except TooDeep:
            return self._unfinished(said, "is nested too deep")
        except TimeoutError as error:
            connected = reached.phase is not Phase.CONNECTING
            seconds = left if connected else min(left, CONNECT_SECONDS)
            said_of_it = f"{reached.phase} within {seconds:.0f} s"
            raise self._refusal(Meaning.TRANSIENT, said_of_it, certain=not connected) from error
        except ReplyTooLarge as error:
            return self._unfinished(error.begins, f"has more than {most} bytes")
        except WrongEncoding as error:
            raise self._refusal(Meaning.TRANSIENT, f"answered what cannot be read: {error}") from error
        except (aiohttp.ClientError, OSError, UnicodeError) as error:  # the last for a name that is none
            detail = f"could not be reached ({type(error).__name__}{_reason(error)})"
            away = reached.phase is Phase.CONNECTING  # or this request has ended the server
            raise self._refusal(Meaning.TRANSIENT, detail, certain=away) from None
        except MalformedAnswer as error:
            inside = error_body(error.error)
            if re.fullmatch("[45][0-9]{2}", inside.code):
                # Some routers answer 200 and put the upstream's refusal into the body.
                raise self._status_refusal(int(inside.code), inside, model, None) from error
            quoted = f": {text}" if (text := inside.message or inside.type or inside.code) else ""
            refusal = self._refusal(meaning(200, inside), f"gave no answer: {error}{quoted}")
            refusal.anew = refusal.meaning is Meaning.TRANSIENT
            raise refusal from error

    def _unfinished(self, begins: bytes, what: str) -> Completion:
        """A completion without an end is the model's doing; any other body without one is the endpoint's."""
        if not begun(begins):
            detail = f"gave no answer: the reply {what} and is no completion: {excerpt(begins)}"
            raise self._refusal(Meaning.TRANSIENT, detail)
        log.warning("endpoint %r: a completion is cut short, since it %s", self.name, what)
        return cut_short()

    def _status_refusal(self, status: int, body: ErrorBody, model: str, asked: float | None) -> _Refusal:
        if status in (401, 403):
            source = self.settings.api_key_env
            fix = f"check the key in {source}" if source else "name the key's variable in api_key_env"
            said = without_key(body.message or body.type or "no message", self._key)
            behind = "; a proxy may say so of a key of its own for the server behind it"
            return self._refusal(Meaning.REFUSED, f"answered {status}: {said}: {fix}{behind}")
        detail = f"answered {status}: {body.message or body.type or 'no message'}"
        if status == 404:
            detail += f" (check base_url and the model name {model!r})"
        kind = meaning(status, body)
        asked = body.retry_seconds if asked is None else asked
        certain = kind is Meaning.THROTTLED or status in _AWAY
        refusal = self._refusal(kind, detail, asked, request=status in (400, 422), certain=certain)
        refusal.anew = kind is Meaning.TRANSIENT and samples_anew(status)
        return refusal

    def _refusal(
        self,
        kind: Meaning,
        detail: str,
        asked: float | None = None,
        *,
        request: bool = False,
        certain: bool = False,
    ) -> _Refusal:
        """A refusal whose words name neither the key nor the URL."""
        for secret in (self._key, self.settings.base_url, *(replica.url for replica in self._replicas)):
            if secret:
                detail = detail.replace(secret, "***")
        if len(detail) > _DETAIL_LIMIT:
            detail = detail[:_DETAIL_LIMIT] + "..."
        return _Refusal(kind, self.name, detail, asked, request=request, certain=certain)


def _key_of(settings: EndpointSettings) -> str:
    return rest_key(settings, socket.gethostname())


def _trusted() -> ssl.SSLContext:
    """Certificates that are trusted: those that SSL_CERT_FILE or SSL_CERT_DIR name, else Mozilla's."""
    if os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR"):
        return ssl.create_default_context()
    return ssl.create_default_context(cafile=certifi.where())


def _reason(error: Exception) -> str:
    """What the system says of a connection that failed. The library's words name hosts and proxies."""
    number = getattr(error, "errno", None)
    return f": {os.strerror(number)}" if isinstance(number, int) and number > 0 else ""
