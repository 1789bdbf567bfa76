"""Limits the sandboxes of a node: each Pod has the number of a slot, and a node takes one Pod of each number.

The scheduler does it, by required anti-affinity: nodes need no preparation, so those that an autoscaler adds
are limited too, and the orchestrator needs no rights over nodes. A Pod gets the number that the fewest Pods
have: while all nodes together have a free slot, that number is free on some node. One that comes when all
are full waits for its number, not for any: on a few nodes it may wait longer than others that come later.
"""

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from orchard.injector.kubernetes.objects import Manifest, Pod

SLOT = "orchard/slot"
"""Label with the number of a Pod's slot."""
HOST = "kubernetes.io/hostname"
_OVER = ("Failed", "Succeeded")


class Slots:
    """The slots that the Pods of one orchestrator get; another may choose the same at the same moment."""

    def __init__(self, pods: Iterable[Pod], per_node: int | None) -> None:
        self._pods = pods
        self._per_node = per_node
        self._under_way: Counter[str] = Counter()

    @contextmanager
    def assigned(self, body: Manifest) -> Iterator[None]:
        """Give a Pod that is created within the block its slot, if the sandboxes of a node are limited."""
        if self._per_node is None:
            yield
            return
        slot = self._least_used(self._per_node)
        body["metadata"]["labels"][SLOT] = slot
        alike = {"labelSelector": {"matchLabels": {SLOT: slot}}, "topologyKey": HOST}
        rules = {"requiredDuringSchedulingIgnoredDuringExecution": [alike]}
        body["spec"]["affinity"] = {"podAntiAffinity": rules}
        self._under_way[slot] += 1
        try:
            yield
        finally:
            self._under_way[slot] -= 1

    def _least_used(self, per_node: int) -> str:
        used = Counter(
            pod.labels[SLOT] for pod in self._pods if SLOT in pod.labels and pod.status.phase not in _OVER
        )
        numbers = [str(number) for number in range(per_node)]
        random.shuffle(numbers)
        return min(numbers, key=lambda number: used[number] + self._under_way[number])
