"""Sends one request to one server of an endpoint, and classifies its reply."""

import asyncio
import logging
import os
import re
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from types import SimpleNamespace
from typing import Any, TypeVar
from urllib.parse import urlsplit

import aiohttp
import certifi

from orchard.schemas.decoding import TooDeep
from orchard.workers.llm.answers import Completion, MalformedAnswer, excerpt, read_completion
from orchard.workers.llm.circuit_breaker import EndpointFailure
from orchard.workers.llm.known_errors import meaning, samples_anew
from orchard.workers.llm.refusals import ErrorBody, Meaning, error_body, error_of, retry_after, without_key
from orchard.workers.llm.replies import (
    ENCODINGS,
    ReplyTooLarge,
    WrongEncoding,
    begun,
    body,
    cut_short,
    error_text,
)
from orchard.workers.llm.rest_policy import LOOPBACK
from orchard.workers.llm.settings import EndpointSettings
from orchard.workers.llm.streamed import assembled, is_stream

log = logging.getLogger(__name__)

T = TypeVar("T")

CONNECT_SECONDS = 15.0
_LONGEST_HEADER = 64 * 1024
_STREAM = "text/event-stream"
_DETAIL_LIMIT = 300
_AWAY = frozenset({502, 503, 504, 529})
"""Statuses of a server that is not there, is loading or is overloaded."""


class FailedRequest(Exception):
    """A request brought no completion. `said` is the endpoint's message, `asked` the pause in seconds that it
    wants."""

    anew = False
    """Whether the sampled text may be the reason: the same seed would sample it again."""

    def __init__(
        self, kind: Meaning, endpoint: str, said: str, asked: float | None, *, request: bool, certain: bool
    ) -> None:
        self.detail = f"endpoint {endpoint!r} {said}"
        super().__init__(self.detail)
        self.meaning = kind
        self.failure = EndpointFailure(said, asked, certain)
        self.request = request
        """Whether the content of the request is the reason, and not the key, the model or the load."""


class _Endless(Exception):
    """A body without an end that can be read."""

    def __init__(self, begins: bytes, what: str, *, large: bool = False) -> None:
        super().__init__(what)
        self.begins, self.what, self.large = begins, what, large


class _Phase(StrEnum):
    """The phase of a request that was not completed in time, as the time-out's message words it."""

    CONNECTING = "could not be connected to"
    WAITING = "took the request and sent no answer"
    ANSWERING = "began to answer and did not come to an end"


@dataclass
class _Progress:
    phase: _Phase = _Phase.CONNECTING


def _tracing() -> aiohttp.TraceConfig:
    """Records the phase of each request of a session in the `_Progress` that is its context."""

    async def connected(_session: aiohttp.ClientSession, context: SimpleNamespace, _params: Any) -> None:
        context.trace_request_ctx.phase = _Phase.WAITING

    trace = aiohttp.TraceConfig()
    trace.on_connection_create_end.append(connected)
    trace.on_connection_reuseconn.append(connected)
    return trace


class EndpointConnection:
    def __init__(self, name: str, settings: EndpointSettings, key: str, urls: Sequence[str]) -> None:
        self._name = name
        self._settings = settings
        self._key = key
        self._urls = tuple(urls)
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _opened(self) -> aiohttp.ClientSession:
        """Returns the session of the running loop. `concurrency` limits simultaneous calls, not connections;
        cookies are not kept, or a load balancer would send all rollouts to the server of the first."""
        if self._session is None:
            urls = [urlsplit(url) for url in self._urls]
            tls = _trusted() if any(url.scheme == "https" for url in urls) else True
            self._session = aiohttp.ClientSession(
                headers={
                    "Accept": _STREAM if self._settings.stream else "application/json",
                    "Accept-Encoding": ENCODINGS,
                    "Authorization": f"Bearer {self._key or 'none'}",
                    "Content-Type": "application/json",
                },
                connector=aiohttp.TCPConnector(limit=0, ssl=tls),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                max_line_size=_LONGEST_HEADER,
                max_field_size=_LONGEST_HEADER,
                trace_configs=[_tracing()],
                trust_env=not all(url.hostname in LOOPBACK for url in urls),
            )
        return self._session

    async def ask(self, url: str, request: bytes, model: str, deadline: float) -> Completion:
        """Returns the completion of the server at `url`; raises FailedRequest in every other case."""
        try:
            return await self._read(f"{url}/chat/completions", request, model, deadline, _completion)
        except _Endless as error:
            return self._unfinished(error)

    async def read(
        self, address: str, request: bytes, model: str, deadline: float, reader: Callable[[bytes], T]
    ) -> T:
        """Returns what `reader` makes of another route's reply. It raises MalformedAnswer for a reply that is
        none; raises FailedRequest in every other case."""
        try:
            return await self._read(address, request, model, deadline, reader)
        except _Endless as error:
            detail = f"gave no answer: the reply {error.what}"
            raise self._refusal(Meaning.REFUSED, detail, request=True) from error

    async def _read(
        self, address: str, request: bytes, model: str, deadline: float, reader: Callable[[bytes], T]
    ) -> T:
        left = max(deadline - time.monotonic(), 0.001)
        limits = aiohttp.ClientTimeout(total=None, connect=CONNECT_SECONDS)
        post, reached = self._opened().post, _Progress()
        try:
            async with (
                asyncio.timeout(left),
                post(address, data=request, timeout=limits, trace_request_ctx=reached) as reply,
            ):
                reached.phase = _Phase.ANSWERING
                most = self._settings.max_reply_bytes
                if not 200 <= reply.status < 300:
                    asked = retry_after(reply.headers, datetime.now(UTC))
                    told = error_of(await error_text(reply, most))
                    raise self._status_refusal(reply.status, told, model, asked)
                said = await body(reply, most)
            return reader(said)
        except TooDeep as error:
            raise _Endless(said, "is nested too deep") from error
        except TimeoutError as error:
            connected = reached.phase is not _Phase.CONNECTING
            seconds = left if connected else min(left, CONNECT_SECONDS)
            said_of_it = f"{reached.phase} within {seconds:.0f} s"
            raise self._refusal(Meaning.TRANSIENT, said_of_it, certain=not connected) from error
        except ReplyTooLarge as error:
            raise _Endless(error.begins, f"has more than {most} bytes", large=True) from error
        except WrongEncoding as error:
            raise self._refusal(Meaning.TRANSIENT, f"answered what cannot be read: {error}") from error
        except (aiohttp.ClientError, OSError, UnicodeError) as error:  # the last for a name that is none
            detail = f"could not be reached ({type(error).__name__}{_reason(error)})"
            away = reached.phase is _Phase.CONNECTING  # or this request has ended the server
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

    def _unfinished(self, reply: _Endless) -> Completion:
        """Returns an empty completion for one without an end, which is the model's doing. Raises
        FailedRequest for any other body without an end, and where experts may be what is too much."""
        what = reply.what
        if not begun(reply.begins):
            detail = f"gave no answer: the reply {what} and is no completion: {excerpt(reply.begins)}"
            raise self._refusal(Meaning.TRANSIENT, detail)
        if reply.large and self._settings.extra_body.get(
            "return_routed_experts"
        ):  # which may be most of the reply
            detail = f"gave no answer: the reply {what}, experts included: raise max_reply_bytes"
            raise self._refusal(Meaning.REFUSED, detail)
        log.warning("endpoint %r: a completion is cut short, since it %s", self._name, what)
        return cut_short()

    def _status_refusal(self, status: int, body: ErrorBody, model: str, asked: float | None) -> FailedRequest:
        if status in (401, 403):
            source = self._settings.api_key_env
            fix = (
                f"check the key in {source}"
                if source
                else "set api_key_env to the variable that holds your key"
            )
            said = without_key(body.message or body.type or "no message", self._key)
            behind = "; behind a proxy, its own key for the server may be wrong"
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
    ) -> FailedRequest:
        """Makes a FailedRequest whose text names neither the key nor the URL."""
        for secret in (self._key, self._settings.base_url, *self._urls):
            if secret:
                detail = detail.replace(secret, "***")
        if len(detail) > _DETAIL_LIMIT:
            detail = detail[:_DETAIL_LIMIT] + "..."
        return FailedRequest(kind, self._name, detail, asked, request=request, certain=certain)


def _completion(said: bytes) -> Completion:
    return read_completion(assembled(said) if is_stream(said) else said)


def _trusted() -> ssl.SSLContext:
    """Trusts the certificates that SSL_CERT_FILE or SSL_CERT_DIR name, else Mozilla's."""
    if os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR"):
        return ssl.create_default_context()
    return ssl.create_default_context(cafile=certifi.where())


def _reason(error: Exception) -> str:
    """Returns the system's message for a failed connection. The library's own text names hosts and
    proxies."""
    number = getattr(error, "errno", None)
    return f": {os.strerror(number)}" if isinstance(number, int) and number > 0 else ""
