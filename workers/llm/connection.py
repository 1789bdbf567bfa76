"""One request to one server of an endpoint, and what its reply means."""

import asyncio
import logging
import os
import re
import ssl
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from urllib.parse import urlsplit

import aiohttp
import certifi

from orchard.schemas.decoding import TooDeep
from orchard.workers.llm.answers import Completion, MalformedAnswer, excerpt, read_completion
from orchard.workers.llm.known_errors import meaning, samples_anew
from orchard.workers.llm.patience import Trouble
from orchard.workers.llm.phases import Phase, Reached, phases
from orchard.workers.llm.quoting import without_key
from orchard.workers.llm.refusals import ErrorBody, Meaning, error_body, error_of, retry_after
from orchard.workers.llm.replies import ENCODINGS, ReplyTooLarge, WrongEncoding, body, error_text
from orchard.workers.llm.resting import LOOPBACK
from orchard.workers.llm.settings import EndpointSettings
from orchard.workers.llm.streamed import assembled, is_stream
from orchard.workers.llm.unfinished import begun, cut_short

log = logging.getLogger(__name__)

CONNECT_SECONDS = 15.0
_LONGEST_HEADER = 64 * 1024
_STREAM = "text/event-stream"
_DETAIL_LIMIT = 300
_AWAY = frozenset({502, 503, 504, 529})
"""Statuses of a server that is not there, is loading or has too much to do."""


class FailedRequest(Exception):
    """A request that brought no completion: what was `said`, and the pause that the endpoint wants, in
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


class EndpointConnection:
    """The connections to the servers of one endpoint, and its key."""

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
        """The session, of the loop that runs. Calls at once are limited by `concurrency`, not by connections;
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
                trace_configs=[phases()],
                trust_env=not all(url.hostname in LOOPBACK for url in urls),
            )
        return self._session

    async def ask(self, url: str, request: bytes, model: str, deadline: float) -> Completion:
        """The completion that the server at `url` answers; FailedRequest for every other end."""
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
                most = self._settings.max_reply_bytes
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
        log.warning("endpoint %r: a completion is cut short, since it %s", self._name, what)
        return cut_short()

    def _status_refusal(self, status: int, body: ErrorBody, model: str, asked: float | None) -> FailedRequest:
        if status in (401, 403):
            source = self._settings.api_key_env
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
    ) -> FailedRequest:
        """A refusal whose words name neither the key nor the URL."""
        for secret in (self._key, self._settings.base_url, *self._urls):
            if secret:
                detail = detail.replace(secret, "***")
        if len(detail) > _DETAIL_LIMIT:
            detail = detail[:_DETAIL_LIMIT] + "..."
        return FailedRequest(kind, self._name, detail, asked, request=request, certain=certain)


def _trusted() -> ssl.SSLContext:
    """Certificates that are trusted: those that SSL_CERT_FILE or SSL_CERT_DIR name, else Mozilla's."""
    if os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR"):
        return ssl.create_default_context()
    return ssl.create_default_context(cafile=certifi.where())


def _reason(error: Exception) -> str:
    """What the system says of a connection that failed. The library's words name hosts and proxies."""
    number = getattr(error, "errno", None)
    return f": {os.strerror(number)}" if isinstance(number, int) and number > 0 else ""
