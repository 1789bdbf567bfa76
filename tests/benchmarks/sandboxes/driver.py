"""The load of the sandbox benchmarks, in a process of its own: `python -m ...driver SCENARIO URL [options]`.

Prints one JSON object: seconds of each operation, how many failed and why, and what the scenario adds.
Stops between phases when told to (`--pause`): it prints `{"phase": ...}` and waits for a line on stdin, so
that whoever started it can look at the service meanwhile.
"""

import argparse
import asyncio
import hashlib
import json
import os
import resource
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvloop

from tests.benchmarks.sandboxes.callers import SDK, Bare, Caller

COMMANDS = {
    "builtins": (
        ("echo $((6 * 7)) > answer", ""),
        ("read line < answer; echo $line", "42\n"),
        ("cd / && pwd", "/\n"),
        ("echo $0 is here >&2; exit 0", ""),
    ),
    "programs": (
        ("date > then", ""),
        ("mkdir -p a/b && ls a", "b\n"),
        ("cat then | wc -l", "1\n"),
        ("rm -r a then && echo gone", "gone\n"),
    ),
}
"""Four commands of a sandbox with what they print: the shell alone, or programs that it starts."""


class Measured:
    """Times and failures by operation."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.failures: Counter[str] = Counter()
        self.extra: dict[str, Any] = {}

    async def time(self, name: str, work: Awaitable[Any]) -> Any:
        """The result of `work`; None when it failed, which is counted under its first words."""
        begun = time.perf_counter()
        try:
            result = await work
        except Exception as error:
            self.failures[f"{name}: {type(error).__name__}: {str(error)[:200]}"] += 1
            return None
        self.seconds[name].append(time.perf_counter() - begun)
        return result

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Wall time of a phase."""
        begun = time.perf_counter()
        yield
        self.extra[name] = time.perf_counter() - begun


async def execs(caller: Caller, measured: Measured, options: argparse.Namespace) -> None:
    """`count` commands one after the other in one sandbox."""
    sandbox = await caller.create()
    for _ in range(20):
        await caller.execute(sandbox, "true")
    for _ in range(options.count):
        await measured.time("exec", caller.execute(sandbox, "true"))
    await caller.delete(sandbox)


async def cycles(caller: Caller, measured: Measured, options: argparse.Namespace) -> None:
    """`count` times create, exec, delete, one after the other; with `--cold` without one before."""

    async def cycle() -> None:
        sandbox = await measured.time("claim", caller.create())
        await measured.time("first exec", caller.execute(sandbox, "true"))
        await measured.time("delete", caller.delete(sandbox))

    if not options.cold:
        await caller.delete(await caller.create())
    for _ in range(options.count):
        await measured.time("create + exec + delete", cycle())


async def fleet(caller: Caller, measured: Measured, options: argparse.Namespace) -> None:
    """`count` sandboxes at once, all alive together: create, four commands in each, delete."""
    await caller.delete(await caller.create())
    made: list[str | None] = []

    async def work(sandbox: str) -> None:
        for command, expected in COMMANDS[options.commands]:
            printed = await measured.time("exec", caller.execute(sandbox, command))
            if printed is not None and printed != expected:
                measured.failures[f"wrong answer to {command}"] += 1

    with measured.span("wall"):
        with measured.span("create all"):
            made = await asyncio.gather(
                *(measured.time("create", caller.create()) for _ in range(options.count))
            )
        alive = [sandbox for sandbox in made if sandbox is not None]
        measured.extra["alive together"] = len(alive)
        with measured.span("exec all"):
            await asyncio.gather(*map(work, alive))
        with measured.span("delete all"):
            await asyncio.gather(*(measured.time("delete", caller.delete(sandbox)) for sandbox in alive))


async def transfer(caller: SDK, measured: Measured, options: argparse.Namespace) -> None:
    """A file of `size` bytes up and down, `count` times; contents compared."""
    content = os.urandom(options.size)
    digest = hashlib.sha256(content).hexdigest()
    sandbox = await caller.create()
    await caller.upload(sandbox, b"warm", "/workspace/file")
    for _ in range(options.count):
        await measured.time("upload", caller.upload(sandbox, content, "/workspace/file"))
        back = await measured.time("download", caller.download(sandbox, "/workspace/file"))
        if back is not None and hashlib.sha256(back).hexdigest() != digest:
            measured.failures["the file came back changed"] += 1
    await caller.delete(sandbox)


async def endurance(caller: Caller, measured: Measured, options: argparse.Namespace) -> None:
    """`count` commands, each with a kilobyte of output, in one sandbox or `sandboxes` one after the other."""
    stops = set(options.stops)
    done = 0
    lock = asyncio.Lock()
    begun = time.perf_counter()
    for _ in range(options.sandboxes):
        sandbox = await caller.create()
        left = iter(range(options.count // options.sandboxes))

        async def slot(sandbox: str = sandbox, left: Iterator[int] = left) -> None:
            nonlocal done
            for _ in left:
                await measured.time("exec", caller.execute(sandbox, "printf '%01024d' 7"))
                async with lock:  # nothing else starts while somebody looks
                    done += 1
                    if done in stops:
                        await asyncio.to_thread(pause, done)

        await asyncio.gather(*(slot() for _ in range(options.slots)))
        await caller.delete(sandbox)
    measured.extra["wall"] = time.perf_counter() - begun


def pause(phase: object) -> None:
    """Let whoever started us look; returns when told."""
    sys.stdout.write(json.dumps({"phase": phase}) + "\n")
    sys.stdout.flush()
    sys.stdin.readline()


SCENARIOS: dict[str, Callable[[Any, Measured, argparse.Namespace], Awaitable[None]]] = {
    scenario.__name__: scenario for scenario in (execs, cycles, fleet, transfer, endurance)
}


async def drive(options: argparse.Namespace) -> None:
    """Run the scenario and print what was measured."""
    measured = Measured()
    pause("ready")
    before = time.process_time()
    async with (Bare if options.bare else SDK)(
        options.url, options.image, options.cpu, options.memory
    ) as caller:
        await SCENARIOS[options.scenario](caller, measured, options)
    document = {
        "seconds": measured.seconds,
        "failures": measured.failures,
        "extra": {**measured.extra, "driver cpu": time.process_time() - before},
    }
    sys.stdout.write(json.dumps(document) + "\n")


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenario", choices=SCENARIOS)
    parser.add_argument("url")
    parser.add_argument("--bare", action="store_true", help="bare HTTP in place of the SDK")
    parser.add_argument("--image", default="host")
    parser.add_argument("--cpu", default="4")
    parser.add_argument("--memory", default="16Gi")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--commands", choices=COMMANDS, default="builtins")
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--size", type=int, default=30_000_000)
    parser.add_argument("--sandboxes", type=int, default=1)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--stops", type=int, nargs="*", default=[])
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    uvloop.run(drive(parser.parse_args()))


if __name__ == "__main__":
    main()
