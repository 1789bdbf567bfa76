"""`helm install` on a real API server: the namespaces that a release makes, and those that are there."""

import secrets
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.infra.test_chart import CHART, HELM
from tests.kubernetes.conftest import Cluster


@pytest.fixture
def chart(tmp_path: Path) -> Path:
    """The chart's namespaces alone, for a server of any version."""
    place = tmp_path / "chart"
    shutil.copytree(CHART, place)
    for path in (place / "templates").glob("*.yaml"):
        if path.name != "namespaces.yaml":
            path.unlink()
    lines = (place / "Chart.yaml").read_text().splitlines(keepends=True)
    (place / "Chart.yaml").write_text("".join(line for line in lines if not line.startswith("kubeVersion")))
    return place


@pytest.fixture
def name(cluster: Cluster) -> Iterator[str]:
    found = f"orchard-release-{secrets.token_hex(4)}"
    yield found
    cluster.kubectl("delete", "namespace", found, f"{found}-sandboxes", "--wait=false", "--ignore-not-found")


def install(cluster: Cluster, chart: Path, name: str, *words: str) -> None:
    command = [
        str(HELM),
        "--kubeconfig",
        str(cluster.kubeconfig),
        "upgrade",
        "--install",
        name,
        str(chart),
        "--namespace",
        name,
    ]
    run = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def level(cluster: Cluster, namespace: str) -> str:
    words = (
        "get",
        "namespace",
        namespace,
        "-o",
        r"jsonpath={.metadata.labels.pod-security\.kubernetes\.io/enforce}",
    )
    return cluster.kubectl(*words)


def test_the_namespace_may_be_made_by_helm(cluster: Cluster, chart: Path, name: str) -> None:
    install(cluster, chart, name, "--create-namespace")
    install(cluster, chart, name, "--create-namespace")

    assert level(cluster, f"{name}-sandboxes") == "baseline"


def test_it_may_be_there_with_the_one_of_the_sandboxes(cluster: Cluster, chart: Path, name: str) -> None:
    for namespace in (name, f"{name}-sandboxes"):
        cluster.kubectl("create", "namespace", namespace)

    install(cluster, chart, name)
    install(cluster, chart, name)

    assert level(cluster, f"{name}-sandboxes") == "", "it is left as it is"
