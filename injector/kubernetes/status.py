"""Determines a sandbox's state and its cause, as a pure function of its Pod and the time."""

import re

import msgspec

from orchard.injector.kubernetes import image_pulls, pod_metadata
from orchard.injector.kubernetes.objects import Pod, PodStatus, Terminated
from orchard.injector.kubernetes.settings import KubernetesSettings
from orchard.schemas.sandboxes import SandboxStatus

START_REASONS = frozenset(
    {"CrashLoopBackOff", "CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
)
IMAGE_UNAVAILABLE = "image_unavailable"
"""Reason of a sandbox that waits for its image, and of one that waited too long."""
_NEVER_RAN = ("start_failed", "it could not be started: {}")
_ENDS = {
    "OOMKilled": ("out_of_memory", "it used more memory than its limit"),
    "ContainerCannotRun": _NEVER_RAN,
    "StartError": _NEVER_RAN,
}
"""Reason and sentence for the cluster's reason why a container ended."""
EVICTED = "evicted"
"""Reason of a sandbox that the cluster took away, whatever for: decision 137."""
DISK_LIMIT = "disk_limit"
EVICTIONS = frozenset({"Evicted", "NodeLost", "NodeShutdown", "Preempting", "Shutdown", "Terminated"})
"""A kubelet's reasons for a Pod that it ended or refused for the node's sake."""
EVICTING_CONDITION = "DisruptionTarget"
"""Condition of Kubernetes 1.26 and later, which older versions lack."""
LOST_CONTAINER = "ContainerStatusUnknown"
"""Reason of a container that a kubelet does not find any more, as after a restart of its node."""
_DELETED_BY_OTHERS = (
    "its Pod was deleted, and not by the sandbox service: a drain, a preemption, a lost node or a person"
)
_OWN_DISK = re.compile("local ephemeral storage limit|ephemeral local storage usage exceeds")
"""The kubelet's words for a Pod that wrote more than its own limit, unlike one on a full node."""
DEADLINE = "DeadlineExceeded"


class PodVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """State of a sandbox. `settled`: the Pod shows it for good; a failure that is not must be marked on
    the Pod."""

    status: SandboxStatus
    reason: str = ""
    message: str = ""
    settled: bool = False
    startable: bool = False
    """Whether its agent responds and has no key yet."""
    until: float | None = None
    """When the verdict changes although the Pod does not, in epoch seconds."""

    @property
    def ready(self) -> bool:
        return self.status is SandboxStatus.READY

    @property
    def failed(self) -> bool:
        return self.status is SandboxStatus.FAILED


def judge(pod: Pod, settings: KubernetesSettings, now: float) -> PodVerdict:
    """Determine the state of a Pod, a sandbox's or a warm one, at `now` (epoch seconds)."""
    marked = pod_metadata.failure(pod)
    if marked is not None:
        return _failed(marked.reason, marked.message, settled=True)
    ended = _ended(pod, now)
    if ended is not None:
        return ended
    if pod_metadata.INTRODUCED in pod.annotations:
        return _ready(pod)
    hopeless = _hopeless(pod) or _without_image(pod, settings, now)
    if hopeless is not None:
        return hopeless
    started, patience = _waiting_since(pod, settings)
    wait = image_pulls.waiting(pod)
    if now >= started + patience:
        if wait is not None:
            late = f"was not had within {patience:g} s: {wait.words}"
            return _failed(IMAGE_UNAVAILABLE, f"the image {wait.image} {late}")
        return _failed("start_timeout", f"it was not ready within {patience:g} s{_last_word(pod)}")
    if wait is not None:
        return PodVerdict(
            status=SandboxStatus.PENDING,
            reason=IMAGE_UNAVAILABLE,
            message=f"the image {wait.image} cannot be had yet: {wait.words}",
            until=started + patience,
        )
    if _agent_started(pod):
        return PodVerdict(status=SandboxStatus.PENDING, startable=True, until=started + patience)
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False":
            return PodVerdict(
                status=SandboxStatus.UNSCHEDULABLE,
                reason="unschedulable",
                message=condition.message or condition.reason,
                until=started + patience,
            )
    return PodVerdict(status=SandboxStatus.PENDING, until=started + patience)


def _failed(reason: str, message: str, *, settled: bool = False) -> PodVerdict:
    return PodVerdict(status=SandboxStatus.FAILED, reason=reason, message=message, settled=settled)


def _waiting_since(pod: Pod, settings: KubernetesSettings) -> tuple[float, float]:
    """Return when it began to start, and how many seconds it may take."""
    if not pod_metadata.claimed(pod):
        return pod.created_at, settings.pending_timeout
    born = pod_metadata.creation_record(pod)
    return born.at, min(born.request.timeout, settings.pending_timeout)


def _agent_started(pod: Pod) -> bool:
    containers = pod.status.container_statuses
    return bool(pod.address) and bool(containers) and all(container.started for container in containers)


def taken(pod: Pod) -> str:
    """Return why the cluster ends or has ended the Pod, or "" if it does not.

    The sandbox service deletes Pods without grace, all others with it. Before Kubernetes 1.26 nothing else
    shows a drain, a preemption or a lost node.
    """
    status = pod.status
    for condition in status.conditions:
        if condition.type == EVICTING_CONDITION and condition.status == "True":
            return condition.message or condition.reason
    if status.reason in EVICTIONS or status.phase == "Unknown":
        return status.message or status.reason or "its node does not answer"
    if pod.metadata.deletion_timestamp is not None and pod.metadata.deletion_grace_period_seconds:
        return _DELETED_BY_OTHERS
    for container in status.container_statuses:
        over = container.state.terminated
        if over is not None and over.reason == LOST_CONTAINER:
            return over.message or over.reason
    return ""


def _ready(pod: Pod) -> PodVerdict:
    """Return that it can be used; until when, if the cluster has given notice."""
    why, last = taken(pod), pod.metadata.deletion_timestamp
    return PodVerdict(
        status=SandboxStatus.READY,
        message=f"it is being evicted, and ends when its grace is over: {why}" if why else "",
        until=None if last is None else last.timestamp(),
    )


def _ended(pod: Pod, now: float) -> PodVerdict | None:
    """Return why it will not run again, if so."""
    status, last = pod.status, pod.metadata.deletion_timestamp
    over = status.phase in ("Failed", "Succeeded")
    if (why := taken(pod)) and not (over and last is None and status.reason == DEADLINE):
        if status.reason == "Evicted" and _OWN_DISK.search(status.message):
            return _failed(DISK_LIMIT, f"it wrote more than it may: {status.message.strip()}", settled=True)
        if not over and status.phase != "Unknown" and _has_grace(pod, now):
            return None
        return _failed(EVICTED, f"the cluster took it away: {why}", settled=over or last is not None)
    if last is not None:
        return _failed("deleted", "it is being deleted", settled=True)
    if not over:
        return None
    if status.reason == DEADLINE:
        return _failed("expired", "it reached the most that a sandbox may live", settled=True)
    return _failed(*_container_ended(status), settled=True)


def _has_grace(pod: Pod, now: float) -> bool:
    """Whether a Pod that has its notice can still be used."""
    last = pod.metadata.deletion_timestamp
    return (
        pod_metadata.INTRODUCED in pod.annotations
        and (last is None or now < last.timestamp())
        and all(container.state.terminated is None for container in pod.status.container_statuses)
    )


def _container_ended(status: PodStatus) -> tuple[str, str]:
    """Return reason and sentence of the first container that ended."""
    for container in status.init_container_statuses:
        over = container.state.terminated
        if over is not None and over.exit_code != 0:
            return "start_failed", f"the {container.name} could not be installed: {_ending(over)}"
    for container in status.container_statuses:
        over = container.state.terminated
        if over is not None:
            reason, sentence = _ENDS.get(over.reason, ("died", "its agent ended: {}"))
            return reason, sentence.format(_ending(over))
    # No container ever ran: the node refused it, for example because it ran full in the meantime.
    return "start_failed", f"its node refused it: {status.message or status.reason or status.phase}"


def _ending(over: Terminated) -> str:
    words = [f"exit code {over.exit_code}", over.reason, over.message.strip()]
    return ", ".join(word for word in words if word)


def _hopeless(pod: Pod) -> PodVerdict | None:
    """Return why it will hardly ever start, if so."""
    for container in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        waiting = container.state.waiting
        if waiting is None:
            continue
        words = waiting.message or waiting.reason
        if waiting.reason == image_pulls.INVALID_NAME:
            return _failed("image_invalid", f"`{container.image}` is no name of an image: {words}")
        if waiting.reason in START_REASONS:
            return _failed("start_failed", f"it cannot be started: {words}")
    return None


def _without_image(pod: Pod, settings: KubernetesSettings, now: float) -> PodVerdict | None:
    """Return why its image will not come, if its registry has said so twice."""
    wait = image_pulls.waiting(pod)
    if wait is None or not image_pulls.settled(pod, now, settings.missing_after):
        return None
    if wait.installing:
        return _failed("start_failed", f"the {wait.container}'s image cannot be had: {wait.words}")
    reason = "image_missing" if wait.trouble is image_pulls.PullFailure.MISSING else "image_denied"
    return _failed(reason, f"the image cannot be had: {wait.words}")


def _last_word(pod: Pod) -> str:
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "False":
            return f": {condition.message or condition.reason}"
    return ""
