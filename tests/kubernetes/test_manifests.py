"""infra/ before a real API server: manifests are valid, and the orchestrator's account can do its work only.

Server-side apply refuses fields that the server does not know, where other ways drop them without a word. The
test node's server (Kubernetes 1.20 built by Go 1.19) ends itself at any custom resource, so KEDA's and
ServiceMonitors are asked about only where the cluster has them. tests/infra has KEDA's schema for the former.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.infra.conftest import INFRA, OVERLAYS, Manifest, build
from tests.infra.test_clusters import EXAMPLES, example
from tests.kubernetes.conftest import Cluster, kubeconfig_of, new_namespace

EVERYBODYS = {"selfsubjectaccessreviews", "selfsubjectrulesreviews"}
"""What any account may ask for: what it may do."""


@pytest.fixture(scope="module")
def two_namespaces(cluster: Cluster) -> Iterator[Mapping[str, str]]:
    """Names that stand for infra's, so that a deployment on the same cluster is left alone."""
    with new_namespace(cluster) as orchard, new_namespace(cluster) as sandboxes:
        yield {"orchard": orchard, "orchard-sandboxes": sandboxes}


def expected(item: Manifest, namespaces: Mapping[str, str], served: set[str]) -> Manifest | None:
    """A manifest as this server can judge it, in the test's namespaces; None when it cannot.

    Servers before 1.21 have older versions of budgets and CronJobs, with the same fields. Without KEDA, what
    is left of a ScaledJob is the Job that it makes, with sidecars, which came with 1.28, as containers like
    others.
    """
    moved = json.loads(json.dumps(item))
    groups = ("monitoring.coreos.com", "gateway.networking.k8s.io")
    others = moved["apiVersion"].partition("/")[0] in groups or moved["kind"] == "ScaledObject"
    if others and moved["apiVersion"] not in served:
        return None
    if moved["kind"] == "ScaledJob" and moved["apiVersion"] not in served:
        spec = moved["spec"]["jobTargetRef"]
        pod = spec["template"]["spec"]
        for sidecar in pod.pop("initContainers", []):
            assert sidecar.pop("restartPolicy") == "Always"
            pod["containers"].append(sidecar)
        moved |= {"apiVersion": "batch/v1", "kind": "Job", "spec": spec}
    if moved["apiVersion"] == "policy/v1" and "policy/v1" not in served:
        moved["apiVersion"] = "policy/v1beta1"
    if moved["kind"] == "CronJob" and "policy/v1" not in served:
        moved["apiVersion"] = "batch/v1beta1"
    if "namespace" in moved["metadata"]:
        moved["metadata"]["namespace"] = namespaces[moved["metadata"]["namespace"]]
    if moved["kind"] == "Namespace":
        moved["metadata"]["name"] = namespaces[moved["metadata"]["name"]]
    return dict(moved)


def applied(cluster: Cluster, items: list[Manifest]) -> tuple[int, str, list[str]]:
    """Status, complaints and names of a server-side apply that changes nothing."""
    words = ("apply", "--server-side", "--force-conflicts", "--dry-run=server", "-o", "name", "-f", "-")
    run = cluster.attempt(*words, given=yaml.safe_dump_all(items))
    return run.returncode, run.stderr, run.stdout.split()


class TestManifests:
    @pytest.mark.parametrize("overlay", OVERLAYS)
    def test_every_one_is_accepted(
        self, cluster: Cluster, two_namespaces: Mapping[str, str], overlay: str
    ) -> None:
        served = set(cluster.kubectl("api-versions").split())
        built = build(INFRA / "overlays" / overlay)
        items = [found for item in built if (found := expected(item, two_namespaces, served)) is not None]

        status, complaints, names = applied(cluster, items)

        assert (status, complaints) == (0, "")
        assert len(names) == len(items) > 30

    @pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
    def test_every_one_of_an_example_is_accepted(
        self, cluster: Cluster, two_namespaces: Mapping[str, str], path: Path
    ) -> None:
        served = set(cluster.kubectl("api-versions").split())
        items = [
            found
            for item in example(path.stem).items
            if (found := expected(item, two_namespaces, served)) is not None
        ]

        status, complaints, names = applied(cluster, items)

        assert (status, complaints) == (0, "")
        assert len(names) == len(items) > 30

    @pytest.mark.parametrize(
        ("kind", "path"), [("Deployment", ("template", "spec")), ("NetworkPolicy", ()), ("StatefulSet", ())]
    )
    def test_a_field_that_is_none_is_refused(
        self, cluster: Cluster, two_namespaces: Mapping[str, str], kind: str, path: tuple[str, ...]
    ) -> None:
        served = set(cluster.kubectl("api-versions").split())
        item = next(each for each in build(INFRA / "overlays" / "cloud") if each["kind"] == kind)
        item = expected(item, two_namespaces, served)
        assert item is not None
        node = item["spec"]
        for step in path:
            node = node[step]
        node["imagePolicy"] = "Never"

        status, complaints, _ = applied(cluster, [item])

        assert status != 0 and "imagePolicy" in complaints


class Account:
    """What the orchestrator's account is let do."""

    def __init__(self, cluster: Cluster, namespace: str, directory: Path) -> None:
        self.namespace = namespace
        self._as_itself = Cluster(kubeconfig_of(cluster, namespace, directory), cluster.images)

    def rules(self, namespace: str) -> dict[str, set[str]]:
        """Verbs by resource, as the API server's own authorizer lists them."""
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectRulesReview",
            "spec": {"namespace": namespace},
        }
        path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
        answer: Any = json.loads(
            self._as_itself.kubectl("create", "--raw", path, "-f", "-", given=json.dumps(review))
        )
        found: dict[str, set[str]] = {}
        for rule in answer["status"]["resourceRules"]:
            for resource in set(rule["resources"]) - EVERYBODYS:
                found.setdefault(resource, set()).update(rule["verbs"])
        return found

    def refusal(self, *words: str) -> str:
        """Why a command of its is refused; empty when it is not."""
        run = self._as_itself.attempt(*words)
        return run.stderr if run.returncode else ""


class TestAccount:
    @pytest.fixture
    def account(self, cluster: Cluster, namespace: str, tmp_path: Path) -> Account:
        return Account(cluster, namespace, tmp_path)

    def test_it_may_do_in_its_namespace_what_the_backend_does(self, account: Account) -> None:
        assert account.rules(account.namespace) == {
            "pods": {"create", "delete", "get", "list", "watch", "patch"},
            "networkpolicies": {"create", "delete", "list"},
            "leases": {"create", "delete", "get", "list", "update"},
            "nodes": {"list"},
        }

    @pytest.mark.parametrize("namespace_of", ["default", "kube-system"])
    def test_elsewhere_it_may_look_at_nodes(self, account: Account, namespace_of: str) -> None:
        assert account.rules(namespace_of) == {"nodes": {"list"}}

    @pytest.mark.parametrize(
        "words",
        [
            "get secrets",
            "get configmaps",
            "get serviceaccounts",
            "get pods --all-namespaces",
            "get pods -n kube-system",
            "get --raw /api/v1/namespaces/{namespace}/pods/any/log",
            "create --raw /api/v1/namespaces/{namespace}/pods/any/exec?command=sh -f /dev/null",
            "create --raw /api/v1/namespaces/{namespace}/pods/any/eviction -f /dev/null",
            "create --raw /api/v1/namespaces/{namespace}/serviceaccounts/orchestrator/token -f /dev/null",
            "create serviceaccount more",
            "create role more --verb=get --resource=secrets",
            "create rolebinding more --clusterrole=cluster-admin --serviceaccount=default:default",
            "delete namespace default",
            "taint nodes --all taken=yes:NoSchedule",
            "get --raw /api/v1/nodes/any/proxy/run",
        ],
    )
    def test_it_is_refused_the_rest(self, account: Account, words: str) -> None:
        scope = [] if "-n " in words or "--raw" in words else ["-n", account.namespace]
        given = [word.format(namespace=account.namespace) for word in words.split()]

        assert "forbidden" in account.refusal(*given, *scope).lower()
