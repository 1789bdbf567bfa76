"""What passes through a process that outlives its command is the command's; what a server prints is not."""

import asyncio
from typing import TYPE_CHECKING

import pytest

from orchard.injector.agent import draining
from orchard.injector.agent.draining import (
    FINISHING_SECONDS,
    IDLE_SECONDS,
    LAST_WORDS,
    LINGERING_SECONDS,
    STARVED_SECONDS,
    DrainState,
    DrainTimer,
    Pipe,
    Process,
    WriterState,
    judged,
)
from orchard.injector.agent.spawning import Entrance
from orchard.injector.client import AsyncSandbox
from orchard.injector.following import Exit
from tests.injector.in_pod import pod_agent

if TYPE_CHECKING:
    from pathlib import Path

OUT: Pipe = (1, 1)
INTO, BETWEEN = (1, 2), (1, 3)


def process(
    pid: int, source: Pipe | None = None, *writes: Pipe, running: bool = False, **more: object
) -> Process:
    reads = frozenset() if source is None else frozenset({source})
    return Process(pid, running, source, reads, frozenset(writes), **more)  # type: ignore[arg-type]


TEE = process(10, INTO, OUT, running=True, ticks=9)
SERVER = process(11, None, OUT)
FORKED = Process(12, True, None, frozenset({INTO}), frozenset({INTO, OUT}), forked=True)


@pytest.mark.parametrize(
    ("processes", "found"),
    [
        pytest.param([], DrainState(WriterState.RESTING, False), id="nobody to be seen"),
        pytest.param(
            [TEE], DrainState(WriterState.FINISHING, True), id="nobody writes to its input any more"
        ),
        pytest.param(
            [TEE._replace(running=False)],
            DrainState(WriterState.FINISHING, False),
            id="the same, and it waits",
        ),
        pytest.param([TEE, SERVER], DrainState(WriterState.FINISHING, True), id="beside a server"),
        pytest.param([SERVER], DrainState(WriterState.RESTING, False), id="a server that waits for requests"),
        pytest.param(
            [SERVER._replace(running=True)], DrainState(WriterState.LINGERING, True), id="one that starts"
        ),
        pytest.param(
            [TEE, process(13, None, INTO)],
            DrainState(WriterState.LINGERING, True),
            id="a server writes to its input",
        ),
        pytest.param(
            [TEE._replace(running=False), process(13, None, INTO)],
            DrainState(WriterState.RESTING, False),
            id="the same, and both wait",
        ),
        pytest.param(
            [TEE._replace(ticks=0), process(13, None, INTO)],
            DrainState(WriterState.LINGERING, True, starved=True),
            id="the same, on a busy machine",
        ),
        pytest.param(
            [process(14, INTO, BETWEEN, running=True), process(15, BETWEEN, OUT)],
            DrainState(WriterState.FINISHING, True),
            id="two in a row, of which the second waits for the first",
        ),
        pytest.param(
            [process(20, None, OUT, running=True, forked=True)],
            DrainState(WriterState.LINGERING, True, starved=True),
            id="a shell's child that has yet to become a server with a log of its own",
        ),
        pytest.param(
            [FORKED], DrainState(WriterState.FINISHING, True), id="it has not closed the other end yet"
        ),
        pytest.param(
            [Process(16, False, None, frozenset({INTO}), frozenset({INTO, OUT}))],
            DrainState(WriterState.RESTING, False),
            id="a server that wakes itself by a pipe",
        ),
        pytest.param(
            [Process(17, True, exiting=True)],
            DrainState(WriterState.FINISHING, True),
            id="one is being closed",
        ),
        pytest.param(
            [Process(17, True, exiting=True), SERVER],
            DrainState(WriterState.RESTING, False),
            id="another's exit",
        ),
        pytest.param(
            [Process(18, True, known=False)],
            DrainState(WriterState.LINGERING, True),
            id="not to be looked at",
        ),
        pytest.param(
            [process(19, None, BETWEEN, running=True)], DrainState(WriterState.RESTING, False), id="another's"
        ),
    ],
)
def test_who_can_still_write_is_told_apart(processes: list[Process], found: DrainState) -> None:
    assert judged(processes, {OUT})._replace(ending=frozenset()) == found


def test_who_was_at_the_end_of_its_input_is_so_when_it_has_closed_it() -> None:
    before = judged([TEE], {OUT})
    after = judged([TEE._replace(source=None, reads=frozenset())], {OUT}, before.ending)
    assert (before.ending, after.writer) == (frozenset({TEE.pid}), WriterState.FINISHING)


BUSY = DrainState(WriterState.FINISHING, True)
IDLE = DrainState(WriterState.FINISHING, False)
LINGERING = DrainState(WriterState.LINGERING, True)
STARVED = DrainState(WriterState.LINGERING, True, starved=True)
RESTING = DrainState(WriterState.RESTING, False)


@pytest.mark.parametrize(
    ("looks", "end"),
    [
        ([(0.0, RESTING, 9), (0.001, RESTING, 9)], True),
        ([(0.0, RESTING, 9)], False),
        ([(0.0, RESTING, 9), (0.001, RESTING, 12)], False),
        ([(0.0, RESTING, 9), (0.001, LINGERING, 9), (0.002, RESTING, 9)], False),
        ([(LINGERING_SECONDS / 2, LINGERING, 9)], False),
        ([(LINGERING_SECONDS, LINGERING, 9)], True),
        ([(0.001, LINGERING, 9 + LAST_WORDS)], False),
        ([(0.001, LINGERING, 10 + LAST_WORDS)], True),
        ([(1.0, BUSY, 10 + LAST_WORDS)], False),
        ([(LINGERING_SECONDS, STARVED, 9)], False),
        ([(STARVED_SECONDS, STARVED, 9)], True),
        ([(1.0, BUSY, 9)], False),
        ([(FINISHING_SECONDS, BUSY, 9)], True),
        ([(1.0, BUSY, 9), (1.0 + IDLE_SECONDS / 2, IDLE, 9)], False),
        ([(1.0, BUSY, 9), (1.0 + IDLE_SECONDS, IDLE, 9)], False),
        ([(1.0, IDLE, 9), (1.0 + IDLE_SECONDS, IDLE, 9)], True),
        ([(1.0, IDLE, 9), (1.0 + IDLE_SECONDS, IDLE, 12)], False),
        ([(1.0, IDLE, 9), (1.01, BUSY, 9), (1.0 + IDLE_SECONDS, IDLE, 9)], False),
    ],
)
def test_they_are_waited_for_within_bounds(looks: list[tuple[float, DrainState, int]], end: bool) -> None:
    patience = DrainTimer(9)
    assert [patience.ends(look, now, printed) for now, look, printed in looks][-1] is end


PASSED_ON = {
    "substitution": "exec > >(tee log) 2>&1; echo one; echo two",
    "two of them": "exec > >(sed s/x/y/ | tee log); echo one; echo two",
    "a loop": "exec > >(while read line; do echo $(echo $line); done); echo one; echo two",
    "a slow start": "exec > >(python3 -c 'print(open(0).read(), end=str())'); echo one; echo two",
    "a named pipe": "mkfifo p$$; tee log < p$$ & exec > p$$; echo one; echo two",
    "beside a server": "sleep 1040 > other 2>&1 & exec > >(tee log); echo one; echo two",
}


@pytest.mark.parametrize("command", PASSED_ON.values(), ids=PASSED_ON)
async def test_what_a_filter_passes_on_after_the_shells_end_is_kept(
    sandbox: AsyncSandbox, command: str
) -> None:
    """Several at once, so that the filters get a processor late."""
    jobs = await asyncio.gather(*(sandbox.exec(command) for _ in range(12)))
    assert [(job.stdout, job.exit_code, job.output_open) for job in jobs] == [("one\ntwo\n", 0, False)] * 12


THREADS = """
import ctypes, os, sys, threading
def passing_on():
    for line in sys.stdin:
        for _ in range(10**7): pass
        print(line, end="", flush=True)
    os._exit(0)
threading.Thread(target=passing_on).start()
ctypes.CDLL(None).pthread_exit(None)
"""


async def test_a_filter_whose_first_thread_has_ended_is_waited_for(sandbox: AsyncSandbox) -> None:
    await sandbox.upload_content(THREADS, "/workspace/threads.py")
    job = await sandbox.exec("exec > >(python3 threads.py); echo one")
    assert (job.stdout, job.output_open) == ("one\n", False)


def test_of_more_processes_than_are_looked_at_the_others_may_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draining, "MOST", 1)
    found = draining.processes(Entrance(pidfd=None, cgroups=()))
    assert found[-1] == Process(0, running=True, known=False)
    assert judged(found[-1:], {OUT}).writer is WriterState.LINGERING


async def test_who_follows_sees_it_too(sandbox: AsyncSandbox) -> None:
    job = await sandbox.exec(PASSED_ON["substitution"], wait=False)
    *pieces, last = [event async for event in sandbox.follow(job.job_id)]
    assert b"".join(getattr(piece, "data", b"") for piece in pieces) == b"one\ntwo\n"
    assert isinstance(last, Exit) and not last.output_open and last.ending == "exited"


async def test_a_server_in_the_background_is_not_waited_for_and_said(sandbox: AsyncSandbox) -> None:
    job = await sandbox.exec("sleep 1041 & echo begun", timeout_seconds=600)
    assert (job.stdout, job.exit_code, job.output_open) == ("begun\n", 0, True)
    assert not (await sandbox.exec("sleep 1042 > log 2>&1 & echo begun", timeout_seconds=600)).output_open


async def test_output_through_a_filter_is_kept_in_a_pod(payload: "Path", busybox: "Path") -> None:
    command = "mkfifo /tmp/p$$; tee /tmp/log < /tmp/p$$ & exec > /tmp/p$$; echo one; echo two"
    async with pod_agent(payload, busybox) as agent:
        await agent.run("mkdir -p /tmp")
        jobs = await asyncio.gather(*(agent.run(command) for _ in range(12)))
        assert [(job.stdout, job.output_open) for job in jobs] == [("one\ntwo\n", False)] * 12
        job = await agent.run("sleep 1043 & echo begun")
        assert (job.stdout, job.output_open) == ("begun\n", True)
