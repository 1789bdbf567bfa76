"""An S3 service as a process of its own (moto's server), and a connection to it that breaks when told to.

Run as a program it serves until it is ended and prints its port first.
"""

import asyncio
import random
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

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
    """What happens to connections: each one fails, in one of three ways, with the chance `share`."""

    chance: random.Random
    share: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    port: int = 0

    def next(self) -> str | None:
        """How the next connection fails, None for well."""
        if self.chance.random() >= self.share:
            return None
        kind = self.chance.choice(["refused", "cut", "unavailable"])
        self.counts[kind] = self.counts.get(kind, 0) + 1
        return kind


@asynccontextmanager
async def faulty_proxy(url: str, faults: Faults) -> AsyncIterator[str]:
    """The URL of a proxy before the service at `url`."""
    port = int(url.rpartition(":")[2])

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        kind = faults.next()
        try:
            if kind == "refused":
                return
            if kind == "unavailable":
                await reader.readuntil(b"\r\n\r\n")
                writer.write(_UNAVAILABLE)
                await writer.drain()
                return
            upstream, sink = await asyncio.open_connection("127.0.0.1", port)
            # What is cut ends in the middle: of the request, or of the answer after the service has acted.
            limits = (faults.chance.randrange(2000), faults.chance.randrange(400)) if kind else (None, None)
            await asyncio.gather(_copy(reader, sink, limits[0]), _copy(upstream, writer, limits[1]))
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    faults.port = server.sockets[0].getsockname()[1]
    async with server:
        yield f"http://127.0.0.1:{faults.port}"


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter, limit: int | None) -> None:
    try:
        while data := await source.read(65536):
            sink.write(data if limit is None else data[:limit])
            await sink.drain()
            if limit is not None and (limit := limit - len(data)) <= 0:
                return
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
