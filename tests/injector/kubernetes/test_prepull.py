"""Images are pulled ahead by one Pod on each node, some at a time, and a missing one is told by its name."""

from typing import Any

import msgspec
import pytest

from orchard.injector.errors import SandboxRefused
from orchard.injector.kubernetes.objects import (
    ClusterNode,
    Metadata,
    NodeImage,
    NodeStatus,
    Pod,
    PodCondition,
)
from orchard.injector.kubernetes.prepull import (
    AT_ONCE,
    KEPT,
    LOOK,
    PATIENCE,
    PrepullStep,
    QueuePrepull,
    abandoned,
    next_batch,
    next_step,
)
from orchard.injector.kubernetes.settings import KubernetesSettings
from orchard.schemas.sandboxes import PreparedImage, PreparedImages
from tests.injector.kubernetes.conftest import NOW, pod

IMAGES = ["debian:12", "none:1"]
MISSING = {"waiting": {"reason": "ErrImagePull", "message": "reading manifest 1 in x/none: manifest unknown"}}
WAITS = {"waiting": {"reason": "ContainerCreating"}}
SLOW = {"waiting": {"reason": "ErrImagePull", "message": "dial tcp 10.0.0.1:443: i/o timeout"}}
NO_SUCH_COMMAND = {"terminated": {"exitCode": 128, "reason": "StartError"}}


@pytest.fixture
def settings() -> KubernetesSettings:
    return KubernetesSettings(agent_image="x", prepull_nodes=2)


def nodes(count: int, **status: Any) -> list[ClusterNode]:
    shape = NodeStatus(capacity={"ephemeral-storage": "100Gi"}, **status)
    return [ClusterNode(metadata=Metadata(name=f"node-{number}"), status=shape) for number in range(count)]


def step(settings: KubernetesSettings, fleet: list[ClusterNode], *pods: Pod) -> PrepullStep:
    return next_step(IMAGES, fleet, pods, settings)


def puller(body: dict[str, Any], *states: dict[str, Any], **status: Any) -> Pod:
    """The Pod of a manifest, with the states of its containers."""
    statuses = [
        {"name": f"image-{number}", "image": IMAGES[number], "state": state}
        for number, state in enumerate(states)
    ]
    return pod(body["metadata"]["name"], containerStatuses=statuses, **status)


def test_some_nodes_pull_at_once_and_then_the_next(settings: KubernetesSettings) -> None:
    fleet = nodes(3)
    first = step(settings, fleet)
    assert len(first.create) == 2
    rule = first.create[0]["spec"]["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    assert rule["nodeSelectorTerms"][0]["matchFields"][0]["values"] == ["node-0"]
    assert [one["image"] for one in first.create[0]["spec"]["containers"]] == IMAGES
    assert step(settings, fleet, *(puller(one, WAITS, WAITS) for one in first.create)).create == []
    over = puller(first.create[0], NO_SUCH_COMMAND, MISSING)
    more = step(settings, fleet, over, puller(first.create[1], WAITS, WAITS))
    assert (len(more.create), more.told.done, more.delete) == (1, False, [])


def test_a_missing_image_is_told_at_once_by_name_and_holds_up_nothing(settings: KubernetesSettings) -> None:
    fleet = nodes(1)
    (body,) = step(settings, fleet).create
    begun = step(settings, fleet, puller(body, WAITS, MISSING)).told
    assert (begun.images[1].image, begun.images[1].reason, begun.done) == ("none:1", "image_missing", False)
    assert "manifest unknown" in begun.images[1].message
    over = puller(body, NO_SUCH_COMMAND, MISSING)
    ended = step(settings, fleet, over)
    assert (ended.told.done, ended.delete) == (True, [over])
    assert [(one.pulled, one.failed) for one in ended.told.images] == [(1, 0), (0, 1)]


def test_what_may_pass_is_waited_for_until_the_pods_time_is_over(settings: KubernetesSettings) -> None:
    fleet = nodes(1)
    (body,) = step(settings, fleet).create
    slow = step(settings, fleet, puller(body, NO_SUCH_COMMAND, SLOW)).told
    assert (slow.done, slow.images[1].reason) == (False, "image_unavailable")
    late = puller(body, NO_SUCH_COMMAND, SLOW, phase="Failed", reason="DeadlineExceeded")
    assert step(settings, fleet, late).told.done


LOST = {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}}


@pytest.mark.parametrize(
    ("states", "reason", "message"),
    [
        ((LOST, LOST), "DeadlineExceeded", "Pod was active on the node longer than the specified deadline"),
        ((WAITS, LOST), "DeadlineExceeded", ""),
        ((), "Evicted", "The node was low on resource: ephemeral-storage."),
        ((), "OutOfpods", "Pod was rejected: Node didn't have enough resource: pods"),
    ],
)
def test_a_pod_that_ended_before_its_images_were_there_failed_for_each(
    settings: KubernetesSettings, states: tuple[dict[str, Any], ...], reason: str, message: str
) -> None:
    (body,) = step(settings, nodes(1)).create
    over = puller(body, *states, phase="Failed", reason=reason, message=message)
    ended = step(settings, nodes(1), over)
    assert (ended.told.done, ended.delete) == (True, [over])
    for one in ended.told.images:
        assert (one.pulled, one.failed, one.reason) == (0, 1, "image_unavailable")
        assert one.message == (message or reason)
        assert not ended.told.has(one)


def test_what_was_pulled_before_its_pod_failed_is_there(settings: KubernetesSettings) -> None:
    (body,) = step(settings, nodes(1)).create
    told = step(
        settings, nodes(1), puller(body, NO_SUCH_COMMAND, LOST, phase="Failed", reason="Evicted")
    ).told
    assert [(one.pulled, one.failed, told.has(one)) for one in told.images] == [(1, 0, True), (0, 1, False)]


def test_an_image_is_there_if_every_node_with_room_has_it(settings: KubernetesSettings) -> None:
    roomy, full = nodes(1), nodes(2, images=[NodeImage(size_bytes=61 * 2**30)])[1:]
    (body,) = step(settings, [*roomy, *full]).create
    told = step(settings, [*roomy, *full], puller(body, NO_SUCH_COMMAND, NO_SUCH_COMMAND)).told
    assert (told.nodes, told.skipped, [told.has(one) for one in told.images]) == (2, 1, [True, True])
    none = step(settings, full).told
    assert (none.done, none.skipped, [none.has(one) for one in none.images]) == (True, 1, [False, False])
    nowhere = step(settings, []).told
    assert (nowhere.done, [nowhere.has(one) for one in nowhere.images]) == (True, [False, False])


def test_the_pod_of_a_node_that_has_gone_is_not_counted(settings: KubernetesSettings) -> None:
    first, second = step(settings, nodes(2)).create
    pods = [puller(body, NO_SUCH_COMMAND, NO_SUCH_COMMAND) for body in (first, second)]
    told = step(settings, nodes(1), *pods).told
    assert (told.nodes, [one.pulled for one in told.images]) == (1, [1, 1])


@pytest.mark.parametrize(
    "status",
    [
        {"images": [NodeImage(size_bytes=61 * 2**30)]},
        {"conditions": [PodCondition(type="DiskPressure", status="True")]},
    ],
)
def test_a_node_with_enough_images_pulls_none(settings: KubernetesSettings, status: dict[str, Any]) -> None:
    done = step(settings, nodes(2, **status))
    assert (done.create, done.told.skipped, done.told.done) == ([], 2, True)


def test_a_node_without_room_for_a_pod_is_skipped(settings: KubernetesSettings) -> None:
    fleet = nodes(1)
    (body,) = step(settings, fleet).create
    unscheduled = [{"type": "PodScheduled", "status": "False"}]
    told = step(settings, fleet, puller(body, conditions=unscheduled)).told
    assert (told.skipped, told.done) == (1, True)


def test_nodes_that_are_not_for_sandboxes_pull_nothing(settings: KubernetesSettings) -> None:
    chosen = msgspec.structs.replace(settings, node_selector={"workload": "sandbox"})
    assert step(chosen, nodes(2)).told.nodes == 0


def test_pods_of_a_client_that_has_gone_are_removed_long_after(settings: KubernetesSettings) -> None:
    gone = settings.pending_timeout + KEPT
    old, young = pod("images-1", age=gone + 1), pod("images-2", age=gone - 1)
    assert abandoned([old, young], settings, NOW) == [old]


def test_the_queues_images_come_most_wanted_first_and_once_to_each_node() -> None:
    waiting = {"few": 1, "many": 9} | {f"more-{number}": 3 for number in range(AT_ONCE)}
    images, on = next_batch(waiting, ["a", "b"], {}, AT_ONCE)
    assert (images[0], len(images), "few" in images, on) == ("many", AT_ONCE, False, {"a", "b"})
    there = {"a": {*waiting}, "b": {*images}}
    assert next_batch(waiting, ["a", "b"], there, AT_ONCE) == (["more-9", "few"], {"b"})
    assert next_batch(waiting, ["a"], there, AT_ONCE) == ([], set())
    assert next_batch({}, ["c"], there, AT_ONCE) == ([], set())


class Cluster:
    """A stand-in for `Prepull`: refuses one image, never has another."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    async def nodes(self) -> list[ClusterNode]:
        return nodes(1)

    async def step(self, images: list[str], on: list[ClusterNode]) -> PreparedImages:
        assert on == nodes(1)
        self.asked.append(images)
        if "refused" in images:
            raise SandboxRefused("the policy says no")
        told = [
            PreparedImage(
                image=image, pulled=int(image == "good"), **({"failed": 1} if image == "lost" else {})
            )
            for image in images
        ]
        return PreparedImages(nodes=1, skipped=0, done="slow" not in images, images=told)


async def test_an_image_that_does_not_come_or_is_refused_holds_up_no_other(
    settings: KubernetesSettings,
) -> None:
    cluster = Cluster()
    queue = QueuePrepull(cluster, settings)  # type: ignore[arg-type]
    waiting = {"slow": 3, "refused": 2, "good": 1}
    now = 0.0
    while cluster.asked[-1:] != [["good"]]:
        await queue.step(waiting, now)
        await queue.step(waiting, now)  # a second look in the same instant asks nobody
        now += LOOK
        assert now < PATIENCE + 10 * LOOK, cluster.asked
    assert cluster.asked[:2] == [["slow", "refused", "good"], ["slow"]]
    assert cluster.asked[-2] == ["refused"]

    asked = len(cluster.asked)
    await queue.step(waiting, now)
    assert len(cluster.asked) == asked


async def test_an_image_that_is_nowhere_is_not_taken_for_one_that_is_there(
    settings: KubernetesSettings,
) -> None:
    cluster = Cluster()
    queue = QueuePrepull(cluster, settings)  # type: ignore[arg-type]
    for now in (0.0, LOOK, PATIENCE - 1, PATIENCE + LOOK, PATIENCE + 2 * LOOK):
        await queue.step({"lost": 1, "good": 1}, now)
    assert cluster.asked == [["lost", "good"], ["lost"]], "again after a while, and what is there no more"
