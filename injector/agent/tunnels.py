"""Tunnels into and out of sandboxes: TCP connections over the WebSocket of the client.

The first message of a line is JSON: `{"type": "ready", "port"}`, or `{"type": "error", "status", "reason",
"message"}` and the end. All others are frames of `multiplexing`.

    forward  the other end opens streams; for each the agent connects to a loopback port inside
    reverse  the agent listens at a loopback port inside, and opens a stream for each connection
"""

import asyncio
import errno
import json
import logging
import os
import resource
import socket
from contextlib import suppress
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from aiohttp import web

from orchard.injector.agent.connections import Connections, connected, keep_alive
from orchard.injector.agent.errors import AgentError, Conflict, RequestInvalid, SandboxGone
from orchard.injector.agent.multiplexing import STREAMS, ProtocolError
from orchard.injector.agent.namespace_sockets import inside
from orchard.injector.agent.sandbox import HostedSandbox
from orchard.injector.agent.spawning import Entrance
from orchard.injector.agent.tunnel_requests import FORWARD, TunnelRequest

TUNNELS = 16
SHARE = 4
"""Divisor: this fraction of the agent's descriptors may be tunnel connections, and this fraction of those
may be one sandbox's."""
BACKLOG = 128
_LOOPBACK = (socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")

log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Open:
    places: asyncio.Semaphore
    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)


class Tunnels:
    def __init__(self) -> None:
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = max(descriptors // SHARE, 1)
        self._of_one = max(min(STREAMS, most // SHARE), 1)
        self._places = asyncio.Semaphore(most)
        self._open: WeakKeyDictionary[HostedSandbox, _Open] = WeakKeyDictionary()

    async def serve(self, line: web.WebSocketResponse, sandbox: HostedSandbox, wanted: TunnelRequest) -> None:
        """Serve a tunnel until the line or the sandbox ends, or another tunnel replaces it."""
        keep_alive(line.get_extra_info("socket"))
        own = self._open.setdefault(sandbox, _Open(asyncio.Semaphore(self._of_one)))
        name = wanted.name or os.urandom(16).hex()
        while (previous := own.tasks.get(name)) is not None:
            previous.cancel()
            await asyncio.wait([previous])
        try:
            if len(own.tasks) >= TUNNELS:
                raise Conflict(
                    f"the sandbox has {TUNNELS} tunnels, as many as it may have: close one",
                    reason="too_many_tunnels",
                )
            task = own.tasks[name] = asyncio.ensure_future(self._serve(line, sandbox, wanted, own))
            task.add_done_callback(lambda _: own.tasks.pop(name))
            ended = asyncio.ensure_future(sandbox.ended.wait())
            try:
                await asyncio.wait([task, ended], return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in (task, ended):
                    one.cancel()
                await asyncio.wait([task, ended])
            if not task.cancelled():
                task.result()
        except AgentError as error:
            with suppress(ConnectionError):
                await line.send_str(_error(error))
        except ProtocolError as error:
            log.warning("a tunnel of sandbox %s: %s", sandbox.spec.sandbox_id, error)

    async def _serve(
        self, line: web.WebSocketResponse, sandbox: HostedSandbox, wanted: TunnelRequest, own: _Open
    ) -> None:
        machine, _ = sandbox.ready()
        entrance, places = machine.entrance, (own.places, self._places)
        with suppress(ConnectionError):
            if wanted.direction == FORWARD:
                await line.send_str(_ready(wanted.port))

                async def dial() -> socket.socket:
                    return await _dialled(entrance, wanted.port)

                await Connections(line, dial, places, wanted.idle_seconds).run()
                return
            with await _listening(entrance, wanted.port) as listener:
                await line.send_str(_ready(listener.getsockname()[1]))
                await Connections(line, listener, places, wanted.idle_seconds).run()


async def _dialled(entrance: Entrance, port: int) -> socket.socket:
    """Connect to a loopback port inside; also finds servers that listen only at ::1."""
    for family, address in _LOOPBACK:
        with suppress(ConnectionRefusedError):
            return await connected(await inside(entrance, family), (address, port))
    raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))


async def _listening(entrance: Entrance, port: int) -> socket.socket:
    family, address = _LOOPBACK[0]
    try:
        listener = await inside(entrance, family)
    except OSError as error:  # its first process has ended
        raise SandboxGone(f"the sandbox cannot be entered: {error.strerror}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise Conflict(
                f"a program in the sandbox listens at port {port}: choose another, or 0 for a free one",
                reason="port_taken",
            ) from error
        raise RequestInvalid(f"port {port} cannot be listened at: {error.strerror}") from error
    return listener


def _ready(port: int) -> str:
    return json.dumps({"type": "ready", "port": port})


def _error(error: AgentError) -> str:
    said = {"status": error.status, "reason": error.reason, "message": error.detail}
    return json.dumps({"type": "error", **said})
