"""An orchestrator's client of an agent's HTTP interface."""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar
from urllib.parse import unquote

import aiohttp
import msgspec
from yarl import URL

from orchard.injector import wire
from orchard.injector.agent.logs import REQUEST_ID
from orchard.injector.agent.protocol import (
    FRAME_LIMIT,
    INTRODUCTION,
    KEY_HEADER,
    REASON_HEADER,
    REQUEST_ID_HEADER,
    UNKNOWN,
    VERSION,
    VERSION_HEADER,
)
from orchard.injector.agent.signing import FRAME, LINE, STREAM, Seal, SealBroken, SealedRequest
from orchard.injector.errors import (
    SandboxError,
    SandboxFailed,
    SandboxRequestInvalid,
    SandboxUnavailable,
    detail_of,
    error_for,
)
from orchard.injector.unix_http import ConnectionPool, HttpResponse, Sized

CONNECT_TIMEOUT = 10.0
"""Seconds; a lost node does not refuse connections, it is silent."""
_NO_SUCH_ROUTE = (404, 405)
"""Statuses of an unknown route, when sent without a reason: every error of the agent has one."""
AGENT_REPLACED = "agent_replaced"

T = TypeVar("T")
Parameters = Mapping[str, str] | list[tuple[str, str]]
Reply = aiohttp.ClientResponse | HttpResponse


class AgentUnreachable(SandboxUnavailable):
    """No connection could be made, so nothing was sent."""

    default_reason = "agent_unreachable"


class AgentConnection:
    """Calls over one aiohttp connector (a unix socket, or an address).

    With a seal every request is sealed and every response must be: one from another agent than the one that
    was given the key raises SandboxFailed (`agent_replaced`).
    """

    def __init__(
        self,
        connector: aiohttp.BaseConnector,
        address: str = "http://agent",
        seal: Seal | None = None,
        owns_connector: bool = True,
        pool: ConnectionPool | None = None,
    ) -> None:
        """`pool`: connections to the same agent for requests that are whole in both directions; closed
        with this."""
        self._pool = pool
        self._address = URL(address)
        self._seal = seal
        self._session = aiohttp.ClientSession(
            connector=connector,
            connector_owner=owns_connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT),
            auto_decompress=False,
            ws_response_class=_Line,
        )

    async def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
        await self._session.close()

    async def introduce(self) -> None:
        """Give the agent its key, which its response proves. Safe to repeat.

        The key travels in the clear: introduce only to an agent in whose sandbox no command can have run yet,
        since an impostor would learn the key; all others prove it by any response. Raises SandboxFailed
        (`agent_replaced`) when the agent has another key or its response proves nothing.
        """
        assert self._seal is not None, "an introduction needs a key"
        body = msgspec.json.encode({"key": self._seal.key.hex(), "time": self._seal.now()})
        await self.call(dict[str, Any], "POST", INTRODUCTION, body=body)

    async def call(
        self,
        kind: type[T],
        method: str,
        path: str,
        *,
        body: Any = None,
        params: Parameters | None = None,
        key: str | None = None,
    ) -> T:
        """Send `body` (a record, bytes or pieces of bytes) and decode the JSON response as `kind`.

        Raises the error that the response stands for, AgentUnreachable when nothing could be sent and
        SandboxUnavailable when the agent vanished before it responded.
        """
        url = self._url(path, params)
        headers = _traced() if key is None else {**_traced(), KEY_HEADER: key}
        if isinstance(body, msgspec.Struct):
            body = wire.encode(body)
        if self._seal is not None and method == "PUT" and isinstance(body, bytes) and len(body) > FRAME:
            body = _whole(body)  # content of a file, which the agent need not have in memory
        sealed = self._sealed(method, url, headers, body)
        if sealed is not None and not isinstance(body, bytes | None):
            body = sealed.frames(body)
        with _explained():
            answer = None
            if self._pool is not None and isinstance(body, bytes | Sized | None):
                answer = await _asked(self._pool, method, url, headers, body or b"")
            reply: Reply
            if answer is not None and not (isinstance(body, Sized) and _unknown_there(answer)):
                reply, data = answer, answer.body
            else:
                async with self._session.request(
                    method, url, data=body, headers=headers, allow_redirects=False
                ) as reply:
                    data = await reply.read()
        _check_whole(sealed, reply, data)
        _refused(reply, method, path, data)
        try:
            return wire.decode(data, kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _differs(reply.headers, f"its answer to {method} {path} has another form") from error

    @asynccontextmanager
    async def stream(self, path: str, params: Mapping[str, str]) -> AsyncIterator[AsyncIterator[bytes]]:
        """Yield the response of a GET in pieces. Raises the same errors as `call`, also while it is read."""
        url = self._url(path, params)
        headers = _traced()
        sealed = self._sealed("GET", url, headers, None)
        with _explained():
            reply = await self._session.get(url, headers=headers, allow_redirects=False)
        async with reply:
            if sealed is None and reply.status < 400:
                yield _pieces(reply.content.iter_any())
            elif sealed is not None and _checked(sealed, reply) == STREAM:
                yield _pieces(sealed.opened(reply.content))
            else:
                with _explained():
                    data = await reply.read()
                _check_whole(sealed, reply, data)
                _refused(reply, "GET", path, data)
                yield _whole(data)

    async def line(self, path: str) -> aiohttp.ClientWebSocketResponse:
        """Open a WebSocket. Raises the same errors as `call`, without the agent's sentence.

        Its handshake is sealed, its messages are not: nobody can take over the connection they come by.
        """
        url = self._url(path, None)
        headers = _traced()
        sealed = self._sealed("GET", url, headers, None)
        try:
            with _explained():
                line = await self._session.ws_connect(url, headers=headers, max_msg_size=FRAME_LIMIT)
        except aiohttp.WSServerHandshakeError as error:
            given = {} if error.headers is None else error.headers
            reason = given.get(REASON_HEADER)
            if sealed is not None:
                _head(sealed, error.status, given)
            if reason is None and error.status in _NO_SUCH_ROUTE:
                raise _differs(given, f"it has no GET {path}") from error
            raise error_for(error.status, f"the sandbox agent refuses {path}", reason) from error
        if sealed is not None:
            assert isinstance(line, _Line)
            try:
                if _head(sealed, 101, line.handshake) != LINE:
                    raise _NotSealed("it did not answer with a WebSocket")
            except _NotSealed:
                await line.close()
                raise
        return line

    def _url(self, path: str, params: Parameters | None) -> URL:
        if any(unquote(part) in (".", "..") for part in path.split("/")):
            raise SandboxRequestInvalid(f"`{path}` is no path of the sandbox agent")
        return wire.url(str(self._address.join(URL(path))), params)

    def _sealed(self, method: str, url: URL, headers: dict[str, str], body: Any) -> SealedRequest | None:
        if self._seal is None:
            return None
        content = body or b"" if isinstance(body, bytes | None) else None
        sealed = self._seal.request(
            method, url.raw_path_qs, body=content, idempotency_key=headers.get(KEY_HEADER)
        )
        headers.update(sealed.headers)
        return sealed


def _traced() -> dict[str, str]:
    """Header that relates the agent's log to this one."""
    request_id = REQUEST_ID.get()
    return {} if request_id is None else {REQUEST_ID_HEADER: request_id}


class _NotSealed(SandboxFailed):
    default_reason = AGENT_REPLACED

    def __init__(self, why: str) -> None:
        super().__init__(f"the agent of the sandbox was replaced: {why}")


class _Line(aiohttp.ClientWebSocketResponse):
    @property
    def handshake(self) -> Mapping[str, str]:
        return self._response.headers


def _head(sealed: SealedRequest, status: int, headers: Mapping[str, str]) -> str:
    try:
        return sealed.check(status, headers)
    except SealBroken as error:
        raise _NotSealed(str(error)) from error


def _checked(sealed: SealedRequest, reply: aiohttp.ClientResponse) -> str:
    return _head(sealed, reply.status, reply.headers)


def _check_whole(sealed: SealedRequest | None, reply: Reply, data: bytes) -> None:
    if sealed is None:
        return
    try:
        sealed.check_whole(reply.status, reply.headers, data)
    except SealBroken as error:
        raise _NotSealed(str(error)) from error


async def _pieces(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    with _explained():
        async for piece in pieces:
            yield piece


async def _whole(data: bytes) -> AsyncIterator[bytes]:
    if data:
        yield data


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except SealBroken as error:
        raise _NotSealed(str(error)) from error
    except aiohttp.WSServerHandshakeError:
        raise
    except aiohttp.ClientConnectorError as error:
        raise AgentUnreachable(f"the sandbox agent cannot be reached: {error.os_error.strerror}") from error
    except aiohttp.ConnectionTimeoutError as error:
        raise AgentUnreachable("the sandbox agent cannot be reached: it does not answer") from error
    except (aiohttp.ClientError, ConnectionError) as error:
        raise SandboxUnavailable("the sandbox agent went away before it answered") from error


async def _asked(
    pool: ConnectionPool, method: str, url: URL, headers: Mapping[str, str], body: bytes | Sized
) -> HttpResponse:
    try:
        connection = await pool.connection()
    except OSError as error:
        raise AgentUnreachable(f"the sandbox agent cannot be reached: {error.strerror}") from error
    if isinstance(body, Sized):  # an agent that does not know this takes it in pieces
        sized = f"{url.raw_path}/sized?{url.raw_query_string}&size={body.size}"
        return await connection.put(sized, headers, body)
    return await connection.ask(method, url.raw_path_qs, headers, body)


def _refused(reply: Reply, method: str, path: str, data: bytes) -> None:
    if reply.status < 400:
        return
    if _unknown_there(reply):
        raise _differs(reply.headers, f"it has no {method} {path}")
    raise error_for(reply.status, detail_of(data), reply.headers.get(REASON_HEADER))


def _unknown_there(reply: Reply) -> bool:
    return reply.status in _NO_SUCH_ROUTE and REASON_HEADER not in reply.headers


def _differs(headers: Mapping[str, str], how: str) -> SandboxError:
    """The error for versions of agent and orchestrator that do not fit; retrying does not help."""
    version = headers.get(VERSION_HEADER, UNKNOWN)
    return SandboxError(
        f"the sandbox agent has version {version} and this orchestrator version {VERSION}, and they do not "
        f"understand each other ({how}): stop it with `python -m orchard.injector.agent --state DIR --stop`, "
        f"or on a cluster delete the sandbox and set `agent_image` to the agent of version {VERSION}",
        status=502,
        reason="version_differs",
    )
