"""A brake for each registry of images: while one fails, few Pods ask it, and others wait without one.

All replicas see the same Pods and so come to the same brake: nothing has to be agreed on. Images that a Pod
has already are not held, as its node at least need not ask for them.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable

import msgspec

from orchard.injector.errors import SandboxUnavailable
from orchard.injector.kubernetes import marks
from orchard.injector.kubernetes.image_pulls import Trouble, Wait, image_of, registry_of, waiting
from orchard.injector.kubernetes.objects import Pod

PLACES = 4
"""Pods that ask a registry which fails, at once."""
PROBE_SECONDS = 15.0
"""A further one is made after so long, in place of the oldest: a kubelet waits longer each time, and would
find out minutes late that the registry has come back."""
LOOK_SECONDS = 1.0
"""Between two looks through all Pods."""


class Rest(msgspec.Struct, kw_only=True):
    """Of a registry that fails."""

    words: str
    asking: int = 0
    """Pods that wait for an image of it, made after the last one that brought a new image to a node."""
    last: float = 0.0
    """When the last of them was made, in epoch seconds."""
    had: set[str]
    """Its images that are on a node."""


def troubled(pods: Iterable[Pod]) -> dict[str, list[tuple[Pod, Wait]]]:
    """The Pods that wait for a registry which fails, by registry, oldest first."""
    found: dict[str, list[tuple[Pod, Wait]]] = defaultdict(list)
    for pod in pods:
        wait = waiting(pod)
        if wait is not None and wait.trouble is Trouble.REGISTRY and marks.failure(pod) is None:
            found[registry_of(wait.image)].append((pod, wait))
    for ones in found.values():
        ones.sort(key=lambda one: _made(one[0]))
    return found


def rests(pods: Iterable[Pod]) -> dict[str, Rest]:
    """The registries that fail now: while a single Pod has trouble with one, it is asked with care."""
    every = list(pods)
    resting = {name: Rest(words=ones[-1][1].words, had=set()) for name, ones in troubled(every).items()}
    if not resting:
        return resting
    for pod in sorted(every, key=_made):
        for container in (*pod.status.init_container_statuses, *pod.status.container_statuses):
            image = image_of(pod, container)
            rest = resting.get(registry_of(image))
            if rest is None or marks.failure(pod) is not None or image in rest.had:
                continue
            if container.image_i_d:
                rest.had.add(image)
                rest.asking = 0
            else:
                rest.asking += 1
                rest.last = _made(pod)
    return resting


def crowd(pods: Iterable[Pod]) -> list[tuple[Pod, Wait]]:
    """Those that wait for a registry which fails, but for the few newest, which ask it soonest."""
    return [one for ones in troubled(pods).values() for one in ones[:-PLACES]]


class Brake:
    """Of one orchestrator."""

    def __init__(self, pods: Iterable[Pod], clock: Callable[[], float]) -> None:
        """`clock` gives epoch seconds."""
        self._pods = pods
        self._clock = clock
        self._looked = float("-inf")
        self._rests: dict[str, Rest] = {}

    def check(self, image: str) -> None:
        """Raises SandboxUnavailable (`registry_resting`) where no Pod of the image is to be made now."""
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
    """Epoch seconds; a claimed Pod's finer than Kubernetes has them."""
    return marks.birth(pod).at if marks.claimed(pod) else pod.created_at
