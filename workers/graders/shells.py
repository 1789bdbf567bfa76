"""Whether the shell of an agent's sandbox, which begins every check there, is still the task's own."""

import hashlib
from collections.abc import Iterable, Mapping

from orchard.workers.episode.machine import FileTooLarge, Machine

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CLEAN = f"env -i HOME=/root PATH={PATH} LC_ALL=C.UTF-8"
"""Begins a command with a clean environment."""

_MAPPED = 'while read -r _ _ _ _ _ path; do echo "$path"; done < /proc/$$/maps'
_LARGEST = 64 * 1024 * 1024

Files = Mapping[str, str | None]
"""Digests by path; None for what is no file."""


async def shell_files(machine: Machine, timeout: float) -> Files:
    """Returns the files that make the shells of a sandbox which no agent has been in: programs by all names
    under which they are looked for, the libraries that they map, and the list of libraries to preload."""
    paths = {f"{folder}/{name}" for folder in PATH.split(":") for name in ("sh", "bash", "env")}
    paths.add("/etc/ld.so.preload")
    for shell in ("sh", "bash"):
        seen = await machine.run(f"{CLEAN} {shell} -c '{_MAPPED}'", timeout=timeout, cwd="/")
        paths |= {line for line in seen.output.splitlines() if line.startswith("/")}
    return await digests(machine, paths)


async def digests(machine: Machine, paths: Iterable[str]) -> dict[str, str | None]:
    """Reads files by the sandbox service."""
    return {path: await _digest(machine, path) for path in sorted(paths)}


async def _digest(machine: Machine, path: str) -> str | None:
    try:
        return hashlib.sha256(await machine.read(path, limit=_LARGEST)).hexdigest()
    except FileNotFoundError:
        return None
    except FileTooLarge:
        return "too large"
