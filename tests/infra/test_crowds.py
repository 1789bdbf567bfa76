"""10,000 sandboxes at once: replicas of the sandbox service by load, limits that make a crowd wait, and where
sandboxes may be."""

import math
import re
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from orchard.injector.kubernetes import pod_metadata
from orchard.injector.kubernetes.backend import GLANCE
from orchard.injector.local.backend import LocalBackend
from orchard.injector.orchestrator.limits import ServiceLimits
from orchard.injector.orchestrator.metrics import ServiceMetrics
from orchard.schemas.quantities import parse_bytes
from orchard.schemas.sandboxes import CreateSandbox
from tests.infra.conftest import Manifest, Manifests, containers
from tests.infra.test_manifests import sandbox_pod, sandbox_settings

CROWD = 10_000
SCALED = ("cloud", "spot")


def scaled(manifests: Manifests) -> Manifest:
    """What gives the sandbox service its replicas."""
    spec: Manifest = manifests.one("ScaledObject", "orchestrator")["spec"]
    return spec


def limits(manifests: Manifests) -> ServiceLimits:
    return msgspec.toml.decode(
        manifests.one("ConfigMap", "limits")["data"]["limits.toml"], type=ServiceLimits
    )


@pytest.mark.long
@pytest.mark.parametrize("overlay", SCALED)
async def test_replicas_come_by_a_figure_that_the_orchestrator_has(
    built: dict[str, Manifests], overlay: str, tmp_path: Path
) -> None:
    manifests = built[overlay]
    (trigger,) = scaled(manifests)["triggers"]
    found = re.fullmatch(r'sum\((\w+)\{namespace="(.*)"\}\)', trigger["metadata"]["query"])
    assert found is not None
    metrics = ServiceMetrics({"name": "key-1"})
    with metrics.in_flight(), metrics.in_flight():
        text = (await metrics.exposition(LocalBackend(tmp_path, start_agent=False))).decode()
    (family,) = [one for one in text_string_to_metric_families(text) if one.name == found[1]]
    assert [sample.value for sample in family.samples] == [2.0], "one number for each replica"

    deployment = manifests.one("Deployment", "orchestrator")
    assert found[2] == deployment["metadata"]["namespace"]
    assert scaled(manifests)["scaleTargetRef"] == {"name": deployment["metadata"]["name"]}
    (monitor,) = [one for one in manifests.of("ServiceMonitor") if one["metadata"]["name"] == "orchestrator"]
    assert monitor["spec"]["endpoints"][0]["port"] == "metrics", "Prometheus has it from each replica"


@pytest.mark.long
def test_who_scales_says_alone_how_many_there_are(manifests: Manifests) -> None:
    deployment = manifests.one("Deployment", "orchestrator")["spec"]
    if manifests.of("ScaledObject"):
        spec = scaled(manifests)
        least, most = spec["minReplicaCount"], spec["maxReplicaCount"]
        assert "replicas" not in deployment, "each apply would set it back"
        assert 2 <= least < spec["fallback"]["replicas"] < most
        assert spec["triggers"][0]["metadata"]["ignoreNullValues"] == "false"
    else:
        assert deployment["replicas"] == 2


@pytest.mark.parametrize("overlay", SCALED)
def test_a_crowd_has_replicas_enough_and_each_has_room_for_its_share(
    built: dict[str, Manifests], overlay: str
) -> None:
    spec, allowed = scaled(built[overlay]), limits(built[overlay])
    wanted = math.ceil(CROWD / int(spec["triggers"][0]["metadata"]["threshold"]))
    assert spec["minReplicaCount"] < wanted <= spec["maxReplicaCount"]
    assert allowed.concurrent_requests is not None
    assert int(spec["triggers"][0]["metadata"]["threshold"]) < allowed.concurrent_requests


def test_a_slow_api_server_takes_no_replica_away(manifests: Manifests) -> None:
    """A kubelet that waits a second, as it does unless told, would take all of them at once."""
    (container,) = containers(manifests.one("Deployment", "orchestrator")["spec"]["template"])
    assert container["readinessProbe"]["timeoutSeconds"] > GLANCE


def test_all_of_a_crowd_may_wait_at_one_replica(manifests: Manifests) -> None:
    allowed = limits(manifests)
    assert allowed.concurrent_requests is not None
    assert allowed.concurrent_requests + allowed.default.waiting_requests >= CROWD
    assert allowed.default.requests_per_second is None, "a rate refuses a crowd"
    assert allowed.default.sandboxes is None


class TestSandboxes:
    def test_the_quota_is_for_as_many(self, manifests: Manifests) -> None:
        quota = manifests.one("ResourceQuota", "sandboxes")
        assert quota["metadata"]["namespace"] == sandbox_settings(manifests).namespace
        assert int(quota["spec"]["hard"]["pods"]) >= CROWD

    def test_a_container_that_says_nothing_gets_little(self, manifests: Manifests) -> None:
        """And ours all say something: under a quota of memory, Pods that do not would be refused."""
        (limit,) = manifests.one("LimitRange", "sandboxes")["spec"]["limits"]
        assert limit["type"] == "Container"
        assert parse_bytes(limit["defaultRequest"]["memory"]) <= 2**30
        for container in containers(sandbox_pod(manifests)):
            assert {"cpu", "memory"} <= container["resources"]["limits"].keys()

    def test_they_may_be_on_nodes_of_their_own_and_nobody_else_may(self, manifests: Manifests) -> None:
        settings = sandbox_settings(manifests)
        own = sandbox_pod(manifests)["spec"]["tolerations"]
        assert [each for each in own if each["effect"] != "NoExecute"] == settings.tolerations
        for taint in settings.tolerations:
            for name, pod in manifests.pods():
                worker = name.startswith("ScaledJob/") and taint["key"] == "capacity"  # beside them, on spot
                assert worker or taint not in pod["spec"].get("tolerations", []), name

    def test_who_tidies_up_nodes_leaves_a_sandbox_and_takes_a_warm_pod(self, manifests: Manifests) -> None:
        birth = pod_metadata.CreationRecord(request=CreateSandbox(image="i"), attempt="a", at=0.0)
        annotations = pod_metadata.claim_metadata("x", birth)["annotations"]
        assert annotations["karpenter.sh/do-not-disrupt"] == "true"
        assert annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
        unclaimed = sandbox_pod(manifests)["metadata"].get("annotations", {})
        assert not unclaimed.keys() & pod_metadata.KEPT.keys()
