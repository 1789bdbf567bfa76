"""Runs the agent of a container until a signal, or until it loses its spawner."""

import asyncio
import logging
import os
import resource
import signal
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from aiohttp import web

from orchard.injector.agent import logs
from orchard.injector.agent.interfaces import SandboxSpec
from orchard.injector.agent.pod.host import PodHost
from orchard.injector.agent.pod.sealing import SealMiddleware
from orchard.injector.agent.sandboxes import Sandboxes
from orchard.injector.agent.server import AgentServer
from orchard.injector.agent.spawning import Spawner

START_TIMEOUT = 10.0
THREADS = 4

log = logging.getLogger(__name__)


async def serve(
    address: tuple[str, int],
    sandbox_id: str,
    channel: tuple[int, socket.socket, socket.socket],
    environment: Mapping[str, str],
) -> int:
    """Serve the sandbox `sandbox_id` at `address`, printing the port. Returns the exit status.

    `channel` is what `spawner.start` returned, `environment` the default of commands.
    """
    logs.configure()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(_started_threads())
    ending: asyncio.Future[int] = loop.create_future()

    def end(status: int, why: str) -> None:
        if not ending.done():
            log.info("ending: %s", why)
            ending.set_result(status)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, 0, number.name)
    loop.add_signal_handler(signal.SIGCHLD, _reap)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # ours; commands come from the spawner

    pid, requests, reports = channel
    spawner = Spawner(requests, reports, lambda: end(1, "the spawner died, and every command with it"), pid)
    host = PodHost(environment, os.getcwd(), lambda: end(0, "the sandbox was deleted"))  # noqa: PTH109
    sandboxes = Sandboxes(None, host, spawner)
    sandboxes.create(SandboxSpec(sandbox_id=sandbox_id, image=""), None)
    await sandboxes.wait(sandbox_id, START_TIMEOUT)

    sealing = SealMiddleware()
    application = AgentServer(sandboxes, host).application(sealing.middleware)
    sealing.install(application)
    runner = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    listener = _listen(*address)
    await web.SockSite(runner, listener).start()
    print(listener.getsockname()[1], flush=True)  # noqa: T201
    try:
        return await ending
    finally:
        await runner.cleanup()
        loop.remove_signal_handler(signal.SIGCHLD)  # the spawner's end is the last, and nobody waits for it
        spawner.close()


def _started_threads() -> ThreadPoolExecutor:
    """Return threads that exist already when commands have used up all processes of the container."""
    executor = ThreadPoolExecutor(THREADS, "agent")
    barrier = Barrier(THREADS + 1)
    for _ in range(THREADS):
        executor.submit(barrier.wait)
    barrier.wait()
    return executor


def _listen(host: str, port: int) -> socket.socket:
    """Listen at an address, not a name: images may lack what resolves names. `::` accepts IPv4 as well."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, dualstack_ipv6=host == "::", backlog=1024)


def _reap() -> None:
    """Reap children: the first process of a container inherits all orphans."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
