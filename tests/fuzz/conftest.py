"""A service for fuzzing, and the measure of what it holds before and after."""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from tests.injector.conftest import Service

KEY = "key-of-the-fuzzer"
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "25"))
"""Tries of each property: more find more, a thousand take minutes."""
LIMIT = 20.0
"""Seconds in which every request must be answered, and everything be let go of."""


@dataclass(frozen=True)
class Held:
    """What a service holds on to."""

    sandboxes: int
    orchestrator: tuple[str, ...]
    """Descriptors."""
    agent: tuple[str, ...]
    """Descriptors."""
    processes: int
    """Descendants of the agent."""
    unfinished: int
    """Connections that the other end has closed and the orchestrator has not."""


class Target:
    """The service, and one sandbox and one ended job of it, for requests that should reach something."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.url = service.url
        self.key = KEY
        self.http = httpx.Client(base_url=service.url, headers={"X-API-Key": KEY}, timeout=LIMIT)
        self.sandbox_id = self.make()
        reply = self.http.post(f"/sandboxes/{self.sandbox_id}/exec", json={"command": "true", "wait": True})
        self.job_id = str(reply.json()["job_id"])

    def make(self) -> str:
        """A sandbox that is ready."""
        body = {"image": "host", "cpu": "1", "memory": "256Mi", "pids": 256}
        sandbox_id = str(self.http.post("/sandboxes", json=body).json()["sandbox_id"])
        assert self.http.get(f"/sandboxes/{sandbox_id}/wait").json()["ready"]
        return sandbox_id

    def restore(self) -> None:
        """After a request that may have deleted it."""
        if self.http.get(f"/sandboxes/{self.sandbox_id}").status_code == 404:
            self.sandbox_id = self.make()

    def delete(self, *, keep: str | None = None) -> None:
        """All sandboxes but `keep`."""
        for info in self.http.get("/sandboxes").json():
            if info["sandbox_id"] != keep:
                assert self.http.delete(f"/sandboxes/{info['sandbox_id']}").status_code == 200

    def held(self) -> Held:
        """As it is now."""
        agent = psutil.Process(self.service.agent_pid)
        orchestrator = psutil.Process(self.service.process.pid)
        return Held(
            sandboxes=len(self.http.get("/sandboxes").json()),
            orchestrator=_descriptors(self.service.process.pid),
            agent=_descriptors(agent.pid),
            processes=len(agent.children(recursive=True)),
            unfinished=sum(
                line.status == psutil.CONN_CLOSE_WAIT for line in orchestrator.net_connections("tcp")
            ),
        )


def _descriptors(pid: int) -> tuple[str, ...]:
    """What each leads to, without numbers. Without sockets, because connections are kept for reuse."""
    held = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            held.append(path.readlink().name.partition("[")[0])
    return tuple(sorted(name for name in held if name != "socket:"))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """With the demand that it holds as much afterwards as before."""
    service = Service(tmp_path_factory.mktemp("fuzz") / "state", env={"SANDBOX_API_KEY": KEY})
    try:
        target = Target(service)
        target.delete()
        before = target.held()
        target.sandbox_id = target.make()
        yield target
        assert service.process.poll() is None, "the orchestrator ended"
        target.delete()
        deadline = time.monotonic() + LIMIT
        while (after := target.held()) != before and time.monotonic() < deadline:
            time.sleep(0.05)
        assert after == before
    finally:
        service.stop()
