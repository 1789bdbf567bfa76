"""The figures in Pods: `python -m tests.benchmarks.sandboxes.pods` prints them as JSON, one to a line.

Run where the cluster of KUBECONFIG and its Pods can be reached.
"""

import json
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

from tests.benchmarks.sandboxes.measuring import Row, drive, latencies, rates
from tests.kubernetes import images
from tests.kubernetes.conftest import KEY, Cluster, Images, new_namespace, serving

WARM = 5
SIZE = 30_000_000
LIMITS = ("--cpu", "1", "--memory", "512Mi", "--image", images.FULL)
SIZES = {"cpu_request_share": 0.05, "memory_request_share": 0.25, "ephemeral_storage_request": "16Mi"}
"""The test node is small."""
READY_WITHIN = 120.0


def measure(cluster: Cluster, place: Path) -> Iterator[Row]:
    """One sandbox after the other: this is about latency, not about how many a small node can start."""
    with ExitStack() as stack:
        namespace = stack.enter_context(new_namespace(cluster))

        def served(**settings: Any) -> tuple[str, dict[str, psutil.Process]]:
            service = stack.enter_context(
                serving(cluster, namespace, secrets.token_hex(32), place, settings={**SIZES, **settings})
            )
            return service.url, {"orchestrator": psutil.Process(service.process.pid)}

        url, watched = served()
        yield from latencies("exec in a Pod, SDK", drive("execs", url, watched, *LIMITS, "--count", "300"))
        yield from latencies(
            "Pod: create, exec, delete", drive("cycles", url, watched, *LIMITS, "--count", "8")
        )
        run = drive("transfer", url, watched, *LIMITS, "--count", "5", "--size", str(SIZE))
        yield from rates(f"Pod: file of {SIZE / 1e6:.0f} MB", run, SIZE)
    with ExitStack() as stack:
        namespace = stack.enter_context(new_namespace(cluster))
        pool = {images.FULL: {"count": WARM, "cpu": "1", "memory": "512Mi"}}
        service = stack.enter_context(
            serving(cluster, namespace, secrets.token_hex(32), place, settings={**SIZES, "warm": pool})
        )
        _until(lambda: _waiting(cluster, namespace) >= WARM, "the warm Pods")
        watched = {"orchestrator": psutil.Process(service.process.pid)}
        run = drive("cycles", service.url, watched, *LIMITS, "--count", str(WARM), "--cold")
        yield from latencies(f"Pod out of a warm pool of {WARM}", run)
        service.stop()
        cluster.kubectl("delete", "pods", "--all", "-n", namespace, "--wait=false")


def _waiting(cluster: Cluster, namespace: str) -> int:
    """Warm Pods whose agents have their keys."""
    marks = (pod["metadata"].get("annotations", {}) for pod in cluster.get("pods", namespace))
    return sum("orchard/introduced" in mark for mark in marks)


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + READY_WITHIN
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {READY_WITHIN:g} s in vain for {what}")
        time.sleep(0.2)


def main() -> None:
    """Print the rows."""
    os.environ["SANDBOX_API_KEY"] = KEY
    cluster = Cluster(
        Path(os.environ["KUBECONFIG"]),
        Images(full=images.FULL, bare=images.BARE, agent=os.environ.get("TEST_AGENT_IMAGE", images.AGENT)),
    )
    with tempfile.TemporaryDirectory(prefix="orchard-bench-") as place:
        for row in measure(cluster, Path(place)):
            sys.stdout.write(json.dumps(row) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
