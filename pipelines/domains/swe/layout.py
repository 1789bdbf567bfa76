"""The files of a package release in its task's image: repository, interpreter, metadata.

Pure. The package is installed in development mode without its build back-end: a `.pth` file names the
source root and a `.dist-info` made from the sdist's PKG-INFO answers `importlib.metadata`. That is the
same for setuptools, flit, hatch and poetry, and costs nothing.
"""

import re
import shlex
from email.parser import HeaderParser
from pathlib import PurePosixPath

from orchard.pipelines.tasks.trees import Tree, text_of

WORKDIR = "/testbed"
VENV = "/opt/env"
PYTHON = f"{VENV}/bin/python"
RECIPE = 2
"""Part of the environment image's name: raise it when what these scripts build changes."""

STAT_CACHE = "git config core.checkStat minimal\ngit config core.trustctime false\n"
"""Shell: a snapshot's files have new inodes and change times; git would read all of them in each sandbox."""

_FIRST_ON_PATH = "/usr/local/sbin"
_IDENTITY = "orchard"
_DATE = "2000-01-01T00:00:00+0000"
_IGNORED = ("__pycache__/", "*.py[co]", ".pytest_cache/", ".hypothesis/", ".mypy_cache/", "*.egg-info/")


_WHO = " ".join(
    f"GIT_{role}_{key}='{value}'"
    for role in ("AUTHOR", "COMMITTER")
    for key, value in (("NAME", _IDENTITY), ("EMAIL", f"{_IDENTITY}@localhost"), ("DATE", _DATE))
)
_NEW_REPOSITORY = (
    f"cd {WORKDIR}\n"
    "git init -q .\n"
    f"git config user.name {_IDENTITY}\ngit config user.email {_IDENTITY}@localhost\n"
    f"git config core.autocrlf false\n{STAT_CACHE}"
    "printf '" + "\\n".join(_IGNORED) + "\\n' > .git/info/exclude\n"
)

_REMOVE = """\
import importlib.metadata, pathlib, shutil, sys, sysconfig
site = pathlib.Path(sysconfig.get_paths()["purelib"])
for found in list(importlib.metadata.distributions(name=sys.argv[1], path=[str(site)])):
    for path in [pathlib.Path(file.locate()) for file in found.files or []]:
        if path.parent == site:
            path.unlink(missing_ok=True)
            for compiled in (site / "__pycache__").glob(path.stem + ".*"):
                compiled.unlink()
        elif path.is_relative_to(site):
            shutil.rmtree(path.parent, ignore_errors=True)
"""
"""Removes a distribution from site-packages with what was compiled from it."""


def environment_script(interpreter: str, archive: str) -> str:
    """Shell: a virtual environment at VENV whose site-packages are the tar at `archive`.

    `python`, `python3` and `pytest` on the usual PATH become those of the environment, for the agent's sake.
    They write no bytecode: Python takes it for new when source has changed within one second to the same
    length, and an agent that checks its second change at once would be shown what its first one does.
    """
    wrappers = "".join(
        f"printf '#!/bin/sh\\nexec {PYTHON} -B{more} \"$@\"\\n' > {_FIRST_ON_PATH}/{name}\n"
        f"chmod 755 {_FIRST_ON_PATH}/{name}\n"
        for name, more in (("python", ""), ("python3", ""), ("pytest", " -m pytest"))
    )
    return (
        "set -e\n"
        "command -v git > /dev/null || { echo 'install git where the image is made: it has none'; exit 3; }\n"
        f"{interpreter} -m venv --without-pip {VENV}\n"
        f"site=$({PYTHON} -c 'import sysconfig; print(sysconfig.get_paths()[\"purelib\"])')\n"
        f'{PYTHON} -m tarfile -e {archive} "$site"\n'
        f"rm {archive}\n"
        f'{PYTHON} -m compileall -qq "$site" || true\n'  # some packages carry files for other versions
        f"mkdir -p {_FIRST_ON_PATH}\n{wrappers}"
    )


def repository_script(name: str, source: str, metadata: str) -> str:
    """Shell: a git repository of one commit at WORKDIR from the tar `source`, `metadata` installed.

    Prints the commit last, which depends on the files alone.
    """
    return (
        metadata_script(name, metadata) + f"mkdir -p {WORKDIR}\n"
        f"{PYTHON} -m tarfile -e {source} {WORKDIR}\n"
        f"rm {source}\n"
        f"{_NEW_REPOSITORY}"
        "git add -Af .\n"
        f"{_WHO} git -c commit.gpgsign=false commit -q -m 'The release as published'\n"
        f"{PYTHON} -m compileall -qq . || true\n"  # some tests are files that do not compile
        "git rev-parse HEAD\n"
    )


def metadata_script(name: str, metadata: str) -> str:
    """Shell: the tar `metadata` in site-packages. Another release of `name`, that a dependency
    brought, is removed: it may hold the solution."""
    return (
        "set -e\n"
        f"site=$({PYTHON} -c 'import sysconfig; print(sysconfig.get_paths()[\"purelib\"])')\n"
        f"{PYTHON} -c {shlex.quote(_REMOVE)} {shlex.quote(name)}\n"
        f'{PYTHON} -m tarfile -e {metadata} "$site"\n'
        f"rm {metadata}\n"
    )


def checkout_script(objects: str, tree: str) -> str:
    """Shell: a git repository of one commit at WORKDIR with the files of `tree`, all in the pack `objects`.
    Prints the commit last, which depends on the files alone."""
    return (
        f"set -e\nmkdir -p {WORKDIR}\n{_NEW_REPOSITORY}"
        f"git index-pack --stdin < {objects} > /dev/null\n"
        f"rm {objects}\n"
        f"git reset -q --hard $({_WHO} git commit-tree {tree} -m 'The base commit')\n"
        "git rev-parse HEAD\n"
    )


IGNORE_BUILT = (
    "git ls-files --others --exclude-standard | sed 's|^|/|' >> .git/info/exclude\n"
    "git update-index -q --refresh || true\n"
)
"""Shell: hides from git what a build left in the repository."""


def installed_metadata(name: str, version: str, tree: Tree) -> dict[str, bytes]:
    """Files for site-packages that make the release count as installed from WORKDIR."""
    folder = f"{re.sub(r'[-_.]+', '_', name)}-{version}.dist-info"
    root = source_root(tree)
    files = {
        f"{folder}/METADATA": tree.get("PKG-INFO") or _metadata(name, version),
        f"{folder}/INSTALLER": b"orchard\n",
        f"_{re.sub(r'[^a-z0-9]+', '_', name.lower())}_source.pth": f"{WORKDIR}/{root}\n".encode(),
    }
    entry_points = [path for path in tree if path.endswith(".egg-info/entry_points.txt")]
    if entry_points:
        files[f"{folder}/entry_points.txt"] = tree[entry_points[0]]
    files[f"{folder}/RECORD"] = "".join(f"{path},,\n" for path in sorted(files)).encode()
    return files


def source_root(tree: Tree) -> str:
    """The directory that holds the import packages, relative to the repository: `src`, `lib` or the top."""
    for root in ("src", "lib"):
        if any(_is_module(path, root) for path in tree):
            return root
    return ""


def _is_module(path: str, root: str) -> bool:
    parts = PurePosixPath(path).parts
    return parts[0] == root and path.endswith(".py") and (len(parts) == 2 or parts[-1] == "__init__.py")


def declared_requirements(tree: Tree) -> list[str]:
    """Runtime requirements of the release (`Requires-Dist` without extras), for pip."""
    text = text_of(tree.get("PKG-INFO", b"")) or ""
    required = HeaderParser().parsestr(text).get_all("Requires-Dist") or []
    return [line for line in required if not re.search(r"\bextra\s*==", line)]


def _metadata(name: str, version: str) -> bytes:
    return f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()
