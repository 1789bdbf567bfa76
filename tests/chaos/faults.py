"""The faults of `make chaos`: each is done to a running world, and says whether it hit something."""

import asyncio
import errno
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import libfaketime
import msgspec

from orchard.injector.errors import SandboxError
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import ModelSpec, RolloutRequest, TaskRef
from orchard.schemas.events import SandboxDeleted, encode_event, make_event
from orchard.schemas.identity import rollout_id
from orchard.schemas.queues import Queue
from orchard.schemas.requests import rollout_in
from orchard.schemas.subjects import EVENTS_PREFIX
from orchard.streams import names
from orchard.streams.publish import OutgoingMessage, store_all
from tests.chaos.world import ACK_WAIT, World, until
from tests.mutations import mutants
from tests.soak.proxy import CuttingProxy

DISK_BYTES = 384 * 1024 * 1024
"""Of the small disk that the NATS server has where `disk` is among the faults."""
RESERVE_BYTES = 16 * 1024 * 1024
LEASE_OVER = ACK_WAIT * 1.5
"""Seconds after which every lease of a process that says nothing has ended."""
LET_GO_SECONDS = 120.0
"""The writer must have let go of the store of a damaged stream."""
GUEST_SECONDS = 1200.0
"""For a worker to start and get work while other faults go on, on a busy machine."""
CLOCK = Path(libfaketime.__file__).parent / "vendor" / "libfaketime" / "src" / "libfaketime.so.1"


class Fault(NamedTuple):
    """A kind of fault."""

    name: str
    weight: float
    inject: Callable[[World], Awaitable[bool]]
    """Does it; False when there was nothing to hit just now."""
    beside: bool = False
    """It takes long and bears others at the same time."""


async def kill(world: World) -> bool:
    """SIGKILL a process of the pipeline."""
    kind = world.chance.choice(["worker", "worker", "writer", "orchestrator", "nats", "steward"])
    return world.signal(world.chance.choice(world.children(kind)), signal.SIGKILL) is not None


async def stop(world: World) -> bool:
    """SIGSTOP a process until all its leases have ended; then it goes on, and believes that it has them."""
    name = world.chance.choice(world.children("worker", "worker", "writer", "steward"))
    pid = world.signal(name, signal.SIGSTOP)
    if pid is None:
        return False
    await asyncio.sleep(LEASE_OVER)
    with suppress(ProcessLookupError):  # another fault has killed it
        os.kill(pid, signal.SIGCONT)
    return True


async def poison(world: World) -> bool:
    """Requests that are none on the queue, events that are none in the log."""
    dice, queue = world.chance, Queue()
    model = ModelSpec(name="oracle", endpoint="oracle")
    task = TaskRef(task_id="t", source="s", repo="a/b", blob=BlobRef(sha256="0" * 64, size=1))
    key = rollout_id("poison", "t", "orchard-bash", "oracle", 0)
    request = RolloutRequest(
        rollout_id=key, campaign="poison", task=task, harness="orchard-bash", model=model, sample=0
    )
    changed = mutants([msgspec.json.encode(request)], 8, dice.randrange(2**32))
    # Where the rollout is sure, it would get an outcome, and nobody has asked for that rollout.
    bodies = [body for body in changed if rollout_in(body) is None]
    mark = f"poison-{dice.randrange(2**48):x}"
    event = make_event(
        SandboxDeleted(sandbox_id="s"), id=mark, source="orchard/poison", campaign="poison", rollout_id=key
    )
    events = list(mutants([encode_event(event)], 8, dice.randrange(2**32)))
    requested = [OutgoingMessage(queue.subject, body, f"{mark}-request-{n}") for n, body in enumerate(bodies)]
    said = [
        OutgoingMessage(f"{EVENTS_PREFIX}.poison.00.odd", body, f"{mark}-event-{n}")
        for n, body in enumerate(events)
    ]
    async with world.connected() as connection:
        await store_all(connection, requested)
        await store_all(connection, said)
    world.counts["poisoned requests"] += len(bodies)
    world.counts["poisoned events"] += len(events)
    return True


async def pause(world: World) -> bool:
    """Pause the campaign, once or a few times, and resume it."""
    for _ in range(world.chance.randint(1, 3)):
        await world.pause()
        await asyncio.sleep(world.chance.uniform(0.0, 1.0))
        await world.resume()
    return True


async def sandbox(world: World) -> bool:
    """A sandbox is gone under a rollout; or all of this machine's, with their agent."""
    if world.chance.random() < 0.25:
        return world.signal("agent", signal.SIGKILL) is not None
    try:
        async with world.session.sandboxes() as client:
            held = sorted(info.sandbox_id for info in await client.list_sandboxes() if info.ready)
            if not held:
                return False
            await client.delete_sandbox(world.chance.choice(held))
    except SandboxError:
        return False  # the service is just being started again
    return True


async def clock(world: World) -> bool:
    """A worker whose clock is two hours off works for a while."""
    wrong = world.chance.choice(["+2h", "-2h"])
    variables = {"LD_PRELOAD": str(CLOCK), "FAKETIME": wrong, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    name = f"clock-{world.chance.randrange(2**32):08x}"
    async with world.guest(name, variables) as source:
        await until(
            lambda: world.over or world.outcomes.ended[source] > 0, f"{name} to end a rollout", GUEST_SECONDS
        )
    return world.outcomes.ended[source] > 0


async def proxy(world: World) -> bool:
    """A worker's line to NATS passes nothing on until its leases have ended, and is reset then."""
    server = urlsplit(world.record().nats_url)
    name = f"stalled-{world.chance.randrange(2**32):08x}"
    async with CuttingProxy(server.port or 0) as line:
        login = f"{server.username}:{server.password}"
        variables = {"ORCHARD_NATS__URL": f"nats://{login}@127.0.0.1:{line.port}"}
        async with world.guest(name, variables) as source:
            await until(
                lambda: world.over or world.outcomes.begun[source] > 0, f"{name} to begin", GUEST_SECONDS
            )
            hit = not world.over
            await line.stall(LEASE_OVER)
    return hit


async def cut(world: World) -> bool:
    """The NATS server loses the end of the newest file of an event stream, as after a power failure."""
    return await _damage(world, lambda path, dice: os.truncate(path, _place(path, dice)))


async def flip(world: World) -> bool:
    """Bytes near the end of the newest file of an event stream are others than were written."""
    return await _damage(world, _flip)


def _flip(path: Path, dice: random.Random) -> None:
    place = _place(path, dice)
    with path.open("r+b") as file:
        file.seek(place)
        old = file.read(dice.randint(1, 64))
        file.seek(place)
        file.write(bytes(byte ^ dice.randint(1, 255) for byte in old))


def _place(path: Path, dice: random.Random) -> int:
    size = path.stat().st_size
    return max(0, size - dice.randint(1, 60_000))


async def _damage(world: World, change: Callable[[Path, random.Random], None]) -> bool:
    """Kill the server, damage its newest block, let `up` bring it back, and follow the runbook."""
    record = world.record()
    os.kill(record.pid, signal.SIGSTOP)  # so that it is not back before the damage is done
    try:
        pid = world.signal("nats", signal.SIGKILL)
        if pid is None:
            return False
        await until(lambda: _ended(pid), "the NATS server to end")
        blocks = world.store.glob(f"nats/jetstream/*/streams/{names.EVENTS}*/msgs/*.blk")
        newest = {block.parent: block for block in sorted(blocks, key=lambda block: int(block.stem))}
        change(newest[world.chance.choice(sorted(newest))], world.chance)
    finally:
        os.kill(record.pid, signal.SIGCONT)
    await until(lambda: world.record().children["nats"] != pid, "the NATS server to be started again")
    world.counts["restored streams"] += await _restore(world)
    await world.follow()
    return True


def _ended(pid: int) -> bool:
    """Whether a process runs no more; its parent, which is stopped, has not been told yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


async def _restore(world: World) -> bool:
    """`orchard store restore-stream`, once the writer has let go of the store; False where nobody holds,
    because nobody has seen what was lost."""
    deadline = time.monotonic() + LET_GO_SECONDS
    while True:
        code, said = await world.orchard("store", "restore-stream")
        if code == 0:
            return True
        assert "another writer" in said, said
        async with world.session.reading_connection("chaos look") as connection:
            held = await world.session.held(connection)
        if not held:
            return False
        assert time.monotonic() < deadline, f"the writer keeps the store, although {held}"
        await asyncio.sleep(0.2)


async def disk(world: World) -> bool:
    """The disk of the NATS server is full until it can write no more, and then has space again."""
    ballast, start = world.store / "nats" / "ballast", world.said_so_far
    try:
        await asyncio.to_thread(_fill, ballast)
        with suppress(AssertionError):  # where nothing is written just now, it does not notice
            await until(lambda: "nats can write no more" in world.said(start), "nats to be stuck", 15)
    finally:
        ballast.unlink()
    if "nats can write no more" in world.said(start):
        await until(lambda: "there is space again" in world.said(start), "nats to be started again")
    return True


def _fill(ballast: Path) -> None:
    piece = bytes(1 << 16)
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(piece)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


@asynccontextmanager
async def small_disk(store: Path, wanted: bool) -> AsyncIterator[None]:
    """A file system of its own, of limited size, for the NATS server; only root can mount it."""
    if not wanted:
        yield
        return
    place = store / "nats"
    place.mkdir(parents=True, exist_ok=True)
    await _command("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place))
    os.environ["ORCHARD_NATS__RESERVE_BYTES"] = str(RESERVE_BYTES)
    try:
        yield
    finally:
        del os.environ["ORCHARD_NATS__RESERVE_BYTES"]
        await _command("umount", str(place))


async def _command(*words: str) -> None:
    process = await asyncio.create_subprocess_exec(*words)
    assert await process.wait() == 0, words


FAULTS = (
    Fault("kill", 6, kill),
    Fault("stop", 3, stop, beside=True),
    Fault("poison", 2, poison),
    Fault("pause", 2, pause),
    Fault("sandbox", 3, sandbox),
    Fault("clock", 1, clock, beside=True),
    Fault("proxy", 1, proxy, beside=True),
    Fault("cut", 1, cut),
    Fault("flip", 1, flip),
    Fault("disk", 0.5, disk),
)


def chosen(kinds: str) -> list[Fault]:
    """The faults of a list of names with commas between; `all` for all of them. Raises ValueError."""
    known = {fault.name: fault for fault in FAULTS}
    wanted = list(known) if kinds == "all" else kinds.split(",")
    if unknown := [name for name in wanted if name not in known]:
        raise ValueError(f"no faults are named {', '.join(unknown)}: choose from {', '.join(known)}")
    if "disk" in wanted and os.geteuid() != 0:
        raise ValueError("only root can make the small disk of the fault `disk`: name the other faults")
    return [known[name] for name in wanted]
