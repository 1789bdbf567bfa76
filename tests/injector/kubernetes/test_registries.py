"""One registry's trouble: few ask it, others wait for them, and images of other registries are not held."""

import time
from typing import Any

import msgspec
import pytest

from orchard.injector.errors import SandboxUnavailable
from orchard.injector.kubernetes import reconcile
from orchard.injector.kubernetes.api import ClusterApi
from orchard.injector.kubernetes.cache import PodCache
from orchard.injector.kubernetes.creation import Creation
from orchard.injector.kubernetes.failing_registries import PLACES, PROBE_SECONDS, RegistryLimiter
from orchard.injector.kubernetes.objects import Pod
from orchard.injector.kubernetes.reconcile import Fail
from orchard.injector.kubernetes.settings import KubernetesSettings
from orchard.schemas.sandboxes import CreateSandbox
from tests.injector.kubernetes.api_server import ApiServer
from tests.injector.kubernetes.conftest import NOW, born, pod

BUSY = {"reason": "ErrImagePull", "message": "429 Too Many Requests"}
GONE = {"reason": "ErrImagePull", "message": "reading manifest 1 in r.io/x: manifest unknown"}


def sandbox(name: str, at: float, image: str = "r.io/x:1", *, had: bool = False, **waiting: Any) -> Pod:
    """Made `at` seconds after NOW, which waits for its image or has had it."""
    status = {"name": "sandbox", "image": image, "state": {"waiting": waiting} if waiting else {}}
    status |= {"imageID": "sha256:1"} if had else {}
    return pod(f"sandbox-{name}", birth=born(at=NOW + at, timeout=1000), containerStatuses=[status])


class Cluster:
    """Pods, and an orchestrator's brake at a time after NOW."""

    def __init__(self, *pods: Pod) -> None:
        self.pods = list(pods)
        self.at = 100.0
        self.brake = RegistryLimiter(self.pods, lambda: NOW + self.at)

    def lets(self, image: str = "r.io/new:1") -> bool:
        """Whether a Pod of it is made; it is there then."""
        try:
            self.brake.check(image)
        except SandboxUnavailable as error:
            assert error.reason == "registry_resting" and "429" in error.detail
            assert error.retry_after is not None and 0 < error.retry_after <= PROBE_SECONDS
            return False
        return True


def busy(*ages: float) -> list[Pod]:
    """Of as many images, made so many seconds before the cluster's time."""
    return [sandbox(f"busy-{n}", 100 - age, f"r.io/{n}:1", **BUSY) for n, age in enumerate(ages)]


def test_a_registry_that_fails_is_asked_by_few() -> None:
    cluster = Cluster(*busy(60, 50, 40, 30))
    assert cluster.lets(), "the youngest has waited for long: one more finds out"
    assert not cluster.lets()
    cluster.at += PROBE_SECONDS
    assert cluster.lets()


def test_with_few_in_trouble_some_more_may_ask() -> None:
    cluster = Cluster(*busy(2))
    assert [cluster.lets() for _ in range(PLACES)] == [True] * (PLACES - 1) + [False]


def test_other_registries_and_images_that_are_there_are_not_held() -> None:
    cluster = Cluster(sandbox("old", 0, "r.io/there:1", had=True), *busy(4, 3, 2, 1))
    assert not cluster.lets("r.io/new:1")
    assert cluster.lets("r.io/there:1") and cluster.lets("debian:12") and cluster.lets("s.io/x:1")


def test_who_waits_for_one_image_only_brakes_nobody() -> None:
    """It is missing, denied, or has no room on its node: the registry is well."""
    words = [GONE, {**GONE, "message": "unauthorized"}, {**GONE, "message": "no space left on device"}]
    pods = [sandbox(f"{n}-{m}", 99, **one) for n, one in enumerate(words) for m in range(9)]
    assert all(Cluster(*pods).lets() for _ in range(9))


def test_when_a_new_image_has_come_those_before_hold_no_place() -> None:
    """Their kubelets only wait; but as long as they do, not all may ask at once."""
    cluster = Cluster(*busy(60, 50, 40, 30), sandbox("came", 80, "r.io/came:1", had=True))
    assert [cluster.lets(f"r.io/{n}:2") for n in range(PLACES + 1)] == [True] * PLACES + [False]
    cluster.pods[:] = [one for one in cluster.pods if one.name == "sandbox-came"]
    cluster.at += 2
    assert all(cluster.lets() for _ in range(9))


def test_beyond_a_few_those_in_trouble_end_and_say_why(settings: KubernetesSettings) -> None:
    """The newest go on, whose kubelets ask again soonest."""
    pods = [*busy(*range(60, 50, -1)), sandbox("other", 99, "s.io/x:1", **BUSY)]
    ended = [one for one in reconcile.actions(pods, settings, "", NOW + 100) if isinstance(one, Fail)]
    assert [one.pod.name for one in ended] == [f"sandbox-busy-{number}" for number in range(10 - PLACES)]
    assert {one.failure.reason for one in ended} == {"image_unavailable"}
    assert "429" in ended[0].failure.message


@pytest.mark.parametrize("words", [GONE, {**GONE, "message": "unauthorized"}])
def test_a_crowd_whose_image_is_missing_is_left_to_its_second_look(
    settings: KubernetesSettings, words: dict[str, str]
) -> None:
    pods = [sandbox(str(number), 99, **words) for number in range(9)]
    assert not [one for one in reconcile.actions(pods, settings, "", NOW + 100) if isinstance(one, Fail)]


@pytest.mark.parametrize("failing", ["r.io/x:1", "orchard/agent:1", "r.io/layer:1"])
async def test_of_an_image_whose_registry_rests_no_pod_is_made(
    api: ClusterApi, server: ApiServer, settings: KubernetesSettings, failing: str
) -> None:
    """Be it the sandbox's own, the agent's or a layer's."""
    cache = PodCache(api, "sandboxes")
    for number in range(PLACES):
        made = born(at=time.time(), timeout=1000)
        status = {"name": "sandbox", "image": failing, "state": {"waiting": BUSY}}
        server.pods[f"sandbox-{number}"] = pod(f"sandbox-{number}", birth=made, containerStatuses=[status])
        await cache.refresh(f"sandbox-{number}")
    layer = "codex-1-" + "0" * 64
    creation = Creation(
        api, cache, msgspec.structs.replace(settings, layers={layer: "r.io/layer:1"}), "one", "print"
    )
    image = "r.io/x:1" if failing == "r.io/x:1" else "s.io/x:1"
    with pytest.raises(SandboxUnavailable) as resting:
        await creation.create(CreateSandbox(image=image, layers=[layer]), None)
    assert resting.value.reason == "registry_resting" and failing in resting.value.detail
    assert not [request for request in server.requests if request.startswith("POST")]
