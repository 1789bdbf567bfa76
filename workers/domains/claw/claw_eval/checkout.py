"""The parts of a checkout that a task needs, out of the store and into a sandbox."""

import asyncio
import io
import shlex
import tarfile
from typing import Any

import msgspec

from orchard.schemas.blobs import BlobRef
from orchard.schemas.claw_eval import ROOT, ClawEvalCheckout
from orchard.schemas.outcomes import AbortCause
from orchard.storage.blobs import BlobStore
from orchard.workers.domains.claw.sandboxed import MISSING, no_interpreter
from orchard.workers.episode.machine import Machine
from orchard.workers.failures import InfrastructureError, storing

_SECONDS = 120.0
"""For unpacking, and for one question to `remote.py`, the start of all services included."""
_LAST = msgspec.json.Decoder(dict[str, Any])


async def archive(blobs: BlobStore, blob: BlobRef) -> bytes:
    """The archive. Raises InfrastructureError."""
    with storing("an archive of the checkout"):
        return await asyncio.to_thread(blobs.get, blob)


async def unpack(blobs: BlobStore, checkout: ClawEvalCheckout, machine: Machine) -> None:
    """Put the checkout's parts below ROOT of a sandbox."""
    for name in ("shared", "task"):
        place = f"/tmp/orchard-{name}.tar.gz"
        await machine.write(place, await archive(blobs, getattr(checkout, name)))
        line = f"mkdir -p {ROOT} && tar -xzf {place} -C {ROOT} && rm {place}"
        ran = await machine.run(line, timeout=_SECONDS, cwd="/")
        if ran.returncode != 0:
            raise InfrastructureError(
                AbortCause.INVALID_REQUEST, f"the image cannot unpack the checkout: {ran.output[-500:]}"
            )


async def members(blobs: BlobStore, blob: BlobRef, prefix: str = "") -> dict[str, bytes]:
    """The files of an archive whose paths begin with `prefix`, by what follows it."""
    raw = await archive(blobs, blob)
    return await asyncio.to_thread(_members, raw, prefix)


def _members(raw: bytes, prefix: str) -> dict[str, bytes]:
    found = {}
    with tarfile.open(fileobj=io.BytesIO(raw), mode="r:gz") as archived:
        for member in archived:
            file = archived.extractfile(member) if member.name.startswith(prefix) else None
            if file is not None:
                found[member.name.removeprefix(prefix)] = file.read()
    return found


async def ask(machine: Machine, python: str, place: str, what: str, given: dict[str, Any]) -> dict[str, Any]:
    """The answer of `remote.py`. Raises InfrastructureError: TASK_BROKEN for services that end by themselves
    before the agent begins, as without their fixtures, and for an interpreter that is missing;
    SANDBOX_UNAVAILABLE for services that do not answer."""
    line = f"{shlex.quote(python)} -I {shlex.quote(place)} {what}"
    ran = await machine.run(line, timeout=_SECONDS, cwd="/", stdin=msgspec.json.encode(given).decode())
    if ran.returncode in MISSING:
        raise no_interpreter(python, ran.output)
    try:
        answer = _LAST.decode(ran.output.strip().rpartition("\n")[2])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        answer = {"error": f"{what} ended with {ran.returncode}: {ran.output[-500:]}"}
    if "error" in answer:
        cause = AbortCause.TASK_BROKEN if answer.get("broken") else AbortCause.SANDBOX_UNAVAILABLE
        raise InfrastructureError(cause, f"mock services: {answer['error']}")
    return answer
