"""Converts requests to Pods and Pods to records, without I/O."""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from orchard.injector.agent.interfaces import quantity
from orchard.injector.agent.pod.variables import VARIABLES, packed
from orchard.injector.errors import SandboxRequestInvalid
from orchard.injector.kubernetes import pod_metadata
from orchard.injector.kubernetes.objects import Manifest, Pod
from orchard.injector.kubernetes.settings import KubernetesSettings
from orchard.injector.kubernetes.status import PodVerdict
from orchard.injector.payload import launch
from orchard.schemas.sandboxes import SandboxInfo

CONTAINER = "sandbox"
INSTALLER = "agent"
PAYLOAD = "/payload"
"""Directory of the payload in the agent's image."""
INSTALLED = "/orchard"
"""Directory of the payload in a sandbox, read-only."""
AGENT_VOLUME = {"name": "orchard", "mountPath": INSTALLED}
START_SECONDS = 120
"""Seconds after which an agent that has not responded is given up, and its container with it."""
CAPABILITIES = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
]
"""The usual capabilities of a container without those for devices and raw sockets.

None lets root read the memory of a process that is not dumpable.
"""


def manifest(
    name: str,
    agent_id: str,
    image: str,
    cpu: str,
    memory: str,
    settings: KubernetesSettings,
    metadata: Manifest,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Manifest:
    """Return a Pod for `image`; `metadata` has its labels and annotations.

    `cpu` and `memory` are limits, `variables` the environment of its commands. Raises SandboxRequestInvalid
    for invalid quantities, and for an image that the settings do not permit.
    """
    settings.admit(image)
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": settings.grace,
        "activeDeadlineSeconds": math.ceil(settings.max_lifetime),
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "nodeSelector": settings.node_selector,
        "tolerations": [*settings.tolerations, *_for_lost_nodes(settings)],
        "imagePullSecrets": [{"name": secret} for secret in settings.image_pull_secrets],
        "volumes": [{"name": "orchard", "emptyDir": {"sizeLimit": "512Mi"}}],
        "initContainers": [_installer(settings)],
        "containers": [_main(agent_id, image, cpu, memory, settings, variables)],
    }
    if settings.runtime_class is not None:
        spec["runtimeClassName"] = settings.runtime_class
    if settings.priority_class is not None:
        spec["priorityClassName"] = settings.priority_class
    labels = {
        **pod_metadata.APP,
        **pod_metadata.MANAGED_BY,
        pod_metadata.AGENT: agent_id,
        **metadata.get("labels", {}),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": settings.namespace,
            "labels": labels,
            "annotations": metadata.get("annotations", {}),
        },
        "spec": spec,
    }


def _for_lost_nodes(settings: KubernetesSettings) -> list[Manifest]:
    """Tolerations in place of those of 300 s that the API server adds."""
    return [
        {
            "key": f"node.kubernetes.io/{taint}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": settings.node_lost_after,
        }
        for taint in ("not-ready", "unreachable")
    ]


def _installer(settings: KubernetesSettings) -> Manifest:
    limits = {"cpu": settings.init_cpu, "memory": settings.init_memory}
    return {
        **installing(["--install", INSTALLED], PAYLOAD),
        "name": INSTALLER,
        "image": settings.agent_image,
        "imagePullPolicy": settings.agent_pull_policy,
        "resources": {"requests": limits, "limits": limits},
        "volumeMounts": [AGENT_VOLUME],
    }


def installing(arguments: list[str], payload: str = INSTALLED) -> Manifest:
    """Fields of a container that runs the agent's program, in `payload`, to copy files into the Pod."""
    return {
        "command": launch.command(payload, *arguments),
        "env": _environment(),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }


def _main(
    agent_id: str,
    image: str,
    cpu: str,
    memory: str,
    settings: KubernetesSettings,
    variables: Mapping[str, str],
) -> Manifest:
    probe = {"httpGet": {"path": "/health", "port": settings.port}, "timeoutSeconds": 5}
    serve = ["--serve", "--host", settings.agent_host, "--port", str(settings.port), "--sandbox", agent_id]
    if settings.grace > 1:
        serve += ["--grace", str(settings.grace)]
    return {
        "name": CONTAINER,
        "image": image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": launch.command(INSTALLED, *serve),
        "env": _environment(variables),
        "ports": [{"name": "agent", "containerPort": settings.port}],
        "resources": {
            "requests": {
                "cpu": _share("cpu", cpu, settings.cpu_request_share, "m", 1000),
                "memory": _share("memory", memory, settings.memory_request_share, "", 1),
                "ephemeral-storage": settings.ephemeral_storage_request,
            },
            "limits": {"cpu": cpu, "memory": memory, "ephemeral-storage": settings.ephemeral_storage},
        },
        "volumeMounts": [{**AGENT_VOLUME, "readOnly": True}],
        "securityContext": {"capabilities": {"drop": ["ALL"], "add": CAPABILITIES}},
        "startupProbe": {**probe, "periodSeconds": 1, "failureThreshold": START_SECONDS},
        # For people and Services: we look at whether it has started, then talk to it.
        "readinessProbe": {**probe, "periodSeconds": 20},
    }


def _environment(variables: Mapping[str, str] = MappingProxyType({})) -> list[Manifest]:
    """Environment of the agent; one variable packs that of its commands, so that LD_PRELOAD, say, does not
    affect the agent."""
    given = {**launch.ENVIRONMENT, **({VARIABLES: packed(variables)} if variables else {})}
    return [{"name": name, "value": value} for name, value in given.items()]


def _share(name: str, limit: str, share: float, suffix: str, scale: int) -> str:
    """Share of a limit that is requested, rounded up to whole units of `1 / scale`."""
    try:
        number = quantity(limit)
    except ValueError as error:
        raise SandboxRequestInvalid(f"{name}: {error}") from error
    if number <= 0:
        raise SandboxRequestInvalid(f"{name}: `{limit}` is not more than zero")
    return f"{math.ceil(number * share * scale)}{suffix}"


def info(pod: Pod, namespace: str, verdict: PodVerdict) -> SandboxInfo:
    born = pod_metadata.creation_record(pod)
    request = born.request
    message = verdict.message
    if not message and request.pids is not None:
        message = (
            "its limit of processes is that of the node's kubelet (podPidsLimit): a Pod cannot have its own"
        )
    return SandboxInfo(
        sandbox_id=pod.labels[pod_metadata.SANDBOX],
        namespace=namespace,
        image=request.image,
        pod_name=pod.name,
        block_network=request.block_network,
        cpu=request.cpu,
        memory=request.memory,
        created_at=born.at,
        ready=verdict.ready,
        status=verdict.status,
        status_message=message,
        reason=verdict.reason,
        labels=request.labels,
    )
