"""Which Jobs the janitor ends. That it may, and that they go, tests/kubernetes shows on a real cluster."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from orchard.processes.stuck_jobs import WorkerJobs, WorkerPods, stuck, without_pods

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)


def pod(
    reason: str | None, *, phase: str = "Pending", age: float = 3600, init: bool = False
) -> dict[str, Any]:
    """As the API server writes it, with far more than is read."""
    state = {"running": {}} if reason is None else {"waiting": {"reason": reason, "message": "it says"}}
    status = {"name": "worker", "ready": False, "restartCount": 0, "state": state}
    return {
        "metadata": {
            "name": "rollout-swe-normal-x-y",
            "creationTimestamp": (NOW - timedelta(seconds=age)).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "ownerReferences": [{"kind": "Job", "name": "rollout-swe-normal-x", "controller": True}],
        },
        "spec": {},
        "status": {"phase": phase, "initContainerStatuses" if init else "containerStatuses": [status]},
    }


def found(*pods: dict[str, Any]) -> list[tuple[str, str]]:
    listed = msgspec.json.decode(msgspec.json.encode({"kind": "PodList", "items": pods}), type=WorkerPods)
    return list(stuck(listed, NOW, timedelta(seconds=600)))


@pytest.mark.parametrize("init", [False, True])
@pytest.mark.parametrize("reason", ["ImagePullBackOff", "ErrImagePull", "CreateContainerConfigError"])
def test_what_cannot_start_is_found_with_its_reason(reason: str, init: bool) -> None:
    assert found(pod(reason, init=init)) == [("rollout-swe-normal-x", f"worker: {reason}: it says")]


@pytest.mark.parametrize(
    "healthy",
    [
        pod("ImagePullBackOff", age=599),
        pod("ContainerCreating", age=1799),
        pod("PodInitializing", age=1799),
        pod(None, phase="Running"),
        pod("ImagePullBackOff", phase="Running"),
        {**pod(None), "status": {"phase": "Pending"}},  # waits for a node
    ],
)
def test_what_may_still_start_is_left(healthy: dict[str, Any]) -> None:
    assert found(healthy) == []


@pytest.mark.parametrize("reason", ["ContainerCreating", "PodInitializing"])
def test_one_that_is_being_made_for_half_an_hour_is_found(reason: str) -> None:
    """The kubelet says no more of a volume whose Secret is missing, nor of an image that it pulls."""
    assert found(pod(reason, age=1800)) == [("rollout-swe-normal-x", f"worker: {reason}: it says")]


@pytest.mark.parametrize(
    ("status", "age", "refused"),
    [
        ({}, 600, True),
        ({"active": 0, "conditions": []}, 600, True),
        ({}, 599, False),
        ({"active": 1}, 86400, False),
        ({"succeeded": 1}, 86400, False),
        ({"failed": 1}, 86400, False),
    ],
)
def test_a_job_whose_pod_the_cluster_refuses_is_found(
    status: dict[str, Any], age: float, refused: bool
) -> None:
    """By a quota, a rule of the namespace, an account that is missing: KEDA counts the Job all the same."""
    made = (NOW - timedelta(seconds=age)).strftime("%Y-%m-%dT%H:%M:%SZ")
    job = {"metadata": {"name": "x", "creationTimestamp": made}, "spec": {}, "status": status}
    listed = msgspec.json.decode(msgspec.json.encode({"items": [job]}), type=WorkerJobs)
    names = [name for name, _ in without_pods(listed, NOW, timedelta(seconds=600))]
    assert names == (["x"] if refused else [])


def test_a_pod_without_a_job_is_nobodys() -> None:
    alone = pod("ImagePullBackOff")
    del alone["metadata"]["ownerReferences"]
    assert found(alone, pod("ErrImagePull")) == [("rollout-swe-normal-x", "worker: ErrImagePull: it says")]
