"""Source trees in memory: reading an sdist, and unified diffs between two trees in git's format. Pure."""

import difflib
import io
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath

from orchard.pipelines.tasks.errors import TaskError

Tree = Mapping[str, bytes]
"""Path relative to the root, with `/`, to content. Directories exist by their files."""

_NO_NEWLINE = "\\ No newline at end of file\n"


class MalformedSdist(TaskError):
    """An archive that is not a source distribution with one top directory of plain files."""


def read_sdist(data: bytes, name: str) -> dict[str, bytes]:
    """The files of a `.tar.gz` or `.zip` sdist without its top directory; `name` is for the error only.

    Links are left out, and a path that points outside the archive raises MalformedSdist, as does an archive
    that cannot be read or has not exactly one top directory.
    """
    try:
        files = dict(_zip_files(data) if name.endswith(".zip") else _tar_files(data))
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as error:
        raise MalformedSdist(f"{name} cannot be read as a source archive: {error}") from error
    tree: dict[str, bytes] = {}
    tops: set[str] = set()
    for path, content in files.items():
        parts = PurePosixPath(path).parts
        if not parts or parts[0] == "/" or ".." in parts:
            raise MalformedSdist(f"{name} has a path that leaves the archive: {path!r}")
        tops.add(parts[0])
        if len(parts) > 1:
            tree["/".join(parts[1:])] = content
    if len(tops) != 1 or not tree:
        raise MalformedSdist(f"{name} has {len(tops)} top directories: a source distribution has one")
    return tree


def _tar_files(data: bytes) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isreg() else None
            if content is not None:
                yield member.name, content.read()


def _zip_files(data: bytes) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for info in archive.infolist():
            if not info.is_dir():
                yield info.filename, archive.read(info)


def pack(tree: Tree) -> bytes:
    """An uncompressed tar of the tree with fixed owners, times and modes: equal trees, equal bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(tree):
            info = tarfile.TarInfo(path)
            info.size = len(tree[path])
            info.mode = 0o644
            archive.addfile(info, io.BytesIO(tree[path]))
    return buffer.getvalue()


def text_of(content: bytes) -> str | None:
    """The content as text, or None when it is binary: not UTF-8, or with a zero byte."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def lines_of(text: str) -> list[str]:
    """Lines with their endings, cut at `\\n` alone as git does; a last line may have none."""
    lines = text.split("\n")
    tail = lines.pop()
    return [line + "\n" for line in lines] + ([tail] if tail else [])


def changed_paths(old: Tree, new: Tree) -> list[str]:
    """Paths whose content differs, or that only one tree has, sorted."""
    return sorted(path for path in old.keys() | new.keys() if old.get(path) != new.get(path))


def diff(old: Tree, new: Tree, paths: Iterable[str]) -> str:
    """One patch for `git apply`, in the order given. Raises ValueError for a path that is binary."""
    return "".join(_diff_file(path, old.get(path), new.get(path)) for path in paths)


def _diff_file(path: str, before: bytes | None, after: bytes | None) -> str:
    if before == after:
        return ""
    old_text = "" if before is None else text_of(before)
    new_text = "" if after is None else text_of(after)
    if old_text is None or new_text is None:
        raise ValueError(f"{path} is binary and has no text diff")
    a_path, b_path = _quoted(f"a/{path}"), _quoted(f"b/{path}")
    header = f"diff --git {a_path} {b_path}\n"
    if before is None:
        header += "new file mode 100644\n"
    elif after is None:
        header += "deleted file mode 100644\n"
    body = list(
        difflib.unified_diff(
            lines_of(old_text),
            lines_of(new_text),
            _label("/dev/null" if before is None else a_path),
            _label("/dev/null" if after is None else b_path),
        )
    )
    return header + "".join(line if line.endswith("\n") else line + "\n" + _NO_NEWLINE for line in body)


def _label(path: str) -> str:
    """Name with a tab after it where it has blanks, as git writes it: without one, `patch` cuts the name
    at the blank."""
    return path + "\t" if " " in path and not path.startswith('"') else path


def _quoted(path: str) -> str:
    """The path as git writes it in a header: C-quoted in octal where it is not plain."""
    raw = path.encode("utf-8", "surrogateescape")
    if all(0x20 <= byte < 0x7F and byte not in b'"\\' for byte in raw):
        return path
    return '"' + "".join(chr(b) if 0x20 <= b < 0x7F and b not in b'"\\' else f"\\{b:03o}" for b in raw) + '"'
