"""The programs of docs/sandboxes.md run, and print what the guide says."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.injector.conftest import Service

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "sandboxes.md").read_text()
PROGRAMS = re.findall(
    r"^## ([^\n]+)\n|```python\n(.*?)```\n\n```text\n(.*?)```", GUIDE, re.DOTALL | re.MULTILINE
)


SLOW = ("A browser inside",)
"""Headings of programs that take more than some seconds, or need what not every machine has."""


RUNNER = """
import json, os, sys
import orchard.injector.blocking, orchard.injector.client

for line in sys.stdin:
    program, place, *outputs = json.loads(line)
    pid = os.fork()
    if pid == 0:
        os.chdir(place)
        for number, path in zip((1, 2), outputs):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        exec(compile(program, "program", "exec"), {"__name__": "__main__"})
        break
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
"""Starts each program as a process that has imported the client: that is most of what they would do."""


@pytest.fixture(scope="module")
def runner(service: "Service") -> Iterator["subprocess.Popen[str]"]:
    environment = {**os.environ, "SANDBOX_BASE_URL": service.url, "PYTHONPATH": str(ROOT)}
    line = [sys.executable, "-c", RUNNER]
    with subprocess.Popen(
        line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0


def _examples() -> list[tuple[str, str, str]]:
    """Heading, program, output."""
    heading, found = "", []
    for title, program, output in PROGRAMS:
        heading = title or heading
        if program:
            found.append((heading, program, output))
    return found


def test_every_program_of_the_guide_has_its_output_beside_it() -> None:
    assert len(_examples()) == GUIDE.count("```python") == 20


@pytest.mark.long
@pytest.mark.parametrize(
    ("heading", "program", "output"),
    [pytest.param(*one, marks=[pytest.mark.slow] if one[0] in SLOW else []) for one in _examples()],
)
def test_a_program_of_the_guide_prints_what_the_guide_says(
    runner: "subprocess.Popen[str]", tmp_path: Path, heading: str, program: str, output: str
) -> None:
    assert runner.stdin is not None and runner.stdout is not None
    place = tmp_path / "place"
    place.mkdir()
    said, complained = tmp_path / "stdout", tmp_path / "stderr"
    request = [program, str(place), str(said), str(complained)]
    runner.stdin.write(json.dumps(request) + "\n")
    runner.stdin.flush()
    assert (runner.stdout.readline(), complained.read_text()) == ("0\n", ""), heading
    assert said.read_text() == output
