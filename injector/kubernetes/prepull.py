"""Pulls images to the nodes before sandboxes ask for them, by one short Pod on each node.

Its containers have the images and a command that ends at once, whether the image has it or not: a container
that could not be started has its image. A kubelet pulls one after another, and goes past one that fails.
All state is in the Pods, so any orchestrator can take the next step.
"""

import hashlib
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from orchard.injector.agent.interfaces import quantity
from orchard.injector.errors import SandboxRequestInvalid
from orchard.injector.kubernetes import image_pulls, pod_metadata
from orchard.injector.kubernetes.api import ClusterApi, passing_over, selector
from orchard.injector.kubernetes.image_pulls import PullFailure
from orchard.injector.kubernetes.objects import (
    ClusterNode,
    ContainerStatus,
    Manifest,
    NodeList,
    Pod,
    PodList,
)
from orchard.injector.kubernetes.resources import is_open
from orchard.injector.kubernetes.settings import KubernetesSettings
from orchard.injector.kubernetes.status import IMAGE_UNAVAILABLE, LOST_CONTAINER, START_REASONS
from orchard.schemas.sandboxes import PreparedImage, PreparedImages

log = logging.getLogger(__name__)

APP = {"app": "sandbox-images"}
BATCH = "orchard/images"
"""Label with a digest of the images that a Pod pulls."""
KEPT = 600.0
"""Seconds for which the Pods of a client that has gone may still be asked about after their time is over."""
AT_ONCE = 10
"""Images of the queue that a node pulls before the next ones begin."""
PATIENCE = 600.0
"""Seconds after which images of the queue are left to the sandboxes, so that one that does not come holds up
no other; and before it is pulled again."""
LOOK = 10.0
"""Seconds between two looks at the nodes for the queue."""
_TINY = {"cpu": "10m", "memory": "16Mi"}
_LIMITS = {"cpu": "100m", "memory": "64Mi"}
_FINAL = {
    PullFailure.MISSING: "image_missing",
    PullFailure.DENIED: "image_denied",
}


class PrepullStep(NamedTuple):
    """What to do next about one list of images, and how far it is."""

    create: list[Manifest]
    delete: list[Pod]
    told: PreparedImages


class Prepull:
    def __init__(self, api: ClusterApi, settings: KubernetesSettings) -> None:
        self._api = api
        self._settings = settings
        self._path = f"/api/v1/namespaces/{settings.namespace}/pods"

    async def nodes(self) -> list[ClusterNode]:
        """List the nodes that take sandboxes. Raises SandboxUnavailable."""
        found = await self._api.get(NodeList, "/api/v1/nodes", {"resourceVersion": "0"})
        return [node for node in found.items if is_open(node, self._settings)]

    async def step(
        self, images: Sequence[str], nodes: Collection[ClusterNode] | None = None
    ) -> PreparedImages:
        """Begin or continue to pull `images` to `nodes`, or to all; returns how far it is. Raises
        SandboxRequestInvalid for images that the settings do not permit, and SandboxUnavailable."""
        for image in images:
            self._settings.admit(image)
        nodes = await self.nodes() if nodes is None else nodes
        chosen = {"labelSelector": selector({**APP, BATCH: _batch(images)})}
        pods = await self._api.get(PodList, self._path, chosen)
        step = next_step(images, nodes, pods.items, self._settings)
        for body in step.create:
            with passing_over(409):
                await self._api.create(Pod, self._path, body)
        for pod in step.delete:
            await self._api.delete(f"{self._path}/{pod.name}", {"gracePeriodSeconds": 0})
        return step.told


class QueuePrepull:
    """Pulls what the queue needs next: each image once to each node while this orchestrator leads."""

    def __init__(self, prepull: Prepull, settings: KubernetesSettings) -> None:
        self._prepull = prepull
        self._settings = settings
        self._there: dict[str, set[str]] = {}
        """Images that were pulled, or never will be, by node."""
        self._rests: dict[str, float] = {}
        """When to pull an image again that did not come."""
        self._batch: tuple[list[str], set[str]] = ([], set())
        self._most = AT_ONCE
        self._looks_at = self._ends_at = float("-inf")

    async def step(self, waiting: Mapping[str, int], now: float) -> None:
        """Begin or continue; `waiting` counts the sandboxes by image, `now` is of a clock in seconds. Raises
        SandboxUnavailable."""
        if now < self._looks_at or not (waiting or self._batch[0]):
            return
        self._looks_at = now + LOOK
        nodes = {node.metadata.name: node for node in await self._prepull.nodes()}
        if not self._batch[0]:
            self._rests = {image: until for image, until in self._rests.items() if until > now}
            wanted = {image: count for image, count in waiting.items() if image not in self._rests}
            self._batch = next_batch(self._permitted(wanted), nodes.keys(), self._there, self._most)
            self._ends_at = now + PATIENCE
        images, names = self._batch
        if not images:
            return
        try:
            told = await self._prepull.step(images, [nodes[name] for name in names if name in nodes])
            over = told.done or now > self._ends_at
            settled = {one.image for one in told.images if told.has(one) or one.reason in _FINAL.values()}
        except SandboxRequestInvalid as error:
            log.warning("%s cannot be pulled ahead: %s", ", ".join(images), error.detail)
            over, self._most = len(images) == 1, 1  # from now on one refused image costs no other
            settled = {*images}
            if not over:
                self._batch = ([], set())
        if over:
            self._there = {name: self._there.get(name, set()) for name in nodes}
            for name in names & nodes.keys():
                self._there[name].update(settled)
            self._rests |= dict.fromkeys({*images} - settled, now + PATIENCE)
            self._batch = ([], set())

    def _permitted(self, waiting: Mapping[str, int]) -> dict[str, int]:
        found = dict(waiting)
        for image in waiting:
            try:
                self._settings.admit(image)
            except SandboxRequestInvalid:  # whoever asks for the sandbox is told
                del found[image]
        return found


def next_batch(
    waiting: Mapping[str, int], nodes: Collection[str], there: Mapping[str, Collection[str]], most: int
) -> tuple[list[str], set[str]]:
    """Return the images to pull next, those that most wait for first, and the nodes that lack one of them."""
    lacking = [
        image
        for image in sorted(waiting, key=lambda image: -waiting[image])
        if any(image not in there.get(node, ()) for node in nodes)
    ][:most]
    return lacking, {node for node in nodes if any(image not in there.get(node, ()) for image in lacking)}


def next_step(
    images: Sequence[str], nodes: Iterable[ClusterNode], pods: Iterable[Pod], settings: KubernetesSettings
) -> PrepullStep:
    """Decide about one list of images: `pods` are those that pull it, at most one for each node."""
    names = {_pod_name(images, node.metadata.name): node for node in nodes if is_open(node, settings)}
    there = {pod.name: pod for pod in pods}
    counted = [pod for pod in there.values() if pod.name in names]
    full = {name for name, node in names.items() if name not in there and _full(node, settings)}
    working = sum(not _over(pod) for pod in there.values())
    missing = [name for name in names if name not in there and name not in full]
    begin = missing[: max(0, settings.prepull_nodes - working)]
    done = not missing and not working
    skipped = len(full) + sum(_without_node(pod) for pod in counted)
    return PrepullStep(
        create=[_manifest(name, names[name].metadata.name, images, settings) for name in begin],
        delete=list(there.values()) if done else [],
        told=PreparedImages(
            nodes=len(names),
            skipped=skipped,
            done=done,
            images=[_told(number, image, counted) for number, image in enumerate(images)],
        ),
    )


def abandoned(pods: Iterable[Pod], settings: KubernetesSettings, now: float) -> list[Pod]:
    """Return the Pods whose client has gone: it deletes them by its last request, long before."""
    return [pod for pod in pods if now > pod.created_at + settings.pending_timeout + KEPT]


def _told(number: int, image: str, pods: Iterable[Pod]) -> PreparedImage:
    pulled = 0
    causes: list[tuple[str, str]] = []
    for pod in pods:
        if _without_node(pod):
            continue  # its node is skipped
        status = next((one for one in pod.status.container_statuses if one.name == _container(number)), None)
        failure = None if status is None else _failure(status)
        if status is not None and _pulled(status):
            pulled += 1
        elif status is not None and failure is not None:
            waiting = status.state.waiting
            words = "" if waiting is None else waiting.message or waiting.reason
            causes.append((_FINAL.get(failure, IMAGE_UNAVAILABLE), words))
        elif _ended(pod):
            words = pod.status.message or pod.status.reason or "its Pod ended before the image was there"
            causes.append((IMAGE_UNAVAILABLE, words))
    reason, message = causes[0] if causes else ("", "")
    return PreparedImage(image=image, pulled=pulled, failed=len(causes), reason=reason, message=message)


def _pulled(status: ContainerStatus) -> bool:
    waiting, ended = status.state.waiting, status.state.terminated
    if ended is not None:
        return ended.reason != LOST_CONTAINER  # what a kubelet says too of one that never was
    return waiting is not None and waiting.reason in START_REASONS


def _failure(status: ContainerStatus) -> PullFailure | None:
    """Return why the image could not be pulled so far, if its kubelet says so."""
    waiting = status.state.waiting
    if waiting is None:
        return None
    if waiting.reason in (image_pulls.INVALID_NAME, image_pulls.NEVER_PULLED):
        return PullFailure.MISSING
    if waiting.reason not in image_pulls.REASONS:
        return None
    return image_pulls.trouble_of(waiting.message, status.image)


def _over(pod: Pod) -> bool:
    """Whether nothing more comes of it: each image is there or will not come."""
    if _ended(pod) or _without_node(pod):
        return True
    statuses = pod.status.container_statuses
    return bool(statuses) and all(_pulled(one) or _failure(one) in _FINAL for one in statuses)


def _ended(pod: Pod) -> bool:
    return pod.status.phase in ("Failed", "Succeeded")


def _without_node(pod: Pod) -> bool:
    return any(one.type == "PodScheduled" and one.status == "False" for one in pod.status.conditions)


def _full(node: ClusterNode, settings: KubernetesSettings) -> bool:
    """Whether the node has no disk for more images: it says so, or its largest ones take their share."""
    if any(one.type == "DiskPressure" and one.status == "True" for one in node.status.conditions):
        return True
    disk = quantity(node.status.capacity.get("ephemeral-storage", "0"))
    return disk > 0 and sum(one.size_bytes for one in node.status.images) > settings.prepull_disk_share * disk


def _batch(images: Sequence[str]) -> str:
    return hashlib.sha256(msgspec.json.encode(images)).hexdigest()[:16]


def _pod_name(images: Sequence[str], node: str) -> str:
    return f"images-{hashlib.sha256(f'{_batch(images)} {node}'.encode()).hexdigest()[:16]}"


def _container(number: int) -> str:
    return f"image-{number}"


def _manifest(name: str, node: str, images: Sequence[str], settings: KubernetesSettings) -> Manifest:
    rule = {"key": "metadata.name", "operator": "In", "values": [node]}
    required = {"nodeSelectorTerms": [{"matchFields": [rule]}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": settings.namespace,
            "labels": {**APP, **pod_metadata.MANAGED_BY, BATCH: _batch(images)},
        },
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 0,
            "activeDeadlineSeconds": round(settings.pending_timeout),
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
            "tolerations": settings.tolerations,
            "imagePullSecrets": [{"name": secret} for secret in settings.image_pull_secrets],
            "containers": [
                {
                    "name": _container(number),
                    "image": image,
                    "imagePullPolicy": settings.image_pull_policy,
                    "command": ["true"],
                    "resources": {"requests": _TINY, "limits": _LIMITS},
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                    },
                }
                for number, image in enumerate(images)
            ],
        },
    }
