"""What a job prints, as server-sent events while it runs: `stdout` and `stderr`, then one `exit`.

The id of an event is the place after it, `STDOUT.STDERR` in bytes: a follower goes on there.
"""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import suppress

from orchard.injector.agent.errors import RequestInvalid
from orchard.injector.agent.jobs import TrackedJob

PIECE = 64 * 1024
"""Bytes of one event."""
QUIET = 15.0
"""Seconds after which a line without news is used, so that both ends learn when it is gone."""
_COMMENT = b":\n\n"
BEGINNING = "0.0"


def place(text: str) -> tuple[int, int]:
    """Where to begin: bytes of stdout and stderr. Raises RequestInvalid."""
    parts = text.split(".")
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() and len(part) < 20 for part in parts):
        raise RequestInvalid(f"`{text[:40]}` is no offset: use the `id` of the last event, or 0.0")
    return int(parts[0]), int(parts[1])


async def events(job: TrackedJob, begin: tuple[int, int]) -> AsyncIterator[bytes]:
    """What is there from `begin` on, and what comes.

    Of output beyond its limit the middle is not kept: who is too late for it is told how much was `skipped`.
    """
    at = list(begin)
    with job.kept():
        while True:
            news, ended = job.news, job.done.is_set()
            quiet = True
            for number, (name, output) in enumerate((("stdout", job.out), ("stderr", job.err))):
                while True:
                    found, data = output.read(at[number], PIECE)
                    if not data:
                        break
                    skipped, at[number], quiet = found - at[number], found + len(data), False
                    text = base64.b64encode(data).decode()
                    yield _event(name, at, {"data": text, **({"skipped": skipped} if skipped else {})})
            if ended:
                yield _event("exit", at, job.outcome())
                return
            if quiet:
                with suppress(TimeoutError):
                    async with asyncio.timeout(QUIET):
                        await news.wait()
                    continue
                yield _COMMENT


def _event(name: str, at: list[int], content: object) -> bytes:
    text = json.dumps(content, separators=(",", ":"))
    return f"id: {at[0]}.{at[1]}\nevent: {name}\ndata: {text}\n\n".encode(errors="replace")
