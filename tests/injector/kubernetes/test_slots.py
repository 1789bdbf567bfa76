"""The slots of a node: the scheduler's rule never lets in more than the limit, and uses all of the room."""

import random
from typing import Any

import pytest

from orchard.injector.kubernetes import warm
from orchard.injector.kubernetes.objects import Pod
from orchard.injector.kubernetes.settings import KubernetesSettings, WarmPool
from orchard.injector.kubernetes.slots import SLOT, Slots
from tests.injector.kubernetes.conftest import pod


def manifest() -> dict[str, Any]:
    return {"metadata": {"labels": {}}, "spec": {}}


def slot_of(body: dict[str, Any]) -> str:
    """The slot of a Pod that no node takes beside another of the same."""
    (rule,) = body["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    slot: str = body["metadata"]["labels"][SLOT]
    assert rule == {
        "labelSelector": {"matchLabels": {SLOT: slot}},
        "topologyKey": "kubernetes.io/hostname",
    }
    return slot


class Nodes:
    """A scheduler: it puts a Pod on a random node that has none of its slot."""

    def __init__(self, count: int) -> None:
        self.pods: list[Pod] = []
        self._where: list[set[str]] = [set() for _ in range(count)]
        self._made = 0

    def add(self, slot: str) -> bool:
        free = [node for node in self._where if slot not in node]
        if free:
            random.choice(free).add(slot)
            self._made += 1
            self.pods.append(pod(f"sandbox-{self._made}", labels={SLOT: slot}))
        return bool(free)

    def remove(self) -> None:
        gone = self.pods.pop(random.randrange(len(self.pods)))
        random.choice([node for node in self._where if gone.labels[SLOT] in node]).remove(gone.labels[SLOT])

    @property
    def fullest(self) -> int:
        return max(map(len, self._where))


@pytest.mark.parametrize(("nodes", "per_node"), [(1, 3), (4, 1), (5, 7)])
def test_a_fleet_is_filled_to_the_limit_of_each_node_and_no_further(nodes: int, per_node: int) -> None:
    random.seed(nodes)
    fleet = Nodes(nodes)
    slots = Slots(fleet.pods, per_node)
    for _ in range(20):
        while len(fleet.pods) < nodes * per_node:
            body = manifest()
            with slots.assigned(body):
                pass
            assert fleet.add(slot_of(body)), "there is room, and some node takes it"
        assert fleet.fullest == per_node
        body = manifest()
        with slots.assigned(body):
            assert not fleet.add(slot_of(body)), "it waits"
        for _ in range(random.randint(1, nodes * per_node)):
            fleet.remove()


def test_creations_that_are_under_way_count() -> None:
    slots, one, two = Slots([], 2), manifest(), manifest()
    with slots.assigned(one), slots.assigned(two):
        assert slot_of(one) != slot_of(two)


def test_pods_that_are_over_take_no_slot() -> None:
    over = [pod("sandbox-a", labels={SLOT: "0"}, phase="Failed"), pod("sandbox-b", labels={SLOT: "1"})]
    body = manifest()
    with Slots(over, 2).assigned(body):
        assert slot_of(body) == "0"


def test_without_a_limit_a_pod_has_none() -> None:
    body = manifest()
    with Slots([], None).assigned(body):
        assert body == manifest()


def test_warm_pods_without_a_slot_are_replaced_when_there_is_a_limit(settings: KubernetesSettings) -> None:
    pool = WarmPool(count=1)
    limited = KubernetesSettings(agent_image=settings.agent_image, namespace=settings.namespace, per_node=2)
    marks = [warm.mark_of("debian:12", pool, each, "print") for each in (settings, limited)]
    assert marks[0] != marks[1]
