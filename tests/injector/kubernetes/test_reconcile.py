"""What the leader does about the Pods there are, and who leads."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from orchard.injector.errors import SandboxRequestInvalid
from orchard.injector.kubernetes import pod_metadata, reconcile, warm
from orchard.injector.kubernetes.leadership import LeaseAction, next_step
from orchard.injector.kubernetes.objects import (
    ClusterLease,
    Container,
    ContainerResources,
    LeaseSpec,
    Metadata,
    Named,
    OwnerReference,
    Pod,
    PodSpec,
)
from orchard.injector.kubernetes.reconcile import Delete, Fail, MakeWarm, Note
from orchard.injector.kubernetes.reservations import LASTS
from orchard.injector.kubernetes.settings import KubernetesSettings, WarmPool
from orchard.injector.kubernetes.slots import SLOT
from orchard.schemas.sandboxes import CreateSandbox
from tests.injector.kubernetes.conftest import NOW, born, container, pod, running

POOL = WarmPool(count=2, cpu="1", memory="1Gi")
PRINT = pod_metadata.fingerprint(b"secret")
READY = {pod_metadata.INTRODUCED: pod_metadata.stamp(NOW)}


def only(pods: list[Pod], settings: KubernetesSettings, now: float = NOW) -> Any:
    (action,) = reconcile.actions(pods, settings, PRINT, now)
    return action


class TestSandboxes:
    def due(self, sandbox: Pod, settings: KubernetesSettings, idle: float, now: float = NOW + 60) -> Any:
        return reconcile.actions([sandbox], settings, PRINT, now, idle={sandbox.uid: idle})

    def test_one_that_somebody_uses_is_left_alone(self, settings: KubernetesSettings) -> None:
        sandbox = pod(birth=born(ttl_seconds=60), annotations=READY, **running())
        assert self.due(sandbox, settings, 60) == []

    def test_one_that_nobody_asked_for_is_deleted(self, settings: KubernetesSettings) -> None:
        sandbox = pod(birth=born(ttl_seconds=60), annotations=READY, **running())
        assert self.due(sandbox, settings, 74) == [], "a quarter is what a mark may be late"
        (action,) = self.due(sandbox, settings, 76)
        assert isinstance(action, Delete)

    def test_a_failed_one_stays_for_its_time_to_live(self, settings: KubernetesSettings) -> None:
        over = container(terminated={"exitCode": 1})
        sandbox = pod(birth=born(ttl_seconds=60), phase="Failed", containerStatuses=over)
        assert self.due(sandbox, settings, 60) == []
        (action,) = self.due(sandbox, settings, 76)
        assert isinstance(action, Delete)

    def test_the_leaders_clock_ends_none(self, settings: KubernetesSettings) -> None:
        touched = {**READY, pod_metadata.TOUCHED: pod_metadata.stamp(NOW)}
        sandbox = pod(birth=born(ttl_seconds=60), annotations=touched, **running())
        assert self.due(sandbox, settings, 5, NOW + 3600) == []
        assert reconcile.actions([sandbox], settings, PRINT, NOW + 3600) == [], "nothing is known of its use"

    def test_one_that_does_not_start_in_time_fails(self, settings: KubernetesSettings) -> None:
        action = only([pod(birth=born(timeout=30))], settings, NOW + 31)
        assert (type(action), action.failure.reason) == (Fail, "start_timeout")

    def test_one_whose_image_is_missing_is_made_to_stay_failed(self, settings: KubernetesSettings) -> None:
        never = container(waiting={"reason": "ErrImageNeverPull"})
        first = only([pod(birth=born(), containerStatuses=never)], settings)
        assert isinstance(first, Note)
        noted = pod(
            birth=born(),
            annotations={pod_metadata.PULL_ATTEMPT: pod_metadata.encoded(first.attempt)},
            containerStatuses=never,
        )
        assert reconcile.actions([noted], settings, PRINT, NOW + settings.missing_after - 1) == []
        action = only([noted], settings, NOW + settings.missing_after)
        assert action.failure.reason == "image_missing"

    def test_none_lives_for_ever(self, settings: KubernetesSettings) -> None:
        sandbox = pod(birth=born(), annotations=READY, **running())
        action = only([sandbox], settings, NOW + settings.max_lifetime + 1)
        assert (type(action), action.failure.reason) == (Fail, "expired")
        much_later = NOW + settings.max_lifetime + reconcile.RETENTION + 1
        assert isinstance(only([sandbox], settings, much_later), Delete)

    def test_one_that_is_being_deleted_needs_nothing(self, settings: KubernetesSettings) -> None:
        sandbox = pod(birth=born(ttl_seconds=1), deleted=True)
        assert reconcile.actions([sandbox], settings, PRINT, NOW + 1000) == []

    def test_pods_of_others_are_left_alone(self, settings: KubernetesSettings) -> None:
        assert reconcile.actions([pod("theirs")], settings, PRINT, NOW + 1e9) == []

    def test_one_whose_request_was_tampered_with_harms_no_other(self, settings: KubernetesSettings) -> None:
        broken = pod("sandbox-b", birth=born(), annotations={pod_metadata.REQUEST: "{"}, **running())
        late = pod(birth=born(timeout=1))
        assert only([broken, late], settings, NOW + 2).pod.name == "sandbox-a"

    def test_the_next_round_comes_when_something_is_due(self, settings: KubernetesSettings) -> None:
        assert reconcile.next_due([], settings, NOW) == settings.reconcile_interval
        assert reconcile.next_due([pod(birth=born(timeout=3))], settings, NOW + 1) == 2


class TestPools:
    @pytest.fixture
    def settings(self) -> KubernetesSettings:
        return KubernetesSettings(agent_image="x", warm={"debian:12": POOL})

    def member(self, name: str, age: float = 0, made_by: str = PRINT, **options: Any) -> Pod:
        settings = KubernetesSettings(agent_image="x", warm={"debian:12": POOL})
        mark = warm.mark_of("debian:12", POOL, settings, made_by)
        return pod(name, age=age, labels={pod_metadata.WARM: mark}, **options)

    def test_members_made_with_other_settings_or_another_secret_are_replaced(
        self, settings: KubernetesSettings
    ) -> None:
        strangers = [self.member("warm-1", made_by="other"), self.member("warm-2", made_by="other")]
        *deleted, made = reconcile.actions(strangers, settings, PRINT, NOW)
        assert ([action.pod.name for action in deleted], made.count) == (["warm-1", "warm-2"], 2)
        changed = msgspec.structs.replace(settings, agent_image="y")
        assert len(reconcile.actions([self.member("warm-1")], changed, PRINT, NOW)) == 2

    def test_what_is_missing_is_made(self, settings: KubernetesSettings) -> None:
        assert only([self.member("warm-1")], settings) == MakeWarm("debian:12", POOL, 1)

    def test_a_full_pool_is_left_alone_and_a_fuller_one_emptied(self, settings: KubernetesSettings) -> None:
        pods = [self.member("warm-1", 9), self.member("warm-2", 8)]
        assert reconcile.actions(pods, settings, PRINT, NOW) == []
        assert only([*pods, self.member("warm-3", 7)], settings).pod.name == "warm-3"

    def test_a_pool_that_is_not_wanted_goes(self) -> None:
        action = only([self.member("warm-1")], KubernetesSettings(agent_image="x"))
        assert (type(action), action.pod.name) == (Delete, "warm-1")

    def test_one_that_cannot_start_is_tried_again_in_a_while(self, settings: KubernetesSettings) -> None:
        broken = {"containerStatuses": container(waiting={"reason": "CreateContainerError"})}
        young, old = self.member("warm-1", 9, **broken), self.member("warm-2", 61, **broken)
        assert reconcile.actions([young, young], settings, PRINT, NOW) == []
        deleted, made = reconcile.actions([young, old], settings, PRINT, NOW)
        assert (deleted.pod.name, made.count) == ("warm-2", 1)

    def test_a_claimed_one_is_no_member_any_more(self, settings: KubernetesSettings) -> None:
        claimed = pod("warm-1", birth=born(), annotations=READY, **running())
        assert only([claimed], settings) == MakeWarm("debian:12", POOL, 2)

    @pytest.mark.parametrize(
        ("change", "fits"),
        [
            ({}, True),
            ({"cpu": "1000m", "memory": "1024Mi"}, True),
            ({"cpu": "2"}, False),
            ({"block_network": False}, False),
            ({"pids": 5}, False),
            ({"image": "debian:13"}, False),
        ],
    )
    def test_only_requests_for_just_what_is_there_get_it(
        self, settings: KubernetesSettings, change: dict[str, Any], fits: bool
    ) -> None:
        request = CreateSandbox(**{"image": "debian:12", "cpu": "1", "memory": "1Gi", **change})
        assert (warm.pool_for(request, settings) is not None) == fits


class TestFollowing:
    """Pools that follow the queue."""

    FOLLOWING = WarmPool(count=1, most=4, cpu="1", memory="1Gi")
    OTHERS = WarmPool(count=0, most=3, cpu="1", memory="1Gi")

    @pytest.fixture
    def settings(self) -> KubernetesSettings:
        pools = {"debian:12": self.FOLLOWING, "*": self.OTHERS}
        return KubernetesSettings(agent_image="x", warm=pools, warm_most=5)

    def sizes(self, settings: KubernetesSettings, **demand: int) -> dict[str, int]:
        named = {name.replace("debian", "debian:12"): count for name, count in demand.items()}
        return {image: pool.count for image, pool in warm.sizes(settings, named).items()}

    def test_a_pool_grows_with_the_queue_within_its_bounds(self, settings: KubernetesSettings) -> None:
        assert self.sizes(settings) == {"debian:12": 1}
        assert self.sizes(settings, debian=3) == {"debian:12": 3}
        assert self.sizes(settings, debian=30) == {"debian:12": 4}
        assert self.sizes(settings, debian=0) == {"debian:12": 1}

    def test_images_without_a_pool_have_that_of_all_others(self, settings: KubernetesSettings) -> None:
        assert self.sizes(settings, a=2) == {"debian:12": 1, "a": 2}
        request = CreateSandbox(image="a", cpu="1", memory="1Gi")
        assert warm.pool_for(request, settings) == self.OTHERS

    def test_all_together_have_a_bound_and_the_most_asked_for_come_first(
        self, settings: KubernetesSettings
    ) -> None:
        assert self.sizes(settings, a=7, b=9, c=1) == {"debian:12": 1, "b": 3, "a": 2}

    def test_what_follows_has_no_pods_without_a_queue(self) -> None:
        always = KubernetesSettings(agent_image="x", warm={"*": WarmPool(count=1, most=2)})
        with pytest.raises(SandboxRequestInvalid, match="set `most`"):
            always.check()

    def test_an_empty_queue_empties_the_pools(self, settings: KubernetesSettings) -> None:
        pools = warm.sizes(settings, {"a": 2})
        members = [
            pod(f"warm-{number}", labels={pod_metadata.WARM: warm.mark_of("a", pools["a"], settings, PRINT)})
            for number in range(2)
        ]
        kept = reconcile.actions(members, settings, PRINT, NOW, {"a": 2})
        assert kept == [MakeWarm("debian:12", pools["debian:12"], 1)]
        *gone, _ = reconcile.actions(members, settings, PRINT, NOW)
        assert [action.pod.name for action in gone] == ["warm-0", "warm-1"]

    def test_a_warm_pod_gives_way_to_a_sandbox_that_finds_no_node(self, settings: KubernetesSettings) -> None:
        mark = {pod_metadata.WARM: warm.mark_of("debian:12", self.FOLLOWING, settings, PRINT)}
        members = [
            _sized(pod(f"warm-{slot}", labels={**mark, SLOT: slot}, annotations=READY, **running()), "1")
            for slot in "012"
        ]
        full = [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes"}]
        waits = pod(birth=born(), labels={SLOT: "1"}, conditions=full)
        way = only([*members, _sized(waits, "1")], settings)
        assert (type(way), way.pod.name) == (Delete, "warm-1"), "that of its slot"
        too_large = reconcile.actions([*members, _sized(waits, "100")], settings, PRINT, NOW)
        assert [action.pod.name for action in too_large] == ["warm-1", "warm-2"], (
            "none but the pool's own two"
        )


def _sized(made: Pod, cpu: str) -> Pod:
    """The Pod with a request of processors."""
    asked = Container(name="sandbox", resources=ContainerResources(requests={"cpu": cpu, "memory": "1Gi"}))
    return msgspec.structs.replace(made, spec=PodSpec(containers=[asked]))


class TestLeftovers:
    def test_policies_of_pods_that_are_gone(self) -> None:
        old, young = datetime.fromtimestamp(NOW - 61, UTC), datetime.fromtimestamp(NOW - 59, UTC)

        def policy(owner: str, made: datetime) -> Named:
            owners = [OwnerReference(uid=owner)]
            return Named(metadata=Metadata(name=owner, creation_timestamp=made, owner_references=owners))

        policies = [policy("uid-of-a", old), policy("gone", old), policy("new", young)]
        left = reconcile.orphaned_policies(policies, [pod("a")], NOW)
        assert [policy.metadata.name for policy in left] == ["gone"]

    def test_reservations_without_a_sandbox(self) -> None:
        def lease(sandbox_id: str, age: float) -> ClusterLease:
            renewed = LeaseSpec(renew_time=datetime.fromtimestamp(NOW - age, UTC))
            return ClusterLease(metadata=Metadata(labels={pod_metadata.SANDBOX: sandbox_id}), spec=renewed)

        leases = [lease("a", LASTS + 1), lease("b", LASTS + 1), lease("c", LASTS - 1)]
        left = reconcile.orphaned_reservations(leases, {"a"}, NOW)
        assert [lease.metadata.labels[pod_metadata.SANDBOX] for lease in left] == ["b"]


class TestLeadership:
    def lease(self, holder: str | None) -> ClusterLease:
        return ClusterLease(metadata=Metadata(), spec=LeaseSpec(holder_identity=holder))

    def test_the_first_makes_the_lease(self) -> None:
        assert next_step(None, "me", 0, 15) is LeaseAction.MAKE

    def test_its_holder_renews_it(self) -> None:
        assert next_step(self.lease("me"), "me", 1, 15) is LeaseAction.TAKE

    def test_one_that_was_given_up_is_taken_at_once(self) -> None:
        assert next_step(self.lease(""), "me", 0, 15) is LeaseAction.TAKE
        assert next_step(self.lease(None), "me", 0, 15) is LeaseAction.TAKE

    def test_anothers_is_taken_when_it_did_not_change_for_its_whole_duration(self) -> None:
        assert next_step(self.lease("other"), "me", 15, 15) is LeaseAction.WAIT
        assert next_step(self.lease("other"), "me", 15.1, 15) is LeaseAction.TAKE


def test_ids_follow_from_keys() -> None:
    assert (
        pod_metadata.sandbox_id_for("k", 0)
        == pod_metadata.sandbox_id_for("k", 0)
        != pod_metadata.sandbox_id_for("k", 1)
    )
    assert len(pod_metadata.sandbox_id_for("k", 0)) == 8


def test_a_birth_survives_its_annotation() -> None:
    birth = born(labels={"a": "ü"}, ttl_seconds=5)
    assert msgspec.json.decode(pod_metadata.encoded(birth), type=pod_metadata.CreationRecord) == birth
