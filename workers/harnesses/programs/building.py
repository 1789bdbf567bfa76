"""Builds and installs the layer of a program, from packages or from files that the user has."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from orchard.injector.agent.files import remove_tree
from orchard.injector.agent.layer_files import COMMANDS
from orchard.injector.payload import elf
from orchard.workers.harnesses.programs.acp import CLIENT_PYTHON
from orchard.workers.harnesses.programs.layers import Layer, layout
from orchard.workers.harnesses.programs.npm_files import binary_files, package_files
from orchard.workers.harnesses.programs.python_files import bare_python, python_files
from orchard.workers.harnesses.programs.record import (
    NpmBinary,
    NpmPackage,
    OwnFiles,
    Program,
    PythonPackages,
    SuppliedFiles,
    directory,
)
from orchard.workers.harnesses.programs.releases import newest_release
from orchard.workers.harnesses.programs.tools import BuildError, Built, Say

UNKNOWN = "unknown"
"""Version of supplied files if the user names none."""

TESTED = ", the one that was tested with Orchard"

Bring = Callable[[Path, Layer], None]
"""Imports an OCI layout into the sandbox service, under the layer's name."""


def install(
    program: Program,
    directory: Path,
    bring: Bring,
    say: Say,
    *,
    version: str | None = None,
    supplied: Path | None = None,
    python: Path | None = None,
) -> Layer:
    """Builds the program's layer in `directory` and imports it; equal files give the same layer.

    Waits for another installation in the same directory, and removes what a killed one left; packages stay in
    the caches of pip and npm. `version` overrides the record's. Raises BuildError, and what `bring` raises.
    """
    with _workplace(directory, say) as work:
        layer, image = build(program, work, say, version=version, supplied=supplied, python=python)
        say(f"image: {layer.image}")
        bring(image, layer)
    return layer


@contextmanager
def _workplace(directory: Path, say: Say) -> Iterator[Path]:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another installation")
            fcntl.flock(lock, fcntl.LOCK_EX)
        for left in directory.glob("building-*"):
            remove_tree(left)
        work = Path(tempfile.mkdtemp(prefix="building-", dir=directory))
        try:
            yield work
        finally:
            remove_tree(work)
    finally:
        os.close(lock)


def build(
    program: Program,
    work: Path,
    say: Say,
    *,
    version: str | None = None,
    supplied: Path | None = None,
    python: Path | None = None,
) -> tuple[Layer, Path]:
    """Builds the layer below the directory `work`, and returns it with the path of its OCI layout.

    `supplied` is the user's file or directory, `python` an interpreter to copy. Says a newest release that is
    another one. Raises BuildError, which names that release too.
    """
    files = work / "files" / program.name
    files.mkdir(parents=True)
    try:
        built = _built(program, files, work, say, version=version, supplied=supplied, python=python)
    except BuildError as error:
        if newest := newest_release(program, python):
            advice = f"`orchard harness install {program.name}=={newest}` installs it"
            raise BuildError(f"{error}\nThe newest release is {newest}: {advice}") from error
        raise
    if (newest := newest_release(program, python)) not in ("", built.version):
        say(
            f"the newest release is {newest}; {built.version} is installed"
            + (TESTED if version is None else "")
        )
    (files / COMMANDS).mkdir()
    for name in built.commands:
        if (files / "bin" / name).is_file():
            (files / COMMANDS / name).symlink_to(f"../bin/{name}")
    say("packing")
    return layout(files.parent, program.name, built.version, work / "image"), work / "image"


def _built(
    program: Program,
    files: Path,
    work: Path,
    say: Say,
    *,
    version: str | None,
    supplied: Path | None,
    python: Path | None,
) -> Built:
    """Writes the program's files into the directory `files`. Raises BuildError."""
    place = directory(program.name)
    if program.acp is not None and not isinstance(program.source, PythonPackages):
        bare_python(CLIENT_PYTHON, files, place, python, say)
    match program.source:
        case PythonPackages() as source:
            return python_files(source, version, files, place, python, say)
        case NpmBinary() as source:
            return binary_files(source, version, files, work / "npm", say)
        case NpmPackage() as source:
            return package_files(source, version, files, place, say)
        case SuppliedFiles() as source:
            _supplied_files(program, source, files, supplied, say)
            return Built(version or UNKNOWN, [program.name])
        case OwnFiles() as source:
            _own_files(source, files)
            return Built(source.version, [Path(name).name for name in source.files])


def _own_files(source: OwnFiles, files: Path) -> None:
    for name, text in source.files.items():
        path = files / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)


def _supplied_files(
    program: Program, source: SuppliedFiles, files: Path, supplied: Path | None, say: Say
) -> None:
    if supplied is None:
        raise BuildError(
            f"{program.name} is in no package: get it ({source.hint}) and name it with "
            f"`orchard harness install {program.name} --from PATH`"
        )
    if not supplied.exists():
        raise BuildError(f"{supplied} does not exist: name the program's file, or the directory of its files")
    say(f"copying {supplied}")
    if supplied.is_dir():
        shutil.copytree(supplied, files, symlinks=True, dirs_exist_ok=True)
    else:
        (files / "bin").mkdir(exist_ok=True)
        shutil.copyfile(supplied, files / "bin" / program.name)
        (files / "bin" / program.name).chmod(0o755)
    _check(program, files, supplied)


def _check(program: Program, files: Path, supplied: Path) -> None:
    """Checks that the command can be started: the user may have named a release's archive or its source."""
    first = program.command[0]
    if not first.startswith("$layer/"):
        return
    name = first.removeprefix("$layer/")
    if not (files / name).is_file():
        raise BuildError(
            f"{supplied} has no {name}, which {program.name} is started by: name the binary itself"
        )
    with (files / name).open("rb") as file:
        begins = file.read(len(elf.MAGIC))
    if begins != elf.MAGIC and not begins.startswith(b"#!"):
        raise BuildError(
            f"{supplied} is neither a Linux binary nor a script: name the program itself, not the archive "
            "that it came in"
        )
