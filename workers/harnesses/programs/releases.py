"""Asks npm or PyPI for the newest release of a program, to say it to who installs another one."""

import re
from pathlib import Path

from orchard.workers.harnesses.programs.python_files import found_python
from orchard.workers.harnesses.programs.record import NpmBinary, NpmPackage, Program, PythonPackages
from orchard.workers.harnesses.programs.tools import BuildError, run_tool

_PACKAGE = re.compile(r"(@?[^@=<>!~\[ ]+)")
"""The name at the beginning of a package with its version."""
_LISTED = re.compile(r"\S+ \((\S+)\)")


def newest_release(program: Program, python: Path | None) -> str:
    """Returns the version of the program's newest release; empty if no index has it or tells."""
    try:
        match program.source:
            case NpmBinary(package=package) | NpmPackage(package=package):
                return run_tool(["npm", "view", _name(package), "version"]).strip()
            case PythonPackages(packages=(package, *_), python=versions):
                pip = [str(python or found_python(*versions)), "-I", "-m", "pip", "index", "versions"]
                found = _LISTED.match(run_tool([*pip, _name(package)]))
                return found[1] if found else ""
    except BuildError:
        pass
    return ""


def _name(package: str) -> str:
    found = _PACKAGE.match(package)
    return found[0] if found else package
