"""Agents get their keys once, from whichever orchestrator, and never when a command may have run."""

import asyncio
import time
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from orchard.injector.agent.pod.sealing import SealMiddleware
from orchard.injector.agent.signing import Seal, sandbox_key
from orchard.injector.agent_connection import AgentConnection
from orchard.injector.errors import SandboxFailed
from orchard.injector.kubernetes import key_exchange as module
from orchard.injector.kubernetes import pod_metadata
from orchard.injector.kubernetes.activity import Activity
from orchard.injector.kubernetes.agents import Agents
from orchard.injector.kubernetes.api import ClusterApi
from orchard.injector.kubernetes.cache import PodCache
from orchard.injector.kubernetes.key_exchange import KeyExchange
from orchard.injector.kubernetes.objects import Pod
from orchard.injector.kubernetes.settings import KubernetesSettings
from orchard.schemas.sandboxes import Health
from tests.injector.kubernetes.api_server import ApiServer
from tests.injector.kubernetes.conftest import born, pod, running

SECRET = b"the secret of all orchestrators of the cluster"
DEADLINE = 20.0


@pytest.fixture
async def agent() -> AsyncIterator[TestServer]:
    """The seals of a real agent, and nothing behind them."""
    sealing = SealMiddleware()
    app = web.Application(middlewares=[sealing.middleware])
    sealing.install(app)
    async with TestServer(app) as server:
        yield server


class Side:
    """One orchestrator."""

    def __init__(
        self,
        api: ClusterApi,
        port: int,
        identity: str,
        secret: bytes = SECRET,
        *,
        concurrent_writes: int = 32,
    ) -> None:
        settings = KubernetesSettings(
            agent_image="x", namespace="sandboxes", port=port, concurrent_writes=concurrent_writes
        )
        self.cache = PodCache(api, "sandboxes")
        self.agents = Agents(api, self.cache, Activity(api, self.cache), settings, secret)
        self.introductions = KeyExchange(api, self.cache, self.agents, settings, identity)

    async def settles(self) -> None:
        """Follow the cluster; return when there is nothing left to be introduced."""
        self.cache.start()
        await self.cache.synced(DEADLINE)
        async with asyncio.timeout(DEADLINE):
            while tasks := list(self.introductions._tasks.values()):
                await asyncio.wait(tasks)

    async def close(self) -> None:
        await self.introductions.close()
        await self.cache.close()
        await self.agents.close()


def started(server: ApiServer, **annotations: str) -> Pod:
    """A sandbox `a` whose agent answers."""
    names = {"introducing": pod_metadata.INTRODUCING, "introduced": pod_metadata.INTRODUCED}
    given = {names[name]: value for name, value in annotations.items()}
    state = running(podIP="127.0.0.1")
    server.pods["sandbox-a"] = pod(
        "sandbox-a", birth=born(at=time.time(), timeout=60), version=5, annotations=given, **state
    )
    server.version = 5
    return server.pods["sandbox-a"]


def writes(server: ApiServer) -> list[str]:
    return [next(iter(patch["metadata"]["annotations"])) for patch in server.patches]


async def has_a_key(agent: TestServer) -> bool:
    async with aiohttp.request("GET", agent.make_url("/health")) as reply:
        return bool((await reply.json())["introduced"])


async def proof(side: Side) -> None:
    """Raises SandboxFailed unless the agent has the key."""
    await side.agents.ask("a", lambda line, _: line.call(dict[str, str], "GET", "/introduction"))


async def test_marks_stand_before_and_after_the_key_is_given(
    api: ClusterApi, server: ApiServer, agent: TestServer
) -> None:
    started(server)
    side = Side(api, agent.port or 0, "one")
    await side.settles()
    assert writes(server) == [pod_metadata.INTRODUCING, pod_metadata.INTRODUCED]
    assert pod_metadata.introduced_by(server.pods["sandbox-a"]) == side.agents.fingerprint
    assert await has_a_key(agent)
    await proof(side)
    await side.close()


async def test_two_at_once_do_it_once(
    api: ClusterApi, server: ApiServer, agent: TestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DEFERENCE", (0.0, 0.0))
    monkeypatch.setattr(module, "TAKEOVER", 2.0)
    started(server)
    sides = [Side(api, agent.port or 0, name) for name in ("one", "two")]
    await asyncio.gather(*(side.settles() for side in sides))
    assert writes(server).count(pod_metadata.INTRODUCED) == 1
    for side in sides:
        await proof(side)
        await side.close()


async def test_what_a_dead_orchestrator_began_another_ends(
    api: ClusterApi, server: ApiServer, agent: TestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TAKEOVER", 0.5)
    sandbox = started(server, introducing=f"{pod_metadata.stamp(time.time())} dead")
    key = sandbox_key(SECRET, sandbox.labels[pod_metadata.AGENT], sandbox.uid)
    address = str(agent.make_url("")).rstrip("/")
    dead = AgentConnection(aiohttp.TCPConnector(), address, Seal(key))
    await dead.introduce()
    await dead.close()
    side = Side(api, agent.port or 0, "one")
    await side.settles()
    assert pod_metadata.INTRODUCED in server.pods["sandbox-a"].annotations
    await side.close()


@pytest.mark.parametrize("question", ["proof", "job"])
async def test_an_agent_without_a_key_where_commands_may_have_run_never_gets_it(
    api: ClusterApi, server: ApiServer, agent: TestServer, question: str
) -> None:
    started(server, introduced=f"{pod_metadata.stamp(time.time())} {pod_metadata.fingerprint(SECRET)}")
    side = Side(api, agent.port or 0, "one")
    await side.settles()
    with pytest.raises(SandboxFailed) as caught:
        if question == "proof":
            await proof(side)
        else:
            await side.agents.ask("a", lambda line, _: line.call(Health, "GET", "/jobs/a.1"))
    assert caught.value.reason == "agent_replaced"
    assert not await has_a_key(agent)
    failure = pod_metadata.failure(server.pods["sandbox-a"])
    assert failure is not None and failure.reason == "agent_replaced"
    with pytest.raises(SandboxFailed) as again:
        await side.agents.usable("a")
    assert again.value.reason == "agent_replaced"
    await side.close()
