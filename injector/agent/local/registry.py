"""Client of a registry's HTTP API (OCI distribution), as far as a pull needs it: log-in, manifests, blobs.

Everything is checked against the digest and size by which it was requested. Credentials go to the registry
and to the token service that it names, not to where it redirects.
"""

import asyncio
import base64
import hashlib
import json
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import aiohttp
from yarl import URL

from orchard.injector.agent.errors import AgentError, NotFound, RequestInvalid
from orchard.injector.agent.local.proxies import WHERE_SET, proxy_of, variable
from orchard.injector.agent.local.references import DIGEST, Reference
from orchard.injector.agent.local.ssrf_guard import REFUSED, SsrfGuard, local

MANIFESTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
DOCUMENT_LIMIT = 8 * 1024 * 1024
"""Bytes of a manifest, a configuration or a token response."""
PIECE = 1 << 20
_REDIRECTS = (301, 302, 303, 307, 308)
_MOST_REDIRECTS = 5
_PARAMETER = re.compile(r'(\w+)="([^"]*)"')
_PASSING = (408, 429, 500, 502, 503, 504)

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """Credentials for one registry, which appear in no log and no error."""

    username: str
    password: str

    @property
    def basic(self) -> str:
        return "Basic " + base64.b64encode(f"{self.username}:{self.password}".encode()).decode()

    def __repr__(self) -> str:
        return "Credentials(...)"


@dataclass(frozen=True, kw_only=True)
class PullRetry:
    """Retry policy: attempts in a row without progress, and the first pause, in seconds."""

    tries: int = 6
    pause: float = 0.5
    silence: float = 60.0
    """Seconds without a byte after which a connection is given up."""
    second_look: float = 30.0
    """Seconds after which a missing image is asked for once more."""


class RegistryUnavailable(AgentError):
    """The registry did not respond, or not as a registry does, after all attempts."""

    status = 502
    reason = "registry_unavailable"


class _ProxyFails(RegistryUnavailable):
    """A failure that may pass."""

    reason = "proxy_failed"


class _Again(Exception):
    pass


class Registry:
    def __init__(
        self,
        reference: Reference,
        credentials: Credentials | None = None,
        *,
        plain_http: bool = False,
        public_only: bool = False,
        patience: PullRetry | None = None,
    ) -> None:
        """Plain http is used for this machine, and with `plain_http` for others; see also SsrfGuard."""
        self._reference = reference
        self._credentials = credentials
        self._patience = patience or PullRetry()
        https = URL(f"https://{reference.address}")
        self._base = https
        if plain_http or local(https.host or ""):
            self._base = URL(f"http://{reference.address}")
        self._reach = SsrfGuard(self._base, public_only=public_only)
        self._authorization: str | None = None
        self._sessions = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._direct = await self._session(resolver=self._reach)
        self._by_proxy = await self._session()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._sessions.aclose()

    async def _session(self, **connector: Any) -> aiohttp.ClientSession:
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(**connector),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            headers={"Accept-Encoding": "identity", "User-Agent": "orchard"},
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=self._patience.silence, sock_read=self._patience.silence
            ),
        )
        return await self._sessions.enter_async_context(session)

    async def manifest(self, name: str) -> tuple[bytes, str]:
        """Return the manifest of a tag or digest, and its digest. Raises what `blob` raises."""

        async def attempt() -> bytes:
            async with self._opened(f"manifests/{name}", {"Accept": ", ".join(MANIFESTS)}) as reply:
                return await _document(reply, f"the manifest {name}")

        data = await self._patiently(attempt)
        digest = _digest(data)
        if DIGEST.fullmatch(name) and name != digest:
            raise _refused(f"{self._reference.registry} answers {digest} where {name} was asked for")
        return data, digest

    async def blob(self, digest: str, size: int, target: Path) -> None:
        """Write a blob to the new file `target`, resuming after a broken connection.

        Raises NotFound (`image_missing`) when the registry says so twice, RequestInvalid (`registry_denied`;
        `image_refused` for wrong content) and RegistryUnavailable.
        """
        with target.open("xb") as file:
            found = hashlib.sha256()
            resumed = False

            def restart() -> None:
                nonlocal found, resumed
                file.seek(0)
                file.truncate()
                found, resumed = hashlib.sha256(), False

            async def attempt() -> None:
                nonlocal resumed
                have = file.tell()
                asked = {"Range": f"bytes={have}-"} if have else {}
                async with self._opened(f"blobs/{digest}", asked) as reply:
                    if have and reply.status == 206:
                        if not reply.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
                            restart()
                            raise _Again("its ranges are not those that were asked for")
                        resumed = True
                    elif have:
                        restart()
                    async for piece in reply.content.iter_chunked(PIECE):
                        if file.tell() + len(piece) > size:
                            raise self._wrong(f"sends more than the {size} bytes of {digest}")
                        found.update(piece)
                        file.write(piece)
                if file.tell() < size:
                    raise _Again(f"{digest} ended after {file.tell()} of {size} bytes")
                if found.hexdigest() != digest.removeprefix("sha256:"):
                    if not resumed:
                        raise self._wrong(f"sends sha256:{found.hexdigest()} for {digest}")
                    restart()
                    raise _Again(f"the parts of {digest} do not make it")

            await self._patiently(attempt, file.tell)

    def _wrong(self, how: str) -> RequestInvalid:
        return _refused(f"{self._reference.registry} {how}")

    async def _patiently(
        self, attempt: Callable[[], Awaitable[T]], progress: Callable[[], int] = lambda: 0
    ) -> T:
        left, pause = self._patience.tries, self._patience.pause
        looked = False
        while True:
            before = progress()
            try:
                return await attempt()
            except NotFound:
                if looked:
                    raise
                looked = True
                await asyncio.sleep(self._patience.second_look)
                continue
            except (_Again, _ProxyFails, aiohttp.ClientError, OSError, TimeoutError) as error:
                # A megabyte at least: else a registry could keep us with a byte each time.
                if progress() - before >= PIECE:
                    left, pause = self._patience.tries, self._patience.pause
                left -= 1
                if left <= 0 and isinstance(error, _ProxyFails):
                    raise
                if left <= 0:
                    why = str(error) or "it is silent"
                    raise RegistryUnavailable(
                        f"the registry {self._reference.registry} does not give {self._reference.repository} "
                        f"({why}): try again later"
                    ) from error
            await asyncio.sleep(pause)
            pause *= 2

    @asynccontextmanager
    async def _opened(self, path: str, headers: Mapping[str, str]) -> AsyncIterator[aiohttp.ClientResponse]:
        """Open a successful response about the image, following redirects."""
        url = self._base / "v2" / self._reference.repository / path
        for logged_in in (False, True):
            reply = await self._followed(url, headers)
            async with reply:
                if reply.status in (200, 206):
                    yield reply
                    return
                if reply.status == 401 and not logged_in:
                    await self._log_in(reply.headers.getall("WWW-Authenticate", []))
                    continue
                self._explain(reply.status)

    def _explain(self, status: int) -> None:
        registry, image = self._reference.registry, self._reference.repository
        if status == 404:
            raise NotFound(
                f"the registry {registry} has no image {image} of this tag or digest, or lacks a part of it",
                reason="image_missing",
            )
        if status in (401, 403):
            how = "with these credentials" if self._credentials else "without credentials"
            raise _denied(f"{registry} does not give {image} {how}: it is private, or there is none")
        if status in _PASSING:
            raise _Again(f"it answers {status}")
        raise RegistryUnavailable(f"the registry {registry} answers {status} for {image}")

    async def _followed(self, url: URL, headers: Mapping[str, str]) -> aiohttp.ClientResponse:
        for _ in range(_MOST_REDIRECTS):
            reply = await self._get(url, headers, self._authorization if self._ours(url) else None)
            if reply.status not in _REDIRECTS:
                return reply
            reply.release()
            url = self._joined(url, reply.headers.get("Location", ""))
        raise self._wrong("redirects without end")

    def _joined(self, url: URL, text: str) -> URL:
        try:
            return url.join(URL(text))
        except ValueError as error:
            raise self._wrong(f"names `{text[:100]}`, which is no URL") from error

    def _ours(self, url: URL) -> bool:
        return (url.scheme, url.host, url.port) == (self._base.scheme, self._base.host, self._base.port)

    async def _get(
        self, url: URL, headers: Mapping[str, str], authorization: str | None
    ) -> aiohttp.ClientResponse:
        self._reach.check(url)
        proxy = proxy_of(url)
        if proxy is not None:
            await self._reach.check_proxied(url)
        own = {} if authorization is None else {"Authorization": authorization}
        session = self._direct if proxy is None else self._by_proxy
        try:
            return await session.get(
                url.with_user(None), headers={**headers, **own}, allow_redirects=False, proxy=proxy
            )
        except aiohttp.ClientConnectorCertificateError as error:
            raise _untrusted(error) from error
        except aiohttp.ClientProxyConnectionError as error:
            raise _ProxyFails(_of_the_proxy(url, f"{error.host}:{error.port} cannot be reached")) from error
        except aiohttp.ClientConnectorDNSError as error:
            if proxy is None:
                raise
            raise _ProxyFails(_of_the_proxy(url, f"{error.host}:{error.port} has no address")) from error
        except aiohttp.ClientHttpProxyError as error:
            what = _of_the_proxy(url, f"answers {error.status} {error.message} for {url.host}")
            if error.status in _PASSING:
                raise _ProxyFails(what) from error
            raise RegistryUnavailable(what, reason=_ProxyFails.reason) from error

    async def _log_in(self, challenges: list[str]) -> None:
        registry = self._reference.registry
        kinds = {text.partition(" ")[0].lower(): dict(_PARAMETER.findall(text)) for text in challenges}
        if "bearer" in kinds:
            self._authorization = f"Bearer {await self._token(kinds['bearer'])}"
        elif "basic" in kinds and self._credentials is not None:
            self._authorization = self._credentials.basic
        elif "basic" in kinds:
            raise _denied(f"{registry} gives nothing without credentials")
        else:
            raise _denied(f"{registry} wants to be shown neither a token nor a password")

    async def _token(self, asked: Mapping[str, str]) -> str:
        registry = self._reference.registry
        realm = self._joined(self._base, asked.get("realm", ""))
        query = {"scope": f"repository:{self._reference.repository}:pull"}
        if "service" in asked:
            query["service"] = asked["service"]
        basic = None if self._credentials is None else self._credentials.basic
        async with await self._get(realm.update_query(query), {}, basic) as reply:
            if reply.status in _PASSING:
                raise _Again(f"it answers {reply.status} to a request for a token")
            if reply.status != 200:
                how = "these credentials" if self._credentials else "a request without credentials"
                raise _denied(f"{registry} gives no token to {how} ({reply.status})")
            said = _object(await _document(reply, "the token"), f"{registry}: the token")
        token = said.get("token") or said.get("access_token")
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise self._wrong("gives no token where it says that it does")
        return token


async def _document(reply: aiohttp.ClientResponse, what: str) -> bytes:
    data = bytearray()
    async for piece in reply.content.iter_any():
        data += piece
        if len(data) > DOCUMENT_LIMIT:
            raise _refused(f"{reply.url.host} sends more than {DOCUMENT_LIMIT} bytes as {what}")
    return bytes(data)


def _object(data: bytes, what: str) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _refused(f"{what} is not JSON") from error
    if not isinstance(found, dict):
        raise _refused(f"{what} is no JSON object")
    return found


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _untrusted(error: aiohttp.ClientConnectorCertificateError) -> RegistryUnavailable:
    why = getattr(error.certificate_error, "verify_message", "") or error.certificate_error
    now = os.environ.get("SSL_CERT_FILE", "not set")
    return RegistryUnavailable(
        f"the certificate of {error.host} is not trusted ({why}): name a PEM file with the system's "
        f"authorities and its own in SSL_CERT_FILE (now: {now}), {WHERE_SET}",
        reason="registry_untrusted",
    )


def _of_the_proxy(url: URL, how: str) -> str:
    return f"the proxy {how}: correct {variable(url)}, or add {url.host} to NO_PROXY, {WHERE_SET}"


def _refused(what: str) -> RequestInvalid:
    return RequestInvalid(what, reason=REFUSED)


def _denied(what: str) -> RequestInvalid:
    return RequestInvalid(f"{what}: give the right user and password", reason="registry_denied")
