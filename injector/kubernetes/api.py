"""Client of the API server: typed responses, bounded concurrency, retries, typed errors.

`kubernetes_asyncio` finds the server and authenticates; responses are decoded here, into the few fields that
are read, because its models cost a hundred times as much for a list of Pods.

Verbs that the orchestrator's role needs in the sandboxes' namespace: pods create, get, list, watch, patch,
delete; networkpolicies create, list, delete; leases create, get, list, update, delete. In the whole cluster:
nodes list.
"""

import asyncio
import logging
import math
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TypeVar

import aiohttp
import kubernetes_asyncio.client
import kubernetes_asyncio.config
import msgspec
from kubernetes_asyncio.config.config_exception import ConfigException

from orchard.injector.errors import SandboxError, SandboxUnavailable
from orchard.injector.kubernetes.objects import ApiStatus, Manifest
from orchard.injector.kubernetes.refusals import RETRIED, ApiRefused, error_of

REQUEST_TIMEOUT = 15.0
PATIENCE = 30.0
"""Seconds over which a request is retried before SandboxUnavailable is raised."""
WEIGHT = 0.1
"""Weight of the newest response in the moving average of response times."""
MERGE_PATCH = "application/merge-patch+json"
T = TypeVar("T")

log = logging.getLogger(__name__)


@contextmanager
def passing_over(*codes: int) -> Iterator[None]:
    """Ignore ApiRefused with one of these codes. A context manager."""
    try:
        yield
    except ApiRefused as error:
        if error.code not in codes:
            raise


class Gate:
    """Lets `most` through at a time, in order of arrival; urgent ones before all others."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._lines: tuple[deque[asyncio.Future[None]], deque[asyncio.Future[None]]] = (deque(), deque())

    @asynccontextmanager
    async def through(self, urgent: bool) -> AsyncIterator[None]:
        """Wait for a turn and hold it. A context manager."""
        if self._free:
            self._free -= 1
        else:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._lines[not urgent].append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():
                    self._next()
                raise
        try:
            yield
        finally:
            self._next()

    def _next(self) -> None:
        for line in self._lines:
            while line:
                turn = line.popleft()
                if not turn.done():
                    turn.set_result(None)
                    return
        self._free += 1


class ClusterApi:
    """Requests to one API server.

    Requests for existing sandboxes go before those that create more: behind a crowd of creations, leases
    would expire and agents wait for their keys.
    """

    def __init__(self, client: kubernetes_asyncio.client.ApiClient, concurrent_writes: int) -> None:
        self._client = client
        self._writes = Gate(concurrent_writes)
        self._average = 0.0
        self._under_way: dict[object, float] = {}
        """Send times of unanswered requests, by the event loop's clock, oldest first."""

    @classmethod
    async def connect(cls, kubeconfig: str | None, concurrent_writes: int) -> "ClusterApi":
        """Connect by a kubeconfig, or as the service account of this Pod. Raises SandboxUnavailable."""
        configuration = kubernetes_asyncio.client.Configuration()
        try:
            if kubeconfig is None:
                kubernetes_asyncio.config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]
            else:
                await kubernetes_asyncio.config.load_kube_config(
                    config_file=kubeconfig, client_configuration=configuration
                )
        except (ConfigException, OSError) as error:
            where = "the Pod it runs in" if kubeconfig is None else kubeconfig
            raise SandboxUnavailable(
                f"no access to a cluster from {where}: {error}; name a `kubeconfig` in the settings or run in"
                " a Pod with a service account"
            ) from error
        return cls(kubernetes_asyncio.client.ApiClient(configuration), concurrent_writes)

    @property
    def pace(self) -> float:
        """Current response time of the server in seconds, about the same for all replicas."""
        oldest = next(iter(self._under_way.values()), math.inf)
        return max(self._average, asyncio.get_running_loop().time() - oldest)

    async def close(self) -> None:
        await self._client.close()

    async def get(
        self,
        kind: type[T],
        path: str,
        params: Mapping[str, str] | None = None,
        *,
        patience: float = PATIENCE,
    ) -> T:
        """Get an object. Raises ApiRefused, also for 404, and SandboxUnavailable after `patience` seconds."""
        return await self._repeated(kind, "GET", path, params=params, patience=patience)

    async def create(
        self,
        kind: type[T],
        path: str,
        body: Manifest,
        *,
        urgent: bool = False,
        check: Callable[[], None] = lambda: None,
    ) -> T:
        """Create an object.

        Raises ApiRefused (409: it exists, perhaps by an earlier attempt of this call), SandboxRefused,
        SandboxUnavailable, and what `check` raises when its turn has come.
        """
        async with self._writes.through(urgent):
            check()
            return await self._repeated(kind, "POST", path, body=body)

    async def replace(self, kind: type[T], path: str, body: Manifest, *, patience: float = PATIENCE) -> T:
        """Replace an object. Raises ApiRefused (409: it changed since its `resourceVersion`) and
        SandboxUnavailable."""
        async with self._writes.through(urgent=True):
            return await self._repeated(kind, "PUT", path, body=body, patience=patience)

    async def patch(self, kind: type[T], path: str, body: Manifest) -> T:
        """Apply a merge patch. Raises ApiRefused (409: the object changed since the `resourceVersion` in
        it)."""
        async with self._writes.through(urgent=True):
            return await self._repeated(kind, "PATCH", path, body=body, content=MERGE_PATCH)

    async def delete(self, path: str, body: Manifest) -> None:
        """Delete an object, which may be gone already. Raises ApiRefused (409: a precondition) and
        SandboxUnavailable."""
        async with self._writes.through(urgent=True):
            with passing_over(404):
                await self._repeated(msgspec.Raw, "DELETE", path, body=body)

    @asynccontextmanager
    async def watch(
        self, path: str, params: Mapping[str, str], silence: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Yield the lines of a watch. Raises SandboxUnavailable when it breaks or is silent for `silence`
        seconds."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=REQUEST_TIMEOUT, sock_read=silence)
        try:
            reply = await self._send("GET", path, params=params, timeout=timeout)
            async with reply:
                if reply.status != 200:
                    raise _refusal(reply.status, await reply.read())
                yield _lines(reply)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise SandboxUnavailable(f"the watch of the API server ended: {_words(error)}") from error

    async def _repeated(
        self,
        kind: type[T],
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Manifest | None = None,
        content: str = "application/json",
        patience: float = PATIENCE,
    ) -> T:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience
        timeout = aiohttp.ClientTimeout(total=min(REQUEST_TIMEOUT, patience))
        pause = 0.1
        while True:
            try:
                with self._timed():
                    reply = await self._send(
                        method, path, params=params, body=body, content=content, timeout=timeout
                    )
                    async with reply:
                        data = await reply.read()
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                why, wished = _words(error), 0.0
            else:
                if reply.status < 300:
                    return msgspec.json.decode(data, type=kind)
                refused = _refusal(reply.status, data)
                if not (isinstance(refused, ApiRefused) and refused.code in RETRIED):
                    raise refused
                why, wished = refused.detail, _seconds(reply.headers.get("Retry-After"))
            pause = min(pause * 2, 5.0)
            delay = max(wished, pause * random.uniform(0.5, 1.0))
            if loop.time() + delay > deadline:
                raise SandboxUnavailable(f"the API server cannot be used: {why}", reason="api_unavailable")
            log.warning("the API server cannot be used, trying again: %s", why)
            await asyncio.sleep(delay)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        now, mark = asyncio.get_running_loop().time, object()
        begun = self._under_way[mark] = now()
        try:
            yield
        finally:
            del self._under_way[mark]
            self._average += WEIGHT * (now() - begun - self._average)

    async def _send(
        self,
        method: str,
        path: str,
        *,
        timeout: aiohttp.ClientTimeout,
        params: Mapping[str, str] | None = None,
        body: Manifest | None = None,
        content: str = "application/json",
    ) -> aiohttp.ClientResponse:
        reply: aiohttp.ClientResponse = await self._client.call_api(
            path,
            method,
            query_params=list((params or {}).items()),
            header_params={"Accept": "application/json", "Content-Type": content},
            body=body,
            auth_settings=["BearerToken"],
            _preload_content=False,
            _request_timeout=timeout,
        )
        return reply


async def _lines(reply: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    rest = bytearray()
    async for piece in reply.content.iter_any():
        rest += piece
        *lines, last = rest.split(b"\n")
        rest = bytearray(last)
        for line in lines:
            if line:
                yield bytes(line)


def _refusal(code: int, data: bytes) -> SandboxError:
    try:
        refusal = msgspec.json.decode(data, type=ApiStatus)
    except msgspec.DecodeError:
        refusal = ApiStatus(code=code, message=data.decode(errors="replace")[:500])
    return error_of(code, refusal)


def _seconds(text: str | None) -> float:
    """Parse a Retry-After header; the API server gives seconds only."""
    return float(text) if text is not None and text.isdigit() else 0.0


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__


def selector(labels: Mapping[str, str]) -> str:
    """Build a label selector for objects that carry all of them."""
    return ",".join(f"{name}={value}" for name, value in labels.items())
