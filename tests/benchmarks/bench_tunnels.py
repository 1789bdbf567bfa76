"""What a tunnel costs: bytes a second, round trips, a thousand connections at once (a script).

One server program, reached in two ways in turns: inside a sandbox by a forward tunnel, and beside it on this
machine without one, which is the ceiling of every figure. Driver, orchestrator, agent and both servers are
processes of their own. Prints one JSON line for each figure.
"""

import argparse
import asyncio
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from orchard.injector.client import AsyncSandbox, AsyncSandboxClient
from tests.contract.tunnels import FLOOD, PORT, SERVER, start_server
from tests.sandbox_service import LocalService, usage

MB = 1_000_000
UPLOAD = 128 * 2**20
PIECE = bytes(2**18)


def figure(name: str, value: float, unit: str, ceiling: float | None = None) -> None:
    """One line; `ceiling` is the figure without a tunnel, or of what it is compared with."""
    ratio = value / ceiling if ceiling else None
    row = {"name": name, "value": value, "unit": unit, "ceiling": ceiling, "ratio": ratio}
    print(json.dumps(row), flush=True)  # noqa: T201


@contextmanager
def server_here(place: Path) -> Iterator[int]:
    """The port of the same server on this machine, outside of any sandbox."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = place / "server.py"
    program.write_text(SERVER.replace(f"{PORT})", f"{port})"))
    with subprocess.Popen([sys.executable, str(program)], cwd=place) as process:
        while not (place / "up").exists():
            time.sleep(0.01)
        yield port
        process.kill()


def upload(port: int) -> float:
    """MB/s into the server, until it has said that all came."""
    with socket.create_connection(("127.0.0.1", port)) as line:
        begun = time.perf_counter()
        line.sendall(b"c")
        for _ in range(UPLOAD // len(PIECE)):
            line.sendall(PIECE)
        line.shutdown(socket.SHUT_WR)
        assert line.makefile("rb").read() == b"%d" % UPLOAD
        return UPLOAD / MB / (time.perf_counter() - begun)


def download(port: int) -> float:
    """MB/s out of the server."""
    buffer, size = bytearray(len(PIECE)), 0
    with socket.create_connection(("127.0.0.1", port)) as line:
        begun = time.perf_counter()
        line.sendall(b"f")
        while count := line.recv_into(buffer):
            size += count
        assert size == FLOOD
        return FLOOD / MB / (time.perf_counter() - begun)


def round_trips(port: int, count: int = 500) -> float:
    """Milliseconds of the median echo on a connection that is open."""
    with socket.create_connection(("127.0.0.1", port)) as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line.sendall(b"e")
        times = []
        for _ in range(count):
            begun = time.perf_counter()
            line.sendall(b"x")
            line.recv(1)
            times.append(time.perf_counter() - begun)
        return 1000 * median(times)


def first_echoes(port: int, count: int = 200) -> float:
    """Milliseconds of the median connection from its beginning to the first echo."""
    times = []
    for _ in range(count):
        begun = time.perf_counter()
        with socket.create_connection(("127.0.0.1", port)) as line:
            line.sendall(b"ex")
            line.recv(1)
            times.append(time.perf_counter() - begun)
    return 1000 * median(times)


def crowd(port: int, count: int = 1000) -> float:
    """Seconds until so many connections, all open at once, have each had an echo."""
    begun = time.perf_counter()
    lines = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
    try:
        for line in lines:
            line.sendall(b"ehello")
        for line in lines:
            assert line.makefile("rb").read(5) == b"hello"
        return time.perf_counter() - begun
    finally:
        for line in lines:
            line.close()


async def execs(sandbox: AsyncSandbox, count: int = 100) -> float:
    """Milliseconds of the median command."""
    times = []
    for _ in range(count):
        begun = time.perf_counter()
        await sandbox.exec("true")
        times.append(time.perf_counter() - begun)
    return 1000 * median(times)


async def compared(measure: Callable[[int], float], ports: tuple[int, int], rounds: int) -> list[list[float]]:
    """Of the tunnel and of the plain connection, in turns."""
    found: list[list[float]] = [[], []]
    for _ in range(rounds):
        for port, values in zip(ports, found, strict=True):
            values.append(await asyncio.to_thread(measure, port))
    return found


async def measure(local: LocalService, place: Path, rounds: int) -> None:
    async with AsyncSandboxClient(local.url) as client:
        sandbox = await client.create_sandbox("host", cpu="2", memory="1Gi")
        await start_server(sandbox)
        with server_here(place) as plain:
            async with sandbox.forward(PORT) as tunnel:
                ports = tunnel.port, plain
                processes = local.processes()
                for name, bytes_of in (("upload", upload), ("download", download)):
                    used = {part: usage(process).cpu for part, process in processes.items()}
                    through, without = await compared(bytes_of, ports, rounds)
                    figure(f"{name}, best of {rounds}", max(through), "MB/s", max(without))
                    figure(f"{name}, median of {rounds}", median(through), "MB/s", median(without))
                    moved = rounds * (UPLOAD if bytes_of is upload else FLOOD) / 1e9
                    for part in ("orchestrator", "agent"):
                        seconds = usage(processes[part]).cpu - used[part]
                        figure(f"{name}, processor time of the {part}", seconds / moved, "s/GB")
                for name, times_of in (("echo", round_trips), ("connection and first echo", first_echoes)):
                    through, without = await compared(times_of, ports, rounds)
                    figure(f"{name}, best median of {rounds}", min(through), "ms", min(without))
                    figure(f"{name}, beside a command's", min(through), "ms", await execs(sandbox))
                through, without = await compared(crowd, ports, rounds)
                figure("1,000 connections at once, an echo each", min(through), "s", min(without))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="orchard-bench-") as name:
        place = Path(name)
        local = LocalService(place / "state")
        try:
            asyncio.run(measure(local, place, rounds))
        finally:
            local.stop()


if __name__ == "__main__":
    main()
