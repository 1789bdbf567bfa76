"""Labels and annotations of a Pod: all that an orchestrator needs to know about a sandbox."""

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
"""Label: whose it is. A warm Pod gets it when it is claimed."""
AGENT = "orchard/agent"
"""Label: the id that the agent was started with; a claimed warm Pod's is not its sandbox's."""
WARM = "orchard/warm"
"""Label of a Pod that nobody has claimed: which pool it is for."""
USER_LABELS = "labels.orchard/"
"""Prefix of labels: those of the request that Kubernetes can have, for people and their selectors."""

REQUEST = "orchard/request"
"""The request, its key and when it came (`Birth`)."""
TOUCHED = "orchard/touched"
"""When somebody last asked for anything, in epoch seconds; a quarter of its time to live late at most."""
INTRODUCING = "orchard/introducing"
"""When an orchestrator last set out to give the agent its key."""
INTRODUCED = "orchard/introduced"
"""When the agent had its key, and a fingerprint of what its key was made from. Commands run only after it."""
FAILED = "orchard/failed"
"""Why it failed, when the Pod itself does not say so or will not go on saying so (`Failure`)."""
LOOK = "orchard/image"
"""What its last look for an image found, while that could not be had (`Look`)."""

EGRESS = "orchard/egress"
"""What it may reach, as it was when the Pod was made (`grants.Place`s)."""

KEPT = {"karpenter.sh/do-not-disrupt": "true", "cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
"""Annotations of a sandbox: who tidies up nodes leaves it where it is. It lives no longer than
`max_lifetime`; a warm Pod that nobody has claimed may go."""

MANAGED_BY = {"app.kubernetes.io/managed-by": "orchard"}

_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


class Birth(msgspec.Struct, frozen=True, kw_only=True):
    """How a sandbox came to be."""

    request: CreateSandbox
    key: str = ""
    """Digest of the idempotency key, or empty."""
    attempt: str
    """Made by who sent it: tells a create that was sent twice from another's."""
    at: float
    """Epoch seconds."""
    reserved: bool = False
    """Whether its id is held by a reservation, too."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a sandbox failed: a word for programs, a sentence for people."""

    reason: str
    message: str


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """An image that a Pod could not have."""

    image: str
    trouble: str
    """An `image_pulls.Trouble`."""
    since: float
    """When it was first found, in epoch seconds; looks that found something else are before that."""
    words: str
    waited: bool = False
    """The kubelet has waited since: what it finds now is another look."""


def pod_name(sandbox_id: str) -> str:
    """Of a sandbox whose Pod was made for it."""
    return f"sandbox-{sandbox_id}"


def key_digest(key: str | None) -> str:
    """What is written of an idempotency key: others who can read the Pod need not know it."""
    return "" if key is None else hashlib.sha256(key.encode()).hexdigest()


def sandbox_id_for(key: str, attempt: int) -> str:
    """The id of a sandbox whose request names none: the same on every replica, for the same key."""
    return hashlib.sha256(f"{attempt} {key}".encode()).hexdigest()[:8]


def birth(pod: Pod) -> Birth:
    """Of a claimed Pod. Raises KeyError for another."""
    found = _birth(pod.annotations[REQUEST])
    if found is None:
        raise KeyError(REQUEST)
    return found


def failure(pod: Pod) -> Failure | None:
    """What it was marked with, if it was."""
    text = pod.annotations.get(FAILED)
    return None if text is None else msgspec.json.decode(text, type=Failure)


def look(pod: Pod) -> Look | None:
    """What its last look for an image found, if it could not have one."""
    text = pod.annotations.get(LOOK)
    return None if text is None else _look(text)


@lru_cache(maxsize=16384)
def _look(text: str) -> Look | None:
    try:
        return msgspec.json.decode(text, type=Look)
    except msgspec.DecodeError:
        return None


def sandbox_id(pod: Pod) -> str | None:
    """None for a warm Pod that nobody has claimed."""
    return pod.labels.get(SANDBOX)


def claimed(pod: Pod) -> bool:
    """Whether it is somebody's sandbox; one whose request was tampered with is nobody's."""
    return (
        SANDBOX in pod.labels and AGENT in pod.labels and _birth(pod.annotations.get(REQUEST, "")) is not None
    )


@lru_cache(maxsize=16384)
def _birth(text: str) -> Birth | None:
    try:
        return msgspec.json.decode(text, type=Birth)
    except msgspec.DecodeError:
        return None


def moment(pod: Pod, annotation: str) -> float | None:
    """An annotation that holds a time; None without."""
    text = pod.annotations.get(annotation)
    return None if text is None else float(text)


def fingerprint(secret: bytes) -> str:
    """Tells orchestrators' secrets apart and gives nothing of them away."""
    return hmac.digest(secret, b"orchard fingerprint", "sha256").hex()[:16]


def introduced_by(pod: Pod) -> str | None:
    """The fingerprint of the secret that its agent's key was made from; None before it had one."""
    text = pod.annotations.get(INTRODUCED)
    return None if text is None else text.partition(" ")[2]


def user_labels(labels: dict[str, str]) -> dict[str, str]:
    """Those of a request that Kubernetes can have as labels; all of them are in the annotation."""
    return {
        f"{USER_LABELS}{name}": value
        for name, value in labels.items()
        if _NAME.fullmatch(name) and _VALUE.fullmatch(value)
    }


def claim_marks(sandbox: str, birth: Birth) -> Manifest:
    """The metadata that make a Pod a sandbox."""
    return {
        "labels": {SANDBOX: sandbox, **user_labels(birth.request.labels)},
        "annotations": {REQUEST: encoded(birth), TOUCHED: stamp(birth.at), **KEPT},
    }


def encoded(record: Any) -> str:
    """As an annotation."""
    return msgspec.json.encode(record).decode()


def stamp(epoch: float) -> str:
    """A time as an annotation."""
    return f"{epoch:.3f}"
