"""Sandboxes that the cluster takes away: one reason, whatever took them and whatever version says so.

The statuses are those that Kubernetes' own code writes, 1.20 on the left and 1.37 on the right: kubelet
(`eviction`, `nodeshutdown`, `preemption`), scheduler, API server, taint and garbage collectors.
"""

from typing import Any

import kubernetes_asyncio.client as newest
import pytest

from orchard.injector.kubernetes import pod_metadata, warm
from orchard.injector.kubernetes.objects import Pod
from orchard.injector.kubernetes.settings import KubernetesSettings, WarmPool
from orchard.injector.kubernetes.status import PodVerdict, judge
from orchard.schemas.sandboxes import SandboxStatus
from tests.injector.kubernetes.conftest import NOW, born, container, pod, running

READY = {pod_metadata.INTRODUCED: pod_metadata.stamp(NOW)}
GRACE = 20
PRESSURE = "The node was low on resource: memory. "
SHUTDOWN = "Pod was terminated in response to imminent node shutdown."
FULL = 'Container sandbox exceeded its local ephemeral storage limit "16Gi". '
FULL_POD = "Pod ephemeral local storage usage exceeds the total limit of containers 16Gi. "
LOST = "The container could not be located when the pod was terminated"


def failed(reason: str = "", message: str = "", /, **more: Any) -> dict[str, Any]:
    return {"phase": "Failed", "reason": reason, "message": message, **more}


def condition(reason: str, message: str) -> dict[str, Any]:
    target = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": message}
    return {"conditions": [target]}


def by_kubelet(message: str) -> dict[str, Any]:
    return condition("TerminationByKubelet", message)


def being_deleted(**state: Any) -> dict[str, Any]:
    """A running Pod whose deletion has a grace, when that is over."""
    return {"grace": 1, **running(**state)}


KILLED = {"containerStatuses": container(terminated={"exitCode": 137, "reason": "Error"})}
VANISHED = {
    "containerStatuses": container(
        terminated={"exitCode": 137, "reason": "ContainerStatusUnknown", "message": LOST}
    )
}
EVENTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a full node": (
        failed("Evicted", PRESSURE),
        failed("Evicted", PRESSURE, **by_kubelet(PRESSURE), **KILLED),
    ),
    "a Pod that the node needs more": (
        failed("Preempting", "Preempted in order to admit critical pod"),
        failed("Preempting", "Preempted in order to admit critical pod", **by_kubelet("Preempted"), **KILLED),
    ),
    "a node that shuts down": (
        failed("Shutdown", "Node is shutting, evicting pods"),
        failed("Terminated", SHUTDOWN, **by_kubelet(SHUTDOWN), **KILLED),
    ),
    "a node that shut down before": (
        failed("NodeShutdown", "Pod was rejected as the node is shutting down."),
        failed("NodeShutdown", "Pod was rejected as the node is shutting down."),
    ),
    "a node that restarted": (failed(**VANISHED), failed(**VANISHED)),
    "preemption by the scheduler": (
        being_deleted(),
        being_deleted(
            **condition("PreemptionByScheduler", "preempting to accommodate a higher priority pod")
        ),
    ),
    "preemption, when the containers ended": (
        {"grace": GRACE, **running(**KILLED)},
        {"grace": GRACE, **failed(**KILLED, **condition("PreemptionByScheduler", "preempting"))},
    ),
    "a drain": (
        being_deleted(),
        being_deleted(**condition("EvictionByEvictionAPI", "Eviction API: evicting")),
    ),
    "a node that does not answer": (
        being_deleted(),
        being_deleted(
            **condition("DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")
        ),
    ),
    "a node that was deleted": (
        {
            "phase": "Unknown",
            "reason": "NodeLost",
            "message": "Node n which was running pod p is unresponsive",
        },
        {"deleted": True, **failed(**condition("DeletionByPodGC", "PodGC: node no longer exists"))},
    ),
}


def verdict(state: dict[str, Any], settings: KubernetesSettings, later: float = 1) -> PodVerdict:
    return judge(pod(birth=born(), annotations=READY, **state), settings, NOW + later)


@pytest.mark.parametrize("version", [0, 1], ids=["1.20", "newest"])
@pytest.mark.parametrize("event", EVENTS)
def test_what_the_cluster_takes_is_evicted(settings: KubernetesSettings, event: str, version: int) -> None:
    found = verdict(EVENTS[event][version], settings)
    assert (found.status, found.reason) == (SandboxStatus.FAILED, "evicted")
    assert found.message.startswith("the cluster took it away: ")


@pytest.mark.parametrize("event", EVENTS)
def test_the_newest_packaged_interface_has_these_fields(event: str) -> None:
    def known(document: dict[str, Any], model: Any) -> bool:
        return set(document) <= set(model.attribute_map.values())

    state = {name: value for name, value in EVENTS[event][1].items() if name not in ("grace", "deleted")}
    assert known(state, newest.V1PodStatus)
    assert all(known(one, newest.V1PodCondition) for one in state.get("conditions", []))
    for status in state.get("containerStatuses", []):
        assert known(status["state"].get("terminated", {}), newest.V1ContainerStateTerminated)


@pytest.mark.parametrize("conditions", [{}, by_kubelet(FULL)], ids=["1.20", "newest"])
@pytest.mark.parametrize("words", [FULL, FULL_POD])
def test_more_files_than_its_own_limit_are_its_own_doing(
    settings: KubernetesSettings, words: str, conditions: dict[str, Any]
) -> None:
    assert verdict(failed("Evicted", words, **conditions), settings).reason == "disk_limit"


def test_a_full_disk_of_the_node_is_not(settings: KubernetesSettings) -> None:
    words = "The node was low on resource: ephemeral-storage. Container sandbox was using 9Gi. "
    assert verdict(failed("Evicted", words), settings).reason == "evicted"


@pytest.mark.parametrize(
    "state",
    [
        {"grace": GRACE, **running()},
        {"grace": GRACE, **running(**condition("EvictionByEvictionAPI", "Eviction API: evicting"))},
        running(**by_kubelet(SHUTDOWN)),
    ],
    ids=["1.20", "drained", "kubelet"],
)
def test_it_can_be_used_until_its_grace_is_over(settings: KubernetesSettings, state: dict[str, Any]) -> None:
    found = verdict(state, settings, GRACE - 1)
    assert found.ready
    assert found.message.startswith("it is being evicted")
    if "grace" in state:
        assert found.until == NOW + GRACE
        assert verdict(state, settings, GRACE).reason == "evicted"


def test_one_that_was_not_ready_yet_has_no_use_of_a_grace(settings: KubernetesSettings) -> None:
    assert judge(pod(birth=born(), grace=GRACE, **running()), settings, NOW).reason == "evicted"


def test_the_services_own_deletion_is_none(settings: KubernetesSettings) -> None:
    assert verdict({"deleted": True, **running()}, settings).reason == "deleted"


def test_a_notice_that_was_taken_back_is_none(settings: KubernetesSettings) -> None:
    stale = [{"type": "DisruptionTarget", "status": "False", "reason": "EvictionByEvictionAPI"}]
    assert verdict(running(conditions=stale), settings).message == ""


def test_a_warm_pod_with_its_notice_is_not_claimed() -> None:
    pool = WarmPool(count=1)
    settings = KubernetesSettings(agent_image="x", warm={"debian:12": pool})
    mark = warm.mark_of("debian:12", pool, settings, "print")
    introduced = {pod_metadata.INTRODUCED: f"{pod_metadata.stamp(NOW)} print"}

    def free(**state: Any) -> bool:
        member: Pod = pod("warm", labels={pod_metadata.WARM: mark}, annotations=introduced, **state)
        return warm.is_free(member, mark, settings, NOW, "print")

    assert free(**running())
    assert not free(grace=GRACE, **running())
