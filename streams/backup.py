"""Copies a whole stream from server to server by JetStream's own backup: sequences, times and headers
stay."""

import asyncio
from typing import Any

import msgspec
from nats.aio.msg import Msg
from nats.js import api

from orchard.streams.connection import Connection
from orchard.streams.errors import StreamsError
from orchard.streams.records import ApiError
from orchard.streams.tasks import waited

_CHUNK_BYTES = 128 * 1024
_SECONDS = 60.0


class _Reply(msgspec.Struct):
    error: ApiError | None = None
    deliver_subject: str = ""
    state: dict[str, Any] | None = None


async def replace_stream(
    source: Connection, target: Connection, stream: str, config: api.StreamConfig
) -> None:
    """Makes a stream of `target` what it is on `source`, under `config`; one that exists is deleted first.

    Killed on the way it leaves no stream or half of one; run it again. Raises StreamsError when a server
    refuses.
    """
    chunks: asyncio.Queue[Msg] = asyncio.Queue()
    inbox = source.nats.new_inbox()
    subscription = await source.nats.subscribe(inbox, cb=chunks.put)
    try:
        snapshot = await _asked(
            source,
            f"$JS.API.STREAM.SNAPSHOT.{stream}",
            {"deliver_subject": inbox, "no_consumers": True, "chunk_size": _CHUNK_BYTES},
        )
        await target.nats.request(f"$JS.API.STREAM.DELETE.{stream}", b"", timeout=_SECONDS)
        opened = await _asked(
            target, f"$JS.API.STREAM.RESTORE.{stream}", {"config": config.as_dict(), "state": snapshot.state}
        )
        while (chunk := await waited(chunks.get(), _SECONDS)).data:
            _checked(await target.nats.request(opened.deliver_subject, chunk.data, timeout=_SECONDS))
            if chunk.reply:
                await source.nats.publish(chunk.reply, b"")
        _checked(await target.nats.request(opened.deliver_subject, b"", timeout=_SECONDS))
    finally:
        await subscription.unsubscribe()


async def _asked(connection: Connection, subject: str, body: dict[str, Any]) -> _Reply:
    return _checked(await connection.nats.request(subject, msgspec.json.encode(body), timeout=_SECONDS))


def _checked(answer: Msg) -> _Reply:
    reply = msgspec.json.decode(answer.data, type=_Reply) if answer.data else _Reply()
    if reply.error is not None:
        raise StreamsError(
            f"the NATS server refused to restore the stream ({reply.error.description}): try again"
        )
    return reply
