"""The HTTP contract: routes, replies, keys, errors."""

import base64
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import pytest

from orchard.injector.client import AsyncSandbox, AsyncSandboxClient
from orchard.injector.errors import SandboxRequestInvalid

if TYPE_CHECKING:
    from tests.injector.conftest import Service

KEYS = {"SANDBOX_API_KEY": "first-key,second-key"}

JSON = {"Content-Type": "application/json"}


@pytest.fixture
async def http(service: "Service") -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(service.url) as session:
        yield session


@pytest.fixture(scope="module")
def guarded(service: "Service", start_service: "type[Service]") -> "Iterator[Service]":
    """A second orchestrator over the same agent, with keys."""
    running = start_service(service.state, env=KEYS)
    yield running
    running.kill()


async def test_the_root_says_what_it_is(http: aiohttp.ClientSession) -> None:
    reply = await (await http.get("/")).json()
    assert set(reply) == {"service", "version", "status"}
    assert reply["status"] == "running"


async def test_health(http: aiohttp.ClientSession) -> None:
    reply = await http.get("/health")
    assert (reply.status, (await reply.json())["status"]) == (200, "healthy")


async def test_create_answers_at_once_with_the_published_fields(http: aiohttp.ClientSession) -> None:
    reply = await http.post("/sandboxes", json={"image": "host"})
    body = await reply.json()
    assert {
        name: body[name] for name in ("image", "block_network", "cpu", "memory", "timeout", "status")
    } == {
        "image": "host",
        "block_network": True,
        "cpu": "4",
        "memory": "16Gi",
        "timeout": 3600,
        "status": "pending",
    }
    assert len(body["sandbox_id"]) == 8 and int(body["sandbox_id"], 16) >= 0
    waited = await (await http.get(f"/sandboxes/{body['sandbox_id']}/wait", params={"timeout": "30"})).json()
    assert waited["ready"] is True and waited["status"] == "ready"
    assert waited["pod_name"] == f"sandbox-{body['sandbox_id']}"
    await http.delete(f"/sandboxes/{body['sandbox_id']}")


async def test_json_is_compact_and_every_reply_has_a_request_id(http: aiohttp.ClientSession) -> None:
    replies = [await http.get("/"), await http.get("/sandboxes/nobody"), await http.get("/no/such/route")]
    assert len({reply.headers["X-Request-ID"] for reply in replies}) == 3
    for reply in replies:
        text = await reply.text()
        assert text == json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False)


async def test_errors_have_a_detail(http: aiohttp.ClientSession) -> None:
    unknown = await http.get("/sandboxes/nobody")
    assert (unknown.status, await unknown.json()) == (404, {"detail": "there is no sandbox nobody"})
    missing = await http.get("/no/such/route")
    assert (missing.status, set(await missing.json())) == (404, {"detail"})
    wrong = await http.put("/sandboxes")
    assert (wrong.status, set(await wrong.json())) == (405, {"detail"})


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({}, ["body"]),
        ({"image": 3}, ["body", "image"]),
        ({"image": "host", "sandbox_id": "Not_A_Label"}, ["body", "sandbox_id"]),
        ({"image": "host", "labels": {"a": 1}}, ["body", "labels", "..."]),
        ({"image": "host", "timeout": -1}, ["body", "timeout"]),
    ],
)
async def test_validation_says_where(
    http: aiohttp.ClientSession, body: dict[str, object], place: list[str]
) -> None:
    reply = await http.post("/sandboxes", json=body)
    detail = (await reply.json())["detail"]
    assert reply.status == 422
    assert detail[0]["loc"] == place and set(detail[0]) == {"loc", "msg", "type"}


@pytest.mark.parametrize("field", ["timeout", "ttl_seconds"])
@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "0"])
async def test_a_time_is_a_number(
    http: aiohttp.ClientSession, client: AsyncSandboxClient, field: str, number: str
) -> None:
    """JSON has no NaN, and a client that writes null for it makes a sandbox that lives for ever."""
    reply = await http.post("/sandboxes", json={"image": "host", field: number + ".0" * (number == "0")})
    assert (reply.status, (await reply.json())["detail"][0]["loc"]) == (422, ["body", field])
    with pytest.raises(SandboxRequestInvalid, match=field):
        await client.create_sandbox("host", **{field: float(number) or -1.0})  # type: ignore[arg-type]


@pytest.mark.parametrize("field", [{"cpu": "lots"}, {"memory": "16GB"}, {"memory": "0"}])
async def test_quantities_are_checked(http: aiohttp.ClientSession, field: dict[str, str]) -> None:
    reply = await http.post("/sandboxes", json={"image": "host", **field})
    assert (reply.status, (await reply.json())["detail"][0]["loc"]) == (422, ["body", *field])


@pytest.mark.parametrize("body", [b"{", b"", b"\xff", b'{"a":' * 100_000])
async def test_a_body_that_is_not_json(http: aiohttp.ClientSession, body: bytes) -> None:
    reply = await http.post("/sandboxes", data=body, headers=JSON)
    assert (reply.status, (await reply.json())["detail"][0]["type"]) == (422, "json_invalid")


async def test_missing_key_401_wrong_key_403_before_the_body_is_read(guarded: "Service") -> None:
    async with aiohttp.ClientSession(guarded.url) as http:
        missing = await http.post("/sandboxes", data=b"not json")
        wrong = await http.post("/sandboxes", data=b"not json", headers={"X-API-Key": "third-key"})
        right = await http.post("/sandboxes", data=b"not json", headers={"X-API-Key": "second-key"} | JSON)
        assert (missing.status, wrong.status, right.status) == (401, 403, 422)
        assert "X-Request-ID" in missing.headers and "X-Request-ID" in wrong.headers
        assert {(await http.get(path)).status for path in ("/", "/health")} == {200}


async def test_the_client_sends_its_key(guarded: "Service") -> None:
    async with guarded.client(api_key="first-key") as client:
        assert await client.list_sandboxes() is not None
    async with guarded.client(api_key="wrong") as client:
        with pytest.raises(SandboxRequestInvalid) as refused:
            await client.list_sandboxes()
    assert refused.value.status == 403


def test_no_keys_beyond_loopback_is_refused(tmp_path: Path) -> None:
    line = [
        sys.executable,
        "-m",
        "orchard.injector.orchestrator",
        "--state",
        str(tmp_path),
        "--host",
        "0.0.0.0",
    ]
    done = subprocess.run(line, capture_output=True, text=True, env={"PATH": "/usr/bin"})
    assert done.returncode == 2
    assert "SANDBOX_API_KEY" in done.stderr


async def test_exec_with_wait_is_the_job(http: aiohttp.ClientSession, sandbox: AsyncSandbox) -> None:
    reply = await http.post(
        f"/sandboxes/{sandbox.sandbox_id}/exec", json={"command": "echo hi", "wait": True}
    )
    job = await reply.json()
    assert (job["status"], job["stdout"], job["exit_code"], job["command"]) == (
        "succeeded",
        "hi\n",
        0,
        "echo hi",
    )
    assert (await (await http.get(f"/jobs/{job['job_id']}")).json()) == job


async def test_an_empty_command_is_invalid(http: aiohttp.ClientSession, sandbox: AsyncSandbox) -> None:
    reply = await http.post(f"/sandboxes/{sandbox.sandbox_id}/exec", json={"command": ""})
    assert reply.status == 422


async def test_files_in_json(http: aiohttp.ClientSession, sandbox: AsyncSandbox) -> None:
    path, files = "/workspace/x.bin", f"/sandboxes/{sandbox.sandbox_id}/files"
    content = base64.b64encode(b"\xff\x00\n").decode()
    written = await (await http.post(files, json={"path": path, "content": content})).json()
    read = await (await http.get(files, params={"path": path})).json()
    listed = await (await http.get(files + "/list", params={"path": "/workspace"})).json()
    assert written == {"success": True, "path": path, "size": 3}
    assert read == {"path": path, "content": content, "size": 3}
    assert [(entry["name"], entry["type"], entry["size"]) for entry in listed["files"]] == [
        ("x.bin", "file", 3)
    ]


@pytest.mark.parametrize("content", ["?", "AAA", "ü"])
async def test_content_that_is_not_base64(
    http: aiohttp.ClientSession, sandbox: AsyncSandbox, content: str
) -> None:
    reply = await http.post(f"/sandboxes/{sandbox.sandbox_id}/files", json={"path": "/x", "content": content})
    assert (reply.status, (await reply.json())["detail"][0]["loc"]) == (422, ["body", "content"])


async def test_resources_count_what_is_there(http: aiohttp.ClientSession, sandbox: AsyncSandbox) -> None:
    body = await (await http.get("/resources")).json()
    pods = {pod["name"]: pod for pod in body["sandbox_pods"]}
    assert pods[f"sandbox-{sandbox.sandbox_id}"]["memory_request_bytes"] == 16 * 2**30
    assert set(body["available"]) == {"cpu", "memory_bytes"}


async def test_wait_408_while_nothing_happens_404_unknown(http: aiohttp.ClientSession) -> None:
    assert (await http.get("/sandboxes/nobody/wait")).status == 404
    assert (await http.get("/sandboxes/nobody/wait", params={"timeout": "soon"})).status == 422


async def test_delete_and_heartbeat(http: aiohttp.ClientSession, sandbox: AsyncSandbox) -> None:
    sandbox_id = sandbox.sandbox_id
    beat = await (await http.post(f"/sandboxes/{sandbox_id}/heartbeat")).json()
    gone = await (await http.delete(f"/sandboxes/{sandbox_id}")).json()
    again = await http.delete(f"/sandboxes/{sandbox_id}")
    assert beat == {"status": "ok", "sandbox_id": sandbox_id}
    assert gone == {"status": "deleted", "sandbox_id": sandbox_id}
    assert (again.status, (await http.post(f"/sandboxes/{sandbox_id}/heartbeat")).status) == (200, 404)


async def test_a_field_that_is_null_is_left_out(http: aiohttp.ClientSession, sandbox: AsyncSandbox) -> None:
    """The published client sends nulls for what its caller did not say."""
    fields = {"command": "pwd", "timeout_seconds": None, "cwd": None, "env": None, "wait": True}
    reply = await http.post(f"/sandboxes/{sandbox.sandbox_id}/exec", json=fields)
    assert (reply.status, (await reply.json())["stdout"]) == (200, "/workspace\n")
    wrong = await http.post("/sandboxes", json={"image": None})
    assert wrong.status == 422
