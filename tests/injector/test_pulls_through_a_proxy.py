"""Images come through a company's proxy, which has a certificate authority of its own, from a host whose
address nobody here knows."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from yarl import URL

from orchard.injector.agent.errors import AgentError, RequestInvalid
from orchard.injector.agent.local.image_process import bring
from orchard.injector.agent.local.proxies import proxy_of
from orchard.injector.agent.local.pulling import Pull, pull
from orchard.injector.agent.local.registry import PullRetry
from orchard.injector.errors import SandboxRequestInvalid
from tests.company_proxy import CompanyProxy
from tests.injector import registry as registries
from tests.injector.registry import Registry

if TYPE_CHECKING:
    from tests.injector.conftest import Archives, Service

HOST = "registry.example"
NEAR = "0x7f000001"
"""A name of 127.0.0.1, with which TLS is used."""
IMAGE = f"{HOST}/tools/tiny:1"
IMPATIENT = PullRetry(tries=2, pause=0.0, second_look=0.0)
SECRET = "correct horse"
VARIABLES = ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR")


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry().serving() as running:
        running.realm = f"https://{HOST}/token"
        yield running


@pytest.fixture(autouse=True)
async def proxy(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[CompanyProxy]:
    """The only proxy that the environment names."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    running = CompanyProxy(HOST, lambda: f"http://{registry.address}", tmp_path)
    async with running.running():
        monkeypatch.setenv("HTTPS_PROXY", running.url)
        yield running


@pytest.mark.needs_root("layers have owners")
async def test_proxy_authorities_and_limit_are_those_of_the_services_environment(
    proxy: CompanyProxy,
    registry: Registry,
    archives: "Archives",
    start_service: "type[Service]",
    tmp_path: Path,
) -> None:
    proxy.account, registry.account = ("we", "and-the-proxy"), ("me", SECRET)
    layer = registry.push("1", archives.layer(("x", b"x" * 3_000_000, 0o644)), pack=bytes)["layers"][0]
    registry.faults[layer["digest"]] = [registries.redirect("https://127.1/layer")]
    registry.push("large", archives.layer(("x", b"x" * 5_000_000, 0o644)), pack=bytes)
    settings = {"HTTPS_PROXY": proxy.url, "SSL_CERT_FILE": str(proxy.authority), "ORCHARD_IMAGE_LIMIT": "4Mi"}
    service = await asyncio.to_thread(start_service, tmp_path / "state", env=settings)
    try:
        async with service.client() as client:
            with pytest.raises(SandboxRequestInvalid, match=r"the private address 127\.0\.0\.1"):
                await client.pull_image(IMAGE, username="me", password=SECRET)
            assert (await client.pull_image(IMAGE, username="me", password=SECRET)).name == IMAGE
            with pytest.raises(SandboxRequestInvalid, match="ORCHARD_IMAGE_LIMIT"):
                await client.pull_image(f"{HOST}/tools/tiny:large", username="me", password=SECRET)
            async with await client.create_sandbox("host") as sandbox:
                assert "and-the-proxy" not in (await sandbox.exec("env; cat /proc/1/environ")).stdout
    finally:
        await asyncio.to_thread(service.stop)
    assert proxy.connected.keys() == {f"{HOST}:443"}


@pytest.mark.needs_root("layers have owners")
async def test_a_registry_with_an_authority_of_its_own_is_reached_without_the_proxy(
    proxy: CompanyProxy,
    registry: Registry,
    archives: "Archives",
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registry.push("1", archives.layer(("x", b"x", 0o644)))
    place = tmp_path / "near"
    place.mkdir()
    near = CompanyProxy(NEAR, lambda: f"http://{registry.address}", place)
    async with near.running():
        registry.realm = f"https://{NEAR}:{near.reading}/token"
        monkeypatch.setenv("NO_PROXY", NEAR)
        monkeypatch.setenv("SSL_CERT_FILE", str(near.authority))
        image = f"{NEAR}:{near.reading}/tools/tiny:1"
        assert (await bring(tmp_path / "state", "pull", {"reference": image})).name == image
    assert registry.asked("manifests", "1") and not proxy.connected


@pytest.mark.parametrize(
    ("image", "variable", "sentence"),
    [
        (
            IMAGE,
            "{proxy}",
            r"registry\.example is not trusted \(.*issuer certificate\): name a PEM file with the "
            r"system's authorities and its own in SSL_CERT_FILE \(now: not set\)",
        ),
        (IMAGE, "http://we:wrong@127.0.0.1:{port}", r"answers 407 .*: correct HTTPS_PROXY"),
        (
            "other.example/x",
            "{proxy}",
            r"answers 403 .*: correct HTTPS_PROXY, or add other\.example to NO_PROXY",
        ),
        (
            IMAGE,
            "http://we:wrong@127.0.0.1:1",
            r"the proxy 127\.0\.0\.1:1 cannot be reached: correct HTTPS_PROXY",
        ),
        (
            IMAGE,
            "http://we:wrong@proxy.invalid:3128",
            r"the proxy proxy\.invalid:3128 has no address: correct HTTPS_PROXY",
        ),
        (IMAGE, "socks5://we:wrong@127.0.0.1:1", "HTTPS_PROXY is no address of an HTTP proxy: write http://"),
    ],
)
async def test_what_fails_names_its_setting(
    proxy: CompanyProxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    image: str,
    variable: str,
    sentence: str,
) -> None:
    proxy.account = ("we", "are")
    monkeypatch.setenv("HTTPS_PROXY", variable.format(proxy=proxy.url, port=proxy.port))
    with pytest.raises(AgentError, match=sentence) as failed:
        await asyncio.to_thread(pull, tmp_path / "state", Pull(reference=image), IMPATIENT)
    assert "wrong" not in failed.value.detail


async def test_a_key_among_several_does_not_look_behind_the_proxy(
    proxy: CompanyProxy, tmp_path: Path
) -> None:
    with pytest.raises(RequestInvalid, match="public registries only"):
        await asyncio.to_thread(
            pull, tmp_path / "state", Pull(reference="127.1:5000/x", public_only=True), IMPATIENT
        )
    assert not proxy.connected


@pytest.mark.parametrize(
    ("url", "by"),
    [
        ("https://far.example/v2", "http://tls.example:3128"),
        ("http://far.example/v2", "http://plain.example:3128"),
        ("https://near.corp/v2", None),
        ("https://registry.near.corp:5000/v2", None),
        ("https://port.example:5000/v2", None),
        ("https://port.example/v2", "http://tls.example:3128"),
        ("https://10.2.3.4:5000/v2", None),
        ("https://11.2.3.4:5000/v2", "http://tls.example:3128"),
        ("https://[fd00::7]/v2", None),
        ("http://localhost:5000/v2", None),
        ("http://127.0.0.1:5000/v2", None),
    ],
)
def test_no_proxy_names_what_is_reached_without(
    monkeypatch: pytest.MonkeyPatch, url: str, by: str | None
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://tls.example:3128")
    monkeypatch.setenv("HTTP_PROXY", "http://plain.example:3128")
    monkeypatch.setenv("NO_PROXY", ".near.corp, port.example:5000, x/y, 10.0.0.1/8,fd00::/8")
    assert proxy_of(URL(url)) == (None if by is None else URL(by))
