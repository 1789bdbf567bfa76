"""Determines a sandbox's state and its cause, as a pure function of its Pod and the time."""

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
EVICTIONS = frozenset({"Evicted", "Preempting", "NodeShutdown", "Shutdown", "Terminated"})
EVICTING_CONDITION = "DisruptionTarget"
NODE_LOST = "NodeLost"
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
    ended = _ended(pod)
    if ended is not None:
        return ended
    if pod_metadata.INTRODUCED in pod.annotations:
        return PodVerdict(status=SandboxStatus.READY)
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


def _ended(pod: Pod) -> PodVerdict | None:
    """Return why it will not run again, if so."""
    status, word = pod.status, pod.status.reason
    if word == NODE_LOST or status.phase == "Unknown":
        return _failed("node_lost", f"its node is lost: {status.message or 'it does not answer'}")
    leaving = pod.metadata.deletion_timestamp is not None
    if not leaving and status.phase not in ("Failed", "Succeeded"):
        return None
    if word == DEADLINE and not leaving:
        why = "expired", "it reached the most that a sandbox may live"
    elif word in EVICTIONS or _evicting(pod):
        why = "evicted", f"it {'is being' if leaving else 'was'} evicted: {status.message or word}"
    elif leaving:
        why = "deleted", "it is being deleted"
    else:
        why = _container_ended(status)
    return _failed(*why, settled=True)


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


def _evicting(pod: Pod) -> bool:
    return any(
        condition.type == EVICTING_CONDITION and condition.status == "True"
        for condition in pod.status.conditions
    )


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
