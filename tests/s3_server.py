"""An S3 service as a process of its own (moto's server), and a connection to it that breaks when told to.

Run as a program it serves until it is ended and prints its port first.
"""

import asyncio
import random
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import cycle

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
_UNAVAILABLE = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


@contextmanager
def s3_service(bucket: str) -> Iterator[str]:
    """The URL of a service that has one empty bucket."""
    process = subprocess.Popen([sys.executable, __file__], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert process.stdout is not None
        url = f"http://127.0.0.1:{int(process.stdout.readline())}"
        urllib.request.urlopen(urllib.request.Request(f"{url}/{bucket}", method="PUT")).close()
        yield url
    finally:
        process.kill()
        process.wait()


@dataclass
class Faults:
    """What happens to connections: each one fails with the chance `share`, in three ways by turns."""

    chance: random.Random
    share: float = 0.0
    open: asyncio.Event = field(default_factory=asyncio.Event)
    """While it is not set, nothing is answered."""
    waiting: asyncio.Event = field(default_factory=asyncio.Event)
    """A connection waits for `open`."""
    counts: Counter[str] = field(default_factory=Counter)
    """Connections that did fail, by kind."""
    kinds: Iterator[str] = field(default_factory=lambda: cycle(("refused", "cut", "unavailable")))

    def __post_init__(self) -> None:
        """Connections are answered at first."""
        self.open.set()

    def next(self) -> str | None:
        """How the next connection fails, None for well."""
        return next(self.kinds) if self.chance.random() < self.share else None


@asynccontextmanager
async def faulty_proxy(url: str, faults: Faults) -> AsyncIterator[str]:
    """The URL of a proxy before the service at `url`.

    It runs in the caller's event loop, so a caller that blocks the loop waits for itself: call what is
    synchronous with `asyncio.to_thread`.
    """
    port = int(url.rpartition(":")[2])

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kind = faults.next()
        try:
            if not faults.open.is_set():
                faults.waiting.set()
                await faults.open.wait()
            if kind == "refused":
                faults.counts[kind] += 1
                return
            if kind == "unavailable":
                await reader.readuntil(b"\r\n\r\n")
                faults.counts[kind] += 1
                writer.write(_UNAVAILABLE)
                await writer.drain()
                return
            upstream, sink = await asyncio.open_connection("127.0.0.1", port)
            # What is cut ends in the middle: of the request, or of the answer after the service has acted.
            limits = (faults.chance.randrange(2000), faults.chance.randrange(400)) if kind else (None, None)
            cuts = await asyncio.gather(_copy(reader, sink, limits[0]), _copy(upstream, writer, limits[1]))
            faults.counts["cut"] += any(cuts)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter, limit: int | None) -> bool:
    """Whether the limit cut it, rather than the end."""
    try:
        while data := await source.read(65536):
            sink.write(data if limit is None else data[:limit])
            await sink.drain()
            if limit is not None and (limit := limit - len(data)) < 0:
                return True
        return False
    finally:
        sink.close()


def main() -> None:
    """Serve until ended."""
    import threading

    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    sys.stdout.write(f"{server.get_host_and_port()[1]}\n")
    sys.stdout.flush()
    threading.Event().wait()


if __name__ == "__main__":
    main()
