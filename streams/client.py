"""nats-py's client, made to survive every message that a server stores and delivers, and to read fast.

A server takes subjects that are not UTF-8 or hold control characters, and header blocks of any bytes. The
first of these ends nats-py's read loop for good, or makes it reconnect for ever. And each message costs it
two regular expressions, a coroutine, a queue and a task: a reader of a whole stream calls `listen`, and gets
frames as they are cut out of what the socket gave.
"""

import re
import ssl
from collections.abc import Callable
from typing import NamedTuple

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.protocol import parser

from orchard.streams.records import parse_headers

_SPACE, _TOKEN = rb"[ \t]+", rb"([^ \t\r\n]+)"
_LINE = rb"\A%s" + _SPACE + _TOKEN + _SPACE + _TOKEN + _SPACE + rb"(" + _TOKEN + _SPACE + rb")?"

# The server separates by blanks and tabs alone; nats-py also by the vertical tab and the form feed.
parser.MSG_RE = re.compile(_LINE % b"MSG" + rb"(\d+)\r\n")
parser.HMSG_RE = re.compile(_LINE % b"HMSG" + rb"(\d+)" + _SPACE + rb"(\d+)\r\n")

_STATUS = re.compile(rb"NATS/1\.0 +(\d{3})(?: +([^\r\n]*))?\r\n")
_MESSAGE = re.compile(rb"(H)?MSG ([^ \t\r\n]+) ([0-9]+) (?:([^ \t\r\n]+) )?(?(1)([0-9]+) )([0-9]+)\r\n")
"""Matches the line that announces a message, as the server writes it: subject, subscription, reply, bytes of
headers if there are any, and bytes in all."""


class Frame(NamedTuple):
    """A message in bytes, as it came; `headers` is its header block, empty where it has none."""

    subject: bytes
    reply: bytes
    headers: bytes
    data: bytes


class _FrameParser(parser.Parser):
    """Cuts whole messages out of what has arrived; nats-py's parser does all else, and what is unknown
    here."""

    def __init__(self, client: "TolerantClient") -> None:
        super().__init__(client)
        self._client = client

    def reset(self) -> None:
        super().reset()
        self._wanted = 0
        """Number of bytes until a message that has begun is whole."""

    async def parse(self, data: bytes = b"") -> None:
        if self.state == parser.AWAITING_CONTROL_LINE:
            self.buf += data
            data = b""
            if len(self.buf) < self._wanted:
                return
            await self._cut()
            if self._wanted or not self.buf:
                return
        await super().parse(data)

    async def _cut(self) -> None:
        """Delivers the whole messages at the start of the buffer, in order."""
        buffer, at, gone, self._wanted = self.buf, 0, 0, 0
        listeners, have = self._client.listeners, bytes(buffer)
        while line := _MESSAGE.match(have, at):
            _, subject, sid, reply, block, total = line.groups(b"")
            number, start = int(sid), line.end()
            body, end = start + int(block or 0), start + int(total)
            if len(have) < end + 2:
                self._wanted = end + 2 - at
                break
            at = end + 2
            if on_frame := listeners.get(number):
                on_frame(Frame(subject, reply, have[start:body], have[body:end]))
                continue
            del buffer[: at - gone]  # before others may run
            gone = at
            await self._client._process_msg(number, subject, reply, have[body:end], have[start:body])
            if buffer is not self.buf:  # connected anew meanwhile
                return
        del buffer[: at - gone]


class TolerantClient(Client):
    """Replaces what cannot be decoded by U+FFFD, as the server's own JSON does."""

    def __init__(self) -> None:
        super().__init__()
        self._ps = _FrameParser(self)
        self.listeners: dict[int, Callable[[Frame], None]] = {}

    async def listen(self, subject: str, on_frame: Callable[[Frame], None]) -> Subscription:
        """Subscribes a plain function to messages as they arrive, until the subscription ends. The function
        must not raise."""
        subscription: Subscription = await self.subscribe(subject)
        self.listeners[subscription._id] = on_frame
        return subscription

    def _remove_sub(self, sid: int, max_msgs: int = 0) -> None:
        super()._remove_sub(sid, max_msgs)
        self.listeners.pop(sid, None)

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        """Handles a message that nats-py's parser has cut out."""
        if on_frame := self.listeners.get(sid):
            on_frame(Frame(subject, reply, headers or b"", data))
            return
        await super()._process_msg(sid, subject, reply, data, headers)

    @property
    def certificate_end(self) -> float | None:
        """End of the server's certificate, in Unix time; None without TLS or connection."""
        writer = getattr(self._transport, "_io_writer", None)
        tls = writer and writer.get_extra_info("ssl_object")
        shown = tls.getpeercert() if tls else None
        return ssl.cert_time_to_seconds(shown["notAfter"]) if shown else None

    def forget_pending(self) -> None:
        """Drops what was not sent yet. nats-py sends it to the next server at once, before anybody could see
        whether that server may have it."""
        self._pending.clear()
        self._pending_data_size = 0

    async def _send_publish(
        self,
        subject: str,
        reply: str,
        payload: bytes,
        payload_size: int,
        headers: bytes | dict[str, str] | None,
    ) -> None:
        """Takes headers also as a block of `records.header_block`, which costs a quarter of a dictionary."""
        if isinstance(headers, dict):
            await super()._send_publish(subject, reply, payload, payload_size, headers)
            return
        self.stats["out_msgs"] += 1
        self.stats["out_bytes"] += payload_size
        place = f"{subject} {reply}".encode()
        if headers:
            size = len(headers) + payload_size
            command = b"HPUB %b %d %d\r\n%b%b\r\n" % (place, len(headers), size, headers, payload)
        else:
            command = b"PUB %b %d\r\n%b\r\n" % (place, payload_size, payload)
        await self._send_command(command)
        if self._flush_queue is not None and self._flush_queue.empty():
            await self._flush_pending()

    async def _process_headers(self, headers: bytes) -> dict[str, str] | None:
        return headers_of(headers) or None if headers else None

    def _build_message(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: dict[str, str] | None
    ) -> Msg:
        return Msg(
            subject=subject.decode("utf-8", "replace"),
            reply=reply.decode("utf-8", "replace"),
            data=data,
            headers=headers,
            _client=self,
            _sid=sid,
        )


def headers_of(block: bytes) -> dict[str, str]:
    """Parses a header block, with the status that the server puts into its first line."""
    found = parse_headers(block)
    if status := _STATUS.match(block):
        found |= {
            "Status": status[1].decode(),
            "Description": (status[2] or b"").decode("utf-8", "replace"),
        }
    return found
