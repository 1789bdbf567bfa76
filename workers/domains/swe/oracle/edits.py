"""Makes shell commands from edits: the gold patch file by file, and wrong versions of it."""

import random
import re
import shlex
from collections.abc import Callable, Collection
from pathlib import PurePosixPath

import msgspec

from orchard.workers.episode.diffs import FileDiff, Hunk

COMMAND_LIMIT = 60_000
"""Maximum bytes in one command, below Linux's limit for one argument (128 KiB)."""

_WRITTEN_IN_PYTHON = 8_000
"""Maximum characters of a diff that is written as a script; a larger one is applied."""

HunkChange = Callable[[Hunk], Hunk | None]

_PROSE = frozenset({".md", ".rst", ".txt", ".cfg", ".toml", ".ini", ".yml", ".yaml", ".json"})


def edit_commands(file: FileDiff, chance: random.Random) -> list[str]:
    """Returns commands that make this file's change: a small script, or its diff through `git apply`."""
    if _writable_in_python(file) and chance.random() < 0.5:
        return [_python_edit(file)]
    pieces = _pieces(file.text)
    if len(pieces) == 1:
        return ["git apply --whitespace=nowarn - " + heredoc(pieces[0])]
    path = "/tmp/change.diff"
    return [
        f"rm -f {path}",
        *(f"cat >> {path} {heredoc(piece)}" for piece in pieces),
        f"git apply --whitespace=nowarn {path}",
    ]


def heredoc(text: str, then: str = "") -> str:
    """Returns a here-document that feeds `text`, which ends in a newline, to a command byte for byte; `then`
    follows it."""
    end = "EOF"
    while f"\n{end}\n" in f"\n{text}":
        end = f"_{end}"
    return f"<<'{end}'{then}\n{text}{end}"


def wrong_edit(gold: list[FileDiff], chance: random.Random) -> list[FileDiff]:
    """Makes a real change from the gold patch that should not resolve the task.

    Of several code hunks only the smallest fifth is kept, at least one. In a single hunk the added lines are
    altered, or, if nothing in them can be altered, replaced by a blank line.
    """
    hunks = [(file, hunk) for file in gold if _is_code(file) for hunk in file.hunks]
    hunks.sort(key=lambda pair: len(pair[1].added) + len(pair[1].removed), reverse=True)
    if not hunks:
        return gold[:-1]
    if len(hunks) > 1:
        dropped = {id(hunk) for _, hunk in hunks[: -max(1, len(hunks) // 5)]}
        return _with_hunks(gold, lambda hunk: None if id(hunk) in dropped else hunk)
    only = hunks[0][1]
    return _with_hunks(gold, lambda hunk: _twisted(hunk, chance) if hunk is only else hunk)


def _with_hunks(gold: list[FileDiff], change: HunkChange) -> list[FileDiff]:
    """Returns the files with changed hunks; a file that loses all of them is left out."""
    changed = []
    for file in gold:
        if not file.hunks:
            changed.append(file)
            continue
        hunks = tuple(new for hunk in file.hunks if (new := change(hunk)) is not None)
        if hunks:
            changed.append(msgspec.structs.replace(file, hunks=hunks))
    return changed


def _twisted(hunk: Hunk, chance: random.Random) -> Hunk:
    lines = []
    twisted = False
    for line in hunk.lines:
        new = twist(line[1:], chance, hunk.removed) if line.startswith("+") else None
        lines.append(line if new is None else "+" + new)
        twisted = twisted or new is not None
    if not twisted:
        kept = [" " + line[1:] for line in hunk.lines if line[0] in " -"]
        lines = [*kept[:1], "+", *kept[1:]]
    return _recounted(hunk, lines)


def _recounted(hunk: Hunk, lines: list[str]) -> Hunk:
    old = sum(line[0] in " -" for line in lines)
    new = sum(line[0] in " +" for line in lines)
    return msgspec.structs.replace(hunk, lines=tuple(lines), old_count=old, new_count=new)


_TWISTS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r" not in ", " in "),
        (r" is not ", " is "),
        (r" == ", " != "),
        (r" != ", " == "),
        (r" is ", " is not "),
        (r" <= ", " > "),
        (r" >= ", " < "),
        (r" < ", " >= "),
        (r" > ", " <= "),
        (r"\bTrue\b", "False"),
        (r"\bFalse\b", "True"),
        (r" and ", " or "),
        (r" or ", " and "),
        (r"^(\s*)(if|elif|while) not (?=[\w.]+:)", r"\1\2 "),
        (r"^(\s*)(if|elif|while) (?=[\w.]+:)", r"\1\2 not "),
        (r"^(\s*)return (?!None\b|\()[^\[\](){}\"']+$", r"\1return None"),
        (r"^(\s*)return ([\w.]+\(.*\))$", r"\1return not \2"),
        (r" \+ ", " - "),
        (r" \+ ", " * "),
        (r" - ", " + "),
        (r"(?<![\w.])\d+(?![\w.])", "7"),
    )
)


def twist(line: str, chance: random.Random, avoid: Collection[str] = ()) -> str | None:
    """Changes the line's meaning but not its syntax; None if nothing in it allows that.

    No line of `avoid` is made: reverting a fix to what it replaces would be no edit at all.
    """
    if line.lstrip().startswith(("#", "//", "*", '"""')):
        return None
    made = (pattern.sub(text, line, count=1) for pattern, text in _TWISTS)
    twists = [new for new in made if new != line and new not in avoid]
    return chance.choice(twists) if twists else None


def _is_code(file: FileDiff) -> bool:
    return file.new_path is not None and PurePosixPath(file.path).suffix not in _PROSE


def _writable_in_python(file: FileDiff) -> bool:
    lines = [line for hunk in file.hunks for line in hunk.lines]
    return (
        file.path.endswith(".py")
        and file.old_path == file.new_path
        and bool(lines)
        and not any(line.startswith("\\") or "\r" in line for line in lines)
        and sum(map(len, lines)) < _WRITTEN_IN_PYTHON
    )


def _python_edit(file: FileDiff) -> str:
    """Returns a script that replaces line ranges from last to first, so that earlier numbers stay right."""
    script = [
        "from pathlib import Path",
        "",
        f"path = Path({file.path!r})",
        'lines = path.read_bytes().decode().split("\\n")',
    ]
    for hunk in reversed(file.hunks):
        start = hunk.old_start - 1 if hunk.old_count else hunk.old_start
        script.append(f"lines[{start}:{start + hunk.old_count}] = [")
        script.extend(f"    {line[1:]!r}," for line in hunk.lines if line[0] in " +")
        script.append("]")
    script.append('path.write_bytes("\\n".join(lines).encode())')
    return "python3 - " + heredoc("\n".join(script) + "\n")


def _pieces(text: str) -> list[str]:
    """Splits the text between lines into pieces that each fit into a command."""
    pieces: list[list[str]] = [[]]
    size = 0
    for line in (line + "\n" for line in text.removesuffix("\n").split("\n")):
        size += len(line.encode(errors="replace"))
        if size > COMMAND_LIMIT:
            pieces.append([])
            size = len(line.encode(errors="replace"))
        pieces[-1].append(line)
    return ["".join(piece) for piece in pieces if piece]


def quoted(paths: list[str]) -> str:
    return " ".join(shlex.quote(path) for path in paths)
