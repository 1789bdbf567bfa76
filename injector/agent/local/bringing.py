"""Pulls and imports in a process of their own: they need minutes of processor time, and sandboxes none of it.

`python -m orchard.injector.agent.local.bringing` reads what to do on stdin (credentials are in no list of
processes) and says on stdout what came of it, both in JSON.
"""

import asyncio
import json
import os
import resource
import signal
import socket
import sys
from asyncio.subprocess import PIPE
from collections.abc import Coroutine, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from orchard.injector.agent import kernel
from orchard.injector.agent.errors import AgentError, RequestInvalid
from orchard.injector.agent.local import user_namespace
from orchard.injector.agent.local.archives import import_image
from orchard.injector.agent.local.images import Image
from orchard.injector.agent.machine import quantity

LIMIT_VARIABLE = "ORCHARD_IMAGE_LIMIT"
"""What the new layers of one image may take, as a quantity."""
DEFAULT_LIMIT = "64Gi"
MEMORY = 4 * 1024**3
"""Bytes of address space: an archive may claim to have a name of gigabytes."""


@dataclass(frozen=True, kw_only=True)
class Import:
    """An archive or a layout to import: see `import_image`."""

    path: str
    name: str | None = None
    owner: str | None = None


async def bring(state: Path, what: str, wanted: Mapping[str, Any]) -> Image:
    """Do a `pull` (fields of Pull) or an `import` (fields of Import) of an image into `state`.

    Raises AgentError as these do. Cancelled, it leaves nothing.
    """
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", __spec__.name),
        stdin=PIPE,
        stdout=PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    request = json.dumps({"state": str(state), "what": what, "wanted": wanted})
    try:
        said, _ = await process.communicate(request.encode())
    finally:
        if process.returncode is None:
            process.terminate()
            await asyncio.shield(process.wait())
    try:
        answer = json.loads(said)
    except ValueError:
        raise AgentError(
            f"the {what} of an image ended with status {process.returncode}", reason="image_failed"
        ) from None
    if "image" in answer:
        return Image(**answer["image"])
    error = AgentError(answer["detail"], reason=answer["reason"])
    error.status = answer["status"]
    raise error


def _do(request: Mapping[str, Any]) -> Image:
    state, wanted = Path(request["state"]), request["wanted"]
    limit = image_limit()
    try:
        if request["what"] == "import":
            chosen = Import(**wanted)
            return import_image(state, Path(chosen.path), chosen.name, owner=chosen.owner, limit=limit)
        from orchard.injector.agent.local.pulling import Pull, pull
        from orchard.injector.agent.local.registry import Credentials

        credentials = wanted.get("credentials")
        return pull(
            state,
            Pull(
                **{
                    **wanted,
                    "limit": limit,
                    "credentials": None if credentials is None else Credentials(**credentials),
                }
            ),
            run=_until_terminated,
        )
    except MemoryError:
        raise RequestInvalid(
            "the image needs more memory than it is given to unpack", reason="image_refused"
        ) from None
    except OSError as error:
        raise AgentError(
            f"the image cannot be kept: {error.strerror or error}", reason="image_failed"
        ) from error


def image_limit() -> int:
    """Bytes that the new layers of one image may take here. Raises RequestInvalid."""
    text = os.environ.get(LIMIT_VARIABLE, DEFAULT_LIMIT)
    try:
        return int(quantity(text))
    except ValueError as error:
        raise RequestInvalid(f"{LIMIT_VARIABLE}: {error}") from error


def _end(number: int, _frame: object) -> NoReturn:
    """Once: each thread of a parent that is killed sends the signal anew, while what was begun is removed."""
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(1)


def _until_terminated(main: Coroutine[Any, Any, str]) -> str:
    """`asyncio.run`, ended by SIGTERM whenever that comes. An exception of `_end` might be caught by whatever
    it meets in the loop, and would not be raised while the loop waits for a server, if the signal came as it
    began to wait. Raises SystemExit."""

    async def watched() -> str:
        task = asyncio.current_task()
        assert task is not None

        def cancel(number: int, _frame: object) -> None:
            signal.signal(number, signal.SIG_IGN)
            task.cancel()

        woken, waking = socket.socketpair()
        with woken, waking:
            waking.setblocking(False)
            asyncio.get_running_loop().add_reader(woken, woken.recv, 1)
            signal.set_wakeup_fd(waking.fileno())
            signal.signal(signal.SIGTERM, cancel)
            try:
                return await main
            finally:
                if signal.signal(signal.SIGTERM, _end) is signal.SIG_IGN:
                    signal.signal(signal.SIGTERM, signal.SIG_IGN)
                signal.set_wakeup_fd(-1)
                asyncio.get_running_loop().remove_reader(woken)

    try:
        return asyncio.run(watched())
    except asyncio.CancelledError:
        raise SystemExit(1) from None


def main() -> None:
    """Read, do, say."""
    signal.signal(signal.SIGTERM, _end)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGTERM)
    os.nice(5)
    os.umask(0o022)
    request = json.load(sys.stdin)
    try:
        if os.geteuid() != 0:
            user_namespace.enter()
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        answer: dict[str, Any] = {"image": asdict(_do(request))}
    except AgentError as error:
        answer = {"detail": error.detail, "reason": error.reason, "status": error.status}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
