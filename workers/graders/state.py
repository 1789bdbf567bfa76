"""Grading in place, by the state that the agent left behind: the checks are brought only now."""

import asyncio
import secrets
import shlex
import time

from orchard.schemas.outcomes import AbortCause, Reward
from orchard.schemas.tasks import StateCheck
from orchard.storage.blobs import BlobStore
from orchard.storage.errors import StorageError
from orchard.workers.failures import InfrastructureError, LimitExceeded, NotWritable
from orchard.workers.machine import CommandOutcome, Machine
from orchard.workers.masking import masked

NAME = "state-check"

CLEAN_SHELL = (
    "env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 sh"
)


async def grade_state(check: StateCheck, machine: Machine, *, timeout: float, blobs: BlobStore) -> Reward:
    """+1 when the command exits 0, -1 when not, when it does not end, when a limit ends the sandbox, and when
    its files cannot be brought: it runs on what the agent left, who may have left something in their place.

    See `grade` for what is raised.
    """
    started = time.monotonic()
    limit = min(check.timeout_seconds, timeout)
    try:
        outcome = await _checked(check, machine, limit)
    except (LimitExceeded, NotWritable) as error:
        seconds = time.monotonic() - started
        outcome = CommandOutcome(output=f"{error.detail}\n", returncode=-1, seconds=seconds)
    try:
        data = masked(outcome.output).text.encode(errors="replace")
        reference = await asyncio.to_thread(blobs.put, data, "text/plain; charset=utf-8")
    except StorageError as error:
        raise InfrastructureError(AbortCause.STORE_FAILED, str(error)) from error
    resolved = outcome.returncode == 0
    ended = f"did not end within {limit:g} s" if outcome.timed_out else f"exited with {outcome.returncode}"
    return Reward(
        value=1.0 if resolved else -1.0,
        resolved=resolved,
        grader=NAME,
        parts={"check": float(resolved)},
        detail=f"the check {ended}",
        log=reference,
        seconds=time.monotonic() - started,
    )


async def _checked(check: StateCheck, machine: Machine, limit: float) -> CommandOutcome:
    for path, text in sorted(check.files.items()):
        await machine.write(path, text.encode())
    script = f"/tmp/orchard-check-{secrets.token_hex(8)}"
    await machine.write(script, check.command.encode())
    return await machine.run(f"{CLEAN_SHELL} {shlex.quote(script)}", timeout=limit, cwd="/")
