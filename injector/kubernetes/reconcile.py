"""Decides what maintenance is due, as a pure function of the Pods, the settings and the time.

The leader does it, and the API server refuses each action when the Pod has changed meanwhile, so that a
process which wrongly believes to lead does no harm.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

import msgspec

from orchard.injector.agent.interfaces import quantity
from orchard.injector.kubernetes import failing_registries, image_pulls, pod_metadata, warm
from orchard.injector.kubernetes.activity import DUE
from orchard.injector.kubernetes.objects import ClusterLease, Named, Pod
from orchard.injector.kubernetes.reservations import is_stale
from orchard.injector.kubernetes.settings import KubernetesSettings, WarmPool
from orchard.injector.kubernetes.slots import SLOT
from orchard.injector.kubernetes.status import IMAGE_UNAVAILABLE, judge
from orchard.schemas.sandboxes import SandboxStatus

RETENTION = 3600.0
"""Seconds for which a sandbox that reached its greatest age can still be queried."""
WARM_RETRY = 60.0
"""Seconds before a failed warm Pod is replaced."""
POLICY_AGE = 60.0
"""Seconds for which the Pod of a policy may be missing from the cache."""


class Delete(msgspec.Struct, frozen=True):
    """Deletes a Pod; `why` is for the log."""

    pod: Pod
    why: str
    room_for: str = ""
    """Uid of the sandbox Pod that gets its room."""


class Fail(msgspec.Struct, frozen=True):
    pod: Pod
    failure: pod_metadata.FailureRecord


class MakeWarm(msgspec.Struct, frozen=True):
    image: str
    pool: WarmPool
    count: int


class Note(msgspec.Struct, frozen=True):
    pod: Pod
    attempt: pod_metadata.PullAttempt


Action = Delete | Fail | MakeWarm | Note


def actions(
    pods: Iterable[Pod],
    settings: KubernetesSettings,
    fingerprint: str,
    now: float,
    demand: Mapping[str, int] = MappingProxyType({}),
    given_room: Collection[str] = (),
    idle: Mapping[str, float] = MappingProxyType({}),
) -> list[Action]:
    """Return everything due at `now` (epoch seconds); `fingerprint` is that of the leader's secret, `demand`
    what the queue is going to ask for, by image. `given_room` has the uids of Pods for which room was made a
    moment ago, which the scheduler has not seen yet. `idle` has the seconds for which a Pod is known not to
    be used, by its uid (`IdleTimes`)."""
    present = [pod for pod in pods if pod.metadata.deletion_timestamp is None]
    done: list[Action] = []
    for pod in present:
        action = (
            _for_sandbox(pod, settings, now, idle.get(pod.uid, 0.0)) if pod_metadata.claimed(pod) else None
        )
        if action is not None:
            done.append(action)
        elif (attempt := image_pulls.noticed(pod, now)) is not None:
            done.append(Note(pod, attempt))
    done += _for_crowds(present, {action.pod.name for action in done if isinstance(action, Delete | Fail)})
    wanted = {
        warm.mark_of(image, pool, settings, fingerprint): (image, pool)
        for image, pool in warm.sizes(settings, demand).items()
    }
    unclaimed = [pod for pod in present if pod_metadata.WARM in pod.labels]
    without_room = [
        pod
        for pod in present
        if pod_metadata.claimed(pod) and judge(pod, settings, now).status is SandboxStatus.UNSCHEDULABLE
    ]
    way = _give_way(unclaimed, [pod for pod in without_room if pod.uid not in given_room], settings, now)
    if way or any(pod.uid in given_room for pod in without_room):
        return done + way
    return done + _for_pools(unclaimed, wanted, settings, now)


def _for_sandbox(pod: Pod, settings: KubernetesSettings, now: float, unused: float) -> Action | None:
    born = pod_metadata.creation_record(pod)
    ttl = born.request.ttl_seconds
    if ttl is not None and unused > ttl * DUE:
        return Delete(pod, f"nobody asked for it for {ttl:g} s")
    age = now - born.at
    if age > settings.max_lifetime + RETENTION:
        return Delete(pod, "it ended long ago")
    verdict = judge(pod, settings, now)
    if verdict.failed and not verdict.settled:
        return Fail(pod, pod_metadata.FailureRecord(reason=verdict.reason, message=verdict.message))
    if not verdict.failed and age > settings.max_lifetime:
        # Its kubelet should have ended it, but the node may be lost.
        return Fail(
            pod, pod_metadata.FailureRecord(reason="expired", message="it reached the most that one may live")
        )
    return None


def _for_crowds(pods: list[Pod], over: set[str]) -> list[Action]:
    """Fail Pods that would ask a failing registry, beyond a few. Their callers retry."""
    crowded = (
        one
        for one in failing_registries.crowd(pods)
        if pod_metadata.claimed(one[0]) and one[0].name not in over
    )
    why = "the image {} cannot be had now, and enough other sandboxes ask its registry: {}"
    return [
        Fail(
            pod,
            pod_metadata.FailureRecord(reason=IMAGE_UNAVAILABLE, message=why.format(wait.image, wait.words)),
        )
        for pod, wait in crowded
    ]


def _give_way(
    unclaimed: list[Pod], without_room: list[Pod], settings: KubernetesSettings, now: float
) -> list[Action]:
    """Delete a warm Pod for each sandbox that finds no node and asks for no more than it: one of its slot, or
    else of any, and those first that have no node either or are not ready."""
    left = sorted(unclaimed, key=lambda pod: judge(pod, settings, now).ready)
    done: list[Action] = []
    for sandbox in without_room:
        larger = [pod for pod in left if _asks_for_no_more(sandbox, pod)]
        if larger:
            alike = (pod for pod in larger if pod.labels.get(SLOT) == sandbox.labels.get(SLOT))
            chosen = next(alike, larger[0])
            left.remove(chosen)
            done.append(Delete(chosen, f"sandbox Pod {sandbox.name} finds no node", sandbox.uid))
    return done


def _asks_for_no_more(sandbox: Pod, other: Pod) -> bool:
    return all(_requested(sandbox, what) <= _requested(other, what) for what in ("cpu", "memory"))


def _requested(pod: Pod, what: str) -> float:
    return sum(quantity(container.resources.requests.get(what, "0")) for container in pod.spec.containers)


def _for_pools(
    pods: list[Pod], wanted: dict[str, tuple[str, WarmPool]], settings: KubernetesSettings, now: float
) -> list[Action]:
    """Return what the warm pools need; `wanted` has the pools by the label of their members."""
    done: list[Action] = []
    members: dict[str, list[Pod]] = {mark: [] for mark in wanted}
    for pod in sorted(pods, key=lambda pod: pod.created_at):
        mark = pod.labels[pod_metadata.WARM]
        if mark not in wanted:
            done.append(Delete(pod, "its pool is not wanted any more"))
        elif judge(pod, settings, now).failed and now > pod.created_at + WARM_RETRY:
            done.append(Delete(pod, "it failed before anybody claimed it"))
        else:
            members[mark].append(pod)
    for mark, (image, pool) in wanted.items():
        there = members[mark]
        done += [Delete(pod, "its pool is full") for pod in there[pool.count :]]
        if len(there) < pool.count:
            done.append(MakeWarm(image, pool, pool.count - len(there)))
    return done


def next_due(pods: Iterable[Pod], settings: KubernetesSettings, now: float) -> float:
    """Seconds until something becomes due although no Pod changes; at most the interval."""
    soonest = settings.reconcile_interval
    for pod in pods:
        until = judge(pod, settings, now).until if pod_metadata.claimed(pod) else None
        soonest = min(soonest, math.inf if until is None else max(0.05, until - now))
    return soonest


def orphaned_policies(policies: Iterable[Named], pods: Iterable[Pod], now: float) -> list[Named]:
    """Policies whose Pod has gone; the cluster's garbage collector removes them too, where it works."""
    living = {pod.uid for pod in pods}
    return [
        policy
        for policy in policies
        if policy.metadata.creation_timestamp is not None
        and now - policy.metadata.creation_timestamp.timestamp() > POLICY_AGE
        and not any(owner.uid in living for owner in policy.metadata.owner_references)
    ]


def orphaned_reservations(
    leases: Iterable[ClusterLease], sandbox_ids: set[str], now: float
) -> list[ClusterLease]:
    """Reservations of ids that no sandbox has."""
    return [
        lease
        for lease in leases
        if is_stale(lease, now) and lease.metadata.labels.get(pod_metadata.SANDBOX) not in sandbox_ids
    ]
