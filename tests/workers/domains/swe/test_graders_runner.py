"""Copies are shown to tested code one at a time, and an answer is given before the next question."""

import json
import subprocess
import sys

import pytest

from orchard.workers.domains.swe.testing import RUNNER

LOOKS = """
import glob, re, unittest

MINE = "shown-{at}"


def seen():
    \"\"\"Numbers of the copies of which anything is on disk or in the memory of this process.\"\"\"
    found = {{path for path in glob.glob("test_*.py")}}
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb") as memory:
        for line in maps:
            area, rights = line.split()[:2]
            if rights.startswith("rw") and "[v" not in line:
                start, end = (int(each, 16) for each in area.split("-"))
                memory.seek(start)
                text = memory.read(end - start)
                found |= {{f"test_{{int(at)}}.py" for at in re.findall(rb"show[n]-(\\d)", text)}}
    return found


class Test(unittest.TestCase):
    def test_it(self):
        later = {{f"test_{{at}}.py" for at in range({at} + 1, 4)}}
        with __site__("blind"):
            assert not seen() & later, seen()
"""

SPEAKS_LATE = """
import json, os, unittest


class Test(unittest.TestCase):
    def test_it(self):
        if {at} == 1:
            for number in range(3, 64):
                for path in ("test_0.py", "test_2.py"):
                    told = json.dumps(dict(test=path + "::Test::test_it", sites=dict(late=[1, 0])))
                    try:
                        os.write(number, (told + chr(10)).encode())
                    except OSError:
                        pass
        with __site__("mine"):
            assert {at} == 1
"""


def answers(directory, text, framework):
    """What the runner reports of four copies: path and sites."""
    texts = [text.format(at=at).encode() for at in range(4)]
    plan = {
        "mark": "mark",
        "framework": framework,
        "options": [],
        "runs": [[f"test_{at}.py" for at in range(4)]],
        "copies": [str(directory / "texts"), [len(each) for each in texts]],
        "from_directory": True,
    }
    (directory / "texts").write_bytes(b"".join(texts))
    (directory / "plan.json").write_text(json.dumps(plan))
    line = [sys.executable, "-s", str(RUNNER), str(directory / "plan.json")]
    done = subprocess.run(line, cwd=directory, capture_output=True, text=True, check=True)
    (said,) = [line for line in done.stdout.split("\n") if line.startswith("mark {")]
    assert sorted(each.name for each in directory.iterdir() if each.suffix) == []
    tests = json.loads(said.removeprefix("mark "))["tests"]
    return [(test.split("::")[0], sites) for test, _, sites in tests if sites]


@pytest.mark.parametrize("framework", ["pytest", "unittest"])
def test_no_copy_is_anywhere_before_it_is_asked(tmp_path, framework):
    assert answers(tmp_path, LOOKS, framework) == [(f"test_{at}.py", {"blind": [1, 0]}) for at in range(4)]


@pytest.mark.parametrize("framework", ["pytest", "unittest"])
def test_what_is_said_of_another_copy_is_not_believed(tmp_path, framework):
    assert answers(tmp_path, SPEAKS_LATE, framework) == [
        (f"test_{at}.py", {"mine": [int(at == 1), int(at != 1)]}) for at in range(4)
    ]
