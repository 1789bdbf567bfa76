"""Decides how long to wait for processes that still write to the output of a command that has ended.

Output may pass through a process that outlives the command: the `tee` of `exec > >(tee log)` begins to read
when the shell is about to exit. Such a filter ends by itself, because nobody writes to its input any more; a
server in the background does not. /proc tells them apart: who holds a pipe's writing end, whose standard
input is a pipe without writers, who runs or waits.
"""

import asyncio
import os
import stat
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from itertools import chain, repeat
from pathlib import Path
from typing import NamedTuple

from orchard.injector.agent.output import PipeReader
from orchard.injector.agent.spawning import Entrance

MOST = 256
"""Processes examined at a time, the youngest first."""
FINISHING_SECONDS = 5.0
"""Limit for processes that end by themselves, while they are active."""
IDLE_SECONDS = 0.05
"""Limit for those while idle: a process that has no more input and waits is no filter."""
LINGERING_SECONDS = 0.06
"""Limit for all other active processes: what they print at once still belongs to the command."""
STARVED_SECONDS = 0.5
"""Limit for starved ones: filters, and children before execve, that have hardly had a processor."""
LAST_WORDS = 64 * 1024
"""Bytes that other processes may print meanwhile, as many as a pipe holds; more means they do not end soon.
"""
_HARDLY = 3
"""Ticks (10 ms) of processor time, below which a process counts as starved."""
_PAUSES = (0.0, 0.001, 0.002, 0.004)
_PAUSE = 0.008
"""Seconds between looks; each pause ends early when the output closes."""
_EXITING, _FORKED = 0x4, 0x40
"""Flags of /proc/PID/stat. PF_EXITING: its descriptors are being closed; PF_FORKNOEXEC: no execve since the
fork."""

Pipe = tuple[int, int]


class Process(NamedTuple):
    pid: int
    running: bool
    """It is on a processor, waits for one, or waits for a disk."""
    source: Pipe | None = None
    reads: frozenset[Pipe] = frozenset()
    writes: frozenset[Pipe] = frozenset()
    forked: bool = False
    """It has not called execve since it was forked."""
    exiting: bool = False
    """It is closing its descriptors, which can no longer be listed."""
    ticks: int = 0
    known: bool = True


class WriterState(Enum):
    FINISHING = "some end by themselves"
    LINGERING = "none does that is known of, but they are doing something"
    RESTING = "they wait for something else"


class DrainState(NamedTuple):
    writer: WriterState
    active: bool
    """Whether any of them, or of the processes that feed them, is active."""
    starved: bool = False
    """Whether any active one is a filter or not yet a program, and has hardly had a processor."""
    ending: frozenset[int] = frozenset()
    """Process ids of all that end by themselves, whatever they do with their input meanwhile."""


def judged(
    processes: Sequence[Process], outputs: Collection[Pipe], before: frozenset[int] = frozenset()
) -> DrainState:
    """Classify the processes that hold a writing end of `outputs`; `before` is the `ending` found before."""
    writers: dict[Pipe, list[Process]] = {}
    for process in processes:
        for pipe in process.writes:
            writers.setdefault(pipe, []).append(process)
    holders = {process.pid: process for pipe in outputs for process in writers.get(pipe, ())}
    concerned = {**_upstream(holders, writers), **{one.pid: one for one in processes if not one.known}}
    active = any(process.running for process in concerned.values())
    ending = before | _ending(processes, writers)
    if holders.keys() & ending:
        return DrainState(WriterState.FINISHING, active, ending=ending)
    if not holders and any(process.exiting for process in processes):
        return DrainState(WriterState.FINISHING, True, ending=ending)
    starved = any(
        process.running and process.ticks < _HARDLY and (process.forked or _input(process) is not None)
        for process in concerned.values()
    )
    return DrainState(WriterState.LINGERING if active else WriterState.RESTING, active, starved, ending)


def _input(process: Process) -> Pipe | None:
    """Return the pipe that it reads or is about to read: a shell's child first has both ends of its later
    input."""
    if process.source is None and process.forked and process.running:
        return next(iter(process.reads & process.writes), None)
    return process.source


def _upstream(
    holders: Mapping[int, Process], writers: Mapping[Pipe, Iterable[Process]]
) -> dict[int, Process]:
    found = dict(holders)
    waiting = list(holders.values())
    while waiting:
        source = waiting.pop().source
        for process in writers.get(source, ()) if source is not None else ():
            if process.pid not in found:
                found[process.pid] = process
                waiting.append(process)
    return found


def _ending(processes: Iterable[Process], writers: Mapping[Pipe, Iterable[Process]]) -> set[int]:
    """Return the processes whose input pipe is written only by processes that are ending too."""
    inputs = {process.pid: pipe for process in processes if (pipe := _input(process)) is not None}
    ending = set(inputs)
    while True:
        fed = {
            pid for pid in ending if any(writer.pid not in ending for writer in writers.get(inputs[pid], ()))
        }
        if not fed:
            return ending
        ending -= fed


class DrainTimer:
    """Decides from the looks so far whether to go on waiting. Times are seconds since the command ended."""

    def __init__(self, printed: int) -> None:
        """`printed` is the number of bytes that had come when the command ended."""
        self._before = self._printed = printed
        self._idle_since: float | None = None
        self._rested = False

    def ends(self, state: DrainState, now: float, printed: int) -> bool:
        """Whether to stop waiting; `printed` is the number of bytes that have come by now."""
        moved = printed != self._printed
        self._printed = printed
        if state.active or moved:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        # Twice: between two processes of one look, what was printed may have gone from one to the other.
        rested, self._rested = self._rested, state.writer is WriterState.RESTING and not moved
        if state.writer is WriterState.FINISHING:
            idle = 0.0 if self._idle_since is None else now - self._idle_since
            return now >= FINISHING_SECONDS or idle >= IDLE_SECONDS
        if state.writer is WriterState.LINGERING:
            limit = STARVED_SECONDS if state.starved else LINGERING_SECONDS
            return now >= limit or printed - self._before > LAST_WORDS
        return (rested and self._rested) or now >= LINGERING_SECONDS


async def drained(readers: Sequence[PipeReader], entrance: Entrance, printed: Callable[[], int]) -> None:
    """Return when the output of a command that just ended is complete, or not worth waiting for."""
    loop = asyncio.get_running_loop()
    seen: frozenset[int] = frozenset()
    begun, timer = loop.time(), DrainTimer(printed())
    for pause in chain(_PAUSES, repeat(_PAUSE)):
        with suppress(TimeoutError):
            async with asyncio.timeout(pause):
                for reader in readers:
                    await reader.closed.wait()
                return
        outputs = {pipe for reader in readers if (pipe := reader.pipe()) is not None}
        state = judged(await asyncio.to_thread(processes, entrance), outputs, seen)
        seen = state.ending
        if timer.ends(state, loop.time() - begun, printed()):
            return


def processes(entrance: Entrance) -> list[Process]:
    """List the sandbox's processes; without control groups, all visible ones. Blocks."""
    pids: Iterable[int]
    if entrance.cgroups:
        members = Path(entrance.cgroups[0]).with_name("cgroup.procs")
        try:
            pids = map(int, members.read_text().split())
        except OSError:  # the group was removed, so nothing is left in it
            return []
    else:
        pids = (int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit())
    youngest = sorted((pid for pid in pids if pid != os.getpid()), reverse=True)
    found = [process for pid in youngest[:MOST] if (process := _process(pid)) is not None]
    if len(youngest) > MOST:
        found.append(Process(0, running=True, known=False))  # any of the others
    return found


def _process(pid: int) -> Process | None:
    place = f"/proc/{pid}"
    try:
        fields = _fields(place)
        threads, ticks = int(fields[17]), int(fields[11]) + int(fields[12])
        living = [(place, fields)] if threads == 1 else _threads(place)
        living = [(where, of) for where, of in living if of[0] not in "ZX"]
        if not living:
            return None
        place, fields = living[0]  # the first thread may have ended, and then shows nothing that is open
        flags = int(fields[6])
        if flags & _EXITING:
            return Process(pid, running=True, exiting=True)
        running = any(of[0] in "RD" for _, of in living)
    except (FileNotFoundError, ProcessLookupError):
        return None
    source: Pipe | None = None
    reads: set[Pipe] = set()
    writes: set[Pipe] = set()
    try:
        for number in os.listdir(f"{place}/fd"):  # noqa: PTH208
            with suppress(FileNotFoundError):
                status = os.stat(f"{place}/fd/{number}")  # noqa: PTH116
                if not stat.S_ISFIFO(status.st_mode):
                    continue
                pipe, mode = (status.st_dev, status.st_ino), os.lstat(f"{place}/fd/{number}").st_mode
                if mode & stat.S_IRUSR:
                    reads.add(pipe)
                    source = pipe if number == "0" else source
                if mode & stat.S_IWUSR:
                    writes.add(pipe)
    except (FileNotFoundError, ProcessLookupError):
        return None
    except PermissionError:
        return Process(pid, running, known=False)
    forked = bool(flags & _FORKED)
    return Process(pid, running, source, frozenset(reads), frozenset(writes), forked, ticks=ticks)


def _fields(place: str) -> list[str]:
    return Path(place, "stat").read_text().rpartition(")")[2].split()


def _threads(place: str) -> list[tuple[str, list[str]]]:
    found = []
    for thread in os.listdir(f"{place}/task"):  # noqa: PTH208
        with suppress(FileNotFoundError, ProcessLookupError):
            found.append((f"{place}/task/{thread}", _fields(f"{place}/task/{thread}")))
    return found
