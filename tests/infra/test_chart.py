"""The chart and the overlays are the same objects: the overlays are written from it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.infra.conftest import INFRA, Manifest, Manifests, containers

HELM = Path(sys.executable).with_name("helm")
CHART = INFRA / "chart"
VALUES = {"kind": ["kind"], "cloud": ["cloud"], "spot": ["cloud", "spot"]}
"""What `helm install` is told for what each overlay is."""


def helm(*words: str) -> str:
    run = subprocess.run([HELM, *words], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def rendered(*words: str) -> list[Manifest]:
    text = helm("template", "orchard", str(CHART), "--namespace", "orchard", *words)
    return [document for document in yaml.safe_load_all(text) if document]


def by_name(items: list[Manifest]) -> dict[tuple[str, str, str], Manifest]:
    found = {
        (item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"]): item
        for item in items
    }
    assert len(found) == len(items), "no object twice"
    return found


@pytest.mark.parametrize("overlay", VALUES)
def test_helm_and_kustomize_give_the_same_objects(built: dict[str, Manifests], overlay: str) -> None:
    files = [word for name in VALUES[overlay] for word in ("--values", str(CHART / f"values-{name}.yaml"))]

    assert by_name(rendered(*files)) == by_name(list(built[overlay].items))


def test_the_overlays_are_those_of_the_chart(tmp_path: Path) -> None:
    for place in ("chart", "overlays"):
        subprocess.run(["cp", "-r", str(INFRA / place), str(tmp_path)], check=True)
    script = tmp_path / "make-manifests.sh"
    script.write_text((INFRA / "make-manifests.sh").read_text())
    subprocess.run(["sh", str(script)], env={"HELM": str(HELM), "PATH": "/usr/bin:/bin"}, check=True)

    for path in (tmp_path / "overlays").rglob("*.yaml"):
        now = INFRA / path.relative_to(tmp_path)
        assert path.read_text() == now.read_text(), f"{now.relative_to(INFRA)}: run `make manifests`"


@pytest.mark.parametrize("overlay", VALUES)
def test_helm_finds_nothing_to_complain_of(overlay: str) -> None:
    files = [word for name in VALUES[overlay] for word in ("--values", str(CHART / f"values-{name}.yaml"))]
    helm("lint", "--strict", "--quiet", str(CHART), *files)


def test_a_queue_of_a_list_brings_all_that_it_needs() -> None:
    queue = {"kind": "rollout", "domain": "claw", "priority": "low", "maxWorkers": 7, "lends": ["normal"]}
    items = Manifests(rendered("--set-json", f"queues=[{json.dumps(queue)}]"))

    job = items.one("ScaledJob", "rollout-claw-low")
    variables = {
        one["name"]: one.get("value")
        for one in job["spec"]["jobTargetRef"]["template"]["spec"]["containers"][0]["env"]
    }
    assert job["spec"]["maxReplicaCount"] == 7
    assert job["spec"]["triggers"][0]["metadata"]["consumer"] == "rollout-claw-low"
    assert variables["ORCHARD_WORKER__DOMAIN"] == "claw"
    assert variables["ORCHARD_WORKER__LENDS"] == "normal"
    settings = items.one("ConfigMap", "settings")["data"]
    assert settings["ORCHARD_NATS__QUEUES"] == "rollout.claw.low", "the writer makes its consumer"


def test_a_model_server_in_the_cluster_is_let_through_by_its_labels() -> None:
    rule = {"to": [{"podSelector": {"matchLabels": {"app": "vllm"}}}], "ports": [{"port": 8000}]}
    items = Manifests(rendered("--set-json", f"egress=[{json.dumps(rule)}]"))

    _, *added = items.one("NetworkPolicy", "outside")["spec"]["egress"]
    assert added == [rule]


def test_who_uses_the_store_may_have_the_identity_of_its_account_in_place_of_keys() -> None:
    role = {"eks.amazonaws.com/role-arn": "arn:aws:iam::123456789012:role/orchard"}
    plain, items = (
        Manifests(rendered(*words)) for words in ((), ("--set-json", f"storeIdentity={json.dumps(role)}"))
    )

    def accounts(of: Manifests) -> set[str]:
        """Of all Pods that would have the keys."""
        return {
            pod["spec"]["serviceAccountName"]
            for _, pod in of.pods()
            if any(
                source.get("secretRef", {}).get("name") == "store-s3"
                for box in containers(pod)
                for source in box.get("envFrom", ())
            )
        }

    identified = {
        item["metadata"]["name"]
        for item in items.of("ServiceAccount")
        if item["metadata"].get("annotations") == role
    }
    assert identified == accounts(items) == accounts(plain)
    assert {"writer", "worker", "console"} <= identified
    assert not any("annotations" in item["metadata"] for item in plain.of("ServiceAccount"))


def test_another_namespace_is_another_everywhere() -> None:
    text = helm("template", "orchard", str(CHART), "--namespace", "elsewhere")

    assert "namespace: orchard\n" not in text and ".orchard.svc" not in text
    assert "nats-0.nats.elsewhere.svc" in text
