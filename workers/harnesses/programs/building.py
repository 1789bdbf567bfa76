"""Building the layer of a program from packages, or from files that the user has."""

import json
import shutil
from pathlib import Path

from orchard.injector.payload import elf
from orchard.workers.harnesses.programs.archive import layout
from orchard.workers.harnesses.programs.layers import Layer
from orchard.workers.harnesses.programs.python_files import python_files
from orchard.workers.harnesses.programs.record import (
    NpmBinary,
    OwnFiles,
    Program,
    PythonPackages,
    SuppliedFiles,
)
from orchard.workers.harnesses.programs.steps import BuildError, Say, carried_out

UNKNOWN = "unknown"
"""Version of what a user supplied and did not name."""


def build(
    program: Program,
    work: Path,
    say: Say,
    *,
    version: str | None = None,
    supplied: Path | None = None,
    python: Path | None = None,
) -> tuple[Layer, Path]:
    """Build the layer below the directory `work`, as an OCI layout, whose path is returned.

    `supplied` is the user's file or directory, `python` an interpreter to copy. Raises BuildError.
    """
    files = work / "files"
    files.mkdir()
    match program.source:
        case PythonPackages() as source:
            found = python_files(source, version, files, python, say)
        case NpmBinary() as source:
            found = _npm_files(source, version, files, work / "npm", say)
        case SuppliedFiles() as source:
            _supplied_files(program, source, files, supplied, say)
            found = version or UNKNOWN
        case OwnFiles() as source:
            _own_files(source, files)
            found = source.version
    say("packing")
    return layout(files, program.name, found, work / "image"), work / "image"


def _npm_files(source: NpmBinary, version: str | None, files: Path, work: Path, say: Say) -> str:
    """The binaries of the package for this machine; returns its version."""
    if shutil.which("npm") is None:
        raise BuildError(
            "there is no npm on this machine, and the program is a package of npm: install Node.js "
            "(`apt-get install npm`), or build the layer where there is one"
        )
    name = source.package.rpartition("@")[0] or source.package
    wanted = f"{name}@{version}" if version else source.package
    say(f"npm: {wanted}")
    work.mkdir()
    carried_out(
        ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(work), wanted]
    )
    (files / "bin").mkdir()
    for binary, pattern in source.binaries.items():
        found = sorted((work / "node_modules").glob(pattern))
        if not found:
            raise BuildError(
                f"{wanted} has no {pattern}: this machine's kind is not supported, or try another version"
            )
        shutil.copyfile(found[0], files / "bin" / binary)
        (files / "bin" / binary).chmod(0o755)
    about = json.loads((work / "node_modules" / name / "package.json").read_text())
    return str(about["version"])


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
        (files / "bin").mkdir()
        shutil.copyfile(supplied, files / "bin" / program.name)
        (files / "bin" / program.name).chmod(0o755)
    _check(program, files, supplied)


def _check(program: Program, files: Path, supplied: Path) -> None:
    """That the command can be started: what a user named may be the archive of a release, or its source."""
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
