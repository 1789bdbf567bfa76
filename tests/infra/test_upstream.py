"""NATS by the chart of its makers: what that chart is told agrees with what ours would have made."""

import re
from typing import Any

import yaml

from tests.infra.conftest import INFRA, Manifests, containers
from tests.infra.scaling import Trigger
from tests.infra.test_chart import CHART, rendered

TEXT = (INFRA / "chart" / "upstream" / "nats.yaml").read_text()
THEIRS: dict[str, Any] = yaml.safe_load(TEXT)
OURS: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
URL = "tls://nats.orchard.svc.cluster.local:4222"
MONITORING = "nats-monitoring.orchard.svc.cluster.local:8222"
ELSEWHERE = ("--set", f"nats.install=false,nats.url={URL},nats.monitoring={MONITORING},monitoring=true")


def test_without_it_all_else_is_there_and_asks_it() -> None:
    assert URL in TEXT and MONITORING in TEXT, "as the file says"
    without = Manifests(rendered(*ELSEWHERE))
    whole = Manifests(rendered("--set", "monitoring=true"))

    def names(of: Manifests) -> set[tuple[str, str]]:
        return {(item["kind"], item["metadata"]["name"]) for item in of.items}

    kinds = ("ServiceAccount", "Service", "StatefulSet", "PodDisruptionBudget", "ServiceMonitor")
    assert names(whole) - names(without) == {(kind, "nats") for kind in kinds} | {
        ("Service", "nats-monitoring")
    }
    assert without.one("ConfigMap", "nats")["data"].keys() == {"accounts.conf"}
    assert without.one("ConfigMap", "settings")["data"]["ORCHARD_NATS__URL"] == URL
    for job in without.of("ScaledJob"):
        assert Trigger.of_metadata(job["spec"]["triggers"][0]["metadata"]).endpoint == MONITORING


def test_keda_asks_with_tls_where_the_address_says_so() -> None:
    with_tls = Manifests(rendered(*ELSEWHERE, "--set", f"nats.monitoring=https://{MONITORING}"))
    for job in with_tls.of("ScaledJob"):
        trigger = Trigger.of_metadata(job["spec"]["triggers"][0]["metadata"])
        assert (trigger.scheme, trigger.endpoint) == ("https", MONITORING)


def test_its_servers_are_known_by_the_same_names_and_ports() -> None:
    ours = Manifests(rendered())
    service = ours.one("Service", "nats")
    assert THEIRS["fullnameOverride"] == THEIRS["headlessService"]["name"] == service["metadata"]["name"]
    assert THEIRS["global"]["labels"].items() <= service["spec"]["selector"].items()
    assert THEIRS["service"]["name"] == ours.one("Service", "nats-monitoring")["metadata"]["name"]
    assert THEIRS["config"]["cluster"]["replicas"] == ours.one("StatefulSet", "nats")["spec"]["replicas"]
    assert THEIRS["promExporter"]["port"] in [port["port"] for port in service["spec"]["ports"]]


def test_it_keeps_as_much_as_safely() -> None:
    jetstream = THEIRS["config"]["jetstream"]
    conf = (CHART / "files" / "nats.conf").read_text()
    assert jetstream["fileStore"]["maxSize"] == OURS["nats"]["maxFileStore"]
    assert jetstream["fileStore"]["pvc"]["size"] == OURS["nats"]["storage"]
    assert f"sync_interval: {jetstream['merge']['sync_interval']}" in conf
    assert f"max_payload: {THEIRS['config']['merge']['max_payload']}" in conf
    assert THEIRS["container"]["merge"]["resources"] == OURS["nats"]["resources"]
    assert THEIRS["container"]["env"]["GOMEMLIMIT"] == OURS["nats"]["memoryLimit"]
    spread = THEIRS["podTemplate"]["topologySpreadConstraints"]
    assert {key: one["whenUnsatisfiable"] for key, one in spread.items()} == OURS["nats"]["spread"]
    assert OURS["images"]["nats"] == f"nats:{THEIRS['container']['image']['tag']}"


def test_its_users_have_their_passwords_and_its_pods_no_rights() -> None:
    ours = Manifests(rendered())
    accounts = ours.one("ConfigMap", "nats")["data"]["accounts.conf"]
    pod = ours.one("StatefulSet", "nats")["spec"]["template"]
    own = {one["name"]: one for one in containers(pod)[0]["env"] if one["name"].endswith("_PASSWORD")}
    theirs = {
        name: {"name": name, **value}
        for name, value in THEIRS["container"]["env"].items()
        if name.endswith("_PASSWORD")
    }
    assert theirs == own
    assert set(re.findall(r"\$(\w+_PASSWORD)", accounts)) == own.keys()
    rights = containers(pod)[0]["securityContext"]
    for part in ("container", "reloader", "promExporter"):
        assert THEIRS[part]["merge"]["securityContext"] == rights
    spec = THEIRS["podTemplate"]["merge"]["spec"]
    for name in ("securityContext", "priorityClassName", "automountServiceAccountToken"):
        assert spec[name] == pod["spec"][name]
