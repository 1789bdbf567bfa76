"""Classifies a kubelet's messages about images that it cannot pull.

Only phrases that are known to mean "no such name or tag" are taken as such. Unknown ones are retried, as is
everything that may be temporary at a registry, a node or between them.
"""

import re
from enum import StrEnum
from typing import NamedTuple

import msgspec

from orchard.injector.agent.errors import RequestInvalid
from orchard.injector.agent.local.references import parse
from orchard.injector.kubernetes import pod_metadata
from orchard.injector.kubernetes.objects import ContainerStatus, Pod

INVALID_NAME = "InvalidImageName"
NEVER_PULLED = "ErrImageNeverPull"
"""The policy forbids pulling, and the node lacks the image. The kubelet checks again in each round."""
BACKING_OFF = "ImagePullBackOff"
"""State between two pull attempts. Since Kubernetes 1.32 it has the message of the last one."""
REASONS = frozenset(
    {
        BACKING_OFF,
        NEVER_PULLED,
        "ErrImagePull",
        "ImageInspectError",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)
"""Reasons of a container that waits while its image cannot be pulled. Kubernetes keeps trying."""


class PullFailure(StrEnum):
    MISSING = "missing"
    """The registry has no such name or tag."""
    DENIED = "denied"
    """The registry refuses these credentials, or does not say whether the image exists."""
    REGISTRY = "registry"
    """The registry or the network fails: the next image from there will fail too."""
    NODE = "node"
    """The node fails: its disk, its container runtime, its own limit of pulls."""
    UNKNOWN = "unknown"

    @classmethod
    def _missing_(cls, _: object) -> "PullFailure":
        """Accept what an orchestrator of another version has written."""
        return cls.UNKNOWN


_FIXED = {NEVER_PULLED: PullFailure.MISSING, "RegistryUnavailable": PullFailure.REGISTRY}
"""Causes that follow from the reason alone."""


_WORDS = {
    PullFailure.NODE: r"pull qps exceeded|no space left on device|disk quota exceeded|read-only file system"
    r"|input/output error",
    # Before denials: a quota is used up, or a token is out of date, for a while only. Where a request failed
    # without an answer of the registry, a proxy on the way may have forbidden it.
    PullFailure.REGISTRY: r"failed to do request|token: (get|post)\b|proxy authentication required"
    r"|too ?many ?requests|rate (limit|exceeded)|throttl|quota exceeded"
    r"|token has expired|\b408\b|\b429\b|\b5\d\d\b|no such host|server misbehaving|name resolution"
    r"|\btry again$|connection (refused|reset|timed out)|network is unreachable|no route to host|goaway"
    r"|stream error|i/o timeout|\btls\b|x509|certificate|deadline exceeded|context cancell?ed|\beof\b"
    r"|timeout awaiting|client\.timeout|service unavailable|bad gateway|gateway time-?out"
    r"|internal server error|broken pipe",
    # Docker Hub, GHCR, GCR and ECR say so of names that do not exist, too.
    PullFailure.DENIED: r"unauthori[sz]ed|denied|forbidden|\b40[13]\b|authentication required"
    r"|authorization failed|no basic auth credentials|insufficient_scope|may require|no pull access",
    PullFailure.MISSING: "|".join(
        (
            # The codes of the distribution specification, as CRI-O and docker say them, with the words of
            # Docker Hub, ECR, GCR, Artifact Registry, GHCR, Quay and Artifactory behind them.
            r"\bmanifest[ _]unknown\b|\bname[ _]unknown\b",
            # containerd, where a registry answers 404 for the reference.
            r"failed to resolve (reference|image)[\s:]*(no available registry endpoint[\s:]*)?not found$",
            # docker.
            r"\bmanifest for\s+not found\b|\berror: image\s+not found$",
            # Harbor.
            r"\bunknown: (artifact|repository)\s+not found\b",
            # Older Quay, Artifactory, ECR.
            r"\btag .*\bwas deleted or has expired\b|\bnamed manifest is not known to the registry\b",
            r"\brepository .*\bdoes not exist in the registry\b|\brequested image not found\b",
        )
    ),
}
_TABLE = {trouble: re.compile(words, re.IGNORECASE | re.DOTALL) for trouble, words in _WORDS.items()}
"""Checked in this order: temporary causes come first, because the others may follow from them or from a
mirror."""
_RUNTIME = re.compile(r"dial unix|\.sock\b")
_NAMES = re.compile(
    r'reading manifest \S+ in|"[^"]*"|`[^`]*`|(?<!\S)(?!i/o |input/output )\S*/\S*|\S+:[\w.-]+'
)
"""References, tags, URLs and paths, whose words are ignored."""
_MIRRORS = re.compile(r"\(Mirrors also failed: .*\]\):", re.DOTALL)
"""CRI-O's report on mirrors, before its report on the registry itself."""
_DIGEST = re.compile(r"\bsha256:[0-9a-f]{64}\b")


def trouble_of(message: str, image: str = "") -> PullFailure:
    """Classify the message of a container that waits for its `image`."""
    if _RUNTIME.search(message):
        return PullFailure.NODE
    trouble = _by_words(message)
    if trouble is PullFailure.MISSING and not _of_the_name(message, image):
        return PullFailure.UNKNOWN
    return trouble


def _by_words(message: str) -> PullFailure:
    text = _NAMES.sub(" ", message).strip()
    return next((trouble for trouble, words in _TABLE.items() if words.search(text)), PullFailure.UNKNOWN)


def _of_the_name(message: str, image: str) -> bool:
    """Whether the registry itself lacks the name: neither only a mirror, nor only a part of a known image.

    A proxy that cannot reach the registry behind it reports missing parts, too.
    """
    own = _MIRRORS.sub("", message)
    return _by_words(own) is PullFailure.MISSING and set(_DIGEST.findall(own)) <= set(_DIGEST.findall(image))


def registry_of(image: str) -> str:
    try:
        return parse(image).registry
    except RequestInvalid:
        return image.partition("/")[0]


def image_of(pod: Pod, container: ContainerStatus) -> str:
    """Image as it was requested; a container runtime reports an image that it has by other names."""
    asked = (
        one.image for one in (*pod.spec.init_containers, *pod.spec.containers) if one.name == container.name
    )
    return next(asked, container.image)


class PendingPull(NamedTuple):
    container: str
    image: str
    installing: bool
    """Whether it is an image from which files are copied into the sandbox first."""
    reason: str
    trouble: PullFailure
    words: str


def waiting(pod: Pod) -> PendingPull | None:
    """Return the image that could not be pulled so far, by the current message or else by the last one."""
    for container in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        said = container.state.waiting
        if said is not None and said.reason in REASONS:
            image = image_of(pod, container)
            trouble = _FIXED.get(said.reason) or trouble_of(said.message, image)
            words = said.message or said.reason
            known = _known(pod, image)
            if said.reason == BACKING_OFF and trouble is PullFailure.UNKNOWN and known is not None:
                trouble, words = PullFailure(known.trouble), known.words
            installing = container in pod.status.init_container_statuses
            return PendingPull(container.name, image, installing, said.reason, trouble, words)
    return None


def noticed(pod: Pod, now: float) -> pod_metadata.PullAttempt | None:
    """Return the pull attempt to record on a Pod; None if it is recorded already.

    Another cause begins a new record. `waited` separates this attempt from the next.
    """
    wait = waiting(pod)
    if wait is None:
        return None
    known = _known(pod, wait.image)
    waited = wait.reason == BACKING_OFF
    if known is None or known.trouble != wait.trouble:
        if waited and wait.trouble is PullFailure.UNKNOWN:
            return None  # it says nothing of the look before
        return pod_metadata.PullAttempt(
            image=wait.image, trouble=wait.trouble, since=now, words=wait.words, waited=waited
        )
    return msgspec.structs.replace(known, waited=True) if waited and not known.waited else None


def settled(pod: Pod, now: float, after: float) -> bool:
    """Whether two attempts, at least `after` seconds apart, found the name missing or denied."""
    wait = waiting(pod)
    if wait is None or wait.trouble not in (PullFailure.MISSING, PullFailure.DENIED):
        return False
    known = _known(pod, wait.image)
    if known is None:
        return False
    again = wait.reason == NEVER_PULLED or (known.waited and wait.reason != BACKING_OFF)
    return again and known.trouble == wait.trouble and now >= known.since + after


def _known(pod: Pod, image: str) -> pod_metadata.PullAttempt | None:
    """The Pod's last recorded attempt for this image; a Pod may wait for several."""
    attempt = pod_metadata.pull_attempt(pod)
    return attempt if attempt is not None and attempt.image == image else None
