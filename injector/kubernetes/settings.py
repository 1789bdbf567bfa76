"""The operator's settings for sandboxes as Pods: a TOML file of the orchestrator."""

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from orchard.injector.agent.interfaces import quantity
from orchard.injector.agent.layer_files import NAME
from orchard.injector.errors import SandboxRequestInvalid
from orchard.schemas.faults import fault_sentence
from orchard.schemas.quantities import Unit
from orchard.schemas.toml_text import parsed_toml

Positive = Annotated[float, msgspec.Meta(gt=0), Unit("s")]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]
TOLERATION = {"key": "workload", "operator": "Equal", "value": "sandbox", "effect": "NoSchedule"}
CLOSED_NETWORKS = (
    "10.0.0.0/8",
    "100.64.0.0/10",
    "168.63.129.16/32",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "fc00::/7",
    "fe80::/10",
)
_BY_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}\Z")
ANY_IMAGE = "*"
PullPolicy = Literal["IfNotPresent", "Always", "Never"]


class WarmPool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Started Pods of one image that wait for a request with exactly these limits and no network."""

    count: Annotated[int, msgspec.Meta(ge=0)]
    """Pods that always wait."""
    most: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Pods that wait at most, while the queue asks for the image (`warmFollowsQueue` of the chart)."""
    cpu: str = "4"
    """CPU limit of each."""
    memory: str = "16Gi"
    """Memory limit of each."""


class Volume(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A volume that sandboxes of all keys may mount: a claim of the namespace, or a directory of the
    nodes."""

    claim: str | None = None
    """Name of a PersistentVolumeClaim."""
    host_path: str | None = None
    """Directory of each node; commands have the access to it that the node gives root in a Pod."""
    read_only: bool = True
    """A writable volume is shared by all sandboxes that mount it."""


class KubernetesSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of the Kubernetes backend. Times are in seconds, sizes Kubernetes quantities."""

    agent_image: str
    """Image with the agent's payload in /payload (`python -m orchard.injector.payload`)."""
    agent_pull_policy: PullPolicy = "IfNotPresent"
    """Pull policy of the agent's image."""
    namespace: str = "orchard-sandboxes"
    """Namespace of the Pods."""
    kubeconfig: str | None = None
    """Path of a kubeconfig file; None: the service account of the orchestrator's own Pod."""

    image_pull_policy: PullPolicy = "IfNotPresent"
    """Pull policy of the sandboxes' images."""
    images_by_digest: bool = False
    """Refuse images that are not named by digest, `NAME@sha256:...`, also the agent's and those of layers
    and warm Pods: the image behind a tag may change between a rollout and its grading."""
    missing_after: Positive = 60.0
    """An image counts as missing when its registry says so in two attempts at least this far apart."""
    image_pull_secrets: list[str] = []
    """Names of Secrets for registries."""
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 8700
    """Port of the agent in its Pod."""
    agent_host: Literal["0.0.0.0", "::"] = "0.0.0.0"
    """Address that the agent listens on: `::` where Pods have IPv6 addresses; it then serves IPv4 too."""
    cpu_request_share: Share = 0.25
    """Share of a sandbox's limit that is reserved on the node: most sandboxes wait for a model."""
    memory_request_share: Share = 1.0
    """The same for memory. Below 1 a node may run out of memory, and then evicts sandboxes."""
    ephemeral_storage: str = "16Gi"
    """Limit of what a sandbox writes to its node's disk; one that exceeds it is evicted."""
    ephemeral_storage_request: str = "1Gi"
    """Disk space that is reserved on the node."""
    init_cpu: str = "100m"
    """CPU limit of the container that installs the agent."""
    init_memory: str = "64Mi"
    """Memory limit of that container."""
    runtime_class: str | None = None
    """RuntimeClass of the Pods, for example `gvisor` or `kata`."""
    priority_class: str | None = None
    """PriorityClass of the Pods."""
    node_selector: dict[str, str] = {}
    """Labels that their nodes must have."""
    per_node: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Most sandboxes of a node, warm Pods included; more wait. None: as many as the node has room for."""
    tolerations: list[dict[str, Any]] = msgspec.field(default_factory=lambda: [dict(TOLERATION)])
    """Tolerations of the Pods, in the form of a Pod's specification."""
    closed_networks: tuple[str, ...] = CLOSED_NETWORKS
    """Networks that sandboxes with a network cannot reach: the cluster and the cloud's metadata."""

    gpus: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Maximum GPUs of one sandbox; 0: none."""
    gpu_resource: str = "nvidia.com/gpu"
    """Name of the GPUs' extended resource."""
    volumes: dict[str, Volume] = {}
    """Volumes that sandboxes may mount, by their name in requests."""

    layers: dict[str, str] = {}
    """Images of harness programs, by the names that `orchard harness install --archive` prints. Of several
    for one program, rollouts use the first."""

    pending_timeout: Positive = 3600.0
    """Longest time that a sandbox may take to start, whatever its request says."""
    max_lifetime: Positive = 24 * 3600.0
    """Age at which a sandbox is ended even if it is in use."""
    grace: Annotated[int, msgspec.Meta(ge=1), Unit("s")] = 1
    """Time for which a sandbox can still be used when the cluster ends its Pod: a drain, a preemption, a node
    that shuts down. On spot nodes a little less than their notice; it ends sooner when nobody asks."""
    node_lost_after: Annotated[int, msgspec.Meta(ge=0), Unit("s")] = 60
    """Time after which a sandbox on a node that does not answer is given up."""
    delete_timeout: Positive = 60.0
    """Time that a deletion waits for the Pod to be gone."""
    create_jitter: Annotated[float, msgspec.Meta(ge=0), Unit("s")] = 0.5
    """Concurrent creations are spread over up to this time."""
    concurrent_writes: Annotated[int, msgspec.Meta(ge=1)] = 32
    """Concurrent writing requests to the API server."""
    reconcile_interval: Positive = 5.0
    """Time between two comparisons of the Pods with the desired state."""
    lease: Positive = 15.0
    """A leader that has not renewed its lease for this long is replaced."""
    warm: dict[str, WarmPool] = {}
    """Warm pools by image. That of `*` is for every other image that the queue asks for, with its `most`."""
    warm_most: Annotated[int, msgspec.Meta(ge=0)] = 100
    """Most warm Pods that all pools together have beyond their `count`."""

    prepull_queue: bool = False
    """Whether images that waiting rollouts need are pulled to all nodes before sandboxes ask for them."""
    prepull_nodes: Annotated[int, msgspec.Meta(ge=1)] = 8
    """Nodes that pull images ahead of sandboxes at the same time, by `prepull_queue` or `orchard sandbox
    prepull`."""
    prepull_disk_share: Share = 0.6
    """Share of a node's disk from which on its images are enough and none is pulled ahead."""

    def admit(self, image: str) -> None:
        """Raise SandboxRequestInvalid for an image without a digest, if digests are required."""
        if self.images_by_digest and not _BY_DIGEST.search(image):
            raise SandboxRequestInvalid(
                f"the image `{image}` is not named by digest, which `images_by_digest` asks for: name it "
                f"{image.partition('@')[0]}@sha256:..., as `docker buildx imagetools inspect` prints it"
            )

    def check(self) -> None:
        """Raise SandboxRequestInvalid for invalid quantities, a request above its limit, and images that
        are not permitted."""
        for image in (self.agent_image, *(self.warm.keys() - {ANY_IMAGE}), *self.layers.values()):
            self.admit(image)
        for layer in self.layers:
            if NAME.fullmatch(layer) is None:
                raise SandboxRequestInvalid(
                    f"layers: `{layer}` is not the name of a layer: `orchard harness install --archive` "
                    "prints it"
                )
        quantities = {
            "ephemeral_storage": self.ephemeral_storage,
            "ephemeral_storage_request": self.ephemeral_storage_request,
            "init_cpu": self.init_cpu,
            "init_memory": self.init_memory,
        }
        if self.warm.get(ANY_IMAGE, WarmPool(count=0)).count:
            raise SandboxRequestInvalid(
                f'warm."{ANY_IMAGE}".count is more than 0, and no image is named there to start: set `most`'
            )
        for image, pool in self.warm.items():
            quantities |= {f"warm.{image}.cpu": pool.cpu, f"warm.{image}.memory": pool.memory}
        for name, text in quantities.items():
            try:
                quantity(text)
            except ValueError as error:
                raise SandboxRequestInvalid(f"{name}: {error}") from error
        for name, volume in self.volumes.items():
            if (volume.claim is None) == (volume.host_path is None):
                raise SandboxRequestInvalid(f"volumes.{name} needs either `claim` or `host_path`")
            if volume.host_path is not None and not volume.host_path.startswith("/"):
                raise SandboxRequestInvalid(
                    f"volumes.{name}.host_path `{volume.host_path}` is not an absolute path"
                )
        if quantity(self.ephemeral_storage_request) > quantity(self.ephemeral_storage):
            raise SandboxRequestInvalid(
                f"ephemeral_storage_request ({self.ephemeral_storage_request}) is more than ephemeral_storage"
                f" ({self.ephemeral_storage}): lower it"
            )


def load(path: Path) -> KubernetesSettings:
    """Load the settings from a TOML file. Raises SandboxRequestInvalid, naming the file."""
    try:
        tree = parsed_toml(path.read_text(encoding="utf-8"))
        settings = msgspec.convert(tree, KubernetesSettings)
        settings.check()
    except msgspec.ValidationError as error:
        said = fault_sentence(tree, KubernetesSettings, error)
        raise SandboxRequestInvalid(f"{path}: {said}") from error
    except OSError as error:
        raise SandboxRequestInvalid(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, SandboxRequestInvalid) as error:
        raise SandboxRequestInvalid(f"{path}: {error}") from error
    return settings
