"""A browser is no way in: pages of strangers send requests to this machine, and let names point at it."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import pytest

from orchard.injector.client import AsyncSandbox

if TYPE_CHECKING:
    from tests.injector.conftest import Service

CREATE = b'{"image":"host","sandbox_id":"made-by-a-page"}'
STRANGER = "https://pages.example"


async def ask(service: "Service", method: str, path: str, **headers: str) -> int:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    data = CREATE if method == "POST" else None
    async with (
        aiohttp.ClientSession(service.url, skip_auto_headers=["Content-Type"]) as http,
        http.request(method, path, data=data, headers=named) as reply,
    ):
        return reply.status


@pytest.mark.parametrize(
    "origin", [STRANGER, "null", "http://127.0.0.1:1", "http://localhost.pages.example", "http://[::1", "//"]
)
async def test_a_foreign_page_is_refused_on_every_route(service: "Service", origin: str) -> None:
    for method, path in (("POST", "/sandboxes"), ("GET", "/sandboxes"), ("GET", "/metrics"), ("GET", "/")):
        asked = await ask(service, method, path, Origin=origin, Content_Type="application/json")
        assert asked == 403, (method, path)


async def test_its_own_page_is_not(service: "Service") -> None:
    for name in ("127.0.0.1", "localhost"):
        host = f"{name}:{service.port}"
        assert await ask(service, "GET", "/sandboxes", Origin=f"http://{host}", Host=host) == 200


@pytest.mark.parametrize(
    "kind",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "text/json"],
)
async def test_what_a_page_may_send_unasked_is_no_request(service: "Service", kind: str) -> None:
    """Not even without an Origin; with no type at all a page sends a Blob."""
    headers = {"Content_Type": kind} if kind else {}
    assert await ask(service, "POST", "/sandboxes", **headers) == 415
    assert await ask(service, "GET", "/sandboxes/made-by-a-page") == 404


@pytest.mark.parametrize("encoding", ["zstd", "gzip", "deflate"])
async def test_a_body_that_is_not_encoded_as_it_says_is_the_clients_fault(
    service: "Service", encoding: str
) -> None:
    assert (
        await ask(service, "POST", "/sandboxes", Content_Type="application/json", Content_Encoding=encoding)
        == 400
    )


@pytest.mark.parametrize(
    "host",
    [
        *("pages.example", "pages.example:80", "127.0.0.1.pages.example", "[2001:db8::1]"),
        *("localhost:80@pages.example", "[::1]pages.example:80", "localhost."),
    ],
)
async def test_a_name_that_was_made_to_point_here_is_not_answered(service: "Service", host: str) -> None:
    for path in ("/", "/health", "/metrics", "/sandboxes", "/nothing"):
        assert await ask(service, "GET", path, Host=host) == 421


async def test_names_of_this_machine_are(service: "Service") -> None:
    for host in ("localhost", "localhost:1234", "[::1]:80", "127.8.9.10", "any.localhost:80"):
        assert await ask(service, "GET", "/health", Host=host) == 200


async def test_a_foreign_page_gets_no_terminal(service: "Service", sandbox: AsyncSandbox) -> None:
    url = f"{service.url}/sandboxes/{sandbox.sandbox_id}/exec/pty"
    async with aiohttp.ClientSession() as http:
        for headers, status in (({"Origin": STRANGER}, 403), ({"Host": "pages.example"}, 421)):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await http.ws_connect(url, headers=headers)
            assert refused.value.status == status
        async with http.ws_connect(url, headers={"Origin": service.url}) as line:
            assert not line.closed


async def test_names_of_a_proxy_are_allowed_by_name(tmp_path: Path, start_service: "type[Service]") -> None:
    running = start_service(tmp_path / "state", "--allowed-host", "proxy.example")
    try:
        assert await ask(running, "GET", "/sandboxes", Host="proxy.example:8443") == 200
        page = "https://proxy.example:8443"
        assert await ask(running, "GET", "/sandboxes", Host="proxy.example:8443", Origin=page) == 200
        assert await ask(running, "GET", "/sandboxes", Origin=page) == 200
        assert await ask(running, "GET", "/sandboxes", Host="pages.example") == 421
    finally:
        running.stop()


async def test_without_keys_one_is_made_and_told(
    tmp_path: Path, eventually: Callable[[Callable[[], bool], str], None]
) -> None:
    """As `python -m orchard.injector.orchestrator --state DIR` is typed by hand."""
    state, port = tmp_path / "state", tmp_path / "port"
    keys: list[str] = []
    for _ in range(2):
        port.unlink(missing_ok=True)
        line = ["-m", "orchard.injector.orchestrator", "--state", str(state), "--port-file", str(port)]
        environment = {name: value for name, value in os.environ.items() if name != "SANDBOX_API_KEY"}
        with (tmp_path / "said").open("w") as said:
            process = subprocess.Popen([sys.executable, *line], stderr=said, env=environment)  # noqa: ASYNC220
        eventually(port.exists, "it serves")
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port.read_text().strip()}") as http:
            keys.append((state / "sandbox.key").read_text().strip())
            async with http.get("/sandboxes") as reply:
                assert reply.status == 401
            async with http.get("/sandboxes", headers={"X-API-Key": keys[-1]}) as reply:
                assert reply.status == 200
        process.terminate()
        process.wait()
        told = (tmp_path / "said").read_text()
        assert f"clients need the key in {state / 'sandbox.key'}" in told and keys[-1] not in told
    assert keys[0] == keys[1] and len(keys[0]) > 30
    assert oct((state / "sandbox.key").stat().st_mode)[-3:] == "600"
    stop = [sys.executable, "-m", "orchard.injector.agent", "--state", str(state), "--stop"]
    subprocess.run(stop, check=True)  # noqa: ASYNC221
