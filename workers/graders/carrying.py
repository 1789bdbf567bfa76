"""Carries what an agent left in its directories to another sandbox: data only, by the sandbox service alone.

Nothing of the agent's sandbox is executed for it, and nothing but files, directories and links arrives: no
pipe, socket, device or process, and no file that gives its owner's rights to whoever executes it. Links
arrive as they are and mean what they name over there, unless that is nothing or no file at all: the check's
own files, which come later, must not be what the agent has to show.
"""

import asyncio
import shlex
import tarfile
import tempfile
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import PurePosixPath
from typing import IO

import msgspec

from orchard.schemas.outcomes import AbortCause
from orchard.schemas.tasks import ServiceArtifact, StateCheck, Task
from orchard.workers.episode.machine import Machine
from orchard.workers.episode.services import service_sandbox
from orchard.workers.failures import InfrastructureError, NotWritable
from orchard.workers.graders.shells import CLEAN

LARGEST = 512 * 1024 * 1024
"""Most bytes of one directory that is carried."""
_IN_MEMORY = 8 * 1024 * 1024
_ORDINARY = 0o1777
"""Bits of a mode that are carried: not set-user-ID, not set-group-ID."""


def carried_paths(task: Task, check: StateCheck) -> tuple[str, ...]:
    """Returns the directories that a fresh sandbox gets from the agent's. Raises INVALID_REQUEST if one of
    them is the whole file system, which would bring its programs along."""
    paths = (task.workdir,) if isinstance(check.check_paths, msgspec.UnsetType) else check.check_paths
    plain = tuple(str(PurePosixPath(path)) for path in paths)
    if wrong := next((path for path in plain if len(PurePosixPath(path).parts) < 2 or path[0] != "/"), None):
        raise InfrastructureError(
            AbortCause.INVALID_REQUEST,
            f"task {task.task_id}: its check is to run in a fresh sandbox, which cannot get {wrong!r} from "
            "the agent's: name absolute directories below / in check_paths",
        )
    return plain


_DROP_LINKS = """find "$@" -type l -exec sh -c '
for link; do
  if [ -e "$link" ]; then
    case "$(readlink -f -- "$link")" in
      ""|/proc/*|/sys/*|/dev/*) rm -f -- "$link" ;;
    esac
  else
    rm -f -- "$link"
  fi
done' sh {} +"""
"""Removes links below its arguments that lead to nothing, or to what a process has open. The kernel follows
40 links and no more; readlink would follow a chain of thousands."""
_LINKS_SECONDS = 300.0


async def carry(
    paths: Sequence[str],
    source: Machine,
    target: Machine,
    *,
    brought: Iterable[str] = (),
    timeout: float,
    goes_on: bool = False,
) -> None:
    """Replaces the directories of `target` by those of `source`, whose processes are stopped: for good, or
    meanwhile if it `goes_on`. Removes what stands where the files of `brought` will be, and links that lead
    to nothing.

    Raises FileNotFoundError if there is no such directory, FileTooLarge beyond LARGEST, NotWritable for
    contents that cannot be unpacked, or with more links than can be looked at.
    """
    async with _stopped(source, goes_on):
        for path in paths:
            with _temporary() as found, _temporary() as kept:
                await source.archive(path, found, limit=LARGEST)
                await asyncio.to_thread(keep_data, found, kept)
                await target.replace_directory(path, kept)
    for path in brought:
        await target.remove(path)
    words = " ".join(map(shlex.quote, paths))
    limit = min(timeout / 2, _LINKS_SECONDS)
    script = f"{CLEAN} sh -c {shlex.quote(_DROP_LINKS)} sh {words}"
    if (await target.run(script, timeout=limit, cwd="/", user="root")).timed_out:
        raise NotWritable(AbortCause.INTERNAL_ERROR, f"its links cannot be looked at within {limit:.0f} s")


async def carry_artifacts(
    artifacts: Sequence[str | ServiceArtifact], source: Machine, target: Machine, *, goes_on: bool
) -> None:
    """Brings the files and directories of `source`, whose processes are stopped as in `carry`, and of its
    services, to `target`. Leaves out those that do not exist, and links that lead out of them: the tests may
    be there already. Raises FileTooLarge beyond LARGEST, NotWritable for contents that cannot be unpacked."""
    async with _stopped(source, goes_on):
        for each in artifacts:
            if isinstance(each, str):
                await _carry_artifact(each, source, target)
            else:
                await _carry_artifact(each.path, service_sandbox(each.service, source), target)


async def _carry_artifact(path: str, source: Machine, target: Machine) -> None:
    with _temporary() as found, _temporary() as kept:
        try:
            await source.archive(path, found, limit=LARGEST)
        except FileNotFoundError:  # a file, or nothing
            try:
                content = await source.read(path, limit=LARGEST)
            except FileNotFoundError:
                return
            await target.write(path, content)
            return
        await asyncio.to_thread(keep_data, found, kept, inside=True)
        await target.replace_directory(path, kept)


@asynccontextmanager
async def _stopped(machine: Machine, goes_on: bool) -> AsyncIterator[None]:
    await machine.freeze()
    try:
        yield
    finally:
        if goes_on:
            await machine.resume()


def keep_data(source: IO[bytes], target: IO[bytes], *, inside: bool = False) -> None:
    """Copies the files, directories and links of a tar archive to another one, with ordinary modes; with
    `inside` only links that stay in it. Raises InfrastructureError (SANDBOX_UNAVAILABLE) for an archive that
    is not whole."""
    source.seek(0)
    try:
        with (
            tarfile.open(fileobj=source, mode="r:") as found,
            tarfile.open(fileobj=target, mode="w", format=tarfile.PAX_FORMAT) as kept,
        ):
            for entry in found:
                entry.mode &= _ORDINARY
                if entry.isreg():
                    kept.addfile(entry, found.extractfile(entry))
                elif entry.issym() and inside and _leads_out(entry):
                    continue
                elif entry.isdir() or entry.issym() or entry.islnk():
                    kept.addfile(entry)
    except tarfile.ReadError as error:
        raise InfrastructureError(
            AbortCause.SANDBOX_UNAVAILABLE, f"the sandbox sent no whole archive: {error}"
        ) from error


def _leads_out(link: tarfile.TarInfo) -> bool:
    """Whether a link may lead out of its archive. `..` is counted at the beginning alone: after a name, which
    may be a link, it may lead anywhere."""
    words = [word for word in link.linkname.split("/") if word not in ("", ".")]
    up = next((number for number, word in enumerate(words) if word != ".."), len(words))
    return link.linkname.startswith("/") or ".." in words[up:] or up >= len(PurePosixPath(link.name).parts)


def _temporary() -> IO[bytes]:
    return tempfile.SpooledTemporaryFile(_IN_MEMORY)
