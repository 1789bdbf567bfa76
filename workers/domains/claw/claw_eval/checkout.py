"""Copies the parts of a checkout that a task needs from the store into a sandbox."""

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
from orchard.workers.domains.claw.script_runner import MISSING, no_interpreter
from orchard.workers.episode.machine import Machine
from orchard.workers.failures import InfrastructureError, storing

_SECONDS = 120.0
"""Timeout for unpacking, and for one command of `remote.py`, including the start of all services."""
_LAST = msgspec.json.Decoder(dict[str, Any])


async def archive(blobs: BlobStore, blob: BlobRef) -> bytes:
    """Raises InfrastructureError if the store cannot return it."""
    with storing("an archive of the checkout"):
        return await asyncio.to_thread(blobs.get, blob)


async def unpack(blobs: BlobStore, checkout: ClawEvalCheckout, machine: Machine) -> None:
    for name in ("shared", "task"):
        path = f"/tmp/orchard-{name}.tar.gz"
        await machine.write(path, await archive(blobs, getattr(checkout, name)))
        line = f"mkdir -p {ROOT} && tar -xzf {path} -C {ROOT} && rm {path}"
        ran = await machine.run(line, timeout=_SECONDS, cwd="/")
        if ran.returncode != 0:
            raise InfrastructureError(
                AbortCause.INVALID_REQUEST, f"the image cannot unpack the checkout: {ran.output[-500:]}"
            )


async def members(blobs: BlobStore, blob: BlobRef, prefix: str = "") -> dict[str, bytes]:
    """Reads the files of an archive whose paths begin with `prefix`, which is removed from them."""
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


async def ask(machine: Machine, python: str, path: str, what: str, given: dict[str, Any]) -> dict[str, Any]:
    """Runs `remote.py` and returns its answer. Raises InfrastructureError: TASK_BROKEN for a missing
    interpreter and for services that exit before the agent begins, such as without fixtures;
    SANDBOX_UNAVAILABLE for services that do not answer."""
    line = f"{shlex.quote(python)} -I {shlex.quote(path)} {what}"
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
