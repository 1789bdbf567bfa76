"""Limits the Pods that ask a failing registry: a few ask it, further creations are refused.

All replicas see the same Pods and so reach the same decision without coordination. Images that a node already
has are not limited, as that node at least need not pull them.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable

import msgspec

from orchard.injector.errors import SandboxUnavailable
from orchard.injector.kubernetes import pod_metadata
from orchard.injector.kubernetes.image_pulls import PendingPull, PullFailure, image_of, registry_of, waiting
from orchard.injector.kubernetes.objects import Pod

PLACES = 4
PROBE_SECONDS = 15.0
"""Seconds after which one more is created: a kubelet backs off, and would notice minutes late that the
registry works again."""
LOOK_SECONDS = 1.0


class FailingRegistry(msgspec.Struct, kw_only=True):
    words: str
    asking: int = 0
    """Pods that wait for one of its images, created after the last one that got a new image."""
    last: float = 0.0
    had: set[str]
    """Its images that some node has."""


def troubled(pods: Iterable[Pod]) -> dict[str, list[tuple[Pod, PendingPull]]]:
    """Pods that wait for a failing registry, by registry, oldest first."""
    found: dict[str, list[tuple[Pod, PendingPull]]] = defaultdict(list)
    for pod in pods:
        wait = waiting(pod)
        if wait is not None and wait.trouble is PullFailure.REGISTRY and pod_metadata.failure(pod) is None:
            found[registry_of(wait.image)].append((pod, wait))
    for ones in found.values():
        ones.sort(key=lambda one: _made(one[0]))
    return found


def rests(pods: Iterable[Pod]) -> dict[str, FailingRegistry]:
    """Return the failing registries: one Pod whose pull fails for that cause suffices."""
    every = list(pods)
    resting = {
        name: FailingRegistry(words=ones[-1][1].words, had=set()) for name, ones in troubled(every).items()
    }
    if not resting:
        return resting
    for pod in sorted(every, key=_made):
        for container in (*pod.status.init_container_statuses, *pod.status.container_statuses):
            image = image_of(pod, container)
            rest = resting.get(registry_of(image))
            if rest is None or pod_metadata.failure(pod) is not None or image in rest.had:
                continue
            if container.image_i_d:
                rest.had.add(image)
                rest.asking = 0
            else:
                rest.asking += 1
                rest.last = _made(pod)
    return resting


def crowd(pods: Iterable[Pod]) -> list[tuple[Pod, PendingPull]]:
    """Return all Pods that wait for a failing registry except the few newest, which ask it soonest."""
    return [one for ones in troubled(pods).values() for one in ones[:-PLACES]]


class RegistryLimiter:
    """Refuses creations for failing registries, in one orchestrator."""

    def __init__(self, pods: Iterable[Pod], clock: Callable[[], float]) -> None:
        """`clock` returns epoch seconds."""
        self._pods = pods
        self._clock = clock
        self._looked = float("-inf")
        self._rests: dict[str, FailingRegistry] = {}

    def check(self, image: str) -> None:
        """Raise SandboxUnavailable (`registry_resting`) if no Pod with this image should be created now."""
        now = self._clock()
        if not 0 <= now - self._looked < LOOK_SECONDS:
            self._looked, self._rests = now, rests(self._pods)
        rest = self._rests.get(registry_of(image))
        if rest is None or image in rest.had:
            return
        left = rest.last + PROBE_SECONDS - now
        if rest.asking < PLACES or left <= 0:
            rest.asking, rest.last = rest.asking + 1, now
            return
        error = SandboxUnavailable(
            f"the registry of {image} fails, and enough sandboxes ask it already: {rest.words}",
            reason="registry_resting",
        )
        error.retry_after = left
        raise error


def _made(pod: Pod) -> float:
    """Creation time in epoch seconds; a claimed Pod's is finer than Kubernetes's own."""
    return pod_metadata.creation_record(pod).at if pod_metadata.claimed(pod) else pod.created_at
