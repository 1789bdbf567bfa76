"""The guard: nobody publishes to a stream of events that has lost some, or may drop some.

A server that lost acknowledged messages gives their sequences to new ones. A rollout whose outcome was lost
would get a second one, and tables and stream would tell different stories. So each process that publishes
looks at the stream when it connects, whenever it connects again, and every few seconds: the stream must
reach what the tables hold and what the process saw confirmed, without holes but those that archiving made,
and with limits that refuse instead of dropping. Until it does, publishes and claims wait, and the reason is
one sentence.
"""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

import msgspec
from nats.errors import Error as NatsError

from orchard.streams import names
from orchard.streams.connection import Connection
from orchard.streams.errors import StreamHeld, TopologyError
from orchard.streams.settings import NatsSettings
from orchard.streams.tasks import end
from orchard.streams.topology import declare_events

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
"""Between two looks at a stream that is well."""
HELD_LOOK_SECONDS = 0.5
RESTORED = "orchard-restored"
"""Metadata of the stream: a mark of its last restore. What a process saw confirmed before counts no more."""
_ASK_SECONDS = 5.0
_NUMBERS = re.compile(r"[0-9]+")
REMEDY = "run `orchard store restore-stream` (docs/runbooks/lost-stream-data.md)"


class Expected(NamedTuple):
    """What the tables say of the stream."""

    watermark: int = 0
    """Sequence up to which they hold every event."""
    sealed: int = 0
    """Events that archiving was allowed to take out of the stream."""


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """What the stream holds: sequences up to `last`, `messages` of them still there, in `bytes`."""

    first: int = msgspec.field(name="first_seq")
    last: int = msgspec.field(name="last_seq")
    messages: int
    bytes: int

    @property
    def missing(self) -> int:
        """Sequences up to `last` without a message."""
        return self.last - self.messages


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the stream by which it could drop events, and its size limit."""

    discard: str = "old"
    max_msgs: int = -1
    max_bytes: int = -1
    max_age: int = 0
    max_msgs_per_subject: int = -1
    metadata: dict[str, str] = {}

    @property
    def drops(self) -> bool:
        """Whether the server may drop an event by itself."""
        full = self.max_bytes > 0 or self.max_msgs > 0
        return bool(self.max_age > 0 or self.max_msgs_per_subject > 0 or (full and self.discard == "old"))


class _Error(msgspec.Struct):
    description: str = ""


class _Info(msgspec.Struct):
    config: Limits = Limits()
    state: Held | None = None
    error: _Error | None = None


class _AccountLimits(msgspec.Struct, frozen=True):
    max_storage: int = -1


class _Account(msgspec.Struct):
    storage: int = 0
    limits: _AccountLimits = _AccountLimits()


class Unjudged(Exception):
    """The tables cannot be read just now; the text says why."""


Look = Callable[[], Awaitable[Expected]]
"""Reads the tables, or raises Unjudged. Workers may not know them, so the front door supplies it."""
Room = Callable[[], Awaitable[str]]
"""Says in a sentence why there is no room for new work, empty when there is."""


def verdict(held: Held, expected: Expected, newest: int) -> str:
    """Why a stream in this state must not be written to, as a sentence; empty when it is whole.

    `newest` is the highest sequence that this process saw confirmed.
    """
    if held.last < expected.watermark:
        found = f"ends at {held.last} and the tables hold events up to {expected.watermark}"
    elif held.last < newest:
        found = f"ends at {held.last}, but event {newest} was confirmed"
    elif held.missing > expected.sealed:
        found = f"has no longer {held.missing - expected.sealed} of its events up to {held.last}"
    else:
        return ""
    return (
        f"the stream of events {found}: the NATS server has lost what it had acknowledged, so nothing is "
        f"claimed or published; {REMEDY}"
    )


class Guard:
    """Watches one connection and holds what it publishes while the stream is not whole."""

    def __init__(
        self,
        connection: Connection,
        settings: NatsSettings,
        look: Look,
        *,
        room: Room | None = None,
        on_change: Callable[[str], None] = log.warning,
    ) -> None:
        """`on_change` gets each new reason to hold, and one sentence when it is gone."""
        self._connection = connection
        self._settings = settings
        self._look = look
        self._room = room
        self.on_change = on_change
        self._expected: Expected | None = None
        self._restored: str | None = None
        self._told = ""
        self._lost = asyncio.Event()

    async def check(self) -> bool:
        """Look once and hold or release the connection; False when the server did not answer."""
        try:
            held, full = await self._judge()
        except (NatsError, TimeoutError, OSError, msgspec.DecodeError) as error:
            log.debug("looking at the stream of events: %s", error)
            return False
        if self._lost.is_set():
            return False  # it was the answer of a server that is gone
        self._connection.judge(held, full)
        reason = held or full
        kind = _NUMBERS.sub("", reason)
        if kind != self._told:
            self._told = kind
            self.on_change(reason or "the stream of events is well again: work goes on")
        return True

    async def run(self) -> None:
        """Look until cancelled, at once after each new connection."""
        self._connection.on_loss(self._lost.set)
        seconds = LOOK_SECONDS
        try:
            while True:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._lost.wait(), seconds)
                await self._connection.online.wait()
                if self._lost.is_set():
                    self._lost.clear()
                    self._expected = None  # another server may have come with another stream
                answered = await self.check()
                seconds = LOOK_SECONDS if answered and not self._told else HELD_LOOK_SECONDS
        finally:
            self._connection.forget_loss(self._lost.set)

    async def _judge(self) -> tuple[str, str]:
        """Why nothing may be published, and why nothing may be claimed."""
        try:
            if self._expected is None:
                self._expected = await self._look()
            info = await self._info()
            held = await self._verdict(info)
        except Unjudged as error:
            return (
                f"whether the stream of events is whole cannot be seen ({error}), so nothing is published",
                "",
            )
        return held, "" if held else await self._fullness(info)

    async def _info(self) -> _Info:
        answer = await self._connection.nats.request(
            f"$JS.API.STREAM.INFO.{names.EVENTS}", b"", timeout=_ASK_SECONDS
        )
        return msgspec.json.decode(answer.data, type=_Info)

    async def _verdict(self, info: _Info) -> str:
        assert self._expected is not None
        if info.state is None:
            if not self._expected.watermark:
                return ""  # a new server: the topology is declared next
            return (
                f"there is no stream of events, and the tables hold events up to {self._expected.watermark}: "
                f"{REMEDY}"
            )
        if info.config.drops and (refused := await self._put_back()):
            return refused
        restored = info.config.metadata.get(RESTORED, "")
        if self._restored not in (None, restored):
            self._connection.newest_event = 0
        self._restored = restored
        found = verdict(info.state, self._expected, self._connection.newest_event)
        if found:  # archiving may have gone on since the tables were read
            self._expected = await self._look()
            found = verdict(info.state, self._expected, self._connection.newest_event)
        return found

    async def _put_back(self) -> str:
        """Undo limits that somebody set on the stream; why not, where that is refused."""
        log.warning("the limits of %s would drop events: putting back those that refuse", names.EVENTS)
        try:
            await declare_events(self._connection, self._settings)
        except TopologyError as error:
            return (
                f"the limits of the stream {names.EVENTS} would drop events, which lets rollouts have two "
                f"outcomes, and cannot be put back ({error}): set its discard policy to new and its ages to 0"
            )
        return ""

    async def _fullness(self, info: _Info) -> str:
        limit, used = info.config.max_bytes, info.state.bytes if info.state else 0
        if limit > 0 and used > limit * self._settings.full_share:
            return (
                f"the event log holds {used} of at most {limit} bytes, so nothing new is claimed: raise "
                "nats.event_max_bytes, or make room with `orchard log archive`"
            )
        account = await self._account()
        if 0 < account.limits.max_storage * self._settings.full_share < account.storage:
            return (
                f"the NATS account stores {account.storage} of {account.limits.max_storage} bytes, so "
                "nothing new is claimed: raise its limit, or make room with `orchard log archive`"
            )
        return await self._room() if self._room else ""

    async def _account(self) -> _Account:
        answer = await self._connection.nats.request("$JS.API.INFO", b"", timeout=_ASK_SECONDS)
        return msgspec.json.decode(answer.data, type=_Account)


@asynccontextmanager
async def guarded(guard: Guard, connection: Connection, *, hold: bool) -> AsyncIterator[None]:
    """Guard a connection while the block runs.

    Without `hold` raises StreamHeld at once when the stream is not whole, which is what a command wants; a
    worker holds, and goes on when it is.

    Raises TopologyError when JetStream does not answer within `connect_timeout`.
    """
    connection.guarded = True
    connection.waits_when_full = hold
    try:
        async with asyncio.timeout(connection.settings.connect_timeout):
            while not await guard.check():
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise TopologyError(
            f"NATS at {connection.host} does not say how its stream of events is: check that JetStream is "
            "enabled, and that this user may ask $JS.API.STREAM.INFO and $JS.API.INFO"
        ) from None
    if connection.held and not hold:
        raise StreamHeld(connection.held)
    watching = asyncio.create_task(guard.run())
    try:
        yield
    finally:
        await end(watching)
