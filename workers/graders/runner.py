"""Runs tests inside a grading sandbox: a parent that imports no tested code, a process for each file or test.

The grader sends this file into the sandbox and starts it with the task's own interpreter (3.7 or later; the
standard library and the task's pytest are all it uses). What it finds goes to the standard output that it was
started with, one JSON object a line after a mark. Tested code never has that descriptor: its own output goes
into a pipe. Each process reports over a pipe of its own, and is believed about its own files only.

The plan is a JSON file: `mark`, `framework`, `options`, `runs` (files of each process), `write` (files and
their text, made first), `from_directory`, and `each`: whether every test has a process of its own besides,
and tells how often each site of it (`with __site__(name):`) held.
"""

from __future__ import annotations

import atexit
import builtins
import importlib
import importlib.util
import json
import os
import selectors
import signal
import sys
import unittest
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, NoReturn

LOG_LIMIT = 200000
"""Bytes of output kept for each file."""
PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36
WARMED = ("pluggy", "iniconfig", "packaging", "_pytest")


COUNTS: dict[str, list[int]] = {}
"""How often each site of this process held, and failed."""


class Site:
    """Counts whether what is in its block holds, and ends the failure there."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> bool:
        count = COUNTS.setdefault(self.name, [0, 0])
        count[kind is not None] += 1
        return kind is not None and not issubclass(kind, (KeyboardInterrupt, SystemExit, GeneratorExit))


def tell(descriptor: int, **facts: Any) -> None:
    os.write(descriptor, (json.dumps(facts) + "\n").encode())


def apart(report: int, work: Callable[[], None]) -> None:
    """Run `work` in a process of its own and wait for it."""
    child = os.fork()
    if child == 0:
        code = 70
        try:
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
    if report.skipped:
        return "XFAIL" if expected else "SKIPPED"
    return "PASSED" if report.when == "call" else None


class Reporter:
    """A pytest plug-in that tells the parent about each test."""

    def __init__(self, report: int) -> None:
        self.report = report

    def pytest_runtest_logreport(self, report: Any) -> None:
        status = pytest_status(report)
        if status:
            tell(self.report, test=report.nodeid, status=status)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            tell(self.report, test=report.nodeid, status="ERROR")


class ReporterOfEach(Reporter):
    def pytest_runtest_protocol(self, item: Any) -> bool:
        from _pytest.runner import runtestprotocol

        def work() -> None:
            statuses = [pytest_status(each) for each in runtestprotocol(item, log=False, nextitem=None)]
            told = [status for status in statuses if status]
            tell(self.report, test=item.nodeid, status=told[-1] if told else "ERROR", sites=COUNTS)

        apart(self.report, work)
        return True


def configuration(workdir: str, file: str) -> str:
    """pytest's own rule, without its trust in what appears later: the first file with a section for it."""
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


def plugins(workdir: str) -> list[str]:
    """Entry points of plug-ins that the image has installed: not those of the repository."""
    found: list[str] = []
    for directory in sys.path:
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
    reporter = (ReporterOfEach if plan["each"] else Reporter)(report)
    options = [
        "-c",
        configuration(workdir, files[0]),
        "--rootdir",
        workdir,
        *plan["plugins"],
        *plan["options"],
    ]
    options += ["-p", "no:cacheprovider", "-rA", "--tb=short", "-q", *files]
    return int(pytest.main(options, plugins=[reporter]))


# --- unittest ------------------------------------------------------------------------------------


def tests_of(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for each in suite:
        if isinstance(each, unittest.TestSuite):
            yield from tests_of(each)
        else:
            yield each


def run_unittest(_: dict[str, Any], files: list[str], report: int) -> int:
    """Each test in a process of its own, named as `file::Class::test`."""
    modules = {file[:-3].replace("/", "."): file for file in files}
    for test in list(tests_of(unittest.defaultTestLoader.loadTestsFromNames(list(modules)))):

        def work(test: unittest.TestCase = test) -> None:
            result = unittest.TestResult()
            unittest.TestSuite([test]).run(result)
            bad = result.errors or result.failures or result.unexpectedSuccesses
            status = "FAILED" if bad else "SKIPPED" if result.skipped else "PASSED"
            status = "XFAIL" if result.expectedFailures else status
            for _, said in result.errors + result.failures:
                print(said)
            sys.stdout.flush()
            file = modules.get(type(test).__module__, files[0])
            name = "::".join((file, type(test).__name__, getattr(test, "_testMethodName", "")))
            tell(report, test=name, status=status, sites=COUNTS)

        apart(report, work)
    return 0


# --- the parent ----------------------------------------------------------------------------------


def test_process(plan: dict[str, Any], files: list[str], report: int, log: int) -> NoReturn:
    """In the child: its own session and descriptors, then the framework; never returns."""
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.closerange(3, report)
    os.closerange(report + 1, 65536)
    code = 70
    try:
        builtins.__site__ = Site  # type: ignore[attr-defined]
        if plan["from_directory"]:
            sys.path.insert(0, os.getcwd())
        sys.argv = [plan["framework"]]
        code = (run_pytest if plan["framework"] == "pytest" else run_unittest)(plan, files, report)
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


def watched(plan: dict[str, Any], files: list[str]) -> tuple[bytes, bytes, int]:
    """Run files in a child; what it reported, the end of its output, and its exit code."""
    report, report_end = os.pipe()
    log, log_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(report)
        os.close(log)
        test_process(plan, files, report_end, log_end)
    os.close(report_end)
    os.close(log_end)
    taken = {report: bytearray(), log: bytearray()}
    status = None
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
                    del taken[log][:-LOG_LIMIT]
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
    """Kill what a child left behind: it is ours to reap, as orphans are given to this process."""
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


def facts(raw: bytes, files: list[str]) -> tuple[list[Any], bool]:
    """The reports of one process that are about its own files, and whether it said that it was done."""
    tests: list[Any] = []
    done = False
    for line in raw.decode(errors="replace").split("\n"):
        try:
            said = json.loads(line)
            done = done or "done" in said
            name = said.get("test")
            if isinstance(name, str) and name.split("::")[0] in files:
                tests.append([name, str(said.get("status")), said.get("sites") or {}])
        except (ValueError, AttributeError, TypeError):
            continue
    return tests, done


def protect() -> None:
    """No process of the sandbox reads this one or takes its descriptors; orphans come to it."""
    try:
        import ctypes

        library = ctypes.CDLL(None)
        library.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
        library.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        pass


def warm(workdir: str) -> None:
    """Import pytest once for all children, unless a part of it is what is tested."""
    for name in WARMED:
        found = importlib.util.find_spec(name)
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
    if plan["framework"] == "pytest":
        warm(os.path.realpath(os.getcwd()))
        plan["plugins"] = plugins(os.path.realpath(os.getcwd()))
    for path, text in plan.pop("write", {}).items():
        with open(path, "w", encoding="utf-8") as opened:
            opened.write(text)
    for files in plan["runs"]:
        raw, log, code = watched(plan, files)
        tests, done = facts(raw, files)
        said = {"tests": tests, "done": done, "code": code, "log": log.decode(errors="replace")}
        os.write(out, f"\n{plan['mark']} {json.dumps(said)}\n".encode())
    os.write(out, f"\n{plan['mark']} end\n".encode())


if __name__ == "__main__":
    main()
