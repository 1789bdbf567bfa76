"""A worker's Job with a bad image is ended on a real node, with the rights of the chart; others stay."""

import os
import subprocess
import sys
from typing import Any

import yaml

from tests.infra.conftest import INFRA
from tests.kubernetes.conftest import Cluster


def job(name: str, image: str) -> dict[str, Any]:
    container = {
        "name": "worker",
        "image": image,
        "imagePullPolicy": "Never",
        "command": ["sleep", "600"],
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
    }
    labels = {"app.kubernetes.io/name": "worker"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "backoffLimit": 0,
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": 0,
                    "containers": [container],
                },
            },
        },
    }


def rights(namespace: str) -> list[dict[str, Any]]:
    """The janitor's account and role, moved to another namespace."""
    items = [
        item
        for item in yaml.safe_load_all((INFRA / "overlays" / "cloud" / "orchard.yaml").read_text())
        if item["metadata"]["name"] == "janitor" and item["kind"] in ("ServiceAccount", "Role", "RoleBinding")
    ]
    for item in items:
        item["metadata"]["namespace"] = namespace
        for subject in item.get("subjects", []):
            subject["namespace"] = namespace
    return items


def test_a_job_that_cannot_start_is_ended_and_one_that_runs_is_not(
    cluster: Cluster, namespace: str, tmp_path: Any
) -> None:
    jobs = [job("bad", "nowhere.example/none:1"), job("good", cluster.images.full)]
    cluster.kubectl(
        "apply", "-n", namespace, "-f", "-", given=yaml.safe_dump_all([*rights(namespace), *jobs])
    )
    cluster.kubectl(
        *("wait", "pod", "-n", namespace, "-l", "job-name=bad", "--timeout=90s"),
        "--for=jsonpath={.status.containerStatuses[0].state.waiting.reason}=ErrImageNeverPull",
    )
    cluster.kubectl(
        *("wait", "pod", "-n", namespace, "-l", "job-name=good", "--timeout=90s"),
        "--for=condition=Ready",
    )
    token = cluster.kubectl("create", "token", "janitor", "-n", namespace).strip()
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["users"] = [{"name": config["users"][0]["name"], "user": {"token": token}}]
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))

    command = [sys.executable, "-m", "orchard.processes.stuck_jobs", "--namespace", namespace, "--after", "0"]
    command += ["--kubeconfig", str(tmp_path / "kubeconfig")]
    run = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120, env=dict(os.environ)
    )

    assert run.returncode == 0, run.stderr
    assert "the Job bad cannot start, so it is deleted: worker: ErrImageNeverPull" in run.stderr
    cluster.kubectl("wait", "pod", "-n", namespace, "-l", "job-name=bad", "--for=delete", "--timeout=60s")
    assert [one["metadata"]["name"] for one in cluster.get("jobs", namespace)] == ["good"]
    cluster.kubectl("delete", "job", "good", "-n", namespace, "--wait=true")
