"""Reading sdists, and diffs that git applies to give exactly the newer tree."""

import io
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchard.pipelines.tasks.trees import MalformedSdist, changed_paths, diff, pack, read_sdist

LINES = st.lists(
    st.sampled_from(["a\n", "b\n", "\n", "  c\r\n", "+++ d\n", "-- e\n", "\u00e9\n"]), max_size=8
)
TEXTS = st.builds(lambda lines, tail: ("".join(lines) + tail).encode(), LINES, st.sampled_from(["", "end"]))
NAMES = st.sampled_from(["a.py", "pkg/b.py", "pkg/with blank.py", "pkg/\u00e9t\u00e9.py", 'pkg/q"uote.py'])


def _tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def _checkout(directory: Path, tree: dict[str, bytes]) -> None:
    for path, content in tree.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(content)
    subprocess.run(["git", "init", "-q", str(directory)], check=True)


def _files(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and ".git" not in path.parts
    }


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    old=st.dictionaries(NAMES, TEXTS.filter(bool), max_size=3),
    new=st.dictionaries(NAMES, TEXTS.filter(bool), max_size=3),
)
def test_git_applies_a_diff_and_has_the_newer_tree(
    old: dict[str, bytes], new: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("tree")
    _checkout(directory, old)
    patch = diff(old, new, changed_paths(old, new))
    if patch:
        applied = subprocess.run(
            ["git", "apply", "--whitespace=nowarn"], cwd=directory, input=patch.encode(), capture_output=True
        )
        assert applied.returncode == 0, applied.stderr.decode()
    assert _files(directory) == new


def test_an_empty_file_comes_and_goes(tmp_path: Path) -> None:
    _checkout(tmp_path, {"gone.py": b"", "kept.py": b"x\n"})
    old, new = {"gone.py": b"", "kept.py": b"x\n"}, {"new/__init__.py": b"", "kept.py": b"x\n"}
    patch = diff(old, new, changed_paths(old, new))
    subprocess.run(["git", "apply"], cwd=tmp_path, input=patch.encode(), check=True)
    assert _files(tmp_path) == new


def test_a_binary_file_has_no_diff() -> None:
    with pytest.raises(ValueError, match=r"logo\.png is binary"):
        diff({}, {"logo.png": b"\x89PNG\0"}, ["logo.png"])


def test_an_sdist_is_read_without_its_top_directory() -> None:
    archive = _tar({"pkg-1.0/setup.py": b"s", "pkg-1.0/pkg/__init__.py": b"i"})
    assert read_sdist(archive, "pkg-1.0.tar.gz") == {"setup.py": b"s", "pkg/__init__.py": b"i"}


def test_a_zip_sdist_is_read_alike() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("pkg-1.0/pkg.py", "p")
    assert read_sdist(buffer.getvalue(), "pkg-1.0.zip") == {"pkg.py": b"p"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not an archive", "cannot be read as a source archive"),
        (_tar({"pkg/../../etc/passwd": b"x"}), "leaves the archive"),
        (_tar({"/etc/passwd": b"x"}), "leaves the archive"),
        (_tar({"one/a": b"x", "two/b": b"y"}), "2 top directories"),
    ],
    ids=["no archive", "parent path", "absolute path", "two directories"],
)
def test_what_is_no_sdist_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(MalformedSdist, match=message):
        read_sdist(content, "pkg-1.0.tar.gz")


def test_equal_trees_pack_to_equal_bytes() -> None:
    assert pack({"b": b"2", "a": b"1"}) == pack({"a": b"1", "b": b"2"})
