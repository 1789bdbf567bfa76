"""Pulls and imports images in a process of its own: they take minutes of processor time and no sandbox.

`python -m orchard.injector.agent.local.image_process` reads the request on stdin (so that credentials are in
no process list) and writes the result on stdout, both in JSON.
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
from orchard.injector.agent.interfaces import quantity
from orchard.injector.agent.local import user_namespace
from orchard.injector.agent.local.archives import import_image
from orchard.injector.agent.local.images import StoredImage

LIMIT_VARIABLE = "ORCHARD_IMAGE_LIMIT"
"""Variable with the bytes that an image's new layers may take, as a quantity."""
DEFAULT_LIMIT = "64Gi"
MEMORY = 4 * 1024**3
"""Bytes of address space, because an archive may claim to have a name of gigabytes."""


@dataclass(frozen=True, kw_only=True)
class Import:
    path: str
    name: str | None = None
    owner: str | None = None


async def bring(state: Path, what: str, wanted: Mapping[str, Any]) -> StoredImage:
    """Run a `pull` (fields of Pull) or an `import` (fields of Import) into `state` in a child process.

    Raises AgentError as these do. When cancelled, it leaves nothing behind.
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
        return StoredImage(**answer["image"])
    error = AgentError(answer["detail"], reason=answer["reason"])
    error.status = answer["status"]
    raise error


def _do(request: Mapping[str, Any]) -> StoredImage:
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
    text = os.environ.get(LIMIT_VARIABLE, DEFAULT_LIMIT)
    try:
        return int(quantity(text))
    except ValueError as error:
        raise RequestInvalid(f"{LIMIT_VARIABLE}: {error}") from error


def _end(number: int, _frame: object) -> NoReturn:
    """Exit on SIGTERM once: each thread of a killed parent sends it anew, while the clean-up runs."""
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(1)


def _until_terminated(main: Coroutine[Any, Any, str]) -> str:
    """Run `main` like `asyncio.run`, but let SIGTERM cancel it whenever it comes.

    An exception raised by the handler `_end` could be swallowed inside the loop, or would not be raised while
    the loop waits for a server, if the signal came just before. Raises SystemExit.
    """

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
