"""Marks a sandbox as failed on its Pod, so that it stays failed whatever becomes of the Pod."""

from orchard.injector.kubernetes import marks
from orchard.injector.kubernetes.api import ClusterApi, passing_over
from orchard.injector.kubernetes.cache import PodCache
from orchard.injector.kubernetes.objects import Pod

PROMPTLY = 1
"""Seconds that a failed Pod may still run: the least that Kubernetes accepts."""


async def mark_failed(api: ClusterApi, cache: PodCache, pod: Pod, failure: marks.FailureRecord) -> None:
    """Mark the Pod, and end what runs in it; the Pod stays, so that it can be queried. The first mark
    wins."""
    if marks.failure(pod) is not None:
        return
    body = {
        "metadata": {"uid": pod.uid, "annotations": {marks.FAILED: marks.encoded(failure)}},
        "spec": {"activeDeadlineSeconds": PROMPTLY},
    }
    with passing_over(404, 409):  # gone, or another Pod of the same name
        cache.learn(await api.patch(Pod, f"{cache.path}/{pod.name}", body))
