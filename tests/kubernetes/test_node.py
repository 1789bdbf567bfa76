"""The cluster and its images are what the other tests take them for."""

import json
import time

import pytest

from orchard.injector.payload import launch
from tests.kubernetes.conftest import Cluster, Manifest

COMMANDS = {
    "full": "git --version && patch --version && python3 -m pytest --version && bash -c true",
    "bare": "test ! -e /bin/bash && ! command -v python3",
}


def pod(image: str, command: str, agent: str) -> Manifest:
    """Runs the agent's own Python, then a command in an image."""
    starting = launch.command("/payload", "--version")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "probe"},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "initContainers": [
                {"name": "agent", "image": agent, "imagePullPolicy": "IfNotPresent", "command": starting}
            ],
            "containers": [
                {
                    "name": "main",
                    "image": image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["/bin/sh", "-c", command],
                }
            ],
        },
    }


@pytest.mark.parametrize("which", COMMANDS)
def test_images_have_what_they_are_for(cluster: Cluster, namespace: str, which: str) -> None:
    manifest = pod(getattr(cluster.images, which), COMMANDS[which], cluster.images.agent)
    cluster.kubectl("create", "-n", namespace, "-f", "-", given=json.dumps(manifest))

    deadline = time.monotonic() + 120
    while (phase := cluster.get("pods", namespace)[0]["status"]["phase"]) not in ("Succeeded", "Failed"):
        assert time.monotonic() < deadline, phase
        time.sleep(0.1)

    assert phase == "Succeeded", cluster.kubectl("logs", "-n", namespace, "probe", "--all-containers")
    cluster.kubectl("delete", "pod", "-n", namespace, "probe")
