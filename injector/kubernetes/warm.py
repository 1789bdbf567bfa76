"""Warm pools: Pods by image that start before a request comes, and are claimed by requests.

A claim is a single write, refused when the Pod has changed, so no Pod is claimed twice. The Pod keeps its
name and its agent's id; from then on its labels make it a sandbox.
"""

import hashlib
import math
import random
import uuid
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from orchard.injector.agent.interfaces import quantity
from orchard.injector.kubernetes import pod_metadata, pods
from orchard.injector.kubernetes.api import ClusterApi, passing_over
from orchard.injector.kubernetes.cache import PodCache
from orchard.injector.kubernetes.objects import Manifest, Pod
from orchard.injector.kubernetes.settings import ANY_IMAGE, KubernetesSettings, WarmPool
from orchard.injector.kubernetes.status import judge, taken
from orchard.schemas.sandboxes import CreateSandbox


def mark_of(image: str, pool: WarmPool, settings: KubernetesSettings, fingerprint: str) -> str:
    """Label value of a pool's Pods: a digest of everything that determines them.

    `fingerprint` is that of the secret which agents' keys are derived from.
    """
    spec = pods.manifest("", "", image, pool.cpu, pool.memory, settings, {})["spec"]
    return hashlib.sha256(
        msgspec.json.encode([spec, fingerprint, settings.per_node], order="sorted")
    ).hexdigest()[:32]


def sizes(settings: KubernetesSettings, demand: Mapping[str, int]) -> dict[str, WarmPool]:
    """Return the pools by image, each with the `count` that it shall have now.

    `demand` is what the queue is going to ask for: a pool grows with it from its `count` to its `most`, and
    all together by no more than `warm_most`, the images most asked for first.
    """
    pools = {image: pool for image, pool in settings.warm.items() if image != ANY_IMAGE}
    if (others := settings.warm.get(ANY_IMAGE)) is not None:
        pools |= {image: others for image in demand if image not in pools}
    left = settings.warm_most
    for image in sorted(demand.keys() & pools.keys(), key=lambda image: (-demand[image], image)):
        pool = pools[image]
        more = min(left, max(0, min(pool.most, demand[image]) - pool.count))
        pools[image] = msgspec.structs.replace(pool, count=pool.count + more)
        left -= more
    return {image: pool for image, pool in pools.items() if pool.count}


def pool_for(request: CreateSandbox, settings: KubernetesSettings) -> WarmPool | None:
    """Return the pool whose Pods exactly fit a request."""
    pool = settings.warm.get(request.image) or settings.warm.get(ANY_IMAGE)
    own = request.pids is not None or request.env or request.egress or request.gpus or request.volumes
    laid = request.layers or request.programs
    if pool is None or not request.block_network or own or laid:
        return None
    same = quantity(pool.cpu) == quantity(request.cpu) and quantity(pool.memory) == quantity(request.memory)
    return pool if same else None


def manifest(image: str, pool: WarmPool, settings: KubernetesSettings, fingerprint: str) -> Manifest:
    """Return a warm Pod, whose lifetime begins with its claim."""
    agent_id = f"warm-{uuid.uuid4().hex[:12]}"
    metadata = {"labels": {pod_metadata.WARM: mark_of(image, pool, settings, fingerprint)}}
    body = pods.manifest(agent_id, agent_id, image, pool.cpu, pool.memory, settings, metadata)
    del body["spec"]["activeDeadlineSeconds"]
    return body


async def claim(
    api: ClusterApi,
    cache: PodCache,
    settings: KubernetesSettings,
    sandbox_id: str,
    born: pod_metadata.CreationRecord,
    fingerprint: str,
) -> Pod | None:
    """Claim a warm Pod for this sandbox; None when none is free.

    Only Pods qualify whose agents' keys come from the secret with this `fingerprint`.
    """
    for pod in _shuffled(fitting(cache, settings, born.request, fingerprint, born.at)):
        marked = pod_metadata.claim_metadata(sandbox_id, born)
        body = {
            "metadata": {
                "uid": pod.uid,
                "resourceVersion": pod.metadata.resource_version,
                "labels": {pod_metadata.WARM: None, **marked["labels"]},
                "annotations": marked["annotations"],
            },
            "spec": {"activeDeadlineSeconds": math.ceil(born.at - pod.created_at + settings.max_lifetime)},
        }
        with passing_over(404, 409):  # another was faster, or it has changed: the next one will do
            claimed = await api.patch(Pod, f"{cache.path}/{pod.name}", body)
            cache.learn(claimed)
            return claimed
    return None


def fitting(
    pods: Iterable[Pod], settings: KubernetesSettings, request: CreateSandbox, fingerprint: str, now: float
) -> Iterator[Pod]:
    """Yield the free warm Pods that exactly fit a request."""
    pool = pool_for(request, settings)
    if pool is not None:
        wanted = mark_of(request.image, pool, settings, fingerprint)
        yield from (pod for pod in pods if is_free(pod, wanted, settings, now, fingerprint))


def is_free(pod: Pod, wanted: str, settings: KubernetesSettings, now: float, fingerprint: str) -> bool:
    return (
        pod.labels.get(pod_metadata.WARM) == wanted
        and pod_metadata.sandbox_id(pod) is None
        and judge(pod, settings, now).ready
        and not taken(pod)
        and pod_metadata.introduced_by(pod) == fingerprint
    )


def _shuffled(free: Iterable[Pod]) -> list[Pod]:
    """Shuffle, so that orchestrators do not all claim the same Pod."""
    listed = list(free)
    random.shuffle(listed)
    return listed
