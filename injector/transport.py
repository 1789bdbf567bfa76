"""HTTP client of the sandbox service with retries, safe because they repeat the idempotency key."""

import asyncio
import io
import random
import ssl
import time
import uuid
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import IO, Any, TypeVar

import aiohttp
import msgspec
from yarl import URL

from orchard.injector import fork_safety, wire
from orchard.injector.agent.protocol import FRAME_LIMIT, REASON_HEADER
from orchard.injector.errors import (
    PASSING,
    SandboxError,
    SandboxFileTooLarge,
    SandboxRequestInvalid,
    SandboxUnavailable,
    detail_of,
    error_for,
    is_own_error,
    is_own_refusal,
)
from orchard.injector.operations import API_KEY_HEADER, EVENTS, JSON, KEY, RAW, ApiOperation
from orchard.injector.tunnels import AsyncTunnel

OVERLOAD = "overload"
"""Reason of a response by an overloaded replica."""

FOREIGN = "foreign_answer"
"""Reason of an answer that is not the service's own."""
FOREIGN_SHOWN = 200
"""Characters of such an answer that are quoted."""
EVENTS_SILENCE = 60.0
"""Seconds without a byte after which an event stream is lost: the service sends something every 15."""
PIECE = 1024 * 1024
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0
"""Seconds between attempts: doubled each time, with jitter."""

T = TypeVar("T")


class Transport:
    """One client's session. Every request sent here may safely arrive twice."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None,
        timeout: float,
        retry_seconds: float,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._url = url
        self._tls = tls
        self.headers = {} if api_key is None else {API_KEY_HEADER: api_key}
        self.tunnels: set[AsyncTunnel] = set()
        self._timeout = timeout
        self.retry_seconds = retry_seconds
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._forgotten: weakref.finalize[..., Transport] | None = None
        fork_safety.watch(self)

    async def close(self) -> None:
        """Close all tunnels and connections; a later request opens new ones."""
        for tunnel in list(self.tunnels):
            await tunnel.close()
        if self._session is not None and self._forgotten is not None:
            self._forgotten.detach()
            await self._session.close()
            self._session = None

    def forked(self) -> None:
        """Leave connections and tunnels to the parent; a request of the child opens new ones."""
        fork_safety.leave_alone(self.tunnels)
        self.tunnels = set()
        if self._session is not None and self._loop is not None and self._forgotten is not None:
            self._forgotten.detach()
            fork_safety.leave_alone(self._session)
            fork_safety.part_with(self._loop)
            self._session = None

    async def call(
        self,
        kind: type[T],
        operation: ApiOperation,
        name: str = "",
        *,
        body: msgspec.Struct | bytes | IO[bytes] | None = None,
        params: Mapping[str, str] | list[tuple[str, str]] | None = None,
        key: str | None = None,
        timeout: float | None = None,
    ) -> T:
        """Send a request and decode the JSON response as `kind`; retries while the service is unavailable.

        It is unavailable, too, while a proxy answers in its place. Raises the typed errors. `name` is that of
        the operation's sandbox or job. An operation with idempotency keys gets one if `key` is None.
        `timeout` bounds one attempt, in seconds.
        """
        headers = dict(self.headers)
        if KEY in operation.parameters:
            headers[KEY.name] = key or uuid.uuid4().hex
        data: Any = body
        if isinstance(body, msgspec.Struct):
            wire.check_finite(body)
            data = wire.encode(body)
            headers["Content-Type"] = JSON
        path, seconds = operation.at(name), timeout or self._timeout

        async def attempt() -> T:
            status, answer = await self._try(operation.method, path, data, params, headers, seconds)
            try:
                return wire.decode(answer, kind)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise self._foreign(status, answer, str(error)) from error

        return await self._patiently(attempt)

    async def download(
        self, path: str, params: Mapping[str, str], target: IO[bytes], limit: int, media: str = RAW
    ) -> None:
        """Write the response of a GET into a file, completely or not at all; retries from its start.

        Raises SandboxFileTooLarge beyond `limit` bytes, whatever the service said.
        """

        async def attempt() -> None:
            target.seek(0)
            target.truncate()
            async for piece in self._received(path, params, limit, media):
                await asyncio.to_thread(target.write, piece)

        await self._patiently(attempt)

    async def content(self, path: str, params: Mapping[str, str], limit: int) -> bytes:
        """Return the response of a GET; see `download`."""

        async def attempt() -> bytes:
            buffer = io.BytesIO()
            async for piece in self._received(path, params, limit, RAW):
                buffer.write(piece)
            return buffer.getvalue()

        return await self._patiently(attempt)

    async def _received(
        self, path: str, params: Mapping[str, str], limit: int, media: str
    ) -> AsyncIterator[bytes]:
        size = 0
        with self._explained(self._timeout):
            async with self._opened().get(
                self._at(path, {**params, "limit": str(limit)}),
                headers={**self.headers, "Accept": RAW},
                timeout=aiohttp.ClientTimeout(total=self._timeout),
            ) as reply:
                await self._check(reply, media)
                async for piece in reply.content.iter_chunked(PIECE):
                    size += len(piece)
                    if size > limit:
                        raise SandboxFileTooLarge(f"{params['path']} has more than {limit} bytes")
                    yield piece

    async def events(self, path: str, params: Mapping[str, str]) -> AsyncIterator[bytes]:
        """Yield the response of a GET as it comes, without a time limit. Retries until it begins."""
        reply = await self._patiently(lambda: self._try_events(path, params))
        async with reply:
            with self._explained(self._timeout):
                async for piece in reply.content.iter_any():
                    yield piece

    async def _try_events(self, path: str, params: Mapping[str, str]) -> aiohttp.ClientResponse:
        unlimited = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout, sock_read=EVENTS_SILENCE)
        with self._explained(self._timeout):
            reply = await self._opened().get(self._at(path, params), headers=self.headers, timeout=unlimited)
            try:
                await self._check(reply, EVENTS)
            except BaseException:
                reply.close()
                raise
        return reply

    async def line(self, path: str) -> aiohttp.ClientWebSocketResponse:
        """Open a WebSocket; retries while the service is unavailable. Raises the typed errors."""
        return await self._patiently(lambda: self._try_line(path))

    async def _patiently(self, attempt: Callable[[], Awaitable[T]]) -> T:
        deadline = time.monotonic() + self.retry_seconds
        pause = FIRST_PAUSE
        while True:
            try:
                return await attempt()
            except SandboxUnavailable as error:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise
                asked = error.retry_after or 0.0
            await asyncio.sleep(min(asked + pause * random.uniform(0.5, 1.0), left))
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _try(
        self, method: str, path: str, data: Any, params: Any, headers: dict[str, str], timeout: float
    ) -> tuple[int, bytes]:
        """Return status and body of an answer that is no error."""
        with self._explained(timeout):
            async with self._opened().request(
                method,
                self._at(path, params),
                data=data if data is None or isinstance(data, bytes) else _pieces(data),
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=timeout),
            ) as reply:
                answer = await reply.read()
        if reply.status >= 400:
            raise self._error(reply, answer)
        return reply.status, answer

    async def _try_line(self, path: str) -> aiohttp.ClientWebSocketResponse:
        try:
            with self._explained(self._timeout):
                return await self._opened().ws_connect(
                    self._url + path, headers=self.headers, max_msg_size=FRAME_LIMIT
                )
        except aiohttp.WSServerHandshakeError as error:
            headers = {} if error.headers is None else error.headers
            if not is_own_refusal(headers):
                raise self._foreign(error.status, b"", f"no WebSocket to {path}") from error
            reason = headers.get(REASON_HEADER)
            raise error_for(error.status, f"no WebSocket to {path}: {error.status}", reason) from error

    async def _check(self, reply: aiohttp.ClientResponse, media: str) -> None:
        """Raise the error that the answer is, or that it is another thing than the content asked for."""
        if reply.status >= 400:
            raise self._error(reply, await reply.read())
        if reply.content_type != media:
            raise self._foreign(reply.status, await reply.content.read(FOREIGN_SHOWN), reply.content_type)

    def _error(self, reply: aiohttp.ClientResponse, body: bytes) -> SandboxError:
        reason, after = reply.headers.get(REASON_HEADER), reply.headers.get("Retry-After", "")
        error: SandboxError = self._foreign(reply.status, body, reply.content_type)
        waits = True
        if is_own_error(reply.headers, body):
            error = error_for(reply.status, detail_of(body), reason)
            # Of a replica that is only ending, others may be asked at once.
            waits = reply.status == 429 or reason == OVERLOAD or reason in PASSING
        if isinstance(error, SandboxUnavailable) and waits:
            error.retry_after = float(after) if after.isdigit() else None
        return error

    def _foreign(self, status: int, body: bytes, what: str) -> SandboxUnavailable:
        """Make the error for an answer that the service did not write, which says nothing of the request."""
        shown = body.decode(errors="replace")[:FOREIGN_SHOWN]
        return SandboxUnavailable(
            f"not the sandbox service but something in front of {self._url} answered {status} ({what}): "
            f"{shown!r}",
            reason=FOREIGN,
        )

    @contextmanager
    def _explained(self, timeout: float) -> Iterator[None]:
        try:
            yield
        except aiohttp.InvalidURL as error:
            raise SandboxRequestInvalid(f"`{self._url}` is not the URL of a sandbox service") from error
        except aiohttp.WSServerHandshakeError:
            raise
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
            says = str(error) or f"no answer within {timeout:g} s"
            raise SandboxUnavailable(f"the sandbox service at {self._url} does not answer: {says}") from error

    def _at(self, path: str, params: Mapping[str, str] | list[tuple[str, str]] | None) -> URL:
        try:
            return wire.url(self._url + path, params)
        except ValueError as error:
            raise aiohttp.InvalidURL(self._url) from error

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ssl=self._tls or True)
            )
            self._loop = asyncio.get_running_loop()
            self._forgotten = weakref.finalize(self, _let_go, self._session, self._loop)
        return self._session


def _let_go(session: aiohttp.ClientSession, loop: asyncio.AbstractEventLoop) -> None:
    """Close the session of a client that was collected without being closed, or whose process ends,
    silently."""
    closing = session.close()
    if loop.is_running():
        fork_safety.leave_alone(session)  # at the end of the process its thread may get no time for this
        asyncio.run_coroutine_threadsafe(closing, loop)
        return
    with suppress(StopIteration):  # of a loop that is closed nothing has to be waited for
        closing.send(None)
    closing.close()


async def _pieces(source: IO[bytes]) -> AsyncIterator[bytes]:
    """Read a file from its start, since every attempt sends all of it."""
    source.seek(0)
    while piece := await asyncio.to_thread(source.read, PIECE):
        yield piece
