"""Outbound network of one sandbox: its own namespace, translated by its own slirp4netns process.

Nothing can connect to it. It can reach neither this machine, its loopback services, other sandboxes,
link-local addresses (cloud metadata) nor private ranges: the sandbox's own routing refuses these, and a task,
lacking CAP_NET_ADMIN, cannot change it. Names are resolved as this machine resolves them, by an address that
only the sandbox has.
"""

import asyncio
import errno
import ipaddress
import os
import re
import signal
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from orchard.injector.agent import kernel
from orchard.injector.agent.errors import AgentError
from orchard.injector.agent.output import PipeOutput
from orchard.injector.agent.spawning import Spawner, StartFailure

PACKAGE = "slirp4netns"
TUN = "/dev/net/tun"
RESOLVER = "10.0.2.3"
REFUSED = (
    "10.0.0.0/8",
    "100.64.0.0/10",
    "168.63.129.16/32",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "224.0.0.0/4",
    "240.0.0.0/4",
)
"""Shared, link-local, private, test and multicast ranges, and metadata addresses outside all of them.

These are Azure's 168.63.129.16 and Oracle's 192.0.0.192. The sandbox's own 10.0.2.0/24 has a longer prefix.
"""

_INTERFACE = "tap0"
_LOCAL = re.compile(r"\|-- (\d+\.\d+\.\d+\.\d+)\n\s+/32 host LOCAL")

_RTM_NEWROUTE = 24
_NLM_F_REQUEST_ACK_CREATE = 0x1 | 0x4 | 0x400
_RTN_LOCAL, _RTN_PROHIBIT = 2, 8
_RT_TABLE_MAIN, _RT_TABLE_LOCAL, _RTPROT_STATIC = 254, 255, 4
_RT_SCOPE_UNIVERSE, _RT_SCOPE_HOST, _RTA_DST, _RTA_OIF = 0, 254, 1, 4
_LOOPBACK = 1
"""Number of the first interface of every network namespace."""


class Outbound:
    """A sandbox's outbound network. It ends with `close`, with the agent, and with its process."""

    def __init__(self, spawner: Spawner, name: str, program: str) -> None:
        self._spawner = spawner
        self._name = name
        self._program = program
        self._stop = -1
        self._launched = False
        self._gone = asyncio.Event()
        self._process: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def open(self, pid: int, cgroups: Sequence[str], lost: Any) -> None:
        """Connect the network namespace of process `pid`; the helper joins the control groups of `cgroups`.

        `lost` is called without arguments if the helper ends by itself. Raises AgentError
        (`network_unavailable`).
        """
        if problem := lacking(self._program):
            raise AgentError(f"no block_network=false here: {problem}", reason="network_unavailable")
        ready, said = PipeOutput(), PipeOutput()
        stopping, self._stop = os.pipe2(os.O_CLOEXEC)
        ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        opened = False

        def report(status: int, failure: StartFailure | None) -> None:
            if not ended.done():
                ended.set_result(failure.why if failure else f"status {os.waitstatus_to_exitcode(status)}")
            if opened and self._stop >= 0:
                lost()

        command = [self._program, "--configure", "--mtu=65520", "--disable-host-loopback"]
        command += ["--enable-sandbox", "--enable-seccomp", "--exit-fd=@fd:2", "--ready-fd=@fd:3"]
        try:
            self._launched = True
            await asyncio.shield(
                self._spawner.launch(
                    self._name,
                    [*command, str(pid), _INTERFACE],
                    {},
                    [said.writer, said.writer, stopping, ready.writer],
                    report,
                    self._gone,
                    self._started,
                )
            )
            ready.close_writer()
            said.close_writer()
            waiting: list[asyncio.Future[Any]] = [ended, ready.first]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not (ready.first.done() and ready.first.result()):
                why = await ended
                complaint = (said.all.done() and said.all.result()) or b""
                raise AgentError(
                    f"{PACKAGE} could not connect the sandbox ({why}): "
                    f"{' '.join(complaint.decode(errors='replace').split())}",
                    reason="network_unavailable",
                )
            process = await self._process
            for entrance in cgroups:
                Path(entrance).write_text(str(process))
            refused = [*REFUSED, *own_addresses()]
            await asyncio.to_thread(
                add_routes, pid, [prohibition(one, number) for number, one in enumerate(refused)]
            )
            if ended.done():  # it died since it was ready: `report` told nobody
                raise AgentError(
                    f"{PACKAGE} ended ({ended.result()}) while the sandbox was connected",
                    reason="network_unavailable",
                )
            opened = True
        finally:
            os.close(stopping)
            ready.close()
            said.close()

    async def close(self) -> None:
        if self._stop >= 0:
            stop, self._stop = self._stop, -1
            os.close(stop)
        if self._launched:
            self._spawner.kill(self._name, signal.SIGKILL)
            await self._gone.wait()

    def _started(self, pid: int, _inner: int) -> None:
        if not self._process.done():
            self._process.set_result(pid)


def lacking(program: str) -> str:
    """Say what this machine lacks for sandboxes with a network, with the remedy, or empty.

    `program` is the path of slirp4netns, empty if there is none.
    """
    if not program:
        return f"{PACKAGE} is missing: install it (`apt-get install {PACKAGE}`)"
    if not os.access(TUN, os.R_OK | os.W_OK):
        return (
            f"{TUN} cannot be opened: load it (`modprobe tun`) and let this user have it (`chmod 666 {TUN}`)"
        )
    return ""


def own_addresses() -> Iterator[str]:
    """The machine's own addresses except loopback, as networks of one address."""
    for address in dict.fromkeys(_LOCAL.findall(Path("/proc/net/fib_trie").read_text())):
        if not ipaddress.ip_address(address).is_loopback:
            yield f"{address}/32"


def add_routes(pid: int, routes: Sequence[bytes]) -> None:
    """Send these netlink requests in the process's network namespace. Raises OSError."""
    with _route_socket(pid) as line:
        for route in routes:
            line.send(route)
            _, _, _, _, _, error = struct.unpack_from("=IHHIIi", line.recv(4096))
            if error not in (0, -errno.EEXIST):
                raise OSError(-error, os.strerror(-error), "routing")


def prohibition(network: str, number: int) -> bytes:
    """Return the netlink request for a route that refuses `network`."""
    where = _RT_TABLE_MAIN, _RTPROT_STATIC, _RT_SCOPE_UNIVERSE, _RTN_PROHIBIT
    return _route(ipaddress.IPv4Network(network), where, number)


def local_route(address: ipaddress.IPv4Address, number: int) -> bytes:
    """Return the netlink request for a route that makes `address` one of the namespace's own."""
    where = _RT_TABLE_LOCAL, _RTPROT_STATIC, _RT_SCOPE_HOST, _RTN_LOCAL
    interface = struct.pack("=HHI", 8, _RTA_OIF, _LOOPBACK)
    return _route(ipaddress.IPv4Network(address), where, number, interface)


def _route(
    network: ipaddress.IPv4Network, where: tuple[int, int, int, int], number: int, more: bytes = b""
) -> bytes:
    route = struct.pack("=BBBBBBBBI", socket.AF_INET, network.prefixlen, 0, 0, *where, 0)
    body = route + struct.pack("=HH4s", 8, _RTA_DST, network.network_address.packed) + more
    return struct.pack("=IHHII", 16 + len(body), _RTM_NEWROUTE, _NLM_F_REQUEST_ACK_CREATE, number, 0) + body


def _route_socket(pid: int) -> socket.socket:
    """Open a netlink socket in the process's namespace, in a thread of its own that enters it."""
    made: list[socket.socket | OSError] = []

    def make() -> None:
        try:
            namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            try:
                kernel.setns(namespace, kernel.CLONE_NEWNET)
            finally:
                os.close(namespace)
            made.append(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE))
        except OSError as error:
            made.append(error)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if isinstance(made[0], OSError):
        raise made[0]
    return made[0]
