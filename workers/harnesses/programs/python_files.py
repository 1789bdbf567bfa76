"""Builds a self-contained Python with packages, which runs in any image of this machine's architecture.

Interpreter, standard library and packages are copied, together with the loader and all shared libraries that
they need, including libc. Of an image it uses only the kernel and `/bin/sh`.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from orchard.injector.payload import elf
from orchard.workers.harnesses.programs.record import PythonPackages
from orchard.workers.harnesses.programs.tools import BuildError, Built, Say, run_tool, write_executable

_LEFT_OUT = frozenset(
    {
        "__pycache__",
        "test",
        "tests",
        "idlelib",
        "tkinter",
        "turtledemo",
        "ensurepip",
        "site-packages",
        "dist-packages",
    }
)
"""Parts of the standard library that no program needs."""
_LINE = re.compile(r"^\s+(\S+) => (/\S+)(?: \(0x[0-9a-f]+\))?$", re.MULTILINE)
_ABOUT = """\
import json, sys, sysconfig
version = "%d.%d" % sys.version_info[:2]
print(json.dumps([sys.executable, sysconfig.get_path("stdlib"), sys.platlibdir, version]))
"""
_ENTRY_POINTS = """\
import importlib.metadata, json, sys
def points(**named):
    found = importlib.metadata.distributions(path=[sys.argv[2]], **named)
    each = [point for one in found for point in one.entry_points if point.group == "console_scripts"]
    return sorted({point.name: point.value for point in each}.items())
(own,) = importlib.metadata.distributions(name=sys.argv[1], path=[sys.argv[2]])
print(json.dumps([own.version, points(name=sys.argv[1]), points()]))
"""
_PYTHON = """\
#!/bin/sh
exec {layer}/lib/ld.so --argv0 {layer}/bin/python3 --inhibit-cache --library-path {layer}/lib \\
  {layer}/lib/python3 -I -X utf8 "$@"
"""
_SCRIPT = """\
#!/bin/sh
exec {layer}/bin/python3 -c \
  'import sys; sys.argv[0] = "{name}"; from {module} import {first}; sys.exit({call}())' "$@"
"""


def python_files(
    source: PythonPackages, version: str | None, target: Path, place: str, python: Path | None, say: Say
) -> Built:
    """Writes the files into the directory `target`, which is `place` in a sandbox.

    `python` is the interpreter to copy; by default one is searched. Raises BuildError.
    """
    program, library = _copied(source.python, target, python, say)
    packages = library / "site-packages"
    name = re.split(r"[=<>!~\[ ]", source.packages[0])[0]
    wanted = [*source.packages]
    if version is not None:
        wanted[0] = f"{name}=={version}"
    say(f"pip: {' '.join(wanted)}")
    options = ["--quiet", "--disable-pip-version-check", "--no-compile", "--target", str(packages)]
    run_tool([str(program), "-I", "-m", "pip", "install", *options, *wanted])
    (library / "dist-packages").symlink_to("site-packages")  # where a Python of Debian looks
    shutil.rmtree(packages / "bin", ignore_errors=True)
    found, own, scripts = json.loads(run_tool([str(program), "-I", "-c", _ENTRY_POINTS, name, str(packages)]))
    _complete(program, target, place, say)
    for script, value in scripts:
        module, _, call = value.partition("[")[0].strip().partition(":")
        text = _SCRIPT.format(layer=place, name=script, module=module, call=call, first=call.split(".")[0])
        write_executable(target / "bin" / script, text)
    return Built(found, [script for script, _ in own])


def bare_python(versions: Sequence[str], target: Path, place: str, python: Path | None, say: Say) -> None:
    """Writes a Python of one of these versions, with its standard library alone, into the empty directory
    `target`."""
    program, _ = _copied(versions, target, python, say)
    _complete(program, target, place, say)


def _copied(versions: Sequence[str], target: Path, python: Path | None, say: Say) -> tuple[Path, Path]:
    """Copies the standard library; returns the interpreter that it is of, and its directory."""
    command = python or found_python(*versions)
    # The command may be a script that starts it, as pyenv's are.
    program, stdlib, platlib, short = json.loads(run_tool([str(command), "-I", "-c", _ABOUT]))
    say(f"Python: {program}")
    if short not in versions:
        wanted = " or ".join(versions)
        raise BuildError(f"{program} is Python {short}, and the program needs Python {wanted}")
    library = target / platlib / f"python{short}"
    shutil.copytree(stdlib, library, ignore=_ignored, symlinks=False)
    return Path(program), library


def _complete(program: Path, target: Path, place: str, say: Say) -> None:
    """Adds the interpreter and the shared libraries that it and all of `target` need, and compiles."""
    say("shared libraries")
    (target / "bin").mkdir(exist_ok=True)
    _interpreter(program, target, place)
    _libraries(program, target)
    say("compiling")
    line = [str(program), "-I", "-m", "compileall", "-q", "-j", "0", "--invalidation-mode", "unchecked-hash"]
    subprocess.run(
        [*line, "-s", str(target), "-p", place, str(target)],
        env={"PYTHONHASHSEED": "0"},
        check=False,  # packages bring files for other versions of Python
        capture_output=True,
    )


def found_python(*versions: str) -> Path:
    """Finds an interpreter of one of these versions, in their order: the machine's, pyenv's, or the one that
    runs Orchard. Raises BuildError that says how to get one."""
    for version in versions:
        name = f"python{version}"
        here = shutil.which(name)
        pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/{name}"))
        for candidate in [*([Path(here)] if here else []), *pyenv, Path(sys.executable)]:
            probe = [str(candidate), "-I", "-c", "import pip, sys; print('%d.%d' % sys.version_info[:2])"]
            found = subprocess.run(probe, capture_output=True, text=True, check=False)
            if found.returncode == 0 and found.stdout.strip() == version:
                return candidate
    wanted, name = " or ".join(versions), f"python{versions[0]}"
    raise BuildError(
        f"there is no Python {wanted} with pip on this machine: install it (`pyenv install {versions[0]}`, "
        f"or `apt-get install {name} {name}-venv`), or name one with `--python PATH`"
    )


def _ignored(directory: str, names: list[str]) -> set[str]:
    top = not Path(directory).name.startswith(("site-", "dist-"))
    return {
        name
        for name in names
        if (top and name in _LEFT_OUT) or name.startswith(("config-", "_tkinter")) or name.endswith(".a")
    }


def _interpreter(program: Path, target: Path, place: str) -> None:
    """Copies the interpreter next to its libraries, and writes the command that starts it with only them."""
    shutil.copyfile(program.resolve(), target / "lib" / "python3")
    (target / "lib" / "python3").chmod(0o755)
    write_executable(target / "bin" / "python3", _PYTHON.format(layer=place))
    (target / "bin" / "python").symlink_to("python3")


def _libraries(program: Path, target: Path) -> None:
    """Copies the loader to `lib/ld.so`, and all libraries linked from outside of `target`. Raises
    BuildError."""
    loader = Path(elf.interpreter(program.resolve().read_bytes()))
    if not loader.name.startswith("ld-linux"):
        raise BuildError(f"{program} is no program for glibc ({loader}): use a Python that is, as of Debian")
    lib = target / "lib"
    shutil.copyfile(loader.resolve(), lib / "ld.so")
    (lib / "ld.so").chmod(0o755)
    found = _linked(loader, program.resolve(), "--preload", "libgcc_s.so.1")
    for extension in _shared_objects(target):
        for name, path in _linked(loader, extension).items():
            if not path.is_relative_to(target):
                found.setdefault(name, path)
    for name, path in found.items():
        shutil.copyfile(path.resolve(), lib / name)


def _shared_objects(target: Path) -> Iterable[Path]:
    return (path for path in target.rglob("*.so*") if path.is_file() and path.read_bytes()[:4] == elf.MAGIC)


def _linked(loader: Path, file: Path, *options: str) -> dict[str, Path]:
    """Maps names of the file's libraries to paths, as the loader finds them; empty if one is missing, because
    what a package brings for another system is not loaded here either."""
    line: Sequence[str] = [str(loader), *options, "--list", str(file)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, env={})
    found = dict(_LINE.findall(done.stdout)) if done.returncode == 0 else {}
    return {name: Path(path) for name, path in found.items() if Path(path) != loader}
