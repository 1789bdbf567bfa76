"""Egress of a sandbox without network: sockets of the agent inside, connected outside.

The sandbox keeps a network of its own without any way out. For each rule the agent listens in it: for a name
at an address of its loopback network, which /etc/hosts maps the name to; for an address at that address,
which is made the sandbox's own. The agent connects whatever connects there to the rule's host and port, and
to nothing else. So no packet leaves the sandbox, and no DNS query: names are resolved outside, again after a
while, and must not resolve to what sandboxes with a network cannot reach either.
"""

import asyncio
import errno
import ipaddress
import os
import resource
import socket
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from orchard.injector.agent.connections import accepted, connected, keep_alive
from orchard.injector.agent.egress import Rule
from orchard.injector.agent.errors import AgentError
from orchard.injector.agent.local.network import REFUSED, add_routes, local_route, own_addresses
from orchard.injector.agent.namespace_sockets import inside
from orchard.injector.agent.spawning import Entrance
from orchard.injector.agent.splicing import closing_resets, prepared

NAMES = ipaddress.IPv4Address("127.64.0.1")
"""Address of a sandbox's first host name; the others follow."""
RESOLVED = 30.0
CONNECTING = 10.0
MOST = 256
"""Connections of one sandbox at a time; others wait to be accepted."""
BACKLOG = 128
PIECE = 64 * 1024
RESOLVERS = 8
"""Concurrent name lookups of all sandboxes, whose servers may be slow."""
HOSTS = "127.0.0.1 localhost\n::1 localhost\n"


class Resolver:
    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(RESOLVERS, thread_name_prefix="names")
        self._answers: dict[str, tuple[float, asyncio.Future[list[str]]]] = {}

    async def addresses(self, name: str) -> list[str]:
        """Resolve IPv4 addresses; concurrent callers share one lookup. Raises OSError."""
        loop = asyncio.get_running_loop()
        until, answer = self._answers.get(name, (0.0, None))
        if answer is None or (answer.done() and (loop.time() > until or answer.exception() is not None)):
            self._answers = {key: one for key, one in self._answers.items() if one[0] > loop.time()}
            answer = loop.run_in_executor(self._threads, _resolved, name)
            self._answers[name] = loop.time() + RESOLVED, answer
        return await asyncio.shield(answer)


def _resolved(name: str) -> list[str]:
    found = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


def hosts(rules: Iterable[Rule]) -> Mapping[str, str]:
    """Address in the sandbox of each name in the rules."""
    names = dict.fromkeys(rule.host for rule in rules if rule.host)
    return {name: str(NAMES + number) for number, name in enumerate(names)}


def hosts_file(rules: Iterable[Rule], own: str) -> str:
    """Text of the sandbox's /etc/hosts; `own` is the line for the sandbox itself."""
    return HOSTS + own + "".join(f"{address} {name}\n" for name, address in hosts(rules).items())


class Egress:
    def __init__(self, rules: Sequence[Rule], resolver: Resolver, private: Sequence[str]) -> None:
        """`private`: networks that are permitted although sandboxes with a network cannot reach them.

        Raises AgentError (`egress_refused`) for a rule that can never be satisfied.
        """
        self._rules = rules
        self._resolver = resolver
        self._private = [ipaddress.IPv4Network(text) for text in private]
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._places = asyncio.Semaphore(max(1, min(MOST, descriptors // 32)))
        self._listeners: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        for rule in rules:
            if rule.network is not None:
                self._check(rule)

    async def open(self, pid: int, entrance: Entrance) -> None:
        """Listen in the sandbox whose first process is `pid`. Raises OSError."""
        names = hosts(self._rules)
        literal = sorted({rule.network for rule in self._rules if rule.network is not None})
        routes = [local_route(network.network_address, number) for number, network in enumerate(literal)]
        await asyncio.to_thread(add_routes, pid, routes)
        for rule in dict.fromkeys(self._rules):
            address = str(rule.network.network_address) if rule.network else names[rule.host]
            listener = await inside(entrance, socket.AF_INET)
            self._listeners.append(listener)
            listener.bind((address, rule.port))
            listener.listen(BACKLOG)
            self._keep(self._accept(listener, rule))

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for listener in self._listeners:
            listener.close()

    def _check(self, rule: Rule) -> None:
        assert rule.network is not None
        if rule.network.num_addresses > 1:
            raise AgentError(
                f"`{rule.network}:{rule.port}` is a network, which only sandboxes of a cluster can be given: "
                "name its hosts or addresses one by one",
                reason="egress_refused",
            )
        if not self.permitted(str(rule.network.network_address)):
            raise AgentError(
                f"{rule.network.network_address} is an address of this machine or of a private network: "
                "ORCHARD_EGRESS_PRIVATE of the agent has those that sandboxes may reach",
                reason="egress_refused",
            )

    def permitted(self, address: str) -> bool:
        """Whether a name may resolve to this address."""
        ip = ipaddress.IPv4Address(address)
        if any(ip in network for network in self._private):
            return True
        closed = ("0.0.0.0/8", "127.0.0.0/8", *REFUSED, *own_addresses())
        return not any(ip in ipaddress.IPv4Network(network) for network in closed)

    async def _accept(self, listener: socket.socket, rule: Rule) -> None:
        while True:
            await self._places.acquire()
            try:
                connection = prepared(await accepted(listener))
            except BaseException:
                self._places.release()
                raise
            task = self._keep(self._serve(connection, rule))
            task.add_done_callback(partial(self._left, connection))

    def _left(self, connection: socket.socket, _task: object) -> None:
        connection.close()
        self._places.release()

    async def _serve(self, connection: socket.socket, rule: Rule) -> None:
        """Forward both directions. Closing a socket resets it unless both directions have ended."""
        try:
            async with asyncio.timeout(CONNECTING):
                outside = prepared(await self._dial(rule))
        except (OSError, TimeoutError):
            return
        with outside:
            keep_alive(outside)
            carrying = [
                asyncio.ensure_future(_carry(connection, outside)),
                asyncio.ensure_future(_carry(outside, connection)),
            ]
            try:
                await asyncio.gather(*carrying)
            except OSError:
                return
            finally:
                for one in carrying:
                    one.cancel()
                await asyncio.wait(carrying)
            for end in (connection, outside):
                closing_resets(end, False)

    async def _dial(self, rule: Rule) -> socket.socket:
        """Connect to an address that was checked. Raises OSError."""
        found = (
            [str(rule.network.network_address)] if rule.network else await self._resolver.addresses(rule.host)
        )
        failed: OSError = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        for address in filter(self.permitted, found):
            try:
                made = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
                return await connected(made, (address, rule.port))
            except OSError as error:
                failed = error
        raise failed

    def _keep(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _carry(source: socket.socket, target: socket.socket) -> None:
    """Copy until the source ends, and pass the end on. Raises OSError."""
    loop = asyncio.get_running_loop()
    while data := await loop.sock_recv(source, PIECE):
        await loop.sock_sendall(target, data)
    target.shutdown(socket.SHUT_WR)
