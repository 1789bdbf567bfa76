"""Fetches what release tasks are made of by pip, and keeps it: sdists, and installed wheels."""

import asyncio
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from orchard.pipelines.domains.swe.pip_index import SUFFIXES
from orchard.pipelines.tasks.errors import IndexFailed, IndexUnreachable
from orchard.schemas.identity import digest

_ARCHIVES = "sdists"
_ENVIRONMENTS = "environments"
_BROKEN = re.compile(r"after connection broken by (.*)")
"""What pip says before it tries again to reach a host."""
_REMEDIES = (
    ("407", "correct user and password of the proxy in HTTPS_PROXY (or `pip config list`)"),
    ("certificate", "give pip the certificate of your network's authority: PIP_CERT=/PATH/CA.pem"),
    ("proxy", "correct the proxy in HTTPS_PROXY (or `pip config list`), or unset it"),
    ("", "check this machine's network, and the index in PIP_INDEX_URL (or `pip config list`)"),
)
"""What to do about a failed connection, by a word in pip's description of it; the first that fits."""


class PackageCache:
    """A directory of sdists and of installed requirement sets. Safe for any number of processes."""

    def __init__(self, directory: Path, python: str = sys.executable) -> None:
        """`python` is an interpreter with pip; its version is the one that wheels are chosen for."""
        self._directory = directory
        self._python = python

    def sdist(self, name: str, version: str) -> Path | None:
        """The archive of a release, if it has been fetched."""
        paths = (self._archives() / f"{name}-{version}{suffix}" for suffix in SUFFIXES)
        return next((path for path in paths if path.is_file()), None)

    async def fetch(self, releases: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
        """Fetch the missing sdists of (name, version) in one pip process. Returns the failed ones with
        the reason. Raises IndexFailed where pip itself fails, and IndexUnreachable."""
        missing = sorted({each for each in releases if self.sdist(*each) is None})
        failed: dict[tuple[str, str], str] = {}
        if missing:
            for answer in await self._ask(sdists=missing, versions=[]):
                if "error" in answer:
                    failed[answer["name"], answer["version"]] = answer["error"]
        return failed

    async def versions(self, name: str, options: Sequence[str] = ()) -> list[str]:
        """Releases with an sdist, oldest first, without pre-releases and yanked ones; `options` are pip's.
        Raises IndexFailed and IndexUnreachable."""
        (answer,) = await self._ask(sdists=[], versions=[name], options=options)
        if not answer.get("versions"):
            reason = answer.get("error", "it has no source distribution")
            raise IndexFailed(f"the package index cannot be asked about {name}: {reason}")
        return list(answer["versions"])

    async def environment(self, requirements: Sequence[str]) -> Path:
        """A directory with the requirements installed from wheels, as `site-packages` holds them.

        Raises IndexFailed when one has no wheel for this interpreter or cannot be fetched, and
        IndexUnreachable.
        """
        target = self.environment_path(requirements)
        if target.is_dir():
            return target
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        partial.mkdir(parents=True, exist_ok=True)
        try:
            if requirements:
                await self._install(requirements, partial)
            shutil.rmtree(partial / "bin", ignore_errors=True)  # scripts that name this interpreter
            if not target.is_dir():
                partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return target

    async def _install(self, requirements: Sequence[str], target: Path) -> None:
        code, _, errors = await self._run(
            *("-m", "pip", "install", "--quiet", "--no-compile", "--only-binary", ":all:"),
            "--no-user",  # PIP_USER=1, which does not go with --target
            *("--disable-pip-version-check", "--no-warn-conflicts", "--target", str(target)),
            *requirements,
        )
        if code != 0:
            if broken := _BROKEN.findall(errors):
                raise _unreachable(broken[-1])
            raise IndexFailed(f"pip could not install {', '.join(requirements)}: {_last_line(errors)}")

    def environment_path(self, requirements: Sequence[str]) -> Path:
        """Path that `environment` keeps that set of requirements at."""
        tag = f"{sys.version_info[0]}{sys.version_info[1]}"
        return self._directory / _ENVIRONMENTS / f"{tag}-{digest(sorted(requirements), 16)}"

    def _archives(self) -> Path:
        return self._directory / _ARCHIVES

    async def _ask(self, **request: Any) -> list[dict[str, Any]]:
        self._archives().mkdir(parents=True, exist_ok=True)
        text = json.dumps({"directory": str(self._archives()), "options": (), **request})
        code, output, errors = await self._run("-m", "orchard.pipelines.domains.swe.pip_index", text=text)
        if code != 0:
            raise IndexFailed(
                f"pip of {self._python} could not be used to fetch packages ({_last_line(errors)}): "
                "install or update it with `python -m ensurepip --upgrade`"
            )
        answers = [json.loads(line) for line in output.splitlines()]
        if answers and "unreachable" in answers[-1]:
            raise _unreachable(answers[-1]["unreachable"])
        return answers

    async def _run(self, *arguments: str, text: str = "") -> tuple[int, str, str]:
        process = await asyncio.create_subprocess_exec(
            self._python,
            "-P",
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            output, errors = await process.communicate(text.encode())
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return process.returncode or 0, output.decode(), errors.decode(errors="replace")


def _unreachable(words: str) -> IndexUnreachable:
    remedy = next(remedy for word, remedy in _REMEDIES if word in words.lower())
    told = re.sub(r"//[^/@\s]*@", "//", words.strip())  # an address may have a password
    return IndexUnreachable(f"the package index cannot be reached ({told}): {remedy}")


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("WARNING")]
    return lines[-1].strip() if lines else "it said nothing"
