"""A connection that survives lost servers and tells those who wait on it when one was lost."""

import asyncio
import importlib.util
import logging
import os
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from nats.errors import BadSubjectError
from nats.errors import Error as NatsError
from nats.js import JetStreamContext

from orchard.schemas.positions import stream_of
from orchard.streams.client import Frame, TolerantClient
from orchard.streams.errors import MessageTooLarge, NatsRefused, NatsUnreachable, StreamHeld, StreamsError
from orchard.streams.replies import within
from orchard.streams.settings import NatsSettings
from orchard.streams.tasks import waited

log = logging.getLogger(__name__)

_PENDING_BYTES = 64 * 1024 * 1024
_RECONNECT_WAIT = 0.25


class ConnectionLost(StreamsError):
    """The connection broke before the answer came: whether the server acted is unknown, so ask again."""


class Pending(NamedTuple):
    """An answer that has not come yet."""

    inbox: bytes
    future: asyncio.Future[Frame]


class SeenEvent(NamedTuple):
    """An event that a process has seen in the stream, confirmed or read."""

    sequence: int
    payload: bytes


class Connection:
    """One client connection; made by `connect`. Reconnects for ever by itself.

    `nats` and `jetstream` are the bare nats-py objects. `ask` is the one way in which this room sends what
    must be answered: its waiters fail at once when the connection is lost, which nats-py's own do not.
    """

    def __init__(self, settings: NatsSettings, url: str, name: str) -> None:
        self.settings = settings
        self.url = url
        self.name = name
        self.nats = TolerantClient()
        self.jetstream = JetStreamContext(self.nats)
        self.last_error: Exception | None = None
        self.last_error_at = float("-inf")
        """Time of the event loop's clock."""
        self.held = ""
        """Why nothing is published until somebody acts, as a sentence (`streams.stream_check`); empty when
        all is well."""
        self.waiting = ""
        """Why nothing is published for a moment, as a sentence."""
        self.full = ""
        """Why nothing is claimed now, as a sentence; empty when there is room."""
        self.newest: dict[int, SeenEvent] = {}
        """Event of the highest sequence that this process has seen, by stream; the guard recognizes each
        stream by it."""
        self.event_streams = 1
        """Number of streams of events, at the guard's last look."""
        self.guarded = False
        """Whether a guard decides when a new connection is ready."""
        self.waits_when_full = False
        """Whether a publish that a full disk or log refuses is tried again, within `patience`."""
        self.online = asyncio.Event()
        """Set while there is a server; `ready` also waits for the guard."""
        self._connected = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._refused = asyncio.Event()
        self._on_loss: list[Callable[[], None]] = []
        self._inbox = ""
        self._answers: dict[bytes, asyncio.Future[Frame]] = {}
        self._asked = 0

    @property
    def host(self) -> str:
        """URL without user, password and token, for messages."""
        parts = [urlsplit(url if "://" in url else f"nats://{url}") for url in self.url.split(",")]
        return ",".join(f"{part.scheme}://{part.netloc.rpartition('@')[2]}" for part in parts)

    def on_loss(self, callback: Callable[[], None]) -> None:
        """Calls `callback` whenever the connection is lost or closed."""
        self._on_loss.append(callback)

    def forget_loss(self, callback: Callable[[], None]) -> None:
        self._on_loss.remove(callback)

    @property
    def trusted(self) -> bool:
        """Whether there is a connection and the guard lets publishes pass: the server has what it had
        before."""
        return self._connected.is_set()

    def saw(self, sequence: int, payload: bytes) -> None:
        """Remembers an event of the stream if it is the newest so far."""
        stream = stream_of(sequence)
        known = self.newest.get(stream)
        if known is None or sequence > known.sequence:
            self.newest[stream] = SeenEvent(sequence, payload)

    async def ready(self, timeout: float, *, to_read: bool = False) -> None:
        """Waits until connected and, except for reading, until the guard lets publishes pass.

        Raises NatsUnreachable after `timeout` seconds, NatsRefused when closed.
        """
        wanted = self.online if to_read else self._connected
        if wanted.is_set():
            return
        if self.nats.is_closed:
            raise NatsRefused(
                f"the connection to {self.host} is closed ({self.last_error or 'by this process'})"
            )
        try:
            await waited(wanted.wait(), max(timeout, 0.0))
        except TimeoutError:
            if self.held or self.waiting:
                raise StreamHeld(self.held or self.waiting) from None
            raise NatsUnreachable(
                f"no NATS server at {self.host} for {timeout:.0f} s ({self.last_error}): "
                "start it, or correct nats.url"
            ) from None

    async def room(self, timeout: float) -> bool:
        """Waits until there is room for new work; False after `timeout` seconds."""
        if self._room.is_set():
            return True
        with suppress(TimeoutError):
            await waited(self._room.wait(), max(timeout, 0.0))
        return self._room.is_set()

    def judge(self, held: str, full: str, *, waiting: str = "") -> None:
        """Takes the guard's findings; empty texts let publishes and claims pass."""
        self.held, self.waiting, self.full = held, waiting, full
        if full:
            self._room.clear()
        else:
            self._room.set()
        if (held or waiting) and self._connected.is_set():
            self._lost()
        elif not held and not waiting and self.online.is_set():
            self._connected.set()

    def check_size(self, subject: str, payload: bytes, headers: bytes) -> None:
        """Raises MessageTooLarge when the server would refuse payload and headers together."""
        limit, size = self.nats.max_payload, len(payload) + len(headers)
        if size > limit:
            raise MessageTooLarge(
                f"a message of {size} bytes for {subject} is over the server's limit of {limit}: "
                "put large texts into blobs, or raise max_payload of the server"
            )

    async def send(
        self, subject: str, payload: bytes, headers: bytes = b"", *, to_read: bool = False
    ) -> Pending:
        """Publishes what `check_size` let pass, with a reply inbox; its future gets the answer, or
        ConnectionLost when that is lost. `headers` is a block of `records.header_block`.

        Raises ConnectionLost when there is no connection now or, except for reading, the guard lets nothing
        pass.
        """
        if not self._inbox:
            self._inbox = self.nats.new_inbox() + "."
            await self.nats.listen(self._inbox + "*", self._on_answer)
        if not (self.online if to_read else self._connected).is_set():
            raise ConnectionLost(self.held or self.waiting or "not connected to NATS")
        self._asked += 1
        inbox = f"{self._inbox}{self._asked:x}"
        pending = Pending(inbox.encode(), asyncio.get_running_loop().create_future())
        self._answers[pending.inbox] = pending.future
        try:
            await self.post(subject, payload, headers, reply=inbox)
        except StreamsError:
            self.forget(pending)
            raise
        return pending

    async def post(self, subject: str, payload: bytes, headers: bytes = b"", *, reply: str = "") -> None:
        """Publishes without a check of size and guard, and waits for no answer; raises ConnectionLost."""
        try:
            await self.nats.publish(subject, payload, reply=reply, headers=headers)  # type: ignore[arg-type]
        except BadSubjectError as error:
            raise StreamsError(f"{subject!r} is no NATS subject: names may not contain blanks") from error
        except (NatsError, OSError) as error:
            raise ConnectionLost(f"could not send to NATS: {error}") from error

    def forget(self, pending: Pending) -> None:
        self._answers.pop(pending.inbox, None)
        pending.future.cancel()

    async def ask(
        self, subject: str, payload: bytes = b"", headers: bytes = b"", *, timeout: float = 5.0
    ) -> Frame:
        """Sends what stores nothing and waits for the answer, which may be a status (see `status_of`).

        Raises ConnectionLost, TimeoutError after `timeout` seconds, and MessageTooLarge.
        """
        self.check_size(subject, payload, headers)
        pending = await self.send(subject, payload, headers, to_read=True)
        try:
            return await within(pending.future, timeout)
        finally:
            self._answers.pop(pending.inbox, None)

    def _on_answer(self, frame: Frame) -> None:
        future = self._answers.pop(frame.subject, None)
        if future is not None and not future.done():
            future.set_result(frame)

    def _lost(self) -> None:
        self._connected.clear()
        answers, self._answers = self._answers, {}
        for future in answers.values():
            if not future.done():
                future.set_exception(ConnectionLost("the connection to NATS was lost"))
                future.exception()  # marked as seen: its waiter may have gone meanwhile
        for callback in list(self._on_loss):
            callback()

    # --- callbacks of nats-py ---------------------------------------------------------------------

    async def _on_error(self, error: Exception) -> None:
        if str(error) != str(self.last_error):
            log.log(
                logging.WARNING if self._connected.is_set() else logging.DEBUG,
                "%s: NATS: %s",
                self.name,
                error,
            )
        self.last_error, self.last_error_at = error, asyncio.get_running_loop().time()
        if isinstance(error, ssl.SSLError) or "authorization violation" in str(error).lower():
            self._refused.set()

    async def _on_disconnected(self) -> None:
        self.online.clear()
        self.nats.forget_pending()
        if not self.nats.is_closed:
            log.warning("%s: lost the connection to NATS at %s; reconnecting", self.name, self.host)
        self._lost()

    async def _on_reconnected(self) -> None:
        log.warning("%s: connected to NATS at %s again", self.name, self.host)
        self.online.set()
        if not self.guarded:
            self._connected.set()

    async def _on_closed(self) -> None:
        self.online.clear()
        self._lost()

    async def open(self) -> None:
        """Connects for the first time, within `connect_timeout`; raises as `connect` does."""
        timeout = self.settings.connect_timeout
        attempt = asyncio.ensure_future(
            self.nats.connect(
                self.url.split(","),
                name=self.name,
                error_cb=self._on_error,
                disconnected_cb=self._on_disconnected,
                reconnected_cb=self._on_reconnected,
                closed_cb=self._on_closed,
                max_reconnect_attempts=-1,
                ping_interval=20,
                pending_size=_PENDING_BYTES,
                **_options(self.settings),
            )
        )
        refused = asyncio.ensure_future(self._refused.wait())
        try:
            await asyncio.wait({attempt, refused}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            refused.cancel()
            connected = attempt.done()
            if not connected:
                attempt.cancel()
                await asyncio.wait({attempt})
                await self.nats.close()
        if not connected:
            if self._refused.is_set():
                raise NatsRefused(
                    f"NATS at {self.host} refused the connection ({self.last_error}): "
                    "check nats.credentials, nats.user, nats.token_env and nats.tls_ca"
                )
            raise NatsUnreachable(
                f"no NATS server at {self.host} ({self.last_error or f'no answer in {timeout:.0f} s'}): "
                "start it, or correct nats.url"
            )
        try:
            await attempt
        except (NatsError, OSError, ValueError) as error:
            raise NatsUnreachable(
                f"cannot connect to NATS at {self.host} ({error}): correct nats.url"
            ) from error
        self.last_error = None
        self.online.set()
        self._connected.set()

    async def close(self) -> None:
        """Closes for good; all who wait for an answer get ConnectionLost."""
        await self.nats.close()
        self._lost()


@asynccontextmanager
async def connect(settings: NatsSettings, *, name: str, url: str | None = None) -> AsyncIterator[Connection]:
    """Connects to `url`, or to `settings.url`; `name` shows in the server's monitoring.

    Raises NatsUnreachable when nothing answers within `connect_timeout`, NatsRefused when the server refuses
    the credentials or a side the other's certificate, StreamsError when a secret or file is missing.
    """
    target = url or settings.url
    if target is None:
        raise StreamsError(
            "no NATS URL is configured: set nats.url, or run the embedded server (`orchard up`)"
        )
    connection = Connection(settings, target, name)
    await connection.open()
    try:
        yield connection
    finally:
        await connection.close()


def _options(settings: NatsSettings) -> dict[str, Any]:
    options: dict[str, Any] = {"reconnect_time_wait": _RECONNECT_WAIT}
    if settings.credentials is not None:
        if importlib.util.find_spec("nkeys") is None:
            raise StreamsError("nats.credentials needs the package nkeys: run `pip install nats-py[nkeys]`")
        options["user_credentials"] = str(_readable(settings.credentials, "nats.credentials"))
    if settings.user is not None and settings.password_env is not None:
        options["user"] = settings.user
        # Answers to one role are not for another: accounts may subscribe to inboxes of their own name.
        options["inbox_prefix"] = f"_INBOX.{settings.user}"
        options["password"] = _secret(settings.password_env, "nats.password_env")
    if settings.token_env is not None:
        options["token"] = _secret(settings.token_env, "nats.token_env")
    if settings.tls_ca is not None or settings.tls_cert is not None:
        options["tls"] = _tls(settings)
    return options


def _tls(settings: NatsSettings) -> ssl.SSLContext:
    ca = None if settings.tls_ca is None else str(_readable(settings.tls_ca, "nats.tls_ca"))
    try:
        context = ssl.create_default_context(cafile=ca)
        if settings.tls_cert is not None and settings.tls_key is not None:
            certificate = _readable(settings.tls_cert, "nats.tls_cert")
            context.load_cert_chain(certificate, _readable(settings.tls_key, "nats.tls_key"))
    except ssl.SSLError as error:
        raise StreamsError(
            f"the TLS files of [nats] are not usable PEM files ({error.reason}): replace them"
        ) from error
    return context


def _secret(variable: str, setting: str) -> str:
    value = os.environ.get(variable)
    if not value:
        raise StreamsError(f"{setting} names {variable}, which is not set: export {variable}")
    return value


def _readable(path: str, setting: str) -> Path:
    if not os.access(path, os.R_OK):
        raise StreamsError(
            f"{setting} names {path}, which cannot be read: correct the path or its permissions"
        )
    return Path(path)
