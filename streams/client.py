"""nats-py's client, made to survive every message that a server stores and delivers.

A server takes subjects that are not UTF-8 or hold control characters, and header blocks of any bytes. On the
first of these nats-py's read loop ends, for good, or reconnects for ever.
"""

import re

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.protocol import parser

from orchard.streams.records import parse_headers

_SPACE, _TOKEN = rb"[ \t]+", rb"([^ \t\r\n]+)"
_LINE = rb"\A%s" + _SPACE + _TOKEN + _SPACE + _TOKEN + _SPACE + rb"(" + _TOKEN + _SPACE + rb")?"

# The server separates by blanks and tabs alone; nats-py also by the vertical tab and the form feed.
parser.MSG_RE = re.compile(_LINE % b"MSG" + rb"(\d+)\r\n")
parser.HMSG_RE = re.compile(_LINE % b"HMSG" + rb"(\d+)" + _SPACE + rb"(\d+)\r\n")

_STATUS = re.compile(rb"NATS/1\.0 +(\d{3})(?: +([^\r\n]*))?\r\n")


class TolerantClient(Client):
    """What it cannot decode it replaces by U+FFFD, as the server's own JSON does."""

    def forget_pending(self) -> None:
        """Drop what was not sent yet. nats-py sends it to the next server at once, before anybody could see
        whether that server may have it."""
        self._pending.clear()
        self._pending_data_size = 0

    async def _process_headers(self, headers: bytes) -> dict[str, str] | None:
        if not headers:
            return None
        found = parse_headers(headers)
        if status := _STATUS.match(headers):
            found |= {
                "Status": status[1].decode(),
                "Description": (status[2] or b"").decode("utf-8", "replace"),
            }
        return found or None

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
