"""What a Pod's state says about its sandbox."""

from typing import Any

import pytest

from orchard.injector.kubernetes import pod_metadata
from orchard.injector.kubernetes.settings import KubernetesSettings
from orchard.injector.kubernetes.status import judge
from orchard.schemas.sandboxes import SandboxStatus
from tests.injector.kubernetes.conftest import NOW, born, container, pod, running

READY = {pod_metadata.INTRODUCED: pod_metadata.stamp(NOW)}


def waiting(reason: str) -> dict[str, Any]:
    return {"containerStatuses": container(waiting={"reason": reason, "message": f"because of {reason}"})}


def ended(code: int, reason: str = "Error") -> dict[str, Any]:
    over = container(terminated={"exitCode": code, "reason": reason})
    return {"phase": "Failed" if code else "Succeeded", "containerStatuses": over}


@pytest.mark.parametrize(
    "reason",
    ["ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "ImageInspectError", "RegistryUnavailable"],
)
def test_an_image_that_cannot_be_had_is_waited_for(settings: KubernetesSettings, reason: str) -> None:
    """As long as the request has time; then the sandbox says what it waited for."""
    waits = pod(birth=born(timeout=600), **waiting(reason))
    verdict = judge(waits, settings, NOW + 599)
    assert (verdict.status, verdict.reason) == (SandboxStatus.PENDING, "image_unavailable")
    assert f"because of {reason}" in verdict.message
    late = judge(waits, settings, NOW + 600)
    assert (late.status, late.reason) == (SandboxStatus.FAILED, "image_unavailable")
    assert f"because of {reason}" in late.message


def test_a_name_that_is_none_fails_at_once(settings: KubernetesSettings) -> None:
    verdict = judge(pod(birth=born(), **waiting("InvalidImageName")), settings, NOW)
    assert (verdict.status, verdict.reason) == (SandboxStatus.FAILED, "image_invalid")


@pytest.mark.parametrize(
    ("what", "reason"), [("sandbox", "image_missing"), ("agent", "start_failed"), ("layer", "start_failed")]
)
def test_whose_image_is_missing_decides_whose_fault_it_is(
    settings: KubernetesSettings, what: str, reason: str
) -> None:
    said = {"reason": "ErrImagePull", "message": "reading manifest 1 in docker.io/x/y: manifest unknown"}
    statuses = {
        "containerStatuses" if what == "sandbox" else "initContainerStatuses": container(what, waiting=said)
    }
    look = pod_metadata.PullAttempt(image="", trouble="missing", since=NOW, words="", waited=True)
    seen = pod(birth=born(), annotations={pod_metadata.PULL_ATTEMPT: pod_metadata.encoded(look)}, **statuses)
    verdict = judge(seen, settings, NOW + settings.missing_after)
    assert (verdict.status, verdict.reason) == (SandboxStatus.FAILED, reason)
    assert "manifest unknown" in verdict.message
    assert not verdict.settled, "Kubernetes goes on trying: the failure must be marked"


@pytest.mark.parametrize("reason", ["CrashLoopBackOff", "CreateContainerError", "CreateContainerConfigError"])
def test_a_container_that_cannot_be_made_fails_at_once(settings: KubernetesSettings, reason: str) -> None:
    assert judge(pod(birth=born(), **waiting(reason)), settings, NOW).reason == "start_failed"


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (ended(137, "OOMKilled"), "out_of_memory"),
        (ended(1), "died"),
        (ended(0, "Completed"), "died"),
        (ended(128, "StartError"), "start_failed"),
        ({"phase": "Failed", "reason": "DeadlineExceeded"}, "expired"),
        ({"phase": "Failed", "reason": "OutOfcpu", "message": "no cpu left"}, "start_failed"),
    ],
)
def test_why_it_ended(settings: KubernetesSettings, state: dict[str, Any], reason: str) -> None:
    verdict = judge(pod(birth=born(), annotations=READY, **state), settings, NOW)
    assert (verdict.status, verdict.reason) == (SandboxStatus.FAILED, reason)
    assert verdict.message


def test_an_installer_that_fails_is_why_it_did_not_start(settings: KubernetesSettings) -> None:
    installer = container("layer", terminated={"exitCode": 1, "message": "no space left"})
    verdict = judge(pod(birth=born(), phase="Failed", initContainerStatuses=installer), settings, NOW)
    assert verdict.reason == "start_failed"
    assert verdict.message == "the layer could not be installed: exit code 1, no space left"


def test_what_cannot_be_scheduled_may_be_later(settings: KubernetesSettings) -> None:
    full = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    waiting_pod = pod(birth=born(timeout=60), conditions=[full])
    verdict = judge(waiting_pod, settings, NOW + 59)
    assert (verdict.status, verdict.message) == (SandboxStatus.UNSCHEDULABLE, "0/3 nodes")
    assert verdict.until == NOW + 60
    late = judge(waiting_pod, settings, NOW + 60)
    assert (late.reason, "0/3 nodes" in late.message) == ("start_timeout", True)


def test_no_request_may_wait_longer_than_the_operator_lets_it(settings: KubernetesSettings) -> None:
    sandbox = pod(birth=born(timeout=100_000))
    assert judge(sandbox, settings, NOW + settings.pending_timeout).reason == "start_timeout"


def test_it_is_ready_when_its_agent_has_its_key_and_not_before(settings: KubernetesSettings) -> None:
    started = judge(pod(birth=born(), **running()), settings, NOW)
    assert (started.status, started.startable) == (SandboxStatus.PENDING, True)
    introduced = judge(pod(birth=born(), annotations=READY, **running()), settings, NOW + 1e6)
    assert introduced.ready


def test_a_marked_failure_outlives_whatever_the_pod_does(settings: KubernetesSettings) -> None:
    failure = pod_metadata.FailureRecord(reason="agent_replaced", message="another answered")
    sandbox = pod(
        birth=born(), annotations={**READY, pod_metadata.FAILED: pod_metadata.encoded(failure)}, **running()
    )
    verdict = judge(sandbox, settings, NOW)
    assert (verdict.reason, verdict.message, verdict.settled) == (
        *("agent_replaced", "another answered"),
        True,
    )


def test_one_that_is_being_deleted_is_no_sandbox_to_use(settings: KubernetesSettings) -> None:
    verdict = judge(pod(birth=born(), annotations=READY, deleted=True, **running()), settings, NOW)
    assert (verdict.status, verdict.reason) == (SandboxStatus.FAILED, "deleted")
