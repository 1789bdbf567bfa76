"""Builds the payload from the running Python, with its loader and libraries cut off from any image: the same
inputs give the same bytes."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from orchard.injector.payload import elf, launch
from orchard.injector.payload.elf import PayloadError

# fmt: off
LEFT_OUT = frozenset({
    # Of the standard library, what no agent needs: packages and modules, then extensions. Without _ssl and
    # _hashlib it goes without OpenSSL, whose holes would be ours; hashlib has the usual digests itself.
    "__phello__", "__pycache__", "curses", "dbm", "dist-packages", "distutils", "ensurepip", "idlelib",
    "lib2to3", "pydoc_data", "site-packages", "sqlite3", "test", "tests", "tkinter", "turtledemo", "unittest",
    "venv", "wsgiref", "xml", "xmlrpc", "_pydecimal", "_pyio", "antigravity", "doctest", "pydoc", "this",
    "turtle",
    "_codecs_cn", "_codecs_hk", "_codecs_iso2022", "_codecs_jp", "_codecs_kr", "_codecs_tw", "_crypt",
    "_ctypes_test", "_curses", "_curses_panel", "_dbm", "_elementtree", "_gdbm", "_hashlib", "_lsprof",
    "_sqlite3", "_ssl", "_tkinter", "_xxsubinterpreters", "_xxtestfuzz", "audioop", "nis", "ossaudiodev",
    "pyexpat", "readline",
})
# fmt: on
_BEGINNINGS = ("_test", "xxlimited", "config-", "_sysconfigdata")
"""Prefixes of names that serve testing and compiling; the latter reveal the machine they are from."""
_PACKAGE_FILES = (".py", ".so")


def build(archive: Path) -> None:
    """Write the payload as a tar archive: sorted members owned by root, dated 1970, relative to its root.

    It is started once before, as a test. Raises PayloadError.
    """
    if sys.version_info[:2] < (3, 11) or sys.platform != "linux":
        raise PayloadError(
            f"this is Python {sys.version.split()[0]} on {sys.platform}: build a payload with CPython"
            " 3.11 or later on Linux"
        )
    with tempfile.TemporaryDirectory(prefix="payload-") as place:
        stage = Path(place)
        program = _interpreter(stage)
        _agent(stage / "agent")
        for name, content in collect(program, stage.rglob("*.so")).items():
            (stage / "lib" / name).write_bytes(content)
        for extension in stage.rglob("*.so"):
            extension.write_bytes(elf.condensed(extension.read_bytes()))
        _compile(stage)
        for executable in (stage / "lib" / LOADER, stage / "bin/python3"):
            executable.chmod(0o755)
        _prove(stage)
        _pack(stage, archive)


def _program() -> Path:
    """The running executable, whatever virtual environment it was called through."""
    return Path("/proc/self/exe").resolve()


def _interpreter(stage: Path) -> Path:
    program = _program()
    (stage / "bin").mkdir()
    (stage / "lib").mkdir()
    (stage / "bin/python3").write_bytes(elf.condensed(program.read_bytes()))
    source = Path(sysconfig.get_path("stdlib"))
    # It looks below the directory that it was found in, on some systems in lib64.
    target = stage / sys.platlibdir / source.name
    shutil.copytree(source, target, ignore=_ignored, copy_function=shutil.copyfile)
    return program


def _ignored(_directory: str, names: list[str]) -> set[str]:
    return {
        name
        for name in names
        if name.partition(".")[0] in LEFT_OUT or name.startswith(_BEGINNINGS) or name.endswith((".a", ".s"))
    }


def _agent(target: Path) -> None:
    target.mkdir()
    source = Path(__file__).parent.parent
    copy = target / "orchard/injector"
    shutil.copytree(source / "agent", copy / "agent", ignore=_ignored, copy_function=shutil.copyfile)
    shutil.copyfile(source / "__init__.py", copy / "__init__.py")
    shutil.copyfile(source.parent / "__init__.py", copy.parent / "__init__.py")
    shutil.copyfile(source / "payload/entry.py", target / "__main__.py")
    for package in sorted(_with_requirements("aiohttp")):
        files = importlib.metadata.files(package)
        if files is None:
            raise PayloadError(f"{package} has no list of its files: install it with pip")
        for file in files:
            licence = ".dist-info/licenses/" in file.as_posix()
            wanted = file.suffix in _PACKAGE_FILES and not file.name.startswith(_BEGINNINGS)
            if ".." not in file.parts and (licence or wanted):
                copy = target / file
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file.locate(), copy)


def _with_requirements(package: str) -> set[str]:
    """Return the package and its installed requirements for any system, without optional ones."""
    found: set[str] = set()
    pending = [package]
    while pending:
        name = pending.pop()
        if name in found:
            continue
        try:
            requirements = importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # for another version of Python; were it needed, the payload would not start
        found.add(name)
        for requirement in requirements:
            start = re.match(r"[A-Za-z0-9._-]+", requirement)
            if start and "extra ==" not in requirement:
                pending.append(start[0])
    return found


def _compile(stage: Path) -> None:
    """Compile all modules without checks of the source, because the file system may be read-only.

    An interpreter of its own with a fixed hash seed does it, since the form of constants depends on both.
    """
    options = ["-q", "--invalidation-mode", "unchecked-hash", "-s", str(stage), "-p", "/"]
    line = [str(_program()), "-P", "-S", "-m", "compileall", *options, str(stage)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, env={"PYTHONHASHSEED": "0"})
    if done.returncode != 0:
        raise PayloadError(f"a module cannot be compiled: {done.stdout.strip() or done.stderr.strip()}")


def _prove(stage: Path) -> None:
    line = launch.command(str(stage), "--version")
    done = subprocess.run(line, capture_output=True, text=True, check=False, env=launch.ENVIRONMENT)
    if done.returncode != 0:
        raise PayloadError(f"the payload does not start: {done.stderr.strip()}")


def _pack(stage: Path, archive: Path) -> None:
    partial = archive.with_name(f"{archive.name}.partial")
    with tarfile.open(partial, "w", format=tarfile.USTAR_FORMAT) as tar:
        for path in sorted(_tree(stage)):
            member = tarfile.TarInfo(path.relative_to(stage).as_posix())
            if path.is_dir():
                member.type, member.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(member)
                continue
            member.size, member.mode = path.stat().st_size, 0o755 if os.access(path, os.X_OK) else 0o644
            with path.open("rb") as content:
                tar.addfile(member, content)
    partial.replace(archive)


def _tree(stage: Path) -> Iterator[Path]:
    for directory, subdirectories, names in os.walk(stage):
        for name in (*subdirectories, *names):
            yield Path(directory, name)


LOADER = "ld.so"
_FOUND = re.compile(r"^\s+(\S+) => (.+?)(?: \(0x[0-9a-f]+\))?$", re.MULTILINE)

_DETOURS = {
    LOADER: {b"/etc/ld.so.preload": b"/dev/null/preload."},
    "libc.so.6": {
        b"/etc/nsswitch.conf": b"/dev/null/nsswitch",
        b"/usr/lib/locale": b"/dev/null/local",
    },
}
"""Files of the image by which the loader or libc would load its libraries (preloads, name services) or
tables.

In the payload's copies their paths lead nowhere, which both treat as missing files.
"""


def collect(program: Path, extensions: Iterable[Path]) -> dict[str, bytes]:
    """Return the loader, as `ld.so`, and every library that these files need, by name.

    Raises PayloadError when one cannot be found, and if libc is not glibc.
    """
    loader = Path(elf.interpreter(program.read_bytes()))
    if not loader.name.startswith("ld-linux"):
        raise PayloadError(
            f"{program} is not a program for glibc ({loader}): build on Debian, say, or Fedora"
        )
    # libc itself loads libgcc_s, by name, when a thread is cancelled.
    found = _needed(loader, program, "--preload", "libgcc_s.so.1")
    for extension in extensions:
        for name, path in _needed(loader, extension).items():
            if found.setdefault(name, path) != path:
                raise PayloadError(f"two libraries are called {name}: {found[name]} and {path}")
    if "libgcc_s.so.1" not in found:
        raise PayloadError("libgcc_s.so.1 is missing: install it (Debian: `apt-get install libgcc-s1`)")
    files = {name: elf.condensed(Path(path).read_bytes()) for name, path in found.items()}
    files[LOADER] = elf.condensed(loader.read_bytes())
    for name, detours in _DETOURS.items():
        for wanted, detour in detours.items():
            files[name] = _detoured(files[name], name, wanted, detour)
    return files


def _needed(loader: Path, file: Path, *options: str) -> dict[str, str]:
    """Return the file's direct and indirect libraries by name, as the loader finds them."""
    done = subprocess.run(
        [str(loader), *options, "--list", str(file)], capture_output=True, text=True, check=False, env={}
    )
    if done.returncode != 0:
        raise PayloadError(f"install what is missing: {done.stderr.strip()}")
    found = dict(_FOUND.findall(done.stdout))
    found.pop(str(loader), None)
    return found


def _detoured(file: bytes, name: str, path: bytes, detour: bytes) -> bytes:
    assert len(path) == len(detour), "the file must stay as it is otherwise"
    if path not in file:
        raise PayloadError(f"{name} of this machine does not know {path.decode()}: build with a common glibc")
    return file.replace(path, detour)
