"""docs/runbooks/cluster.md, followed on a real API server, scheduler and kubelet: its blocks are what runs.

Pods are those of the chart with a program that sleeps, and `helm upgrade` is `helm template` and `kubectl
apply`: the test node serves neither KEDA's kinds nor the names of Services.
"""

import base64
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.infra.conftest import INFRA, Manifests
from tests.infra.test_chart import helm
from tests.kubernetes.conftest import Cluster, Manifest, new_namespace

PAGE = (INFRA.parent / "docs" / "runbooks" / "cluster.md").read_text()
BLOCKS = dict(re.findall(r"^<!-- runs: (.*?) -->\n```\n(.*?)^```$", PAGE, re.M | re.S))
LOST = "lost-node"
SELECTOR = "app.kubernetes.io/name=nats"
NEEDED = ("--set", "nats.spread=null,monitoring=false")
"""Of a node that is alone and has no zone."""


def objects(namespace: str, words: list[str], image: str) -> list[Manifest]:
    """The chart's NATS and orchestrator, of which every container sleeps."""
    text = helm("template", "orchard", str(INFRA / "chart"), "--namespace", namespace, *words, *NEEDED)
    items = Manifests([one for one in yaml.safe_load_all(text) if one])
    found = [items.one("StatefulSet", "nats"), items.one("Deployment", "orchestrator")]
    found += [items.one("ServiceAccount", name) for name in ("nats", "orchestrator")]
    for item in found[:2]:
        spec = item["spec"]["template"]["spec"]
        for name in ("volumes", "topologySpreadConstraints", "affinity", "priorityClassName"):
            spec.pop(name, None)
        box = {"name": item["metadata"]["name"], "image": image, "command": ["sleep", "100000"]}
        box["securityContext"] = spec["containers"][0]["securityContext"]
        if item["kind"] == "StatefulSet":
            box["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
        spec |= {"containers": [box], "terminationGracePeriodSeconds": 0}
    return found


@dataclass
class Release:
    """A release, and who follows the page in a folder with the clone's `infra` and `secrets`."""

    cluster: Cluster
    namespace: str
    folder: Path

    def run(self, block: str, **replaced: str) -> None:
        """A block of the page as it stands, but for the namespace and what `replaced` names."""
        text = re.sub(r"(-n|--namespace) orchard\b", rf"\1 {self.namespace}", BLOCKS[block])
        for old, new in replaced.items():
            assert old in text
            text = text.replace(old, new)
        programs = f"{self.folder / 'programs'}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": programs, "KUBECONFIG": str(self.cluster.kubeconfig)}
        ran = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr

    def get(self, kind: str, *words: str) -> list[Manifest]:
        said = self.cluster.kubectl("get", kind, "-n", self.namespace, *words, "-o", "json")
        found: list[Manifest] = json.loads(said)["items"]
        return found

    def uids(self, kind: str, label: str = SELECTOR) -> dict[str, str]:
        """By name."""
        return {one["metadata"]["name"]: one["metadata"]["uid"] for one in self.get(kind, "-l", label)}

    def nodes(self) -> dict[str, str]:
        """Of each NATS Pod that runs."""
        pods = self.get("pods", "-l", SELECTOR)
        return {
            one["metadata"]["name"]: one["spec"].get("nodeName", "")
            for one in pods
            if "deletionTimestamp" not in one["metadata"]
        }

    def secret(self, name: str) -> dict[str, str]:
        (found,) = self.get("secrets", "--field-selector", f"metadata.name={name}")
        return {key: base64.b64decode(value).decode() for key, value in found["data"].items()}

    def files(self, name: str) -> dict[str, str]:
        """Of the Secret, in the clone."""
        return {path.name: path.read_text() for path in (self.folder / "secrets/orchard" / name).iterdir()}

    def create_secret(self, name: str) -> None:
        place = self.folder / "secrets/orchard" / name
        self.cluster.kubectl(
            "create", "secret", "generic", name, "-n", self.namespace, f"--from-file={place}"
        )


@pytest.fixture(scope="module")
def release(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """Installed, with volumes for its claims, and for those that take the place of lost ones."""
    folder = tmp_path_factory.mktemp("clone")
    (folder / "infra").symlink_to(INFRA)
    (folder / "mine.yaml").write_text("nats: {storageClass: growing}\n")
    subprocess.run(["sh", "infra/make-secrets.sh", "secrets"], cwd=folder, check=True)
    cluster.kubectl("apply", "-f", "-", given=yaml.safe_dump_all(volumes(folder, 10)))
    try:
        with new_namespace(cluster) as namespace:
            found = Release(cluster, namespace, folder)
            (folder / "programs").mkdir()
            stand_in = folder / "programs" / "helm"
            words = (
                f"PYTHONPATH={INFRA.parent} {sys.executable} -m {__name__} {namespace} {cluster.images.bare}"
            )
            stand_in.write_text(f'#!/bin/sh\n{words} "$@" | kubectl -n {namespace} apply -f -\n')
            stand_in.chmod(0o755)
            environment = {"PATH": os.environ["PATH"], "KUBECONFIG": str(cluster.kubeconfig)}
            install = "upgrade orchard infra/chart --values infra/chart/values-cloud.yaml --values mine.yaml"
            subprocess.run([str(stand_in), *install.split()], cwd=folder, env=environment, check=True)
            for workload in ("statefulset/nats", "deployment/orchestrator"):
                cluster.kubectl("rollout", "status", workload, "-n", namespace)
            for name in ("nats-ca", "nats-tls", "nats-users", "sandbox-keys", "sandbox-key", "agent-secret"):
                found.create_secret(name)
            yield found
            cluster.kubectl("delete", "statefulset,deployment", "--all", "-n", namespace)
    finally:
        cluster.kubectl("delete", "pv,storageclass", "-l", "test=runbooks", "--wait=false")


def volumes(folder: Path, count: int) -> list[Manifest]:
    """A class of volumes that may grow, and some."""
    labels = {"test": "runbooks"}
    kept: list[Manifest] = [
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": "growing", "labels": labels},
            "provisioner": "kubernetes.io/no-provisioner",
            "allowVolumeExpansion": True,
        }
    ]
    for number in range(count):
        path = folder / f"volume-{number}"
        path.mkdir(mode=0o777)
        kept.append(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": f"runbooks-{number}", "labels": labels},
                "spec": {
                    "capacity": {"storage": "100Gi"},
                    "accessModes": ["ReadWriteOnce"],
                    "storageClassName": "growing",
                    "hostPath": {"path": str(path)},
                },
            }
        )
    return kept


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "in vain"
        time.sleep(0.2)


def test_the_page_has_a_test_of_each_block() -> None:
    assert BLOCKS.keys() == set(re.findall(r'release\.run\("(.*?)"', Path(__file__).read_text()))


def test_the_disks_grow_around_servers_that_run(release: Release) -> None:
    pods, claims = release.uids("pods"), release.uids("pvc")
    release.run("claims")
    sizes = {one["spec"]["resources"]["requests"]["storage"] for one in release.get("pvc", "-l", SELECTOR)}
    assert sizes == {"100Gi"} and release.uids("pods") == pods

    release.run("limits")

    (made,) = release.get("statefulsets")
    (template,) = made["spec"]["volumeClaimTemplates"]
    assert template["spec"]["resources"]["requests"]["storage"] == "100Gi"
    assert release.uids("pvc") == claims, "no volume was exchanged"
    assert release.uids("pods").keys() == pods.keys() and not pods.items() & release.uids("pods").items()


def test_a_lost_volume_has_a_new_one_in_its_place(release: Release) -> None:
    pods, claims = release.uids("pods"), release.uids("pvc")
    release.run("volume")
    now = release.uids("pvc")
    assert {name for name in now if now[name] != claims[name]} == {"data-nats-1"}
    assert {name for name, uid in release.uids("pods").items() if uid != pods[name]} == {"nats-1"}


def test_three_servers_begin_with_empty_volumes(release: Release) -> None:
    claims = release.uids("pvc")
    release.run("volumes")
    now = release.uids("pvc")
    assert now.keys() == claims.keys() and not now.items() & claims.items()


def test_a_lost_nodes_server_starts_elsewhere(release: Release) -> None:
    (here,) = set(release.nodes().values())
    release.cluster.kubectl("apply", "-f", "-", given=json.dumps(node_like(release.cluster, here)))
    release.cluster.kubectl("cordon", here)
    release.cluster.kubectl("delete", "pod", "nats-2", "-n", release.namespace)
    until(lambda: release.nodes().get("nats-2") == LOST)
    release.cluster.kubectl("uncordon", here)

    release.run("node", **{"worker-3": LOST})

    assert release.nodes() == dict.fromkeys(("nats-0", "nats-1", "nats-2"), here)


def node_like(cluster: Cluster, name: str) -> Manifest:
    """A node that says it is ready, and on which nothing runs."""
    found: Manifest = json.loads(cluster.kubectl("get", "node", name, "-o", "json"))
    found["metadata"] = {"name": LOST, "labels": {"kubernetes.io/os": "linux"}}
    found["spec"] = {}
    found["status"] = {key: found["status"][key] for key in ("capacity", "allocatable", "conditions")}
    return found


def test_orchestrators_are_replaced_and_two_are_ready_all_the_time(release: Release) -> None:
    label = "app.kubernetes.io/name=orchestrator"
    before = release.uids("pods", label)
    (deployment,) = release.get("deployments")
    assert deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    release.run("orchestrators")
    now = release.uids("pods", label)
    assert len(set(now) - set(before)) == len(before) == 2


def test_keys_and_certificates_are_exchanged(release: Release) -> None:
    certificate, users = release.secret("nats-tls"), release.secret("nats-users")
    release.run("certificate")
    now = release.secret("nats-tls")
    assert now == release.files("nats-tls") and now["tls.crt"] != certificate["tls.crt"]
    assert now["ca.crt"] == certificate["ca.crt"]

    pods = release.uids("pods")
    release.run("password")
    now = release.secret("nats-users")
    assert {name for name in now if now[name] != users[name]} == {"worker"}
    assert not pods.items() & release.uids("pods").items(), "each server has read it"

    key = release.secret("sandbox-key")["key"]
    release.run("sandbox key")
    now = release.secret("sandbox-key")
    assert now["key"] != key
    assert release.secret("sandbox-keys")["keys"] == f"{now['key']},{key}", (
        "workers that run have the old one"
    )


def test_the_authority_is_exchanged_in_three_steps(release: Release) -> None:
    label = "app.kubernetes.io/name=orchestrator"
    pods, before = release.uids("pods", label), release.secret("nats-tls")

    release.run("both authorities")
    both = release.secret("nats-ca")["ca.crt"]
    assert both.count("BEGIN CERTIFICATE") == 2 and both.endswith(before["ca.crt"])
    now = release.secret("nats-tls")
    assert (now["ca.crt"], now["tls.crt"]) == (both, before["tls.crt"])
    assert not pods.items() & release.uids("pods", label).items()

    release.run("certificate")
    release.run("one authority")
    alone, now = release.secret("nats-ca")["ca.crt"], release.secret("nats-tls")
    assert alone == now["ca.crt"] == both.removesuffix(before["ca.crt"])
    (release.folder / "served.crt").write_text(now["tls.crt"])
    signed = ("openssl", "verify", "-CAfile", "secrets/ca/ca.crt", "served.crt")
    subprocess.run(signed, cwd=release.folder, check=True, capture_output=True)


def test_a_new_agent_secret_is_for_all_orchestrators_and_ends_the_sandboxes(release: Release) -> None:
    label = "app.kubernetes.io/name=orchestrator"
    pods, secret = release.uids("pods", label), release.secret("agent-secret")["secret"]
    apart = f"{release.namespace}-sandboxes"
    box = {"name": "main", "image": release.cluster.images.bare, "command": ["sleep", "100000"]}
    about = {"name": "sandbox-x", "namespace": apart, "labels": {"app": "sandbox"}}
    sandbox = {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": {"containers": [box]}}
    release.cluster.kubectl("create", "namespace", apart)
    release.cluster.kubectl("create", "-f", "-", given=json.dumps(sandbox))

    release.run("agent secret")

    assert release.secret("agent-secret") == release.files("agent-secret") != {"secret": secret}
    assert not pods.items() & release.uids("pods", label).items()
    assert all("deletionTimestamp" in one["metadata"] for one in release.cluster.get("pods", apart))
    release.cluster.kubectl("delete", "namespace", apart, "--wait=false")


if __name__ == "__main__":
    _, released, image, _upgrade, _name, _chart, *given = sys.argv
    print(yaml.safe_dump_all(objects(released, given, image)))  # noqa: T201
