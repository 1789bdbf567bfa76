"""The tools for the sandbox's files: Bash, Read, Write, Edit, Glob, Grep. They run in the sandbox.
And snapshots of the workspace that an agent left, for its bundle."""

import base64
import fnmatch
import os
import posixpath
import shlex
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from orchard.schemas.claw import SnapshotFile
from orchard.schemas.decoding import Unreadable, decode_text
from orchard.schemas.messages import ToolCall
from orchard.schemas.tasks import Task
from orchard.workers.domains.claw.arguments import complaint
from orchard.workers.domains.claw.declarations import Schema, flag, function_tool, text, whole
from orchard.workers.episode.machine import CommandOutcome, FileTooLarge, Machine
from orchard.workers.failures import NotWritable

_SHOWN = 30_000
_LINES = 2000
_LONGEST_COMMAND = 100_000
"""Maximum bytes of a command. Linux limits one argument of a program to 128 KiB."""
_LARGEST_FILE = 8 * 1024 * 1024


def _tool(name: str, about: str, arguments: dict[str, Schema], required: tuple[str, ...]) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": arguments,
        "required": list(required),
        "additionalProperties": False,
    }
    return function_tool(name, about, schema)


_PATH = text("Path of the file; relative ones are below the workspace")
_PLACE = text("Directory; the workspace unless given")

TOOLS: dict[str, dict[str, Any]] = {
    tool["function"]["name"]: tool
    for tool in (
        _tool(
            "Bash",
            "Run a shell command in the workspace, each in a shell of its own.",
            {"command": text("Shell command"), "timeout": whole("Seconds that it may take", 1)},
            ("command",),
        ),
        _tool(
            "Read",
            "Read a text file, with line numbers.",
            {
                "file_path": _PATH,
                "offset": whole("First line, from 1", 1),
                "limit": whole("Number of lines", 1),
            },
            ("file_path",),
        ),
        _tool(
            "Write",
            "Make or replace a file.",
            {"file_path": _PATH, "content": text("The whole text")},
            ("file_path", "content"),
        ),
        _tool(
            "Edit",
            "Replace a text in a file. It must occur once, unless all occurrences are to be replaced.",
            {
                "file_path": _PATH,
                "old_string": text("The text that is there"),
                "new_string": text("The text in its place"),
                "replace_all": flag("Replace all occurrences"),
            },
            ("file_path", "old_string", "new_string"),
        ),
        _tool(
            "Glob",
            "List files whose path below a directory matches a pattern, such as `*.txt`; `*` stands for "
            "slashes too.",
            {"pattern": text("Pattern"), "path": _PLACE},
            ("pattern",),
        ),
        _tool(
            "Grep",
            "Search files for an extended regular expression: path, line number and line of each match.",
            {"pattern": text("Regular expression"), "path": _PLACE, "ignore_case": flag("Ignore case")},
            ("pattern",),
        ),
    )
}


class _Wrong(Exception):
    """The call cannot be carried out; the text is the reason."""


class WorkspaceTools:
    def __init__(self, machine: Machine, task: Task) -> None:
        self._machine = machine
        self._task = task

    def resolve(self, path: str) -> str:
        return posixpath.normpath(posixpath.join(self._task.workdir, path or "."))

    async def call(self, call: ToolCall, seconds: float) -> CommandOutcome:
        """Executes one call. A command may take `seconds`, or less if the call says so."""
        started = time.monotonic()
        try:
            given = _checked(call)
            if call.name == "Bash":
                return await self._bash(given, seconds)
            done = await getattr(self, f"_{call.name.lower()}")(given, seconds)
        except _Wrong as wrong:
            return CommandOutcome(output=f"Error: {wrong}", returncode=1, seconds=time.monotonic() - started)
        if isinstance(done, CommandOutcome):
            return done
        return CommandOutcome(output=_cut(done), returncode=0, seconds=time.monotonic() - started)

    async def _bash(self, given: dict[str, Any], seconds: float) -> CommandOutcome:
        limit = min(given.get("timeout", seconds), seconds)
        outcome = await self._ran(given["command"], limit)
        tail = f"\n[timed out after {limit:g} s]" if outcome.timed_out else ""
        if not tail and outcome.returncode:
            tail = f"\n[exit code {outcome.returncode}]"
        return msgspec.structs.replace(outcome, output=(_cut(outcome.output) + tail).strip() or "(no output)")

    async def _read(self, given: dict[str, Any], _seconds: float) -> str:
        lines = (await self._text(given["file_path"])).split("\n")
        first = given.get("offset", 1)
        chosen = lines[first - 1 : first - 1 + min(given.get("limit", _LINES), _LINES)]
        return "\n".join(f"{number:6}\t{line}" for number, line in enumerate(chosen, first)) or "(empty)"

    async def _write(self, given: dict[str, Any], _seconds: float) -> str:
        return f"wrote {await self._put(given['file_path'], given['content'])}"

    async def _edit(self, given: dict[str, Any], _seconds: float) -> str:
        old, before = given["old_string"], await self._text(given["file_path"])
        count = before.count(old) if old else 0
        if not count:
            raise _Wrong("old_string does not occur in the file")
        if count > 1 and not given.get("replace_all"):
            raise _Wrong(f"old_string occurs {count} times: give more of the text around it, or replace_all")
        after = before.replace(old, given["new_string"])
        return f"replaced {count} in {await self._put(given['file_path'], after)}"

    async def _glob(self, given: dict[str, Any], seconds: float) -> CommandOutcome:
        path = self.resolve(given.get("path", ""))
        pattern = shlex.quote(posixpath.join(path, given["pattern"]))
        line = f"find {shlex.quote(path)} -type f -path {pattern} | sort"
        outcome = await self._ran(line, seconds)
        return msgspec.structs.replace(outcome, output=_cut(outcome.output).strip() or "(no files)")

    async def _grep(self, given: dict[str, Any], seconds: float) -> CommandOutcome:
        options = "-rnIEi" if given.get("ignore_case") else "-rnIE"
        path = self.resolve(given.get("path", ""))
        line = f"grep {options} -e {shlex.quote(given['pattern'])} -- {shlex.quote(path)}"
        line += " | sort -t: -k1,1 -k2,2n"
        outcome = await self._ran(line, seconds)
        return msgspec.structs.replace(outcome, output=_cut(outcome.output).strip() or "(no matches)")

    async def _text(self, path: str) -> str:
        try:
            return (await self._machine.read(self.resolve(path), limit=_LARGEST_FILE)).decode(
                errors="replace"
            )
        except FileNotFoundError:
            raise _Wrong(f"there is no file {self.resolve(path)}") from None
        except FileTooLarge:
            raise _Wrong(
                f"{self.resolve(path)} has more than {_LARGEST_FILE} bytes: read parts by Bash"
            ) from None

    async def _put(self, path: str, content: str) -> str:
        path = self.resolve(path)
        try:
            await self._machine.write(path, content.encode(errors="replace"))
        except NotWritable as error:
            raise _Wrong(error.detail) from error
        return path

    async def _ran(self, line: str, seconds: float) -> CommandOutcome:
        if len(line.encode(errors="replace")) > _LONGEST_COMMAND:
            raise _Wrong(f"the command has more than {_LONGEST_COMMAND} bytes: write long files by Write")
        task = self._task
        return await self._machine.run(line, timeout=seconds, cwd=task.workdir, env=task.environment)


def _checked(call: ToolCall) -> dict[str, Any]:
    schema = TOOLS[call.name]["function"]["parameters"]
    try:
        given = decode_text(call.arguments or "{}")
    except Unreadable as error:
        raise _Wrong(f"the arguments are not JSON: {error}") from error
    if wrong := complaint(given, schema):
        raise _Wrong(wrong)
    if any("\0" in value for value in given.values() if isinstance(value, str)):
        raise _Wrong("an argument holds a NUL character")
    if call.name in ("Read", "Write", "Edit") and not given["file_path"].strip():
        raise _Wrong("file_path is empty")
    checked: dict[str, Any] = given
    return checked


def _cut(told: str) -> str:
    if len(told) <= _SHOWN:
        return told
    half = _SHOWN // 2
    return f"{told[:half]}\n[{len(told) - _SHOWN} characters left out]\n{told[-half:]}"


LARGEST_TREE = 64 * 1024 * 1024
"""Maximum bytes of a workspace; a larger one is not read."""
_LARGEST_SNAPSHOT_FILE = 1024 * 1024
_LARGEST_WHOLE = 8 * 1024 * 1024
_MOST_FILES = 2000


def take_snapshot(root: Path, patterns: Sequence[str]) -> dict[str, SnapshotFile]:
    """Reads the files below `root` that match one of the patterns, in the order of their names. `*` matches
    slashes, too, and a pattern that begins with `**/` also matches at the top."""
    left = _LARGEST_WHOLE
    found: dict[str, SnapshotFile] = {}
    for path in _files(root):
        name = path.relative_to(root).as_posix()
        if not any(_matches(name, pattern) for pattern in patterns):
            continue
        if len(found) == _MOST_FILES:
            break
        found[_named(name)] = seen = _seen(path, left)
        left -= seen.size if not seen.omitted else 0
    return found


def _files(root: Path) -> Iterator[Path]:
    for directory, below, files in os.walk(root):
        below.sort()
        links = [name for name in below if (Path(directory) / name).is_symlink()]
        for name in {*below} - {*links}:
            (Path(directory) / name).chmod(0o700)  # the agent may have closed it, and this is a copy
        yield from (Path(directory) / name for name in sorted([*files, *links]))


def _matches(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern) or (
        pattern.startswith("**/") and fnmatch.fnmatchcase(name, pattern[3:])
    )


def _named(name: str) -> str:
    """Replaces bytes in a name that JSON cannot represent."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _seen(path: Path, left: int) -> SnapshotFile:
    facts = path.lstat()
    if stat.S_ISLNK(facts.st_mode):
        return SnapshotFile(size=facts.st_size, omitted="link")
    if not stat.S_ISREG(facts.st_mode):
        return SnapshotFile(size=facts.st_size, omitted="special")
    executable = bool(facts.st_mode & 0o100)
    if facts.st_size > min(_LARGEST_SNAPSHOT_FILE, left):
        return SnapshotFile(size=facts.st_size, omitted="too large", executable=executable)
    path.chmod(0o600)
    content = path.read_bytes()
    try:
        return SnapshotFile(size=len(content), text=content.decode(), executable=executable)
    except UnicodeDecodeError:
        encoded = base64.b64encode(content).decode()
        return SnapshotFile(size=len(content), base64=encoded, executable=executable)
