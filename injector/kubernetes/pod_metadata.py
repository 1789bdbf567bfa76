"""Labels and annotations of a Pod, which hold all that an orchestrator needs to know about a sandbox."""

import hashlib
import hmac
import re
from functools import lru_cache
from typing import Any

import msgspec

from orchard.injector.kubernetes.objects import Manifest, Pod
from orchard.schemas.sandboxes import CreateSandbox

APP = {"app": "sandbox"}
SANDBOX = "sandbox-id"
"""Label with the sandbox's id. A warm Pod gets it when it is claimed."""
AGENT = "orchard/agent"
"""Label with the id that the agent was started with; in a claimed warm Pod it differs from the sandbox's."""
WARM = "orchard/warm"
"""Label of an unclaimed warm Pod: its pool."""
USER_LABELS = "labels.orchard/"
"""Prefix of the request's labels that Kubernetes accepts, for people and their selectors."""

REQUEST = "orchard/request"
"""Annotation with the request, its key and its time (`CreationRecord`)."""
TOUCHED = "orchard/touched"
"""Annotation with the time of last use, in epoch seconds by the clock of who wrote it; at most a quarter of
its time to live late. Others only see whether it changes."""
INTRODUCING = "orchard/introducing"
"""Annotation with the time at which an orchestrator last set out to give the agent its key."""
INTRODUCED = "orchard/introduced"
"""Annotation with the time since which the agent has its key, and a fingerprint of the secret. Commands
run only after it."""
FAILED = "orchard/failed"
"""Annotation with the cause of a failure that the Pod itself may not show (`FailureRecord`)."""
PULL_ATTEMPT = "orchard/image"
"""Annotation with the last failed pull of an image (`PullAttempt`)."""

EGRESS = "orchard/egress"
"""Annotation with the permitted destinations, resolved at creation (`pod_extras.EgressDestination`)."""

KEPT = {"karpenter.sh/do-not-disrupt": "true", "cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
"""Annotations of a sandbox that keep it from being evicted when nodes are consolidated.

It lives no longer than `max_lifetime`; an unclaimed warm Pod may be evicted.
"""

MANAGED_BY = {"app.kubernetes.io/managed-by": "orchard"}

_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


class CreationRecord(msgspec.Struct, frozen=True, kw_only=True):
    request: CreateSandbox
    key: str = ""
    """Digest of the idempotency key, or empty."""
    attempt: str
    """Unique id of the creation, which tells a repeated request from another's."""
    at: float
    reserved: bool = False


class FailureRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Why a sandbox failed: a word for programs, a sentence for people."""

    reason: str
    message: str


class PullAttempt(msgspec.Struct, frozen=True, kw_only=True):
    image: str
    trouble: str
    """A value of `image_pulls.PullFailure`."""
    since: float
    """When this cause was first found, in epoch seconds."""
    words: str
    waited: bool = False
    """Whether the kubelet has waited since: the next message is of another attempt."""


def pod_name(sandbox_id: str) -> str:
    return f"sandbox-{sandbox_id}"


def key_digest(key: str | None) -> str:
    """Hash an idempotency key, which readers of the Pod need not know."""
    return "" if key is None else hashlib.sha256(key.encode()).hexdigest()


def sandbox_id_for(key: str, attempt: int) -> str:
    """Derive the id of a sandbox whose request has none: the same on every replica for the same key."""
    return hashlib.sha256(f"{attempt} {key}".encode()).hexdigest()[:8]


def creation_record(pod: Pod) -> CreationRecord:
    """Return how a claimed Pod was created. Raises KeyError for another."""
    found = _creation_record(pod.annotations[REQUEST])
    if found is None:
        raise KeyError(REQUEST)
    return found


def failure(pod: Pod) -> FailureRecord | None:
    text = pod.annotations.get(FAILED)
    return None if text is None else msgspec.json.decode(text, type=FailureRecord)


def pull_attempt(pod: Pod) -> PullAttempt | None:
    text = pod.annotations.get(PULL_ATTEMPT)
    return None if text is None else _look(text)


@lru_cache(maxsize=16384)
def _look(text: str) -> PullAttempt | None:
    try:
        return msgspec.json.decode(text, type=PullAttempt)
    except msgspec.DecodeError:
        return None


def sandbox_id(pod: Pod) -> str | None:
    """Return the sandbox's id; None for an unclaimed warm Pod."""
    return pod.labels.get(SANDBOX)


def claimed(pod: Pod) -> bool:
    """Whether the Pod is a sandbox; one whose request annotation is damaged is not."""
    return (
        SANDBOX in pod.labels
        and AGENT in pod.labels
        and _creation_record(pod.annotations.get(REQUEST, "")) is not None
    )


@lru_cache(maxsize=16384)
def _creation_record(text: str) -> CreationRecord | None:
    try:
        return msgspec.json.decode(text, type=CreationRecord)
    except msgspec.DecodeError:
        return None


def fingerprint(secret: bytes) -> str:
    """Return a fingerprint that distinguishes secrets and reveals nothing of them."""
    return hmac.digest(secret, b"orchard fingerprint", "sha256").hex()[:16]


def introduced_by(pod: Pod) -> str | None:
    """Return the fingerprint of the secret that its agent's key was derived from; None before it had a
    key."""
    text = pod.annotations.get(INTRODUCED)
    return None if text is None else text.partition(" ")[2]


def user_labels(labels: dict[str, str]) -> dict[str, str]:
    """Those labels of a request that Kubernetes accepts; the annotation has all of them."""
    return {
        f"{USER_LABELS}{name}": value
        for name, value in labels.items()
        if _NAME.fullmatch(name) and _VALUE.fullmatch(value)
    }


def claim_metadata(sandbox: str, record: CreationRecord) -> Manifest:
    return {
        "labels": {SANDBOX: sandbox, **user_labels(record.request.labels)},
        "annotations": {REQUEST: encoded(record), TOUCHED: stamp(record.at), **KEPT},
    }


def encoded(record: Any) -> str:
    return msgspec.json.encode(record).decode()


def stamp(epoch: float) -> str:
    """Format a time as an annotation."""
    return f"{epoch:.3f}"
