"""The stream guard: nobody publishes to a stream of events that has lost some, or may drop some.

A server that lost acknowledged messages gives their sequences to new ones. A rollout whose outcome was lost
would get a second one, and tables and stream would contradict each other. So each process that publishes
looks at the stream when it connects, whenever it connects again, and every few seconds: the stream must
hold the last event of the tables and the newest one that the process has seen, without holes but those that
archiving made, and with limits that refuse instead of dropping. Until it does, publishes and claims wait, and
the reason is one sentence.

After a start of the server nobody publishes until one process, usually the writer, has found the stream whole
and said so: others may not know of what is lost. And what one process finds lost holds all
(`streams.guard_messages`), until the stream is restored.
"""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress

import msgspec
from nats.errors import Error as NatsError

from orchard.schemas.decoding import Unreadable
from orchard.schemas.positions import own_sequence
from orchard.streams import guard_messages, names
from orchard.streams.connection import Connection, SeenEvent
from orchard.streams.errors import EventsForgotten, StoreRefused, StreamHeld, TopologyError
from orchard.streams.settings import NatsSettings
from orchard.streams.stream_state import (
    REMEDY,
    AccountUsage,
    ExpectedStream,
    StreamInfo,
    StreamState,
    called,
    empty,
    id_of,
    sentence,
    shorter,
)
from orchard.streams.tasks import end, waited
from orchard.streams.topology import declare_events

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
"""Interval between two looks at a stream that is well."""
HELD_LOOK_SECONDS = 0.5
ANSWER_SECONDS = 60.0
"""Seconds that a process that holds waits at its start for a server that says nothing of its stream."""
SETTLE_SECONDS = 10.0
"""Seconds after a start of the server in which a process leaves it to the writer to say that the stream is
whole."""
WRITER_SETTLE_SECONDS = 1.0
"""Seconds that the writer waits before: processes that saw what is lost connect again within this time."""
_NUMBERS = re.compile(r"[0-9]+")
_WAITING = (
    "the NATS server was started, and nothing is claimed or published until the writer has compared the "
    "stream of events with the tables"
)


class TablesUnreadable(Exception):
    """The tables cannot be read now; the text says why."""


ReadTables = Callable[[], Awaitable[ExpectedStream]]
"""Reads the tables, or raises TablesUnreadable. Workers may not know them, so the front door supplies it."""
Shortage = Callable[[], Awaitable[str]]
"""Says in a sentence why there is no room for new work; empty when there is."""


class StreamGuard:
    """Watches one connection and holds what it publishes while the stream is not whole."""

    def __init__(
        self,
        connection: Connection,
        settings: NatsSettings,
        look: ReadTables,
        *,
        room: Shortage | None = None,
        settle: float = SETTLE_SECONDS,
        on_change: Callable[[str], None] = log.warning,
    ) -> None:
        """`settle` is the time in seconds after which this process itself says that the stream of a server
        that was started is whole. `on_change` gets each new reason to hold, and one sentence when it is
        gone."""
        self._connection = connection
        self._settings = settings
        self._look = look
        self._room = room
        self._settle = settle
        self.on_change = on_change
        self._expected: ExpectedStream | None = None
        self._compared: set[int] = set()
        """Streams that have the tables' last event."""
        self._restored: str | None = None
        """The stream's mark of its last restore, at the last look."""
        self._seen_whole = False
        self._checked = False
        self._unchecked_since: float | None = None
        self._told = ""
        self._lost = asyncio.Event()
        connection.on_loss(self._lost.set)

    async def check(self) -> bool:
        """Looks once and holds or releases the connection; False when the server did not answer.

        Raises EventsForgotten when the stream was restored without what this process has seen in it.
        """
        if self._lost.is_set():
            self._lost.clear()
            self._forget()
        try:
            held, waiting, full = await self._judge()
        except (NatsError, TimeoutError, OSError, msgspec.DecodeError, StoreRefused) as error:
            log.debug("looking at the stream of events: %s", error)
            return False
        if self._lost.is_set():
            return False  # it was the answer of a server that is gone
        self._connection.judge(held, full, waiting=waiting)
        reason = held or full
        kind = _NUMBERS.sub("", reason)
        if kind != self._told and not waiting:
            self._told = kind
            self.on_change(reason or "the stream of events is well again: work goes on")
        return True

    async def run(self) -> None:
        """Looks until cancelled, at once after each new connection. Raises as `check` does; the connection is
        closed then."""
        answered = True
        try:
            while True:
                well = answered and self._connection.trusted and not self._told
                with suppress(TimeoutError):
                    await waited(self._lost.wait(), LOOK_SECONDS if well else HELD_LOOK_SECONDS)
                await self._connection.online.wait()
                answered = await self.check()
        except EventsForgotten:
            await self._connection.close()
            raise
        finally:
            self._connection.forget_loss(self._lost.set)

    def _forget(self) -> None:
        """Forgets all findings: another server may have come with another stream."""
        self._expected, self._compared = None, set()
        self._checked, self._unchecked_since = False, None

    async def _judge(self) -> tuple[str, str, str]:
        """Returns why nothing may be published until somebody acts, why not for a moment, and why nothing may
        be claimed."""
        try:
            if self._expected is None:
                self._expected = await self._look()
            newest = dict(self._connection.newest)  # before the answers: it may grow meanwhile
            infos = await self._infos()
            held = await self._verdict(infos, newest)
        except TablesUnreadable as error:
            return (
                f"whether the stream of events is whole cannot be seen ({error}), so nothing is published",
                "",
                "",
            )
        if held:
            return held, "", ""
        begun = bool(newest) or any(info.state.last for info in infos if info.state is not None)
        if infos[0].state is not None and not await self._is_checked(begun):
            return "", _WAITING, ""
        return "", "", await self._fullness(infos)

    async def _infos(self) -> list[StreamInfo]:
        """Asks about each stream of events that the server, the tables or this process knows."""
        assert self._expected is not None
        known = max(1 + len(self._expected.others), self._connection.event_streams)
        found: list[StreamInfo] = []
        while len(found) < known:
            api = f"STREAM.INFO.{names.stream_name(len(found))}"
            found.append(await guard_messages.ask(self._connection, api, {}, StreamInfo))
            known = max(known, found[0].config.event_streams)
        self._connection.event_streams = known
        return found

    async def _verdict(self, infos: list[StreamInfo], newest: Mapping[int, SeenEvent]) -> str:
        assert self._expected is not None
        restored = infos[0].config.metadata.get(names.RESTORED, "")
        if self._restored not in (None, restored) and all(info.state is not None for info in infos):
            await self._recognize(infos, newest)
        ended = ""
        for stream, info in enumerate(infos):
            expected, seen = self._expected.of(stream), newest.get(stream)
            if info.state is None:
                if stream == 0 and not expected.watermark and seen is None:
                    return ""  # a new server: the topology is declared next
                return (
                    f"there is no {called(stream).removeprefix('the ')}, and the tables hold events up to "
                    f"{expected.watermark}, this process has seen {_own(seen)}: {REMEDY}"
                )
            if info.config.altered(stream) and (refused := await self._put_back(stream)):
                return refused
            if not info.state.last and seen is None and expected.watermark:
                return empty(expected.watermark, stream)
            ended = ended or await self._without_end(stream, info.state, seen)
        self._restored = restored
        try:
            damage = await guard_messages.read_damage(self._connection)
        except Unreadable as error:
            return (
                f"what the stream {names.GUARD} says of damage cannot be read ({error}), so nothing is "
                "claimed or published: find out who wrote it, run `orchard store check`, then purge it"
            )
        known = damage is not None and damage.restored == restored
        if ended and not known and self._seen_whole and not self._lost.is_set():
            # Another server's stream, to which this process was sent by mistake, it has never seen whole.
            await guard_messages.tell_damage(
                self._connection, guard_messages.Damage(reason=ended, restored=restored)
            )
        if ended:
            return ended
        self._seen_whole = True
        if damage is not None and known:
            return damage.reason
        for stream, info in enumerate(infos):
            if info.state is not None and (holes := await self._holes(stream, info.state)):
                return holes
        return ""

    async def _recognize(self, infos: list[StreamInfo], newest: Mapping[int, SeenEvent]) -> None:
        """Checks that the restored streams still have what this process saw; raises EventsForgotten."""
        for stream, info in enumerate(infos):
            seen = newest.get(stream)
            if seen is not None and info.state is not None and await self._differs(stream, info.state, seen):
                text = (
                    f"the restored stream lacks event {_own(seen)}, which this process has seen: restarting "
                    "from the stream"
                )
                self._connection.judge(text, "")
                raise EventsForgotten(text)
        self._expected, self._compared = await self._look(), set()

    async def _without_end(self, stream: int, held: StreamState, newest: SeenEvent | None) -> str:
        """Says in a sentence how a stream has lost its end; empty when it has it."""
        assert self._expected is not None
        expected = self._expected.of(stream)
        found = ""
        if newest is not None and await self._differs(stream, held, newest):
            found = (
                shorter(held.last, 0, _own(newest))
                or f"has another event at {_own(newest)} than it had confirmed"
            )
        elif not (found := shorter(held.last, expected.watermark, 0)):
            if stream not in self._compared and expected.last_id is not None:
                data = await self._payload(stream, expected.watermark)
                if data is not None and id_of(data) not in (None, expected.last_id):
                    found = f"has another event at {expected.watermark} than the tables"
            if not found:
                self._compared.add(stream)
        return sentence(found, stream) if found else ""

    async def _differs(self, stream: int, held: StreamState, newest: SeenEvent) -> bool:
        """Whether an event that was seen is lost. One that is gone from the middle is a hole, or archived."""
        if held.last < _own(newest):
            return True
        return await self._payload(stream, _own(newest)) not in (None, newest.payload)

    async def _payload(self, stream: int, sequence: int) -> bytes | None:
        name = names.stream_name(stream)
        return await guard_messages.payload_of(self._connection, name, {"seq": sequence})

    async def _holes(self, stream: int, held: StreamState) -> str:
        assert self._expected is not None
        if held.missing > self._expected.of(stream).sealed:  # archiving may have gone on since the last look
            self._expected = await self._look()
        if (missing := held.missing - self._expected.of(stream).sealed) > 0:
            return sentence(f"has no longer {missing} of its events up to {held.last}", stream)
        return ""

    async def _is_checked(self, begun: bool) -> bool:
        """Whether a process, perhaps this one, has found the streams whole since the server was started, or
        they have no event yet."""
        if self._checked or await guard_messages.is_checked(self._connection):
            self._checked = True
            return True
        now = asyncio.get_running_loop().time()
        if self._unchecked_since is None:
            self._unchecked_since = now
        if begun and now - self._unchecked_since < self._settle:
            return False
        if self._lost.is_set():
            return False  # what was looked at is not what would get the mark
        try:
            self._checked = await guard_messages.tell_checked(self._connection, self._settings)
        except TopologyError as error:
            log.debug("%s", error)
        return self._checked

    async def _put_back(self, stream: int) -> str:
        """Restores the rules that somebody changed on a stream; returns why not, if that is refused."""
        name = names.stream_name(stream)
        log.warning("the rules of %s would drop or displace events: putting back our own", name)
        try:
            await declare_events(self._connection, self._settings, stream)
        except TopologyError as error:
            return (
                f"the rules of the stream {name} would drop or displace events, which lets rollouts "
                f"have two outcomes, and cannot be put back ({error}): set its discard policy to new, its "
                "limits for messages to -1, its ages to 0, and no transform of subjects"
            )
        return ""

    async def _fullness(self, infos: list[StreamInfo]) -> str:
        for info in infos:
            limit, used = info.config.max_bytes, info.state.bytes if info.state else 0
            if limit > 0 and used > limit * self._settings.full_share:
                return (
                    f"the event log holds {used} of at most {limit} bytes, so nothing new is claimed: raise "
                    "nats.event_max_bytes, or make room with `orchard log archive`"
                )
        account = await guard_messages.ask(self._connection, "INFO", {}, AccountUsage)
        if 0 < account.limits.max_storage * self._settings.full_share < account.storage:
            return (
                f"the NATS account stores {account.storage} of {account.limits.max_storage} bytes, so "
                "nothing new is claimed: raise its limit, or make room with `orchard log archive`"
            )
        return await self._room() if self._room else ""


@asynccontextmanager
async def guarded(guard: StreamGuard, connection: Connection, *, hold: bool) -> AsyncIterator[None]:
    """Guards a connection while the block runs.

    Without `hold` raises StreamHeld at once when the stream is not whole, which is what a command wants; a
    worker holds, and resumes when it is.

    Raises TopologyError when JetStream does not answer within `connect_timeout`, or ANSWER_SECONDS with
    `hold`; EventsForgotten in the block, whose task is cancelled, as `StreamGuard.check` does.
    """
    connection.guarded = True
    connection.waits_when_full = hold
    patience = ANSWER_SECONDS if hold else connection.settings.connect_timeout
    try:
        async with asyncio.timeout(patience):
            while not await guard.check():
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise TopologyError(
            f"NATS at {connection.host} does not say how its stream of events is: check that JetStream is "
            "enabled, and that this user may ask $JS.API.STREAM.INFO and $JS.API.INFO"
        ) from None
    watching = asyncio.create_task(guard.run())
    body = asyncio.current_task()
    assert body is not None

    def ended(task: "asyncio.Task[None]") -> None:
        if not task.cancelled():
            body.cancel()

    watching.add_done_callback(ended)
    try:
        if not hold:
            await _passing(connection, SETTLE_SECONDS + patience)
        yield
    except asyncio.CancelledError:
        if watching.done() and not watching.cancelled():
            body.uncancel()
            watching.result()
        raise
    finally:
        watching.remove_done_callback(ended)
        await end(watching)


async def _passing(connection: Connection, seconds: float) -> None:
    """Waits until the guard lets publishes pass; raises StreamHeld when it holds, or does not decide in
    time."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not connection.trusted and not connection.held:
                await asyncio.sleep(0.05)
    if not connection.trusted:
        raise StreamHeld(connection.held or connection.waiting or f"{connection.host} does not answer")


def _own(seen: SeenEvent | None) -> int:
    """Sequence of an event within its stream; 0 for none."""
    return own_sequence(seen.sequence) if seen is not None else 0
