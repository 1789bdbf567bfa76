"""Sums the cluster's capacity and the sandboxes' requests."""

from collections.abc import Iterable

from orchard.injector.agent.interfaces import quantity
from orchard.injector.kubernetes.objects import ClusterNode, Pod
from orchard.injector.kubernetes.settings import KubernetesSettings
from orchard.injector.resources import resources as summed
from orchard.injector.resources import total
from orchard.schemas.sandboxes import Amounts, Node, Resources, SandboxPod


def resources(nodes: Iterable[ClusterNode], pods: Iterable[Pod], settings: KubernetesSettings) -> Resources:
    """Sum over the nodes open to sandboxes and the Pods of the sandboxes' namespace, warm ones too."""
    return summed(
        [_node(node) for node in nodes if is_open(node, settings)],
        [_pod(pod, settings.namespace) for pod in pods],
    )


def is_open(node: ClusterNode, settings: KubernetesSettings) -> bool:
    labels = node.metadata.labels
    fits = all(labels.get(name) == value for name, value in settings.node_selector.items())
    return fits and not node.spec.unschedulable


def _node(node: ClusterNode) -> Node:
    return Node(
        name=node.metadata.name,
        capacity=_amounts(node.status.capacity),
        allocatable=_amounts(node.status.allocatable),
    )


def _pod(pod: Pod, namespace: str) -> SandboxPod:
    amounts = total(_amounts(container.resources.requests) for container in pod.spec.containers)
    return SandboxPod(
        name=pod.name,
        namespace=namespace,
        phase=pod.status.phase,
        cpu_request=amounts.cpu,
        memory_request_bytes=amounts.memory_bytes,
    )


def _amounts(quantities: dict[str, str]) -> Amounts:
    return Amounts(
        cpu=quantity(quantities.get("cpu", "0")), memory_bytes=int(quantity(quantities.get("memory", "0")))
    )
