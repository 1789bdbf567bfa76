"""What a long action says where there is no terminal."""

import io
import os
import queue
import subprocess
import sys

import pytest
from rich.console import Console

from orchard.terminal import console as module


class Lines(io.StringIO):
    """An output that is no terminal, and hands on what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: queue.Queue[str] = queue.Queue()

    def write(self, text: str) -> int:
        self.written.put(text)
        return len(text)


def test_without_a_terminal_progress_is_told_where_it_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    output = Lines()
    monkeypatch.setattr(module, "PLAIN_SECONDS", 0.01)
    monkeypatch.setattr(module, "console", Console(file=output, width=160))
    with module.reporting() as told:
        told.progress("making", 3, 3)
        told.progress("proving", 0, 4)
        assert output.written.get(timeout=60) == "  proving 0 of 4\n"
        told.progress("proving", 0, 4)
        told.progress("looking", 2, None)
        assert output.written.get(timeout=60) == "  proving 0 of 4, looking 2\n"
    assert output.written.empty()


def test_time_left_is_told_by_what_has_ended_and_never_grows_while_nothing_ends() -> None:
    pace = module.Pace(began=0.0, first=1, ended=0.0, done=1)
    assert pace.seconds_left(4, now=500.0) is None, "nothing has ended here"
    pace.follow(2, now=10.0)
    left = [pace.seconds_left(4, now) for now in (10.0, 15.0, 29.0, 30.0, 90.0)]
    assert left == [20.0, 15.0, 1.0, None, None]
    pace.follow(2, now=95.0)
    assert pace.seconds_left(4, now=95.0) is None
    pace.follow(3, now=100.0)
    assert pace.seconds_left(4, now=100.0) == 50.0


PRINTING = """
import asyncio
from orchard.terminal.console import console
from orchard.terminal.errors import run_told

async def work():
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.to_thread(console.print, "a line"))

run_told(lambda: asyncio.run(work()))
"""


def test_a_reader_that_goes_away_ends_a_command_without_a_traceback() -> None:
    """Also in a task, where SystemExit would be nobody's."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as output:
        ended = subprocess.run(
            [sys.executable, "-c", PRINTING], stdout=output, stderr=subprocess.PIPE, check=False
        )
    assert (ended.returncode, ended.stderr) == (0, b"")
