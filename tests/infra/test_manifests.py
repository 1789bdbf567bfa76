"""The manifests fit each other: what one names, another has; and nothing secret is in them."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchard.injector.kubernetes import pods
from orchard.injector.kubernetes.settings import KubernetesSettings
from orchard.injector.orchestrator import limits
from orchard.schemas.quantities import parse_bytes
from tests.infra.conftest import INFRA, Manifest, Manifests, containers

OPTIONAL_SECRETS = {("orchard", "store-s3"), ("orchard", "model-keys")}
"""Made by hand where S3 and models with keys are used."""
BASELINE_CAPABILITIES = {
    *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE"),
    *("SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
}
"""What a Pod may add in a namespace of the level `baseline` (Pod Security Standards)."""
LITERAL_SECRET = re.compile(r"(PASSWORD|TOKEN|SECRET|KEY)$")


def matches(selector: Manifest, labels: dict[str, str]) -> bool:
    """Whether a label selector takes these labels; the empty one takes all."""
    wanted: dict[str, str] = selector.get("matchLabels", {})
    return wanted.items() <= labels.items() and all(
        expression["operator"] == "In" and labels.get(expression["key"]) in expression["values"]
        for expression in selector.get("matchExpressions", [])
    )


def sandbox_settings(manifests: Manifests) -> KubernetesSettings:
    """What the orchestrator is told about sandboxes."""
    text = manifests.one("ConfigMap", "sandboxes")["data"]["kubernetes.toml"]
    return msgspec.toml.decode(text, type=KubernetesSettings)


def sandbox_pod(manifests: Manifests) -> Manifest:
    """A sandbox as the orchestrator makes it, with the labels that policies know it by."""
    return pods.manifest("sandbox-x", "x", "image", "1", "1Gi", sandbox_settings(manifests), {})


def references(node: Any, key: str) -> Iterator[Any]:
    """Every value under `key`, anywhere below."""
    if isinstance(node, dict):
        for name, value in node.items():
            if name == key:
                yield value
            yield from references(value, key)
    elif isinstance(node, list):
        for value in node:
            yield from references(value, key)


def test_every_resource_says_where_it_belongs(manifests: Manifests) -> None:
    cluster_wide = {"Namespace", "ClusterRole", "ClusterRoleBinding", "PriorityClass"}
    namespaces = {item["metadata"]["name"] for item in manifests.of("Namespace")}

    for item in manifests.items:
        assert item["metadata"]["labels"]["app.kubernetes.io/part-of"] == "orchard"
        assert item["kind"] in cluster_wide or item["metadata"]["namespace"] in namespaces


def test_there_are_no_secret_values(manifests: Manifests) -> None:
    assert manifests.of("Secret") == []
    for name, pod in manifests.pods():
        for container in containers(pod):
            for variable in container.get("env", []):
                if LITERAL_SECRET.search(variable["name"]):
                    assert "value" not in variable, f"{name}: {variable['name']} is written out"


def test_every_secret_that_is_named_is_made_by_the_guides_script(manifests: Manifests, secrets: Path) -> None:
    for name, pod in manifests.pods():
        namespace = pod["metadata"]["namespace"]
        for reference in references(pod, "secretKeyRef"):
            key = secrets / namespace / reference["name"] / reference["key"]
            assert key.is_file(), f"{name} wants {reference} in {namespace}"
        for reference in references(pod, "secret"):
            assert (secrets / namespace / reference["secretName"]).is_dir(), f"{name} wants {reference}"
        for reference in references(pod, "secretRef"):
            assert reference["optional"] and (namespace, reference["name"]) in OPTIONAL_SECRETS


def test_the_script_changes_nothing_that_is_there(secrets: Path) -> None:
    before = {path: path.read_bytes() for path in secrets.rglob("*") if path.is_file()}

    subprocess.run(["sh", str(INFRA / "make-secrets.sh"), str(secrets)], check=True)

    assert {path: path.read_bytes() for path in secrets.rglob("*") if path.is_file()} == before
    assert all(path.stat().st_mode & 0o077 == 0 for path in before), "nobody else may read them"


def test_a_release_in_another_namespace_has_certificates_of_the_same_authority(
    secrets: Path, tmp_path: Path
) -> None:
    both = tmp_path / "secrets"
    shutil.copytree(secrets, both)

    subprocess.run(["sh", str(INFRA / "make-secrets.sh"), str(both), "elsewhere"], check=True)

    certificate = both / "elsewhere" / "nats-tls" / "tls.crt"
    asked = ["openssl", "x509", "-in", str(certificate), "-noout", "-ext", "subjectAltName"]
    told = subprocess.run(asked, check=True, capture_output=True, text=True).stdout
    assert "DNS:*.nats.elsewhere.svc.cluster.local" in told and ".orchard." not in told
    authority = both / "orchard" / "nats-ca" / "ca.crt"
    subprocess.run(["openssl", "verify", "-CAfile", str(authority), str(certificate)], check=True)
    names = [
        {path.relative_to(both / own) for path in (both / own).rglob("*")} for own in ("orchard", "elsewhere")
    ]
    assert names[0] == names[1]


def test_every_configmap_and_claim_and_account_that_is_named_is_there(manifests: Manifests) -> None:
    there = {
        (item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"])
        for item in manifests.items
    }

    for name, pod in manifests.pods():
        namespace = pod["metadata"]["namespace"]
        wanted = [("ConfigMap", reference["name"]) for reference in references(pod, "configMapRef")]
        wanted += [("ConfigMap", reference["name"]) for reference in references(pod, "configMap")]
        wanted += [("ConfigMap", reference["name"]) for reference in references(pod, "configMapKeyRef")]
        wanted += [
            ("PersistentVolumeClaim", reference["claimName"])
            for reference in references(pod, "persistentVolumeClaim")
        ]
        if "serviceAccountName" in pod["spec"]:
            wanted.append(("ServiceAccount", pod["spec"]["serviceAccountName"]))
        for kind, wanted_name in wanted:
            assert (kind, namespace, wanted_name) in there, f"{name} wants the {kind} {wanted_name}"


def test_every_mount_has_its_volume(manifests: Manifests) -> None:
    for name, pod in manifests.pods():
        volumes = {volume["name"] for volume in pod["spec"].get("volumes", [])}
        volumes |= {"data"} if name == "StatefulSet/nats" else set()
        for container in containers(pod):
            mounts = {mount["name"] for mount in container.get("volumeMounts", [])}
            assert mounts <= volumes, f"{name} mounts {mounts - volumes}, which is no volume"


def test_selectors_find_their_pods(manifests: Manifests) -> None:
    pods = list(manifests.pods())
    for item in manifests.of("Deployment", "StatefulSet"):
        assert matches(item["spec"]["selector"], item["spec"]["template"]["metadata"]["labels"])
    for item in manifests.of("PodDisruptionBudget"):
        assert [
            name
            for name, pod in pods
            if pod["metadata"]["namespace"] == item["metadata"]["namespace"]
            and matches(item["spec"]["selector"], pod["metadata"]["labels"])
        ] == [
            f"{kind['kind']}/{item['metadata']['name']}"
            for kind in manifests.of("Deployment", "StatefulSet")
            if kind["metadata"]["name"] == item["metadata"]["name"]
        ]


def test_services_lead_to_ports_that_are_there(manifests: Manifests) -> None:
    for service in manifests.of("Service"):
        (ports,) = [
            {port["name"]: port["containerPort"] for box in containers(pod) for port in box.get("ports", [])}
            for _, pod in manifests.pods()
            if pod["metadata"]["namespace"] == service["metadata"]["namespace"]
            and matches({"matchLabels": service["spec"]["selector"]}, pod["metadata"]["labels"])
        ]
        assert {
            port["targetPort"]: port["port"] for port in service["spec"]["ports"]
        }.items() <= ports.items()


def test_probes_ask_ports_that_are_there(manifests: Manifests) -> None:
    for name, pod in manifests.pods():
        for container in containers(pod):
            ports = {port["name"] for port in container.get("ports", [])}
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                if "httpGet" in container.get(probe, {}):
                    assert container[probe]["httpGet"]["port"] in ports, f"{name}: {probe}"


def test_servicemonitors_find_a_service_and_its_port(manifests: Manifests) -> None:
    for monitor in manifests.of("ServiceMonitor"):
        (service,) = [
            service
            for service in manifests.of("Service")
            if service["metadata"]["namespace"] == monitor["metadata"]["namespace"]
            and matches(monitor["spec"]["selector"], service["metadata"]["labels"])
        ]
        names = {port["name"] for port in service["spec"]["ports"]}
        assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} <= names


class TestSandboxes:
    def test_their_settings_are_valid_and_for_their_namespace(self, manifests: Manifests) -> None:
        settings = sandbox_settings(manifests)
        settings.check()
        assert settings.namespace == manifests.one("Role", "orchestrator")["metadata"]["namespace"]
        assert settings.kubeconfig is None, "the orchestrator's own account"

    def test_nothing_secret_is_in_their_namespace(self, manifests: Manifests, secrets: Path) -> None:
        """Who may create Pods in a namespace reads all Secrets of it, by mounting them."""
        settings = sandbox_settings(manifests)
        here = [name for name, pod in manifests.pods() if pod["metadata"]["namespace"] == settings.namespace]
        assert here == []
        assert not (secrets / settings.namespace).exists()
        (account,) = manifests.one("RoleBinding", "orchestrator")["subjects"]
        assert account["namespace"] != settings.namespace

    def test_their_namespace_lets_them_in(self, manifests: Manifests) -> None:
        """They may be root, which `restricted` forbids, and need nothing that `baseline` forbids."""
        namespace = manifests.one("Namespace", "orchard-sandboxes")
        assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "baseline"
        for container in containers(sandbox_pod(manifests)):
            rights = container.get("securityContext", {})
            assert set(rights.get("capabilities", {}).get("add", [])) <= BASELINE_CAPABILITIES
            assert not rights.get("privileged", False)

    def test_on_spot_nodes_they_are_where_workers_are(self, built: dict[str, Manifests]) -> None:
        settings = sandbox_settings(built["spot"])
        for job in built["spot"].of("ScaledJob"):
            worker = job["spec"]["jobTargetRef"]["template"]["spec"]
            assert settings.node_selector == worker["nodeSelector"]
            assert settings.tolerations == worker["tolerations"]

    def test_the_orchestrator_reads_them_and_drains_in_time(self, manifests: Manifests) -> None:
        pod = manifests.one("Deployment", "orchestrator")["spec"]["template"]
        (container,) = containers(pod)
        arguments = dict(zip(container["args"][::2], container["args"][1::2], strict=True))
        (mount,) = [
            mount
            for mount in container["volumeMounts"]
            if arguments["--kubernetes-settings"].startswith(mount["mountPath"])
        ]
        (volume,) = [volume for volume in pod["spec"]["volumes"] if volume["name"] == mount["name"]]
        files = manifests.one("ConfigMap", volume["configMap"]["name"])["data"]
        assert arguments["--kubernetes-settings"].rpartition("/")[2] in files
        assert float(arguments["--drain-seconds"]) < pod["spec"]["terminationGracePeriodSeconds"]

    def test_the_orchestrator_reads_its_limits(self, manifests: Manifests, tmp_path: Path) -> None:
        pod = manifests.one("Deployment", "orchestrator")["spec"]["template"]
        (container,) = containers(pod)
        place = Path(container["args"][container["args"].index("--limits") + 1])
        (mount,) = [one for one in container["volumeMounts"] if one["mountPath"] == str(place.parent)]
        (volume,) = [one for one in pod["spec"]["volumes"] if one["name"] == mount["name"]]
        text = manifests.one("ConfigMap", volume["configMap"]["name"])["data"][place.name]
        (tmp_path / "limits.toml").write_text(text)
        assert limits.load(tmp_path / "limits.toml").concurrent_requests
        uncommented = re.sub(r"^# ?", "", text, flags=re.MULTILINE)
        (tmp_path / "limits.toml").write_text(uncommented)
        assert limits.load(tmp_path / "limits.toml").default.sandboxes, "the examples in it are valid, too"


class TestNetwork:
    def policies(self, manifests: Manifests, pod: Manifest) -> list[Manifest]:
        """The policies that select a Pod."""
        return [
            policy
            for policy in manifests.of("NetworkPolicy")
            if policy["metadata"]["namespace"] == pod["metadata"]["namespace"]
            and matches(policy["spec"]["podSelector"], pod["metadata"]["labels"])
        ]

    def test_every_pod_is_shut_in_and_let_out_for_what_it_needs(self, manifests: Manifests) -> None:
        for name, pod in [*manifests.pods(), ("sandbox", sandbox_pod(manifests))]:
            found = {policy["metadata"]["name"] for policy in self.policies(manifests, pod)}
            assert "deny" in found, f"{name} may talk to everybody"
            assert found - {"deny", "names"}, f"{name} may talk to nobody"

    def test_what_may_go_out_may_come_in(self, manifests: Manifests) -> None:
        """Both ends of a connection must allow it: what one end names, the other does."""
        pods = {**dict(manifests.pods()), "sandbox": sandbox_pod(manifests)}

        def pairs(direction: str, side: str) -> set[tuple[str, str, int]]:
            found = set()
            for name, pod in pods.items():
                for policy in self.policies(manifests, pod):
                    for rule in policy["spec"].get(direction, []):
                        for peer in rule[side]:
                            for other, other_pod in pods.items():
                                if self.peer_is(peer, policy, other_pod):
                                    ends = (name, other) if direction == "egress" else (other, name)
                                    found |= {(*ends, port["port"]) for port in rule["ports"]}
            return found

        assert pairs("egress", "to") == pairs("ingress", "from") != set()

    @staticmethod
    def peer_is(peer: Manifest, policy: Manifest, pod: Manifest) -> bool:
        """Whether a rule's peer is this Pod; namespaces are known by their name."""
        if "podSelector" not in peer:
            return False
        namespace = policy["metadata"]["namespace"]
        if "namespaceSelector" in peer:
            namespace = peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
        return bool(
            namespace == pod["metadata"]["namespace"]
            and matches(peer["podSelector"], pod["metadata"]["labels"])
        )

    def test_only_keda_reaches_the_monitoring_port(self, manifests: Manifests) -> None:
        rules = [
            rule
            for policy in manifests.of("NetworkPolicy")
            for rule in policy["spec"].get("ingress", [])
            if any(port["port"] == 8222 for port in rule.get("ports", []))
        ]

        assert [rule["from"] for rule in rules] == [
            [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "keda"}}}]
        ]

    def test_the_clouds_metadata_service_is_out_of_reach(self, manifests: Manifests) -> None:
        addresses = (
            "169.254.169.254",
            "192.0.0.192",
            "168.63.129.16",
            "198.18.0.1",
            "fd00:ec2::254",
            "fe80::1",
        )
        for policy in manifests.of("NetworkPolicy"):
            for address in addresses:
                assert not reached(policy, address), (policy, address)

    def test_workers_reach_the_world_and_no_private_address(self, manifests: Manifests) -> None:
        outside = manifests.one("NetworkPolicy", "outside")
        for address in (
            "10.1.2.3",
            "172.20.0.1",
            "192.168.1.1",
            "100.100.100.200",
            "fd12::1",
            "2002:a00:1::1",
        ):
            assert not reached(outside, address), address
        for address in ("93.184.216.34", "2606:2800:220:1::1"):
            assert reached(outside, address), address


def reached(policy: Manifest, address: str) -> bool:
    """Whether a block of the policy has the address, whatever the port."""
    there = ip_address(address)
    return any(
        there in ip_network(block["cidr"])
        and not any(there in ip_network(network) for network in block["except"])
        for block in references(policy, "ipBlock")
    )


class TestRights:
    def test_only_the_orchestrator_has_a_token_for_the_cluster(self, manifests: Manifests) -> None:
        tokens = {name for name, pod in manifests.pods() if pod["spec"]["automountServiceAccountToken"]}
        assert tokens == {"Deployment/orchestrator", "CronJob/janitor"}

    def test_no_service_link_becomes_a_configuration_key(self, manifests: Manifests) -> None:
        for name, pod in manifests.pods():
            assert pod["spec"]["enableServiceLinks"] is False, name
        for service in manifests.of("Service"):
            assert not service["metadata"]["name"].startswith("orchard")

    def test_nobody_is_privileged(self, manifests: Manifests) -> None:
        for name, pod in manifests.pods():
            assert pod["spec"]["securityContext"]["runAsNonRoot"] is True, name
            assert pod["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
            for container in containers(pod):
                rights = container["securityContext"]
                assert rights["allowPrivilegeEscalation"] is False, name
                assert rights["readOnlyRootFilesystem"] is True, name
                assert rights["capabilities"] == {"drop": ["ALL"]}, name

    def test_every_container_says_what_it_takes(self, manifests: Manifests) -> None:
        for name, pod in manifests.pods():
            for container in containers(pod):
                assert {"cpu", "memory"} <= container["resources"]["requests"].keys(), name
                assert "memory" in container["resources"]["limits"], name

    def test_the_kubernetes_backend_may_touch_sandboxes_only(self, manifests: Manifests) -> None:
        """With a real API server and a real token, tests/kubernetes/test_manifests.py shows the same."""
        role, (wide,) = manifests.one("Role", "orchestrator"), manifests.of("ClusterRole")
        assert role["metadata"]["namespace"] == "orchard-sandboxes"
        inside = {resource for rule in role["rules"] for resource in rule["resources"]}
        assert inside == {"pods", "networkpolicies", "leases"}
        assert "*" not in {verb for rule in role["rules"] for verb in rule["verbs"]}
        assert wide["rules"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}]


def test_overlays_set_every_image_of_ours(built: dict[str, Manifests]) -> None:
    for overlay in ("cloud", "spot"):
        images = {container["image"] for _, pod in built[overlay].pods() for container in containers(pod)}
        ours = {image for image in images if "orchard" in image}
        ours.add(sandbox_settings(built[overlay]).agent_image)
        assert ours == {
            f"registry.example/orchard/{name}:0.1.0" for name in ("orchestrator", "worker", "writer", "agent")
        }


@pytest.mark.parametrize("tag", ["latest", ""])
def test_no_image_moves_by_itself(manifests: Manifests, tag: str) -> None:
    for name, pod in manifests.pods():
        for container in containers(pod):
            assert container["image"].partition(":")[2] != tag, name


def test_there_is_one_writer(manifests: Manifests) -> None:
    writer = manifests.one("Deployment", "writer")["spec"]

    assert writer["replicas"] == 1
    assert writer["strategy"] == {"type": "Recreate"}


@pytest.mark.parametrize(
    ("name", "lost", "quorum"), [("nats", 1, 2), ("writer", 1, 0), ("steward", 1, 1), ("orchestrator", 1, 1)]
)
def test_disruption_budgets(manifests: Manifests, name: str, lost: int, quorum: int) -> None:
    budget = manifests.one("PodDisruptionBudget", name)
    (workload,) = [
        item for item in manifests.of("Deployment", "StatefulSet") if item["metadata"]["name"] == name
    ]

    assert budget["spec"]["maxUnavailable"] == lost
    scaled = [
        item["spec"]["minReplicaCount"]
        for item in manifests.of("ScaledObject")
        if item["spec"]["scaleTargetRef"]["name"] == name
    ]
    assert (scaled[0] if scaled else workload["spec"]["replicas"]) - lost == quorum


def test_no_host_and_no_zone_takes_the_quorum(built: dict[str, Manifests]) -> None:
    nats = built["cloud"].one("StatefulSet", "nats")["spec"]["template"]
    spread = nats["spec"]["topologySpreadConstraints"]

    assert {one["topologyKey"]: one["whenUnsatisfiable"] for one in spread} == {
        "kubernetes.io/hostname": "DoNotSchedule",
        "topology.kubernetes.io/zone": "DoNotSchedule",
    }
    for one in spread:
        assert one["maxSkew"] == 1 and matches(one["labelSelector"], nats["metadata"]["labels"])


def test_what_keeps_the_log_goes_before_workers_and_sandboxes(manifests: Manifests) -> None:
    (made,) = manifests.of("PriorityClass")
    first = {"StatefulSet/nats", "Deployment/writer", "Deployment/steward", "Deployment/orchestrator"}
    for name, pod in manifests.pods():
        assert pod["spec"].get("priorityClassName") == (made["metadata"]["name"] if name in first else None)
    assert made["value"] > 0 and not made.get("globalDefault")


def test_nats_collects_garbage_before_it_is_killed_for_memory(manifests: Manifests) -> None:
    server = containers(manifests.one("StatefulSet", "nats")["spec"]["template"])[0]
    (limit,) = [one["value"] for one in server["env"] if one["name"] == "GOMEMLIMIT"]

    share = parse_bytes(limit.removesuffix("B")) / parse_bytes(server["resources"]["limits"]["memory"])
    assert 0.7 < share < 0.9
