"""Writes on a Pod that its sandbox has failed, so that it stays failed whatever becomes of the Pod."""

from orchard.injector.kubernetes import marks
from orchard.injector.kubernetes.api import ApiRefused, ClusterApi
from orchard.injector.kubernetes.cache import PodCache
from orchard.injector.kubernetes.objects import Pod

PROMPTLY = 1
"""Seconds that a failed Pod may still run: the least that Kubernetes knows."""


async def mark_failed(api: ClusterApi, cache: PodCache, pod: Pod, failure: marks.Failure) -> None:
    """Mark it, and end what runs in it; the Pod stays, so that it can be asked about. First mark wins."""
    if marks.failure(pod) is not None:
        return
    body = {
        "metadata": {"uid": pod.uid, "annotations": {marks.FAILED: marks.encoded(failure)}},
        "spec": {"activeDeadlineSeconds": PROMPTLY},
    }
    try:
        cache.learn(await api.patch(Pod, f"{cache.path}/{pod.name}", body))
    except ApiRefused as error:
        if error.code not in (404, 409):  # gone, or another Pod of the same name
            raise
