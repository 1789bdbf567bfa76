"""What a long action says where there is no terminal."""

import io
import os
import queue
import re
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


def test_without_a_terminal_progress_is_told_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    output = Lines()
    monkeypatch.setattr(module, "PLAIN_SECONDS", 0.01)
    monkeypatch.setattr(module, "console", Console(file=output, width=160))
    with module.reporting() as told:
        told.progress("proving", 1, 4)
        told.progress("making", 3, 3)
        told.progress("looking", 2, None)
        lines = [output.written.get(timeout=60) for _ in range(2)]
    assert all(
        re.match(r"  proving 1 of 4 \(about \d+ s left\), looking 2$", line.rstrip()) for line in lines
    )
    assert "making" not in "".join(lines)


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
