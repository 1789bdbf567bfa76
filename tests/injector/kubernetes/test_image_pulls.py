"""What a kubelet's words about an image mean: by the messages that runtimes and registries are known for."""

import pytest

from orchard.injector.kubernetes import image_pulls, pod_metadata
from orchard.injector.kubernetes.image_pulls import PullFailure, noticed, registry_of, settled, trouble_of
from orchard.injector.kubernetes.objects import Pod
from orchard.injector.kubernetes.settings import KubernetesSettings
from orchard.injector.kubernetes.status import judge
from orchard.schemas.sandboxes import SandboxStatus
from tests.injector.kubernetes.conftest import NOW, born, container, pod


def containerd(words: str, image: str = "docker.io/acme/x:1") -> str:
    """What it says of an image that it cannot resolve."""
    pulling = f'rpc error: code = Unknown desc = failed to pull and unpack image "{image}": '
    return f'{pulling}failed to resolve reference "{image}": {words}'


def request(words: str) -> str:
    """Of a request that was not answered."""
    return containerd(f'failed to do request: Head "https://r.io/v2/x/manifests/1": {words}')


def crio(image: str, words: str) -> str:
    return f"rpc error: code = Unknown desc = reading manifest 1 in {image}: {words}"


def docker(words: str) -> str:
    return f"rpc error: code = Unknown desc = Error response from daemon: {words}"


GONE = containerd("docker.io/acme/x:1: not found")
ECR = "1.dkr.ecr.eu-west-1.amazonaws.com/x"
MISSING = [
    GONE,
    containerd("r.io/timeout/503:tls: not found", "r.io/timeout/503:tls"),  # words of names say nothing
    'desc = failed to resolve image "r.io/x:1": no available registry endpoint: r.io/x:1 not found',
    crio("docker.io/acme/x", "manifest unknown"),
    crio("quay.io/x", "manifest unknown: Tag 1 was deleted or has expired. To pull, revive via time machine"),
    crio("localhost:5000/x", "name unknown: repository name not known to registry"),
    crio(ECR, "name unknown: The repository with name 'x' does not exist in the registry with id '1'"),
    crio(ECR, "manifest unknown: Requested image not found"),
    crio("gcr.io/p/x", 'manifest unknown: Failed to fetch "1" from request "/v2/p/x/manifests/1".'),
    crio("europe-docker.pkg.dev/p/r/x", 'name unknown: Repository "r" not found'),
    crio("harbor.example/p/x", "unknown: artifact p/x:1 not found"),
    crio("harbor.example/p/x", "unknown: repository p/x not found"),
    crio("acme.jfrog.io/docker/x", "unknown: The named manifest is not known to the registry."),
    docker("manifest for acme/x:1 not found: manifest unknown: manifest unknown"),
    docker("manifest for x:429 not found: manifest unknown: manifest unknown"),
    "Error: image acme/x:1 not found",
]
DENIED = [  # also of names that do not exist: it is not told which
    containerd(
        "pull access denied, repository does not exist or may require authorization: server message: "
    ),
    containerd("failed to authorize: failed to fetch anonymous token: unexpected status: 401 Unauthorized"),
    containerd("unexpected status from HEAD request to https://ghcr.io/v2/acme/x: 403 Forbidden"),
    crio("r.io/x", "errors:\ndenied: requested access to the resource is denied\nunauthorized: no"),
    docker("pull access denied for x, repository does not exist or may require 'docker login'"),
    docker(f"Get https://{ECR}/manifests/1: no basic auth credentials"),
    crio("gcr.io/p/x", 'denied: Permission denied on resource "projects/p" (or it may not exist)'),
]
PART = "sha256:" + "2" * 64
REGISTRY = [
    containerd("unexpected status from HEAD request to https://r.io/v2/acme/x: 429 Too Many Requests"),
    docker(
        "toomanyrequests: You have reached your unauthenticated pull rate limit. https://docker.com/limit"
    ),
    *(
        containerd(f"unexpected status code [manifests 1]: {status}")
        for status in ("500 Internal Server Error", "502 Bad Gateway", "503 Service Unavailable", "504")
    ),
    request("dial tcp: lookup r.io on 10.96.0.10:53: no such host"),
    request("dial tcp 10.0.0.1:443: connect: connection refused"),
    request("dial tcp 10.0.0.1:443: i/o timeout"),
    request("net/http: TLS handshake timeout"),
    request("x509: certificate signed by unknown authority"),
    request("EOF"),
    # Of a proxy, as a real containerd says it (tests/kubernetes/test_registry_proxies.py).
    request("proxyconnect tcp: dial tcp 10.0.0.5:3128: connect: connection refused"),
    request("Proxy Authentication Required"),
    request("Forbidden"),
    containerd(
        'failed to authorize: failed to fetch anonymous token: Get "https://auth.io/token": Forbidden'
    ),
    "rpc error: code = DeadlineExceeded desc = context deadline exceeded",
    crio("quay.io/acme/x", "received unexpected HTTP status: 503 Service Unavailable"),
    # Of quotas and tokens, which pass, though they are told as denials.
    docker("denied: Quota exceeded for quota metric 'Requests per project per region' and limit"),
    crio(ECR, "denied: Your authorization token has expired. Reauthenticate and try again."),
    "rpc error: code = Unknown desc = ThrottlingException: Rate exceeded",
    containerd("unexpected status from HEAD request to https://r.io/v2/acme/x: 408 Request Timeout"),
    request("dial tcp: lookup ghcr.io: Try again"),
    "failed to copy: httpReadSeeker: failed open: failed to do request: http2: server sent GOAWAY",
    "failed to copy: stream error: stream ID 5; INTERNAL_ERROR; received from peer",
    # A mirror knows nothing of it, and the registry itself is away.
    "(Mirrors also failed: [mirror.io/x:1: reading manifest 1 in mirror.io/x: manifest unknown]): r.io/x:1: "
    "pinging container registry r.io: dial tcp 1.2.3.4:443: i/o timeout",
]
NODE = [
    "pull QPS exceeded",
    'failed to pull and unpack image "x": failed to extract layer: write /x: no space left on device',
    "connection error: dial unix /run/containerd/containerd.sock: connect: connection refused",
    "failed to extract layer sha256:1: read /x: input/output error",
]
UNKNOWN = [
    "",
    "something new",
    # Of the image, but not of its name: a part, a platform, a program of the node.
    'failed to pull and unpack image "r.io/x:1": failed to copy: httpReadSeeker: failed open: content at '
    "https://r.io/v2/x/blobs/sha256:1 not found: not found",
    'failed to pull and unpack image "r.io/x:1": no match for platform in manifest: not found',
    containerd('exec: "docker-credential-ecr-login": executable file not found in $PATH'),
    "Source image rejected: A signature was required, but no signature exists",
    # A mirror knows nothing of it, and what the registry itself says is not known.
    "(Mirrors also failed: [m.io/x:1: reading manifest 1 in m.io/x: manifest unknown]): r.io/x:1: new words",
    # Of a part by its digest, where a tag was asked for: Harbor's proxy, while it cannot log in upstream.
    docker(f"unknown: artifact proxy/acme/x@{PART} not found"),
    f"copying system image from manifest list: reading manifest {PART} in r.io/p/x: manifest unknown",
]
TABLE = [
    (trouble, message)
    for trouble, messages in (
        (PullFailure.MISSING, MISSING),
        (PullFailure.DENIED, DENIED),
        (PullFailure.REGISTRY, REGISTRY),
        (PullFailure.NODE, NODE),
        (PullFailure.UNKNOWN, UNKNOWN),
    )
    for message in messages
]


@pytest.mark.parametrize(("trouble", "message"), TABLE)
def test_what_a_message_means(trouble: PullFailure, message: str) -> None:
    assert trouble_of(message) is trouble


def test_of_an_image_that_was_asked_for_by_digest_the_digest_is_the_name() -> None:
    message = docker(f"unknown: artifact acme/x@{PART} not found")
    assert trouble_of(message, f"harbor.example/acme/x@{PART}") is PullFailure.MISSING
    assert trouble_of(message, "harbor.example/acme/x@sha256:" + "3" * 64) is PullFailure.UNKNOWN


@pytest.mark.parametrize(
    ("image", "registry"),
    [
        ("debian:12", "docker.io"),
        ("acme/x", "docker.io"),
        ("ghcr.io/acme/x@sha256:" + "0" * 64, "ghcr.io"),
        ("localhost:5000/x:1", "localhost:5000"),
        ("UPPER/x", "UPPER"),
    ],
)
def test_where_an_image_comes_from(image: str, registry: str) -> None:
    assert registry_of(image) == registry


class Kubelet:
    """What a Pod says one second after the other, with what the leader has written on it."""

    def __init__(self, settings: KubernetesSettings) -> None:
        self._settings = settings
        self._marks: dict[str, str] = {}

    def says(self, at: float, reason: str, message: str = "") -> Pod:
        """What the Pod is then; the leader looks at it."""
        said = container(waiting={"reason": reason, "message": message})
        self.pod = pod(birth=born(timeout=1000), annotations=self._marks, containerStatuses=said)
        look = noticed(self.pod, NOW + at)
        if look is not None:
            self._marks = {pod_metadata.PULL_ATTEMPT: pod_metadata.encoded(look)}
            self.pod = pod(birth=born(timeout=1000), annotations=self._marks, containerStatuses=said)
        return self.pod

    def verdict(self, at: float, reason: str, message: str = "") -> tuple[SandboxStatus, str]:
        """Of a sandbox whose Pod says so."""
        found = judge(self.says(at, reason, message), self._settings, NOW + at)
        return found.status, found.reason


@pytest.fixture
def kubelet(settings: KubernetesSettings) -> Kubelet:
    return Kubelet(settings)


WAITS = (SandboxStatus.PENDING, "image_unavailable")


@pytest.mark.parametrize("words", ["Back-off pulling image", f"Back-off pulling image: ErrImagePull: {GONE}"])
def test_missing_is_what_the_registry_says_twice(kubelet: Kubelet, words: str) -> None:
    """A minute apart, as kubelets of before and since 1.32 tell it."""
    for at, reason in ((0, "ErrImagePull"), (12, "ImagePullBackOff"), (14, "ErrImagePull")):
        assert kubelet.verdict(at, reason, GONE if reason == "ErrImagePull" else words) == WAITS
    assert kubelet.verdict(35, "ErrImagePull", GONE) == WAITS, "half a minute is no minute"
    assert kubelet.verdict(65, "ImagePullBackOff", words) == WAITS, "this is the look of before"
    assert kubelet.verdict(75, "ErrImagePull", GONE) == (SandboxStatus.FAILED, "image_missing")


def test_one_look_is_one_however_long_its_answer_stands(kubelet: Kubelet) -> None:
    """As on a node that is cut off."""
    assert {kubelet.verdict(at, "ErrImagePull", GONE) for at in (0, 61, 300)} == {WAITS}


def test_an_answer_of_another_kind_begins_anew(kubelet: Kubelet) -> None:
    for at, words in ((0, GONE), (12, "429 Too Many Requests"), (40, GONE)):
        assert kubelet.verdict(at, "ErrImagePull", words) == WAITS
        assert kubelet.verdict(at + 2, "ImagePullBackOff") == WAITS
    assert kubelet.verdict(80, "ErrImagePull", GONE) == WAITS
    assert kubelet.verdict(120, "ErrImagePull", GONE) == (SandboxStatus.FAILED, "image_missing")


def test_what_is_denied_twice_is_no_image_that_is_missing(kubelet: Kubelet) -> None:
    kubelet.says(0, "ErrImagePull", DENIED[0])
    kubelet.says(12, "ImagePullBackOff")
    assert kubelet.verdict(75, "ErrImagePull", DENIED[0]) == (SandboxStatus.FAILED, "image_denied")


@pytest.mark.parametrize("words", [REGISTRY[0], NODE[0], UNKNOWN[1]])
def test_what_may_pass_is_waited_for(kubelet: Kubelet, words: str) -> None:
    """With the last words while the kubelet has none."""
    for at in range(0, 900, 100):
        assert kubelet.verdict(at, "ErrImagePull", words) == WAITS
        assert kubelet.verdict(at + 12, "ImagePullBackOff", "Back-off pulling image") == WAITS
    assert words in judge(kubelet.pod, KubernetesSettings(agent_image="x"), NOW + 1000).message


def test_a_look_for_another_image_is_not_this_ones(settings: KubernetesSettings) -> None:
    """First the agent's image could not be had, then the sandbox's."""
    said = {"reason": "ErrImagePull", "message": GONE}
    look = pod_metadata.PullAttempt(image="agent:1", trouble="missing", since=NOW, words=GONE, waited=True)
    seen = pod(
        birth=born(),
        annotations={pod_metadata.PULL_ATTEMPT: pod_metadata.encoded(look)},
        containerStatuses=container(waiting=said),
    )
    assert not settled(seen, NOW + 100, settings.missing_after)
    assert noticed(seen, NOW + 100) == pod_metadata.PullAttempt(
        image="", trouble="missing", since=NOW + 100, words=GONE
    )
    assert image_pulls.waiting(seen) is not None


def test_what_another_version_has_written_is_borne(settings: KubernetesSettings) -> None:
    look = pod_metadata.PullAttempt(
        image="", trouble="haunted", since=NOW, words="a word of tomorrow", waited=True
    )
    waits = container(waiting={"reason": "ImagePullBackOff"})
    seen = pod(
        birth=born(),
        annotations={pod_metadata.PULL_ATTEMPT: pod_metadata.encoded(look)},
        containerStatuses=waits,
    )
    verdict = judge(seen, settings, NOW)
    assert (verdict.reason, "a word of tomorrow" in verdict.message) == ("image_unavailable", True)
