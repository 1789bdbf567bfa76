"""Other people's clusters: an example of values for each kind, and two releases on one cluster."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from tests.infra.conftest import INFRA, Manifest, Manifests, containers
from tests.infra.test_chart import CHART, helm, rendered
from tests.infra.test_processes import configured, keda_schema, orchard_containers

EXAMPLES = sorted((CHART / "examples").glob("*.yaml"))
WITHOUT_NAMESPACE = {"Namespace", "ClusterRole", "ClusterRoleBinding", "PriorityClass"}


def example(name: str, *words: str) -> Manifests:
    """What a release with the example's values and all that is optional is made of."""
    values = ("--values", str(CHART / "examples" / f"{name}.yaml"))
    return Manifests(rendered("--set", "monitoring=true,page.enabled=true", *words, *values))


def specs(items: Manifests) -> dict[str, Manifest]:
    return {name: pod["spec"] for name, pod in items.pods()}


def test_no_values_of_a_release_get_into_its_archive() -> None:
    assert "examples/" in (CHART / ".helmignore").read_text().split()


@pytest.mark.long
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_each_example_is_valid_for_helm_and_keda_and_configures_every_process(path: Path) -> None:
    helm("lint", "--strict", "--quiet", str(CHART), "--values", str(path))
    items = example(path.stem)
    for kind in ("ScaledJob", "ScaledObject"):
        schema = Draft202012Validator(keda_schema(kind.lower()))
        assert [error.message for item in items.of(kind) for error in schema.iter_errors(item)] == []
    for _, _, container in orchard_containers(items):
        configured(items, container)


def test_pull_secrets_are_of_every_pod() -> None:
    assert all(
        spec["imagePullSecrets"] == [{"name": "registry"}] for spec in specs(example("registry")).values()
    )


def test_a_proxy_and_own_authorities_reach_every_process_of_ours() -> None:
    items = example("proxy")
    for name, pod in items.pods():
        for box in pod["spec"]["containers"]:
            if box["name"] == "exporter":
                continue
            assert {"name": "HTTPS_PROXY", "value": "http://proxy.example:3128"} in box["env"], name
            if box["name"] in ("worker", "writer", "steward", "console", "archiver", "metrics", "page"):
                places = {mount["mountPath"]: mount for mount in box["volumeMounts"]}
                assert places["/etc/ssl/certs/ca-certificates.crt"]["subPath"] == "bundle.crt", name
    assert items.one("ConfigMap", "settings")["data"]["SSL_CERT_FILE"] == "/etc/ssl/certs/ca-certificates.crt"


def test_a_queueing_system_knows_the_jobs_by_their_label() -> None:
    for job in example("kueue").of("ScaledJob"):
        labels = job["metadata"]["labels"]  # KEDA gives the Jobs those of the ScaledJob
        pods = job["spec"]["jobTargetRef"]["template"]["metadata"]["labels"]
        assert labels["kueue.x-k8s.io/queue-name"] == pods["kueue.x-k8s.io/queue-name"] == "orchard"


def test_another_scheduler_places_workers_alone() -> None:
    for name, spec in specs(example("volcano")).items():
        assert spec.get("schedulerName") == ("volcano" if name.startswith("ScaledJob/") else None), name


def test_a_mesh_leaves_all_pods_alone_and_workers_keep_their_annotations() -> None:
    for name, pod in example("istio").pods():
        assert pod["metadata"]["labels"]["sidecar.istio.io/inject"] == "false", name
        assert pod["metadata"]["annotations"]["example.com/cost-center"] == "research", name
        kept = "karpenter.sh/do-not-disrupt" in pod["metadata"]["annotations"]
        assert kept == name.startswith("ScaledJob/")


def test_every_part_is_placed() -> None:
    for name, spec in specs(example("placement")).items():
        pool = "workers" if name.startswith("ScaledJob/") else "system"
        assert spec["nodeSelector"] == {"pool": pool}, name
        assert spec["tolerations"][0]["value"] == pool and spec["affinity"]["nodeAffinity"], name
        assert len(spec["topologySpreadConstraints"]) == 1, name


def test_each_role_has_its_own_credentials_and_no_password() -> None:
    items = example("nats-credentials")
    assert not items.of("ScaledJob", "ScaledObject", "StatefulSet")
    assert "nats-users" not in yaml.safe_dump(list(items.items)) and "nats-ca" not in yaml.safe_dump(
        specs(items)
    )
    files = {
        name.split("/")[1]: volume["secret"]["items"][0]["key"]
        for name, spec in specs(items).items()
        for volume in spec["volumes"]
        if volume["name"] == "credentials"
    }
    own = {name: f"{name}.creds" for name in ("writer", "steward", "archiver")}
    assert own.items() <= files.items() and files["console"] == files["page"] == "operator.creds"
    assert files["rollout-swe-normal"] == "worker.creds"


def test_no_name_of_another_domain_is_left() -> None:
    text = yaml.safe_dump(
        [item for item in example("cluster-domain").items if item["kind"] != "ScaledObject"]
    )
    assert "cluster.local" not in text and "nats-monitoring.orchard.svc.corp.example:8222" in text


def test_without_keda_every_queue_has_its_workers() -> None:
    items = example("no-keda")
    assert not items.of("ScaledJob", "ScaledObject")
    workers = {
        item["metadata"]["name"]: item
        for item in items.of("Deployment")
        if item["metadata"]["labels"]["app.kubernetes.io/name"] == "worker"
    }
    assert {name: item["spec"]["replicas"] for name, item in workers.items()} == {
        "rollout-swe-normal": 4,
        "annotate-values-normal": 1,
        "dataset-shards-normal": 2,
        "synthesis-claw-normal": 1,
    }
    selectors = [item["spec"]["selector"]["matchLabels"] for item in workers.values()]
    assert len({tuple(each.items()) for each in selectors}) == 4, "no Deployment takes another's Pods"
    assert not any(
        "--idle-exit" in box["args"]
        for item in workers.values()
        for box in containers(item["spec"]["template"])
    )
    assert items.one("Deployment", "orchestrator")["spec"]["replicas"] == 2


def test_one_nats_server_has_no_routes_and_is_not_missed() -> None:
    items = example("one-nats")
    assert items.one("StatefulSet", "nats")["spec"]["replicas"] == 1
    assert "cluster {" not in items.one("ConfigMap", "nats")["data"]["nats.conf"]
    assert items.one("ConfigMap", "settings")["data"]["ORCHARD_NATS__REPLICAS"] == "1"
    assert alarms(items)["OrchardNatsServerMissing"]["expr"].startswith(
        'count(up{namespace="orchard",job="nats"} == 1) < 1'
    )


def test_all_secrets_are_those_that_are_named() -> None:
    text = yaml.safe_dump(specs(example("own-secrets")))
    named = set(
        re.findall(r"(?:secretName|secretKeyRef:\n\s+key: \S+\n\s+name|secretRef:\n\s+name): (\S+)", text)
    )
    assert named and all(name.startswith("team-") for name in named), named


def test_the_page_is_reached_by_its_ingress_alone() -> None:
    items = example("page")
    (rule,) = items.one("Ingress", "page")["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    assert rule["host"] == "orchard.example" and path["backend"]["service"]["name"] == "page"
    (allowed,) = items.one("NetworkPolicy", "page")["spec"]["ingress"]
    assert allowed["ports"] == [{"protocol": "TCP", "port": 8780}]
    (box,) = containers(items.one("Deployment", "page")["spec"]["template"])
    assert box["args"][box["args"].index("--allowed-host") + 1] == "orchard.example"


def test_the_page_is_reached_by_a_gateway_in_place_of_an_ingress() -> None:
    items = example("page-gateway")
    assert not items.of("Ingress")
    spec = items.one("HTTPRoute", "page")["spec"]
    assert spec["parentRefs"] == [{"name": "company", "namespace": "gateways", "sectionName": "https"}]
    [rule] = spec["rules"]
    assert spec["hostnames"] == ["orchard.example"]
    assert rule["matches"] == [{"path": {"type": "PathPrefix", "value": "/orchard"}}]
    [backend] = rule["backendRefs"]
    service = items.one("Service", backend["name"])
    assert [port["port"] for port in service["spec"]["ports"]] == [backend["port"]]
    [allowed] = items.one("NetworkPolicy", "page")["spec"]["ingress"]
    [source] = allowed["from"]
    assert source["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "gateways"}
    [box] = containers(items.one("Deployment", "page")["spec"]["template"])
    assert box["args"][box["args"].index("--base-path") + 1] == "/orchard"


def test_settings_reach_every_process() -> None:
    items = example("settings")
    for name, _, container in orchard_containers(items):
        if any("configMapRef" in source for source in container.get("envFrom", ())):
            config = configured(items, container)
            assert (config.archive.url, config.nats.patience) == ("s3://orchard/archive", 900.0), name


def release(name: str) -> list[Manifest]:
    text = helm(
        "template", name, str(CHART), "--namespace", name, "--set", "monitoring=true,page.enabled=true"
    )
    return [document for document in yaml.safe_load_all(text) if document]


def alarms(items: Manifests) -> dict[str, Any]:
    (rules,) = items.of("PrometheusRule")
    return {rule["alert"]: rule for group in rules["spec"]["groups"] for rule in group["rules"]}


def test_two_releases_have_no_object_in_common() -> None:
    keys = [
        {
            (item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"])
            for item in release(name)
        }
        for name in ("orchard", "trials")
    ]
    assert len(keys[0]) == len(keys[1]) and not keys[0] & keys[1]
    for kind, namespace, _ in keys[1]:
        assert kind in WITHOUT_NAMESPACE or namespace in ("trials", "trials-sandboxes")


def test_two_releases_have_rules_and_a_dashboard_each_for_itself() -> None:
    items = Manifests(release("trials"))
    for name, rule in alarms(items).items():
        assert "orchard" not in re.findall(r'namespace="(\w+)"', rule["expr"]), name
        assert rule["labels"]["namespace"] == "trials"
    board = yaml.safe_load(items.one("ConfigMap", "orchard-dashboard")["data"]["dashboard.json"])
    assert (board["uid"], board["title"]) == ("trials", "Orchard (trials)")


def test_a_second_release_may_use_the_priority_class_of_the_first() -> None:
    items = example("second-release")
    assert not items.of("PriorityClass")
    assert specs(items)["Deployment/writer"]["priorityClassName"] == "orchard"


def test_who_follows_the_first_hour_has_metrics_and_alarms() -> None:
    """kube-prometheus-stack selects what has the name of its release as the label `release`."""
    page = (INFRA.parent / "docs" / "how-to" / "cluster.md").read_text()
    (stack,) = re.findall(r"helm install (\S+) prometheus-community/kube-prometheus-stack", page)
    (values,) = re.findall(r"<!-- file: mine.yaml -->\n```yaml\n(.*?)```", page, re.DOTALL)
    given = yaml.safe_load(values)
    assert given["monitoringLabels"] == {"release": stack}
    items = Manifests(rendered("--set", f"monitoring=true,monitoringLabels.release={stack}"))
    found = items.of("ServiceMonitor", "PodMonitor", "PrometheusRule")
    assert len(found) == 5 and all(item["metadata"]["labels"]["release"] == stack for item in found)
    keda = yaml.safe_load((CHART / "upstream" / "keda.yaml").read_text())
    assert keda["prometheus"]["operator"]["serviceMonitor"]["additionalLabels"] == {"release": stack}
    nats = yaml.safe_load((CHART / "upstream" / "nats.yaml").read_text())
    assert nats["promExporter"]["podMonitor"]["merge"]["metadata"]["labels"] == {"release": stack}
