"""Unified diffs as data: files, hunks and lines, read the way `git apply` counts them."""

import re

import msgspec

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_LOOKS_LIKE_ONE = re.compile(r"^diff --git \S|^--- .+\n\+\+\+ .+\n@@ -", re.MULTILINE)
_ESCAPE = re.compile(rb"\\([0-7]{3}|.)")
_ESCAPED = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}


class Hunk(msgspec.Struct, frozen=True, kw_only=True):
    """One hunk; `lines` keep their first character: blank, `-`, `+` or a backslash."""

    old_start: int
    old_count: int
    new_start: int
    new_count: int
    lines: tuple[str, ...]

    @property
    def added(self) -> list[str]:
        return [line[1:] for line in self.lines if line.startswith("+")]

    @property
    def removed(self) -> list[str]:
        return [line[1:] for line in self.lines if line.startswith("-")]


class FileDiff(msgspec.Struct, frozen=True, kw_only=True):
    """The changes of one file. A path is None if the file does not exist on that side."""

    old_path: str | None
    new_path: str | None
    header: tuple[str, ...]
    hunks: tuple[Hunk, ...]
    tail: tuple[str, ...] = ()
    """Lines that belong to no hunk: the body of a binary patch."""

    @property
    def path(self) -> str:
        """The path after the change; for a deleted file the one before it."""
        return self.new_path or self.old_path or ""

    @property
    def text(self) -> str:
        lines = [*self.header, *self.tail]
        for hunk in self.hunks:
            lines.append(
                f"@@ -{hunk.old_start},{hunk.old_count} +{hunk.new_start},{hunk.new_count} @@",
            )
            lines.extend(hunk.lines)
        return "\n".join(lines) + "\n"


def is_diff(text: str) -> bool:
    """Whether the text holds at least one file's diff; text around it is ignored."""
    return _LOOKS_LIKE_ONE.search(text) is not None


def parse_diff(text: str) -> list[FileDiff]:
    """Returns the files of a unified diff, with or without git's headers. Text that is no diff gives none."""
    return [file for file, _ in split_diff(text) if file is not None]


def split_diff(text: str) -> list[tuple[FileDiff | None, list[str]]]:
    """Returns each file of a diff with its lines as they are, up to those of the next file.

    The first entry has None for a file, and the lines before the first file.
    """
    found: list[tuple[FileDiff | None, list[str]]] = [(None, [])]
    lines = text.split("\n")
    at = 0
    while at < len(lines):
        if lines[at].startswith("diff --git ") or _names_follow(lines, at):
            file, end = _file(lines, at)
            found.append((file, lines[at:end]))
        else:
            end = at + 1
            found[-1][1].append(lines[at])
        at = end
    return found


def touched_paths(text: str) -> set[str]:
    """Returns every path that a diff names, before and after."""
    return {path for file in parse_diff(text) for path in (file.old_path, file.new_path) if path}


def _names_follow(lines: list[str], at: int) -> bool:
    following = lines[at : at + 3]
    return len(following) == 3 and all(
        line.startswith(mark) for line, mark in zip(following, ("--- ", "+++ ", "@@ -"), strict=True)
    )


def _file(lines: list[str], at: int) -> tuple[FileDiff, int]:
    """Returns the file whose header starts at line `at`, and the line at which the next may start."""
    header: list[str] = []
    hunks: list[Hunk] = []
    tail: list[str] = []
    old, new = _paths_of_first_line(lines[at])
    while at < len(lines):
        line = lines[at]
        if header and (line.startswith("diff --git ") or (hunks and _names_follow(lines, at))):
            break
        if _HUNK.match(line):
            hunk, at = _hunk(lines, at)
            hunks.append(hunk)
            continue
        if hunks:
            break
        if line.startswith("--- "):
            old = _name(line[4:])
        elif line.startswith("+++ "):
            new = _name(line[4:])
        elif line.startswith("rename from "):
            old = _unquoted(line[len("rename from ") :])
        elif line.startswith("rename to "):
            new = _unquoted(line[len("rename to ") :])
        elif line.startswith("new file mode"):
            old = None
        elif line.startswith("deleted file mode"):
            new = None
        (tail if tail or line.startswith("GIT binary patch") else header).append(line)
        at += 1
    while not hunks and tail and not tail[-1] and at == len(lines):
        tail.pop()
    if tail:
        tail.append("")
    elif not hunks and header and not header[-1]:
        header.pop()
    file = FileDiff(old_path=old, new_path=new, header=tuple(header), hunks=tuple(hunks), tail=tuple(tail))
    return file, at


def _hunk(lines: list[str], at: int) -> tuple[Hunk, int]:
    match = _HUNK.match(lines[at])
    assert match is not None
    old_start, old_count, new_start, new_count = (int(part) if part else 1 for part in match.groups())
    old_left, new_left = old_count, new_count
    body: list[str] = []
    at += 1
    while at < len(lines) and (old_left > 0 or new_left > 0 or lines[at].startswith("\\")):
        line = lines[at] or " "
        if line[0] not in " -+\\":
            break
        old_left -= line[0] in " -"
        new_left -= line[0] in " +"
        body.append(line)
        at += 1
    hunk = Hunk(
        old_start=old_start, old_count=old_count, new_start=new_start, new_count=new_count, lines=tuple(body)
    )
    return hunk, at


def _paths_of_first_line(line: str) -> tuple[str | None, str | None]:
    """Returns both names in `diff --git a/x b/x` if they are equal; other names come in later lines."""
    rest = line[len("diff --git ") :]
    if not line.startswith("diff --git "):
        return None, None
    middle = len(rest) // 2
    left, right = _unquoted(rest[:middle]), _unquoted(rest[middle + 1 :])
    if rest[middle : middle + 1] == " " and left[2:] == right[2:]:
        return left[2:], right[2:]
    return None, None


def _name(text: str) -> str | None:
    """Returns the path in a `---` or `+++` line, without its `a/` or `b/`; None for /dev/null."""
    name = _unquoted(text.split("\t")[0])
    if name == "/dev/null":
        return None
    return name[2:] if name[:2] in ("a/", "b/") else name


def _unquoted(text: str) -> str:
    """Decodes a path that git has put in C quotes since it holds special bytes."""
    if len(text) < 2 or text[0] != '"' or text[-1] != '"':
        return text

    def character(match: re.Match[bytes]) -> bytes:
        code = match[1]
        return bytes([int(code, 8)]) if len(code) == 3 else _ESCAPED.get(code, code)

    return _ESCAPE.sub(character, text[1:-1].encode()).decode(errors="surrogateescape")
