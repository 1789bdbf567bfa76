"""Runs one test script over one bundle inside the grading sandbox. It needs only the standard library.

Usage: python3 frame.py FOLDER

FOLDER has `bundle.json`, `script.py`, `limits.json`, `known.json` (the judges' verdicts so far) and
`scratch/`, the script's own directory. The script defines `grade(bundle)` or `grade(bundle, judge)`, which
returns a dictionary.

The script runs in a child process with limits of time, memory and output, as user nobody if possible. An
audit hook reports to the parent any attempt to reach the network, start a program or write outside of the
scratch directory, even if the script catches the error. The last line of the output is a JSON object whose
`outcome` is `graded`, `ask` (a judge is needed) or `failed`.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

NOBODY = 65534
RESULT_LIMIT = 8 << 20
"""Maximum bytes of a result or of a question, which may contain pictures."""
TAIL = 4000
"""Number of bytes of its output that are kept."""
FILE_LIMIT = 64 << 20

_NETWORK = ("socket.connect", "socket.bind", "socket.send", "socket.get", "urllib.Request", "http.client.")
_PROGRAMS = ("subprocess.", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "os.fork", "pty.spawn")
_BESIDE = ("ctypes.dlsym", "ctypes.call_function", "ctypes.call_cdeclfunction")
"""Calls into system libraries, which no audit hook can see. Importing ctypes triggers none of them."""
_SIGNALS = ("os.kill", "os.killpg", "signal.pthread_kill")
_CHANGES = (
    *("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.chmod", "os.chown", "os.link", "os.symlink"),
    *("os.truncate", "os.utime", "os.setxattr", "os.removexattr", "shutil."),
)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class JudgementNeeded(BaseException):
    """The script needs a verdict that is not known yet."""


class BundleView:
    """A rollout's bundle as test scripts see it; missing parts are empty."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.raw = data
        self.messages = data.get("messages", [])
        self.audit = data.get("audit", [])
        self.state = data.get("state", {})
        self.initial = data.get("initial", {})
        self.snapshot = data.get("snapshot", {})
        self.commands = data.get("commands", {})
        self.answer = data.get("answer", "")
        self.now = data.get("now", "")
        self.exit_status = data.get("exit_status", "")
        self.verdict = data.get("verdict")

    def calls(
        self,
        tool: str | None = None,
        service: str | None = None,
        operation: str | None = None,
        ok: bool | None = None,
    ) -> list[Any]:
        """Lists entries of the audit log in order; `ok` filters by success."""
        found = []
        for entry in self.audit:
            succeeded = entry.get("status", 0) < 400 and entry.get("injected") != "malformed"
            if tool not in (None, entry.get("tool")) or service not in (None, entry.get("service")):
                continue
            if operation not in (None, entry.get("operation")) or ok not in (None, succeeded):
                continue
            found.append(entry)
        return found

    def records(self, service: str, collection: str, **fields: Any) -> list[Any]:
        """Lists a service's final records whose fields have these values."""
        return _matching(self.state.get(service, {}).get(collection, []), fields)

    def new(self, service: str, collection: str, **fields: Any) -> list[Any]:
        before = self.initial.get(service, {}).get(collection, [])
        return [record for record in self.records(service, collection, **fields) if record not in before]

    def gone(self, service: str, collection: str, **fields: Any) -> list[Any]:
        """Lists initial records that are deleted or changed."""
        after = self.state.get(service, {}).get(collection, [])
        before = self.initial.get(service, {}).get(collection, [])
        return [record for record in _matching(before, fields) if record not in after]

    def untouched(self, service: str, collection: str | None = None) -> bool:
        before, after = self.initial.get(service, {}), self.state.get(service, {})
        if collection is not None:
            before, after = before.get(collection, []), after.get(collection, [])
        return bool(before == after)

    def text(self, path: str) -> str:
        """Returns the text of a workspace file, or an empty string."""
        return self.snapshot.get(path, {}).get("text") or ""


def _matching(records: list[Any], fields: dict[str, Any]) -> list[Any]:
    return [record for record in records if all(record.get(key) == value for key, value in fields.items())]


def judged(known: dict[str, Any]) -> Callable[..., Any]:
    """Makes the function by which a script asks a judge: it returns a known verdict or raises
    JudgementNeeded."""

    def judge(name: str, rubric: str, protocol: str = "", **parts: Any) -> Any:
        request = {"name": name, "rubric": rubric, "protocol": protocol, "parts": parts}
        key = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()
        if key not in known:
            raise JudgementNeeded({"key": key, **request})
        return known[key]

    return judge


def evaluate(
    source: str, data: dict[str, Any], known: dict[str, Any], name: str = "script.py"
) -> dict[str, Any]:
    """Runs a script and returns its message for the parent: a result, a question, or the failure."""
    try:
        space: dict[str, Any] = {"__name__": "orchard_test", "__file__": name}
        exec(compile(source, name, "exec"), space)
        grade = space["grade"]
        given = [BundleView(data), judged(known)][: len(inspect.signature(grade).parameters)]
        result = grade(*given)
        if not isinstance(result, dict):
            raise TypeError(f"grade() returned {type(result).__name__}, not a dictionary")
        json.dumps(result, allow_nan=False)
    except JudgementNeeded as asked:
        return {"outcome": "ask", "request": asked.args[0]}
    except BaseException as error:
        if isinstance(error, KeyError) and error.args == ("grade",):
            error = NameError("the script defines no function grade(bundle)")
        where = "".join(traceback.format_exception(type(error), error, error.__traceback__)[-3:])
        return {"outcome": "failed", "reason": _plain(error), "trace": where[-TAIL:]}
    return {"outcome": "graded", "result": result}


def _plain(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException:
        text = ""
    return f"{type(error).__name__}: {text}"[:1000]


def guard(tell: Callable[[str], object], scratch: str, programs: bool) -> Callable[[str, Any], None]:
    """Makes an audit hook that reports and forbids what a test must not do."""
    inside = os.path.realpath(scratch) + os.sep

    def permitted(path: Any) -> bool:
        if isinstance(path, int) or path is None:
            return True
        path = os.fsdecode(path)
        return bool(path == os.devnull) or (os.path.realpath(path) + os.sep).startswith(inside)

    def hook(event: str, args: Any) -> None:
        if event == "open":
            path, mode, flags = args
            writes = (flags or 0) & _WRITING if mode is None or flags else set(mode) & set("wax+")
            broken = "wrote outside of its directory" if writes and not permitted(path) else ""
        elif event.startswith(_NETWORK):
            broken = "tried the network"
        elif event.startswith(_PROGRAMS):
            broken = "" if programs else "started a program"
        elif event.startswith(_SIGNALS):
            broken = "signalled a process"
        elif event in _BESIDE or (event == "ctypes.dlopen" and args[0] is not None):
            broken = "" if programs else "called a library of the system"
        elif event.startswith(_CHANGES):
            paths = [each for each in args[:2] if isinstance(each, (str, bytes))]
            broken = "" if all(map(permitted, paths)) else "changed files outside of its directory"
        else:
            return
        if broken:
            what = f"{broken} ({event})"
            tell(what)
            raise PermissionError(what)

    return hook


def child(folder: str, limits: dict[str, Any], result: int, violations: int, output: int) -> NoReturn:
    os.setsid()
    for target, end in ((0, os.open(os.devnull, os.O_RDONLY)), (1, output), (2, output)):
        os.dup2(end, target)
    with open(os.path.join(folder, "bundle.json"), encoding="utf-8") as file:
        data = json.load(file)
    with open(os.path.join(folder, "known.json"), encoding="utf-8") as file:
        known = json.load(file)
    with open(os.path.join(folder, "script.py"), encoding="utf-8") as file:
        source = file.read()
    scratch = os.path.join(folder, "scratch")
    os.chdir(scratch)
    _drop()
    for kind, value in (
        (resource.RLIMIT_AS, limits["memory"]),
        (resource.RLIMIT_FSIZE, FILE_LIMIT),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, int(limits["seconds"]) + 1),
    ):
        resource.setrlimit(kind, (value, value))
    sys.dont_write_bytecode = True
    sys.path[:] = [*limits.get("paths", []), scratch, *(path for path in sys.path if path and path != folder)]
    os.environ.clear()
    os.environ.update({"HOME": scratch, "TMPDIR": scratch, "PATH": "/usr/local/bin:/usr/bin:/bin"})
    os.environ.update({"LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"})
    sys.addaudithook(
        guard(lambda what: os.write(violations, what.encode() + b"\n"), scratch, limits["programs"])
    )
    message = evaluate(source, data, known)
    try:
        raw = json.dumps(message).encode()
        while raw:
            raw = raw[os.write(result, raw) :]
        sys.stdout.flush()
    finally:
        os._exit(0)


def _drop() -> None:
    """Switches to user nobody. If that is not permitted, only the hook protects."""
    with suppress(OSError):
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def run(folder: str) -> dict[str, Any]:
    """Runs the script of a folder and returns its outcome, whatever the script does."""
    with open(os.path.join(folder, "limits.json"), encoding="utf-8") as file:
        limits = json.load(file)
    scratch = os.path.join(folder, "scratch")
    os.makedirs(scratch, exist_ok=True)
    for directory, _, files in os.walk(scratch):
        for path in [directory, *(os.path.join(directory, name) for name in files)]:
            with suppress(OSError):
                os.chown(path, NOBODY, NOBODY)
    pipes = {name: os.pipe() for name in ("result", "violations", "output")}
    pid = os.fork()
    if pid == 0:
        try:
            child(folder, limits, *(pipes[name][1] for name in ("result", "violations", "output")))
        except BaseException:
            os.write(pipes["violations"][1], b"the frame failed: " + traceback.format_exc()[-1000:].encode())
        finally:
            os._exit(1)
    for _, end in pipes.values():
        os.close(end)
    said, stopped = _read({name: ends[0] for name, ends in pipes.items()}, limits)
    _end(pid)
    _, status = os.waitpid(pid, 0)
    tail = said["output"][-TAIL:].decode(errors="replace")
    if said["violations"]:
        return {
            "outcome": "failed",
            "reason": said["violations"].decode(errors="replace")[:1000],
            "trace": tail,
        }
    if stopped:
        return {"outcome": "failed", "reason": stopped, "trace": tail}
    try:
        message = json.loads(said["result"])
    except ValueError:
        how = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "no result"
        return {"outcome": "failed", "reason": "the script ended with " + how, "trace": tail}
    return {**message, "output": tail}


def _read(ends: dict[str, int], limits: dict[str, Any]) -> tuple[dict[str, bytes], str]:
    """Reads each pipe until all are closed; returns the bytes, and the reason if it stopped early."""
    said = dict.fromkeys(ends, b"")
    most = {"result": RESULT_LIMIT, "violations": 2000, "output": limits["output"]}
    deadline = time.monotonic() + limits["seconds"]
    names = {end: name for name, end in ends.items()}
    while names:
        left = deadline - time.monotonic()
        if left <= 0:
            return said, f"it did not end within {limits['seconds']:g} s"
        for end in select.select(list(names), [], [], left)[0]:
            chunk = os.read(end, 65536)
            name = names[end]
            said[name] += chunk
            if len(said[name]) > most[name]:
                return said, f"it printed or returned more than {most[name]} bytes"
            if not chunk:
                del names[end]
    return said, ""


def _end(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except OSError:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1])))
