"""Runs the agent until a signal, the end of its owner, or the loss of its spawner."""

import asyncio
import gc
import logging
import os
import resource
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from aiohttp import web

from orchard.injector.agent import kernel, logs
from orchard.injector.agent.local.disk import DiskLimits
from orchard.injector.agent.local.host import LocalHost
from orchard.injector.agent.local.requirements import Requirements
from orchard.injector.agent.sandboxes import Sandboxes
from orchard.injector.agent.server import AgentServer
from orchard.injector.agent.spawning import Spawner
from orchard.injector.agent.unsafe import UnsafeHost

SOCKET = "agent.sock"
TRIM_INTERVAL = 20.0
"""Seconds between returns of freed memory: outputs come in all sizes and leave holes."""

log = logging.getLogger(__name__)


async def serve(
    state: Path,
    channel: tuple[int, socket.socket, socket.socket],
    requirements: Requirements,
    backend: str,
    disk: DiskLimits,
    count: int | None,
    private: Sequence[str],
    parent_pid: int | None,
    ready: Callable[[], None],
) -> int:
    """Serve on `state`/agent.sock (mode 0600). Returns the exit status; all sandboxes are deleted by then.

    `channel` is what `spawner.start` returned; `backend` is `local` or `unsafe-host`; `disk` limits one
    sandbox, `count` their number; `private`: see `HostContext`; `ready` is called once.
    """
    logs.configure()
    loop = asyncio.get_running_loop()
    ending: asyncio.Future[int] = loop.create_future()

    def end(status: int, why: str) -> None:
        if not ending.done():
            log.info("ending: %s", why)
            ending.set_result(status)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, 0, f"{number.name}")
    if parent_pid is not None:
        _watch(parent_pid, lambda: end(0, "the owner ended"))

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # ours; commands come from the spawner

    def trim() -> None:
        gc.collect()  # what a cycle of old objects holds may be an output of megabytes
        kernel.trim_memory()
        loop.call_later(TRIM_INTERVAL, trim)

    kernel.hold_little_memory()
    trim()
    # Requests leave many objects and few cycles; to look for those every 700 costs a tenth of our time.
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    spawner_pid, requests, reports = channel
    spawner = Spawner(requests, reports, lambda: end(1, "the spawner died, and every sandbox with it"))
    host = LocalHost(state, spawner, requirements, disk, private) if backend == "local" else UnsafeHost(state)
    host.clean()
    sandboxes = Sandboxes(state / "sandboxes", host, spawner, count)
    sandboxes.recover()
    runner = web.AppRunner(
        AgentServer(sandboxes, host).application(),
        access_log=None,
        handler_cancellation=True,
        shutdown_timeout=1.0,
    )
    await runner.setup()
    listener = _listen(state)
    await web.SockSite(runner, listener).start()
    log.info("serving %s", state)
    ready()
    preparing = loop.create_task(host.prepare())
    try:
        status = await ending
        preparing.cancel()
        if status == 0:
            await sandboxes.close()
            host.close()
    finally:
        with suppress(FileNotFoundError):
            (state / SOCKET).unlink()
        await runner.cleanup()
        spawner.close()
        await asyncio.to_thread(os.waitpid, spawner_pid, 0)
        _reap_the_rest()
    return status


def _reap_the_rest() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _listen(state: Path) -> socket.socket:
    """Bind through a descriptor of the directory, because a socket's path may have only 107 bytes."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with suppress(FileNotFoundError):
        (state / SOCKET).unlink()
    directory = os.open(state, os.O_PATH | os.O_DIRECTORY)
    try:
        listener.bind(f"/proc/self/fd/{directory}/{SOCKET}")
    finally:
        os.close(directory)
    (state / SOCKET).chmod(0o600)
    listener.listen(4096)  # a burst of connections is not a dead agent
    return listener


def _watch(pid: int, ended: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        loop.call_soon(ended)
        return
    loop.add_reader(pidfd, ended)
