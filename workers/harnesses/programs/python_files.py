"""Builds a self-contained Python with packages, which runs in any image of this machine's architecture.

Interpreter, standard library and packages are copied, together with the loader and all shared libraries that
they need, including libc. Of an image it uses only the kernel and `/bin/sh`.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from orchard.injector.payload import elf
from orchard.workers.harnesses.programs.record import LAYER, PythonPackages

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
print(json.dumps([sysconfig.get_path("stdlib"), sys.platlibdir, "%d.%d" % sys.version_info[:2]]))
"""
_ENTRY_POINTS = """\
import importlib.metadata, json, sys
found = importlib.metadata.distributions(path=[sys.argv[1]])
points = [point for each in found for point in each.entry_points if point.group == "console_scripts"]
print(json.dumps(sorted({point.name: point.value for point in points}.items())))
"""
_VERSION = """\
import importlib.metadata, sys
print(next(iter(importlib.metadata.distributions(name=sys.argv[1], path=[sys.argv[2]]))).version)
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

Say = Callable[[str], None]
"""Shows the user what is done next."""


class BuildError(Exception):
    """The program cannot be installed here; the text is one sentence that says what to do."""


def run_tool(line: Sequence[str]) -> str:
    """Returns what a tool prints. Raises BuildError with its error output."""
    try:
        done = subprocess.run(line, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise BuildError(f"{line[0]} is not installed on this machine: install it") from error
    if done.returncode != 0:
        complaint = (done.stderr.strip() or done.stdout.strip())[-1500:]
        raise BuildError(f"`{' '.join(line)[:200]}` ended with status {done.returncode}: {complaint}")
    return done.stdout


def python_files(
    source: PythonPackages, version: str | None, target: Path, python: Path | None, say: Say
) -> str:
    """Writes the files into the directory `target`; returns the version of the first package.

    `python` is the interpreter to copy; by default one is searched. Raises BuildError.
    """
    program = python or found_python(*source.python)
    say(f"Python: {program}")
    (target / "bin").mkdir(parents=True)
    stdlib, platlib, short = json.loads(run_tool([str(program), "-I", "-c", _ABOUT]))
    if short not in source.python:
        versions = " or ".join(source.python)
        raise BuildError(f"{program} is Python {short}, and the program needs Python {versions}")
    library = target / platlib / f"python{short}"
    shutil.copytree(stdlib, library, ignore=_ignored, symlinks=False)
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
    say("shared libraries")
    _interpreter(program, target)
    _libraries(program, target)
    for script, value in json.loads(run_tool([str(program), "-I", "-c", _ENTRY_POINTS, str(packages)])):
        module, _, call = value.partition("[")[0].strip().partition(":")
        text = _SCRIPT.format(layer=LAYER, name=script, module=module, call=call, first=call.split(".")[0])
        _executable(target / "bin" / script, text)
    say("compiling")
    line = [str(program), "-I", "-m", "compileall", "-q", "-j", "0", "--invalidation-mode", "unchecked-hash"]
    subprocess.run(
        [*line, "-s", str(target), "-p", LAYER, str(target)],
        env={"PYTHONHASHSEED": "0"},
        check=False,  # packages bring files for other versions of Python
        capture_output=True,
    )
    return run_tool([str(program), "-I", "-c", _VERSION, name, str(packages)]).strip()


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


def _interpreter(program: Path, target: Path) -> None:
    """Copies the interpreter next to its libraries, and writes the command that starts it with only them."""
    shutil.copyfile(program.resolve(), target / "lib" / "python3")
    (target / "lib" / "python3").chmod(0o755)
    _executable(target / "bin" / "python3", _PYTHON.format(layer=LAYER))
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


def _executable(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
