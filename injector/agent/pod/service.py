"""Runs the agent of a container until a signal, or until it loses its spawner."""

import asyncio
import logging
import os
import resource
import signal
import socket
import time
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
QUIET = 2.0
"""Seconds without a request after which a container that was told to end does so: the next command of a check
comes sooner, the next turn of a model later."""
LOOK = 0.1

log = logging.getLogger(__name__)


async def serve(
    address: tuple[str, int],
    sandbox_id: str,
    channel: tuple[int, socket.socket, socket.socket],
    environment: Mapping[str, str],
    grace: float,
) -> int:
    """Serve the sandbox `sandbox_id` at `address`, printing the port. Returns the exit status.

    `channel` is what `spawner.start` returned, `environment` the default of commands. After SIGTERM requests
    have `grace` seconds more.
    """
    logs.configure()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(_started_threads())
    ending: asyncio.Future[int] = loop.create_future()

    def end(status: int, why: str) -> None:
        if not ending.done():
            log.info("ending: %s", why)
            ending.set_result(status)

    told = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, told.set)
    loop.add_signal_handler(signal.SIGINT, end, 0, signal.SIGINT.name)
    loop.add_signal_handler(signal.SIGCHLD, _reap)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # ours; commands come from the spawner

    pid, requests, reports = channel
    spawner = Spawner(requests, reports, lambda: end(1, "the spawner died, and every command with it"), pid)
    host = PodHost(environment, os.getcwd(), lambda: end(0, "the sandbox was deleted"))  # noqa: PTH109
    sandboxes = Sandboxes(None, host, spawner)
    sandbox = sandboxes.create(SandboxSpec(sandbox_id=sandbox_id, image=""), None)
    await sandboxes.wait(sandbox_id, START_TIMEOUT)

    sealing = SealMiddleware()
    application = AgentServer(sandboxes, host).application(sealing.middleware)
    sealing.install(application)
    runner = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    listener = _listen(*address)
    await web.SockSite(runner, listener).start()
    print(listener.getsockname()[1], flush=True)  # noqa: T201

    async def last_requests() -> None:
        await told.wait()
        deadline = time.monotonic() + grace
        while time.monotonic() < deadline and (
            sandbox.in_flight or time.monotonic() < sandbox.touched + QUIET
        ):
            await asyncio.sleep(LOOK)
        end(0, signal.SIGTERM.name)

    last = loop.create_task(last_requests())
    try:
        return await ending
    finally:
        last.cancel()
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
