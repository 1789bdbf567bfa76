"""Runs tests inside a grading sandbox: a parent that imports no tested code, and a process for each file or
test.

The grader sends this file into the sandbox and starts it with the task's own interpreter (3.7 or later; it
uses only the standard library and the task's pytest). Results go to its original standard output, one JSON
object per line after a mark. Tested code never has that descriptor: its own output goes into a pipe. Each
process reports over its own pipe, and is believed about its own files only.

The plan is a JSON file: `mark`, `framework`, `options`, `from_directory`, and `runs` (the files of each
process). Tests import from the paths in the variable PYTHONPATH_OF_TESTS; this process does not.

With `copies` (path of a file that holds texts, and the length of each) the files are copies of tests, which
report how often each site of them (`with __site__(name):`) held. They are shown one at a time: a copy is
written when the one before is answered and deleted when it is answered itself, and later reports about it are
ignored. So tested code cannot compare the copies, whatever it reads or keeps.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
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
"""Maximum bytes of output kept for each file."""
PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36
WARMED = ("pluggy", "iniconfig", "packaging", "_pytest")


COUNTS: dict[str, list[int]] = {}
"""Numbers of times that each site of this process held, and failed."""


class SiteCounter:
    """Counts whether its block holds, and suppresses the failure."""

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


def tell_sites(report: int, test: str) -> None:
    if COUNTS:
        tell(report, test=test, sites=COUNTS)
        COUNTS.clear()


def apart(report: int, work: Callable[[], None]) -> None:
    """Runs `work` in a child process and waits for it."""
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


def answer_copies(report: int, orders: int, run: Callable[[str], None]) -> None:
    """Runs each copy that the parent shows, in its own process."""
    with os.fdopen(orders) as shown:
        for line in iter(shown.readline, ""):
            path = line.rstrip("\n")

            def work(path: str = path) -> None:
                importlib.invalidate_caches()
                run(path)

            apart(report, work)
            tell(report, answered=path)


# --- pytest --------------------------------------------------------------------------------------


def pytest_status(report: Any) -> str | None:
    expected = hasattr(report, "wasxfail")
    if report.failed:
        return "FAILED" if report.when == "call" else "ERROR"
    if report.skipped:
        return "XFAIL" if expected else "SKIPPED"
    return "PASSED" if report.when == "call" else None


class PytestReporter:
    def __init__(self, report: int) -> None:
        self.report = report

    def pytest_runtest_logreport(self, report: Any) -> None:
        status = pytest_status(report)
        if status:
            tell(self.report, test=report.nodeid, status=status)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            tell(self.report, test=report.nodeid, status="ERROR")


class CopiesReporter(PytestReporter):
    """Collects the first copy as usual, which imports the tested code. Then each copy, including the first,
    is collected and run in a process forked from there."""

    def __init__(self, report: int, orders: int) -> None:
        super().__init__(report)
        self.orders = orders

    def pytest_runtestloop(self, session: Any) -> bool:
        def run(path: str) -> None:
            session.perform_collect([path])
            for at, item in enumerate(session.items):
                following = session.items[at + 1] if at + 1 < len(session.items) else None
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)

        answer_copies(self.report, self.orders, run)
        return True

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        tell_sites(self.report, nodeid)


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


def run_pytest(plan: dict[str, Any], files: list[str], report: int, orders: int | None) -> int:
    import pytest

    workdir = os.getcwd()
    reporter = PytestReporter(report) if orders is None else CopiesReporter(report, orders)
    options = [
        "-c",
        configuration(workdir, files[0]),
        "--rootdir",
        workdir,
        *plan["plugins"],
        *plan["options"],
    ]
    options += ["-p", "no:cacheprovider", "-rA", "--tb=short", "-q"]
    options += files if orders is None else files[:1]
    return int(pytest.main(options, plugins=[reporter]))


# --- unittest ------------------------------------------------------------------------------------


def tests_of(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for each in suite:
        if isinstance(each, unittest.TestSuite):
            yield from tests_of(each)
        else:
            yield each


def run_unittest(_: dict[str, Any], files: list[str], report: int, orders: int | None) -> int:
    """Runs each test in its own process, named `file::Class::test`; all tests of a copy share one."""
    modules = {file[:-3].replace("/", "."): file for file in files}

    def load(names: list[str]) -> list[unittest.TestCase]:
        return list(tests_of(unittest.defaultTestLoader.loadTestsFromNames(names)))

    def run(test: unittest.TestCase) -> None:
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
        tell(report, test=name, status=status)
        tell_sites(report, name)

    if orders is None:
        for test in load(list(modules)):
            apart(report, lambda test=test: run(test))  # type: ignore[misc]
        return 0

    def run_copy(path: str) -> None:
        for test in load([name for name, file in modules.items() if file == path]):
            run(test)

    load(list(modules)[:1])
    answer_copies(report, orders, run_copy)
    return 0


# --- the parent ----------------------------------------------------------------------------------


def test_process(
    plan: dict[str, Any], files: list[str], report: int, log: int, orders: int | None
) -> NoReturn:
    """Runs in the child: sets up its session and descriptors, then starts the framework; never returns."""
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    first = 3
    for kept in sorted({report, orders or report}):
        os.closerange(first, kept)
        first = kept + 1
    os.closerange(first, 65536)
    code = 70
    try:
        builtins.__site__ = SiteCounter  # type: ignore[attr-defined]
        if plan["paths"]:
            os.environ["PYTHONPATH"] = os.pathsep.join(plan["paths"])
            sys.path[:0] = plan["paths"]
        if plan["from_directory"]:
            sys.path.insert(0, os.getcwd())
        sys.argv = [plan["framework"]]
        run = run_pytest if plan["framework"] == "pytest" else run_unittest
        code = run(plan, files, report, orders)
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


class CopyFeed:
    """Shows copies to one process, each after the answer to the one before.

    The texts stay in an unlinked file until they are shown: the process is a fork of this one, and so has all
    that this one has read before.
    """

    def __init__(self, files: list[str], texts: Texts) -> None:
        self.left = list(files)
        self.texts = texts
        self.path = ""
        self.tests: list[Any] = []
        self.orders, self.shown = os.pipe()
        self.write_next()

    def write_next(self) -> None:
        self.path = self.left.pop(0)
        with open(self.path, "wb") as opened:
            opened.write(self.texts.next())

    def show(self) -> None:
        with contextlib.suppress(BrokenPipeError):  # it has ended, which its other pipes tell
            os.write(self.shown, f"{self.path}\n".encode())

    def hear(self, reports: bytearray) -> None:
        """Takes a complete answer to the shown copy, and shows the next one."""
        end = f"{json.dumps({'answered': self.path})}\n".encode()
        if end in reports:
            self.close_answer(bytes(reports[: reports.index(end)]))
            del reports[:]
            if self.left:
                self.write_next()
                self.show()
            else:
                self.path = ""
                os.close(self.shown)

    def close_answer(self, reports: bytes) -> None:
        self.tests += facts(reports, [self.path])[0]
        with contextlib.suppress(OSError):
            os.unlink(self.path)

    def end(self, reports: bytes) -> list[Any]:
        """Returns all answers that came before the process ended, and skips copies that were not shown."""
        if self.path:
            self.close_answer(reports)
            os.close(self.shown)
        for _ in self.left:
            self.texts.skip()
        return self.tests


class Texts:
    """An unlinked file of concatenated texts."""

    def __init__(self, path: str, sizes: list[int]) -> None:
        self.descriptor = os.open(path, os.O_RDONLY)
        self.sizes = sizes
        self.at = 0
        os.unlink(path)

    def next(self) -> bytes:
        text = os.pread(self.descriptor, self.sizes[0], self.at)
        self.skip()
        return text

    def skip(self) -> None:
        self.at += self.sizes.pop(0)


def watched(plan: dict[str, Any], files: list[str], copies: CopyFeed | None) -> tuple[bytes, bytes, int]:
    """Runs files in a child; returns its reports, the end of its output, and its exit code."""
    report, report_end = os.pipe()
    log, log_end = os.pipe()
    child = os.fork()
    if child == 0:
        test_process(plan, files, report_end, log_end, copies.orders if copies else None)
    os.close(report_end)
    os.close(log_end)
    if copies:
        os.close(copies.orders)
        copies.show()
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
                elif copies and copies.path:
                    copies.hear(taken[report])
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


def facts(raw: bytes, files: list[str]) -> tuple[list[Any], bool]:
    """Returns one process's reports about its own files, and whether it finished."""
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
    texts = Texts(*plan["copies"]) if plan["copies"] else None
    for files in plan["runs"]:
        copies = CopyFeed(files, texts) if texts else None
        raw, log, code = watched(plan, files, copies)
        tests, done = facts(raw, files)
        if copies:
            tests = copies.end(raw)
        said = {"tests": tests, "done": done, "code": code, "log": log.decode(errors="replace")}
        os.write(out, f"\n{plan['mark']} {json.dumps(said)}\n".encode())
    os.write(out, f"\n{plan['mark']} end\n".encode())


if __name__ == "__main__":
    main()
