"""A real containerd pulls through a company's proxy, whose certificate authority it trusts by the node's own
settings (docs/deployment.md), and what it says when that fails is taken for no fault of the image."""

import asyncio
import os
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from orchard.injector.kubernetes.image_pulls import PullFailure, trouble_of
from tests.company_proxy import CompanyProxy
from tests.injector.registry import Registry
from tests.kubernetes.test_registries import push

HOST = "registry.example"
IMAGE = f"{HOST}/tools/x"
AUTHORITY = """
ca = "{bundle}"
[host."https://registry.example"]
  ca = "{bundle}"
"""
Pull = Callable[..., Awaitable[str]]


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry().serving() as running:
        running.realm = f"https://{HOST}/token"
        push(running, "1")
        yield running


@pytest.fixture
async def proxy(registry: Registry, tmp_path: Path) -> AsyncIterator[CompanyProxy]:
    running = CompanyProxy(HOST, lambda: f"http://{registry.address}", tmp_path)
    running.account = ("we", "are")
    async with running.running():
        yield running


@pytest.fixture
async def pull(tmp_path: Path) -> AsyncIterator[Pull]:
    """What containerd says when it fetches an image through a proxy, or nothing when it has it."""
    socket, hosts, settings = tmp_path / "c.sock", tmp_path / "certs.d", tmp_path / "containerd.toml"
    settings.write_text(
        f'version = 2\nroot = "{tmp_path}/root"\nstate = "{tmp_path}/state"\n'
        f'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n[grpc]\naddress = "{socket}"\n'
    )
    daemon = await asyncio.create_subprocess_exec(
        "containerd", "-c", str(settings), stdout=DEVNULL, stderr=DEVNULL
    )
    async with asyncio.timeout(60):
        while not socket.exists():
            await asyncio.sleep(0.05)

    async def fetch(image: str, proxy: str, **variables: str) -> str:
        words = ("-a", str(socket), "content", "fetch", "--hosts-dir", str(hosts), image)
        environment = {**os.environ, "NO_PROXY": "", "HTTPS_PROXY": proxy, **variables}
        process = await asyncio.create_subprocess_exec(
            "ctr", *words, env=environment, stdout=DEVNULL, stderr=PIPE
        )
        _, said = await process.communicate()
        return said.decode().strip().rpartition("\n")[2] if process.returncode else ""

    yield fetch
    daemon.terminate()
    await daemon.wait()


@pytest.mark.needs_root("containerd")
async def test_a_proxy_and_an_authority_of_the_nodes(
    proxy: CompanyProxy, registry: Registry, pull: Pull, tmp_path: Path
) -> None:
    said = await pull(f"{IMAGE}:1", proxy.url)
    assert "certificate signed by unknown authority" in said and trouble_of(said) is PullFailure.REGISTRY
    assert await pull(f"{IMAGE}:1", proxy.url, SSL_CERT_FILE=str(proxy.authority)) == ""

    push(registry, "2")
    place = tmp_path / "certs.d" / HOST
    place.mkdir(parents=True)
    (place / "hosts.toml").write_text(AUTHORITY.format(bundle=proxy.authority))
    assert await pull(f"{IMAGE}:2", proxy.url) == ""
    assert trouble_of(await pull(f"{IMAGE}:3", proxy.url)) is PullFailure.MISSING


@pytest.mark.needs_root("containerd")
async def test_what_a_proxy_refuses_is_neither_denied_nor_missing(
    proxy: CompanyProxy, registry: Registry, pull: Pull
) -> None:
    trusted = {"SSL_CERT_FILE": str(proxy.authority)}
    away = "http://127.0.0.1:1"
    stranger = f"http://we:wrong@127.0.0.1:{proxy.port}"
    said = [
        await pull(f"{IMAGE}:1", away, **trusted),
        await pull(f"{IMAGE}:1", stranger, **trusted),
        await pull("other.example/x:1", proxy.url, **trusted),
    ]
    registry.realm = "https://other.example/token"
    said.append(await pull(f"{IMAGE}:1", proxy.url, **trusted))
    words = ("connection refused", "Proxy Authentication Required", ": Forbidden", ": Forbidden")
    assert [end in each for each, end in zip(said, words, strict=True)] == [True] * len(words), said
    assert {trouble_of(each) for each in said} == {PullFailure.REGISTRY}
