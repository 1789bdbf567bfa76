"""Running the service: metrics, logs, and ending without cutting anybody off."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client.parser import text_string_to_metric_families

from orchard.injector.client import AsyncSandbox
from orchard.injector.local.backend import LocalBackend
from orchard.injector.orchestrator.app import Orchestrator as Orchestrated
from orchard.injector.orchestrator.keys import Keys
from orchard.schemas.sandboxes import Resources

if TYPE_CHECKING:
    from tests.injector.conftest import Service

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def _samples(url: str) -> Samples:
    async with aiohttp.ClientSession() as http, http.get(url) as reply:
        assert (reply.status, reply.content_type) == (200, "text/plain")
        text = await reply.text()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def _value(samples: Samples, name: str, **labels: str) -> float:
    return samples.get((name, frozenset(labels.items())), 0.0)


async def test_metrics_count_requests_commands_and_sandboxes(
    service: "Service", sandbox: AsyncSandbox
) -> None:
    url = f"{service.url}/metrics"
    before = await _samples(url)
    await sandbox.exec("true")
    await sandbox.exec("false")
    await sandbox.exec("sleep 60", 0.2)
    after = await _samples(url)
    route = {"method": "POST", "route": "/sandboxes/{id}/exec"}

    def grown(name: str, **labels: str) -> float:
        return _value(after, name, **labels) - _value(before, name, **labels)

    assert grown("orchard_sandbox_requests_total", status="200", **route) == 3
    assert grown("orchard_sandbox_request_seconds_count", **route) == 3
    assert grown("orchard_sandbox_request_seconds_sum", **route) >= 0.2
    for outcome in ("succeeded", "failed", "timeout"):
        assert grown("orchard_sandbox_exec_seconds_count", outcome=outcome) == 1
    assert _value(after, "orchard_sandbox_sandboxes", status="ready") >= 1
    assert _value(after, "orchard_sandbox_backend_up") == 1
    assert _value(after, "orchard_sandbox_requests_in_flight") == 1  # this one


async def test_a_route_nobody_serves_and_a_method_nobody_knows_add_no_labels(service: "Service") -> None:
    async with aiohttp.ClientSession(service.url) as http:
        await http.get("/made/up/1")
        await http.get("/made/up/2")
        await http.request("PROPFIND", "/sandboxes")
    labels = {label for _, labels in await _samples(f"{service.url}/metrics") for label in labels}
    assert ("route", "unmatched") in labels and ("method", "other") in labels
    assert not any("made" in value or value == "PROPFIND" for _, value in labels)


@pytest.fixture
def logged(service: "Service", tmp_path: Path) -> "Iterator[Orchestrator]":
    orchestrator = Orchestrator(service.state, tmp_path)
    yield orchestrator
    orchestrator.process.kill()
    orchestrator.process.wait()


class Orchestrator:
    """A second orchestrator over the same agent, with its log in a file."""

    def __init__(self, state: Path, place: Path, *arguments: str) -> None:
        self.log = place / "log"
        port_file = place / "port"
        line = [sys.executable, "-m", "orchard.injector.orchestrator", "--open", "--state", str(state)]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*line, "--port-file", str(port_file), *arguments], stderr=log, env=os.environ
            )
        while not port_file.exists():
            assert self.process.poll() is None, self.log.read_text()
        self.url = f"http://127.0.0.1:{port_file.read_text().strip()}"

    def lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()]


async def test_logs_are_json_lines_with_the_id_of_the_request(logged: Orchestrator) -> None:
    async with aiohttp.ClientSession(logged.url) as http:
        reply = await http.get("/sandboxes/nobody")
        await http.get("/health")
    (line,) = [line for line in logged.lines() if line["message"] == "request"]
    assert line["request_id"] == reply.headers["X-Request-ID"]
    expected = {"method": "GET", "route": "/sandboxes/{id}", "status": 404, "sandbox_id": "nobody"}
    assert {name: line[name] for name in expected} == expected
    assert (
        isinstance(line["seconds"], float)
        and line["level"] == "INFO"
        and str(line["time"]).endswith("+00:00")
    )


async def test_the_agent_logs_what_a_request_set_off_with_the_same_id(service: "Service") -> None:
    async with aiohttp.ClientSession(service.url) as http:
        reply = await http.post("/sandboxes", json={"image": "no/such:image"})
        sandbox_id = (await reply.json())["sandbox_id"]
        await http.get(f"/sandboxes/{sandbox_id}/wait")
        await http.delete(f"/sandboxes/{sandbox_id}")
    lines = (service.state / "agent.log").read_text().splitlines()
    (line,) = [json.loads(line) for line in lines if sandbox_id in line]
    assert "no/such:image" in line["message"]
    assert (line["level"], line["request_id"]) == ("WARNING", reply.headers["X-Request-ID"])


class Broken(LocalBackend):
    """Fails in a way that nobody thought of."""

    async def resources(self) -> Resources:
        raise RuntimeError("secret-detail of the inside")


async def test_a_500_shows_nothing_but_the_id_under_which_the_log_has_it(
    service: "Service", caplog: pytest.LogCaptureFixture
) -> None:
    async with TestClient(TestServer(Orchestrated(Broken(service.state), Keys([])).application())) as http:
        reply = await http.get("/resources")
        text = await reply.text()
    request_id = reply.headers["X-Request-ID"]
    assert (reply.status, request_id in text) == (500, True)
    assert "secret-detail" not in text and "RuntimeError" not in text
    (record,) = [record for record in caplog.records if record.exc_info]
    assert "secret-detail" in str(record.exc_info)


async def test_a_request_in_flight_is_answered_before_the_end(
    logged: Orchestrator, sandbox: AsyncSandbox
) -> None:
    await sandbox.exec("mkfifo begun gate")
    body = {"command": "echo > begun; read line < gate; echo $line", "wait": True}
    async with aiohttp.ClientSession(logged.url) as http:
        asked = asyncio.create_task(http.post(f"/sandboxes/{sandbox.sandbox_id}/exec", json=body))
        await sandbox.exec("cat begun")
        logged.process.send_signal(signal.SIGTERM)
        async with aiohttp.ClientSession(logged.url) as new:
            with pytest.raises(aiohttp.ClientConnectorError):
                while await new.get("/"):
                    pass
        await sandbox.exec("echo open > gate")
        reply = await asked
        assert (reply.status, (await reply.json())["stdout"]) == (200, "open\n")
        assert reply.headers["Connection"] == "close"
    assert await asyncio.to_thread(logged.process.wait, 30) == 0


async def test_what_does_not_end_in_time_is_cut_off_and_repeated_by_the_client(
    service: "Service", sandbox: AsyncSandbox, tmp_path: Path
) -> None:
    ending = Orchestrator(service.state, tmp_path, "--drain-seconds", "0.2")
    await sandbox.exec("mkfifo begun gate")
    line = "echo ran >> count; echo > begun; read line < gate; cat count"
    async with aiohttp.ClientSession(ending.url) as http:
        key = {"Idempotency-Key": "cut-off"}
        body = {"command": line, "wait": True}
        asked = asyncio.create_task(
            http.post(f"/sandboxes/{sandbox.sandbox_id}/exec", json=body, headers=key)
        )
        await sandbox.exec("cat begun")
        ending.process.terminate()
        with pytest.raises(aiohttp.ClientError):
            await asked
    assert await asyncio.to_thread(ending.process.wait, 30) == 0
    repeated = asyncio.create_task(sandbox.exec(line, idempotency_key="cut-off"))
    await sandbox.exec("echo > gate")
    assert (await repeated).stdout == "ran\n"


async def test_metrics_on_a_port_of_their_own(
    service: "Service", tmp_path: Path, unused_tcp_port: int
) -> None:
    orchestrator = Orchestrator(service.state, tmp_path, "--metrics-port", str(unused_tcp_port))
    try:
        samples = await _samples(f"http://127.0.0.1:{unused_tcp_port}/metrics")
        assert _value(samples, "orchard_sandbox_backend_up") == 1
        async with aiohttp.ClientSession(orchestrator.url) as http:
            assert (await http.get("/metrics")).status == 404
    finally:
        orchestrator.process.kill()
        orchestrator.process.wait()


async def test_while_draining_health_is_503_and_connections_are_closed(service: "Service") -> None:
    orchestrator = Orchestrated(LocalBackend(service.state), Keys([]))
    async with TestClient(TestServer(orchestrator.application())) as http:
        assert (await http.get("/health")).status == 200
        orchestrator.drain.begun = True
        reply = await http.get("/health")
        assert (reply.status, reply.headers["X-Error-Reason"]) == (503, "draining")
        assert reply.headers["Connection"] == "close"
