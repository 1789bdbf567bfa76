"""Streams a job's output as server-sent events: `stdout` and `stderr`, then one `exit`.

The id of an event is the offset after it, `STDOUT.STDERR` in bytes, from which a client resumes.
"""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import suppress

from orchard.injector.agent.errors import RequestInvalid
from orchard.injector.agent.jobs import TrackedJob

PIECE = 64 * 1024
QUIET = 15.0
"""Seconds without output after which a comment is sent, so that both ends notice a broken connection."""
_COMMENT = b":\n\n"
BEGINNING = "0.0"


def place(text: str) -> tuple[int, int]:
    """Parse an offset into bytes of stdout and stderr. Raises RequestInvalid."""
    parts = text.split(".")
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() and len(part) < 20 for part in parts):
        raise RequestInvalid(f"`{text[:40]}` is no offset: use the `id` of the last event, or 0.0")
    return int(parts[0]), int(parts[1])


async def events(job: TrackedJob, begin: tuple[int, int]) -> AsyncIterator[bytes]:
    """Yield the job's output from `begin` on, until it ends.

    The middle of output beyond the limit is not kept: an event then says how many bytes were `skipped`.
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
