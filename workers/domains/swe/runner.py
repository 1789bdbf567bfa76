"""Runs tests inside a grading sandbox: a parent that imports no tested code, and a process for each file or
test.

The grader sends this file into the sandbox and starts it with the task's own interpreter (3.7 or later; it
uses only the standard library and the task's pytest). Results go to its original standard output, one JSON
object per line after a mark. Tested code never has that descriptor: its own output goes into a pipe. Each
process reports over its own pipe, and is believed about its own files only.

The plan is a JSON file: `mark`, `framework`, `options`, `from_directory`, `runs` (the files of each
process), and `sheet`: the text of `sheets/child.py` where the files are question sheets. Tests import from
the paths in the variable PYTHONPATH_OF_TESTS; this process does not.

What a process reports is forwarded as it is: lines of JSON with `begin` (a test), `ask` (what a question
sheet tells), `test` with its `status`, and `done`; `at` is the processor's time so far.
"""

from __future__ import annotations

import atexit
import base64
import builtins
import importlib
import importlib.util
import json
import os
import selectors
import signal
import sys
import time
import types
import unittest
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, NoReturn

LOG_LIMIT = 200000
"""Maximum bytes of output kept for each file."""
LOGS_LIMIT = 4000000
"""The same for all files together, so that what the sandbox keeps of a command's output holds all reports."""
REPORT_LIMIT = 20 * 1024 * 1024
PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36
WARMED = ("pluggy", "iniconfig", "packaging", "_pytest")


_dumps, _write, _clock = json.dumps, os.write, time.process_time
"""Bound before tests run, which may patch them."""


def tell(descriptor: int, **facts: Any) -> None:
    _write(descriptor, (_dumps(facts) + "\n").encode())


def apart(report: int, work: Callable[[], None]) -> None:
    """Runs `work` in a child process and waits for it."""
    child = os.fork()
    if child == 0:
        code = 70
        try:
            getattr(builtins, "__here__", int)()
            work()
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    if status != 0:
        tell(report, died=status)


# --- pytest --------------------------------------------------------------------------------------


def pytest_status(report: Any) -> str | None:
    expected = hasattr(report, "wasxfail")
    if report.failed:
        return "FAILED" if report.when == "call" else "ERROR"
    if hasattr(report, "context"):  # one subtest: it decides nothing unless it fails
        return None
    if report.skipped:
        return "XFAIL" if expected else "SKIPPED"
    return "PASSED" if report.when == "call" else None


class PytestReporter:
    def __init__(self, report: int) -> None:
        self.report = report

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        """Runs variants after all tests; nobody reads how they fail, and to show it takes long."""
        items.sort(key=lambda item: "__fresh_" in item.name)
        for item in items:
            if "__fresh_" in item.name:
                item.repr_failure = lambda *_, **__: ""

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        tell(self.report, begin=nodeid, at=_clock())

    def pytest_runtest_logreport(self, report: Any) -> None:
        status = pytest_status(report)
        if status:
            tell(self.report, test=report.nodeid, status=status, at=_clock())

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            tell(self.report, test=report.nodeid, status="ERROR")


def configuration(workdir: str, file: str) -> str:
    """Finds the configuration file by pytest's own rule, before tested code can add one: the first file with
    a pytest section."""
    directory = os.path.dirname(os.path.join(workdir, file))
    while True:
        for name, section in (
            ("pytest.toml", ""),
            (".pytest.toml", ""),
            ("pytest.ini", ""),
            (".pytest.ini", ""),
            ("pyproject.toml", "[tool.pytest"),
            ("tox.ini", "[pytest]"),
            ("setup.cfg", "[tool:pytest]"),
        ):
            path = os.path.join(directory, name)
            try:
                with open(path, errors="replace") as opened:
                    if section in opened.read():
                        return path
            except OSError:
                pass
        if directory == workdir or not directory.startswith(workdir):
            return os.devnull
        directory = os.path.dirname(directory)


def plugins(workdir: str, paths: list[str]) -> list[str]:
    """Lists the entry points of plug-ins that the image has installed, not those of the repository."""
    found: list[str] = []
    for directory in [*paths, *sys.path]:
        if os.path.realpath(directory or ".").startswith(workdir) or not os.path.isdir(directory):
            continue
        for name in sorted(os.listdir(directory)):
            path = os.path.join(directory, name, "entry_points.txt")
            if not name.endswith((".dist-info", ".egg-info")) or not os.path.isfile(path):
                continue
            section = ""
            with open(path, errors="replace") as opened:
                for line in opened:
                    line = line.strip()
                    if line.startswith("["):
                        section = line
                    elif section == "[pytest11]" and "=" in line:
                        found += ["-p", line.split("=")[0].strip()]
    return found


def run_pytest(plan: dict[str, Any], files: list[str], report: int) -> int:
    import pytest

    workdir = os.getcwd()
    options = [
        "-c",
        configuration(workdir, files[0]),
        "--rootdir",
        workdir,
        *plan["plugins"],
        *plan["options"],
    ]
    pytest.hookimpl(trylast=True)(PytestReporter.pytest_collection_modifyitems)
    options += ["-p", "no:cacheprovider", "-rA", "--tb=short", "-q", *files]
    return int(pytest.main(options, plugins=[PytestReporter(report)]))


# --- unittest ------------------------------------------------------------------------------------


def tests_of(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for each in suite:
        if isinstance(each, unittest.TestSuite):
            yield from tests_of(each)
        else:
            yield each


def run_unittest(_: dict[str, Any], files: list[str], report: int) -> int:
    """Runs each test in its own process, named `file::Class::test`."""
    modules = {file[:-3].replace("/", "."): file for file in files}

    def run(test: unittest.TestCase) -> None:
        file = modules.get(type(test).__module__, files[0])
        name = "::".join((file, type(test).__name__, getattr(test, "_testMethodName", "")))
        tell(report, begin=name, at=_clock())
        result = unittest.TestResult()
        unittest.TestSuite([test]).run(result)
        bad = result.errors or result.failures or result.unexpectedSuccesses
        status = "FAILED" if bad else "SKIPPED" if result.skipped else "PASSED"
        status = "XFAIL" if result.expectedFailures else status
        for _, said in result.errors + result.failures:
            print(said)
        sys.stdout.flush()
        tell(report, test=name, status=status, at=_clock())

    for test in tests_of(unittest.defaultTestLoader.loadTestsFromNames(list(modules))):
        apart(report, lambda test=test: run(test))  # type: ignore[misc]
    return 0


# --- the parent ----------------------------------------------------------------------------------


def answer_sheet(child: str, files: list[str], report: int) -> None:
    """Gives the tests of this process what a question sheet calls."""
    sys.dont_write_bytecode = True  # several sheets of a second would be told apart by their size alone
    module = types.ModuleType("__sheet__")
    exec(compile(child, "<sheet>", "exec"), module.__dict__)
    text = b""
    for file in filter(os.path.isfile, files):
        with open(file, "rb") as opened:
            text += opened.read()
    vars(builtins).update(module.installed(report, doctests=b"doctest" in text or b">>> " in text))
    if b"hypothesis" in text:
        import hypothesis.core

        hypothesis.core.global_force_seed = 0  # type: ignore[assignment]


def test_process(plan: dict[str, Any], files: list[str], report: int, log: int) -> NoReturn:
    """Runs in the child: sets up its session and descriptors, then starts the framework; never returns."""
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.closerange(3, report)
    os.closerange(report + 1, 65536)
    code = 70
    try:
        if plan["sheet"]:
            answer_sheet(plan["sheet"], files, report)
        if plan["paths"]:
            os.environ["PYTHONPATH"] = os.pathsep.join(plan["paths"])
            sys.path[:0] = plan["paths"]
        if plan["from_directory"]:
            sys.path.insert(0, os.getcwd())
        sys.argv = [plan["framework"]]
        run = run_pytest if plan["framework"] == "pytest" else run_unittest
        code = run(plan, files, report)
        tell(report, done=code)
        atexit._run_exitfuncs()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 70
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def watched(plan: dict[str, Any], files: list[str], most: int) -> tuple[bytes, bytes, int]:
    """Runs files in a child; returns its reports, the last `most` bytes of its output, and its exit code."""
    report, report_end = os.pipe()
    log, log_end = os.pipe()
    child = os.fork()
    if child == 0:
        test_process(plan, files, report_end, log_end)
    os.close(report_end)
    os.close(log_end)
    taken = {report: bytearray(), log: bytearray()}
    status: int | None = None
    with selectors.DefaultSelector() as waiting:
        for descriptor in taken:
            os.set_blocking(descriptor, False)
            waiting.register(descriptor, selectors.EVENT_READ)
        while waiting.get_map():
            ready = waiting.select(0.02 if status is None else 0)
            for key, _ in ready:
                chunk = os.read(key.fd, 65536)
                if not chunk:
                    waiting.unregister(key.fd)
                taken[key.fd] += chunk
                if key.fd == log:
                    del taken[log][:-most]
                else:
                    del taken[report][REPORT_LIMIT:]
            if status is None:
                ended, code = os.waitpid(child, os.WNOHANG)
                if ended:
                    status = code
                    end_descendants()
            elif not ready:
                break
    if status is None:
        status = os.waitpid(child, 0)[1]
        end_descendants()
    os.close(report)
    os.close(log)
    code = status >> 8 if status & 0x7F == 0 else 128 + (status & 0x7F)
    return bytes(taken[report]), bytes(taken[log]), code


def end_descendants() -> None:
    """Kills what a child left behind; this process reaps it, because it adopts orphans."""
    for _ in range(1000):
        me = os.getpid()
        left = [pid for pid, parent in processes() if parent == me]
        if not left:
            return
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            except OSError:
                pass


def processes() -> Iterator[tuple[int, int]]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", errors="replace") as opened:
                    yield int(name), int(opened.read().rpartition(")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                pass


def protect() -> None:
    """Keeps other processes from reading this one or its descriptors, and makes it adopt orphans.

    If that is impossible nothing is run, because results of an open process could be forged.
    """
    try:
        import ctypes

        prctl = ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError) as error:
        raise SystemExit(f"tests cannot be judged by this Python, which has no prctl: {error}") from None
    if prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) or prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise SystemExit("tests cannot be judged where a process cannot protect itself")


def warm(workdir: str, paths: list[str]) -> None:
    """Imports pytest once for all children, unless it is what is tested, or children would import another."""
    for name in WARMED:
        found = importlib.util.find_spec(name)
        if any(os.path.exists(os.path.join(path, name)) for path in paths):
            return
        if found is None or os.path.realpath(found.origin or workdir).startswith(workdir):
            return
    importlib.import_module("pytest")


def main() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [each for each in sys.path if each and os.path.abspath(each) != here]
    with open(sys.argv[1]) as opened:
        plan = json.load(opened)
    os.unlink(sys.argv[1])
    out = os.dup(1)
    protect()
    paths = os.environ.pop("PYTHONPATH_OF_TESTS", "")
    plan["paths"] = [os.path.abspath(path) for path in paths.split(os.pathsep)] if paths else []
    if plan["framework"] == "pytest":
        workdir = os.path.realpath(os.getcwd())
        warm(workdir, plan["paths"])
        plan["plugins"] = plugins(workdir, plan["paths"])
    most = min(LOG_LIMIT, LOGS_LIMIT // max(len(plan["runs"]), 1))
    for number, files in enumerate(plan["runs"]):
        began = time.monotonic()
        raw, log, code = watched(plan, files, most)
        told = base64.b64encode(zlib.compress(raw, 1)).decode()
        said = {"run": number, "told": told, "code": code, "log": log.decode(errors="replace")}
        said["seconds"] = time.monotonic() - began
        os.write(out, f"\n{plan['mark']} {json.dumps(said)}\n".encode())
    os.write(out, f"\n{plan['mark']} end\n".encode())


if __name__ == "__main__":
    main()
