"""Random histories of requests beside a model of what they lead to: sandboxes, their files, their jobs."""

from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from tests.fuzz.conftest import EXAMPLES, Target

pytestmark = pytest.mark.long

names = st.sampled_from(["a", "b", "deep/er/c"])
contents = st.binary(max_size=30)
keys = st.sampled_from(["key-1", "key-2"])


class Histories(RuleBasedStateMachine):
    """Whatever came before, the service knows what the model knows."""

    target: ClassVar[Target]
    sandboxes: Bundle[str] = Bundle("sandboxes")

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, dict[str, bytes]] = {}
        self.created: dict[str, str] = {}
        """By idempotency key."""
        self.ran: dict[tuple[str, str], dict[str, Any]] = {}
        """Jobs by sandbox and idempotency key."""
        self.count: dict[str, int] = {}
        """Commands that wrote to the file system of a sandbox, those of what it was forked from included."""
        self.target.delete()

    @rule(target=sandboxes, key=keys | st.none())
    def create(self, key: str | None) -> Any:
        headers = {} if key is None else {"Idempotency-Key": key}
        body = {"image": "host", "cpu": "1", "memory": "256Mi"}
        sandbox_id = str(self._ask("POST", "/sandboxes", json=body, headers=headers)["sandbox_id"])
        if key is not None and key in self.created:
            assert sandbox_id == self.created[key]
            return multiple()
        if key is not None:
            self.created[key] = sandbox_id
        assert self._ask("GET", f"/sandboxes/{sandbox_id}/wait")["ready"]
        self.files[sandbox_id] = {}
        return sandbox_id

    @rule(sandbox_id=sandboxes, name=names, content=contents)
    def write(self, sandbox_id: str, name: str, content: bytes) -> None:
        path = f"/workspace/{name}"
        self._ask("POST", f"/sandboxes/{sandbox_id}/files", params={"path": path}, content=content)
        self.files[sandbox_id][name] = content

    @rule(sandbox_id=sandboxes, name=names)
    def read(self, sandbox_id: str, name: str) -> None:
        reply = self.target.http.get(
            f"/sandboxes/{sandbox_id}/files",
            params={"path": f"/workspace/{name}"},
            headers={"Accept": "application/octet-stream"},
        )
        known = self.files[sandbox_id].get(name)
        assert (
            (reply.status_code, reply.content) == (200, known)
            if known is not None
            else reply.status_code == 404
        )

    @rule(sandbox_id=sandboxes, key=keys)
    def execute(self, sandbox_id: str, key: str) -> None:
        body = {"command": "echo ran >> /tmp/count; wc -l < /tmp/count", "wait": True}
        job = self._ask("POST", f"/sandboxes/{sandbox_id}/exec", json=body, headers={"Idempotency-Key": key})
        if (sandbox_id, key) not in self.ran:
            self.ran[sandbox_id, key] = job
            self.count[sandbox_id] = self.count.get(sandbox_id, 0) + 1
            assert job["stdout"] == f"{self.count[sandbox_id]}\n"
        assert job == self.ran[sandbox_id, key] == self._ask("GET", f"/jobs/{job['job_id']}")

    @rule(target=sandboxes, sandbox_id=sandboxes)
    def fork(self, sandbox_id: str) -> Any:
        (info,) = self._ask("POST", f"/sandboxes/{sandbox_id}/fork", json={"count": 1})
        assert self._ask("GET", f"/sandboxes/{info['sandbox_id']}/wait")["ready"]
        self.files[info["sandbox_id"]] = dict(self.files[sandbox_id])
        self.count[info["sandbox_id"]] = self.count.get(sandbox_id, 0)
        return info["sandbox_id"]

    @rule(sandbox_id=consumes(sandboxes))
    def delete(self, sandbox_id: str) -> None:
        assert self._ask("DELETE", f"/sandboxes/{sandbox_id}")["status"] == "deleted"
        del self.files[sandbox_id]
        self.created = {key: made for key, made in self.created.items() if made != sandbox_id}
        for method, path in (("GET", ""), ("POST", "/heartbeat"), ("GET", "/files/list?path=/")):
            assert self.target.http.request(method, f"/sandboxes/{sandbox_id}{path}").status_code == 404

    @invariant()
    def it_lists_what_there_is(self) -> None:
        listed = self._ask("GET", "/sandboxes")
        assert {info["sandbox_id"] for info in listed} == set(self.files)
        assert all(info["ready"] for info in listed)

    def _ask(self, method: str, path: str, **options: Any) -> Any:
        reply = self.target.http.request(method, path, **options)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def teardown(self) -> None:
        self.target.delete()


@pytest.mark.timeout(1200)
def test_any_history_leads_to_what_it_should(target: Target) -> None:
    Histories.target = target
    chosen = settings(
        max_examples=max(5, EXAMPLES // 5),
        stateful_step_count=15,
        deadline=None,
        derandomize=EXAMPLES < 100,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Histories, settings=chosen)
