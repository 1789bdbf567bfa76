"""Answers of the server: how long one is waited for, and whether it is a status."""

import asyncio

from orchard.streams.client import Frame, headers_of
from orchard.streams.records import DELIVERED


async def within(future: asyncio.Future[Frame], seconds: float) -> Frame:
    """Awaits an answer, or raises TimeoutError after `seconds`: `wait_for` without its second future and loop
    turn, for the two waits of every claim."""
    if future.done():
        return future.result()
    timer = asyncio.get_running_loop().call_later(seconds, _expire, future)
    try:
        return await future
    finally:
        timer.cancel()


def _expire(future: asyncio.Future[Frame]) -> None:
    if not future.done():
        future.set_exception(TimeoutError())


def status_of(message: Frame) -> str:
    """Status of a message: `503` (nobody listens), `408`, `409`, ...; empty for an ordinary one. A delivery
    from a stream is ordinary, whatever headers its publisher gave it."""
    if message.data or not message.headers or message.reply.startswith(DELIVERED):
        return ""
    return headers_of(message.headers).get("Status", "")
