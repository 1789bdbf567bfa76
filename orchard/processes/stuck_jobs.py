"""`python -m orchard.processes.stuck_jobs`: ends the worker Jobs of a cluster whose Pod cannot start.

A Job waits for its Pod without end when the image cannot be pulled, a Secret is missing or the Pod is refused
(a quota, a rule of the namespace), and KEDA counts it as a running worker: a bad image would hold the whole
fleet even after it was corrected. Run from time to time, this deletes such Jobs; KEDA makes new ones from the
manifests of the day. Pods that wait for a node are left to wait: an autoscaler may be making one.

Verbs that its account needs in the workers' namespace: pods list; jobs list, delete.
"""

import argparse
import asyncio
import logging
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import msgspec

from orchard.injector.errors import SandboxError
from orchard.injector.kubernetes.api import ClusterApi

log = logging.getLogger("orchard.processes.stuck_jobs")

WORKERS = "app.kubernetes.io/name=worker"
SCALED = "scaledjob.keda.sh/name"
"""Label that KEDA sets on each of its Jobs."""
HOPELESS = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "ErrImageNeverPull",
        "InvalidImageName",
        "ImageInspectError",
        "RegistryUnavailable",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
        "CrashLoopBackOff",
    }
)
"""Reasons of waiting containers that waiting does not resolve. Of them a sidecar alone may loop in
crashes."""
SLOW = frozenset({"ContainerCreating", "PodInitializing"})
"""Reasons that also occur while a large image is pulled; a volume whose Secret is missing has no other."""
PATIENCE = 3
"""Factor by which such a container may wait longer."""


class _Waiting(msgspec.Struct):
    reason: str = ""
    message: str = ""


class _State(msgspec.Struct):
    waiting: _Waiting | None = None


class _Container(msgspec.Struct):
    name: str
    state: _State = msgspec.field(default_factory=_State)


class _Owner(msgspec.Struct):
    kind: str
    name: str


class _Metadata(msgspec.Struct, rename="camel"):
    name: str
    creation_timestamp: datetime
    owner_references: list[_Owner] = []


class _Status(msgspec.Struct, rename="camel"):
    phase: str = ""
    container_statuses: list[_Container] = []
    init_container_statuses: list[_Container] = []


class WorkerPod(msgspec.Struct):
    """The fields of a Pod that this module reads."""

    metadata: _Metadata
    status: _Status


class WorkerPods(msgspec.Struct):
    """The API server's list of Pods."""

    items: list[WorkerPod]


class _JobStatus(msgspec.Struct, rename="camel"):
    active: int = 0
    succeeded: int = 0
    failed: int = 0


class WorkerJob(msgspec.Struct):
    """The fields of a Job that this module reads."""

    metadata: _Metadata
    status: _JobStatus


class WorkerJobs(msgspec.Struct):
    """The API server's list of Jobs."""

    items: list[WorkerJob]


def stuck(pods: WorkerPods, now: datetime, after: timedelta) -> Iterator[tuple[str, str]]:
    """Finds Pods that are pending longer than `after` and cannot start, as (Job, reason)."""
    for pod in pods.items:
        jobs = [owner.name for owner in pod.metadata.owner_references if owner.kind == "Job"]
        age = now - pod.metadata.creation_timestamp
        if pod.status.phase != "Pending" or age < after or not jobs:
            continue
        hopeless = HOPELESS | (SLOW if age >= PATIENCE * after else frozenset())
        for container in (*pod.status.init_container_statuses, *pod.status.container_statuses):
            waiting = container.state.waiting
            if waiting is not None and waiting.reason in hopeless:
                yield jobs[0], f"{container.name}: {waiting.reason}: {waiting.message}".rstrip(": ")
                break


def without_pods(jobs: WorkerJobs, now: datetime, after: timedelta) -> Iterator[tuple[str, str]]:
    """Finds Jobs without a Pod for longer than `after`, as (Job, reason): the cluster refuses to create
    it."""
    for job in jobs.items:
        status = job.status
        if now - job.metadata.creation_timestamp >= after and not (
            status.active or status.succeeded or status.failed
        ):
            yield job.metadata.name, "no Pod was made for it: `kubectl describe job` says why"


async def clear(api: ClusterApi, namespace: str, after: timedelta) -> int:
    """Deletes stuck Jobs and returns their number. Raises SandboxUnavailable and ApiRefused."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    pods = await api.get(
        WorkerPods, path, {"labelSelector": WORKERS, "fieldSelector": "status.phase=Pending"}
    )
    place = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    jobs = await api.get(WorkerJobs, place, {"labelSelector": SCALED})
    now, ended = datetime.now(UTC), 0
    for job, why in (*stuck(pods, now, after), *without_pods(jobs, now, after)):
        log.warning("the Job %s cannot start, so it is deleted: %s", job, why)
        await api.delete(
            f"{place}/{job}",
            {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"},
        )
        ended += 1
    return ended


async def _run(namespace: str, after: timedelta, kubeconfig: str | None) -> None:
    api = await ClusterApi.connect(kubeconfig, 1)
    try:
        log.info("%d Jobs that could not start were deleted", await clear(api, namespace, after))
    finally:
        await api.close()


def main() -> int:
    """Makes one pass and returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m orchard.processes.stuck_jobs", description=__doc__)
    parser.add_argument("--namespace", default="orchard", help="where the workers are")
    parser.add_argument("--after", type=float, default=600.0, help="seconds that a Pod may take to start")
    parser.add_argument("--kubeconfig", help="default: the account of the Pod it runs in")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        asyncio.run(_run(options.namespace, timedelta(seconds=options.after), options.kubeconfig))
    except SandboxError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
