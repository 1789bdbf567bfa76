"""What the cluster has, and what sandboxes ask of it."""

from collections.abc import Iterable

from orchard.injector.agent.machine import quantity
from orchard.injector.kubernetes.objects import Node as ClusterNode
from orchard.injector.kubernetes.objects import Pod
from orchard.injector.kubernetes.settings import KubernetesSettings
from orchard.schemas.sandboxes import Amounts, Node, Resources, SandboxPod


def resources(nodes: Iterable[ClusterNode], pods: Iterable[Pod], settings: KubernetesSettings) -> Resources:
    """Of the nodes that sandboxes may be put on, and the Pods of the sandboxes' namespace, warm ones too."""
    open_nodes = [_node(node) for node in nodes if _is_open(node, settings)]
    sandbox_pods = [_pod(pod, settings.namespace) for pod in pods]
    capacity = _sum(node.capacity for node in open_nodes)
    allocatable = _sum(node.allocatable for node in open_nodes)
    requested = _sum(
        Amounts(cpu=pod.cpu_request, memory_bytes=pod.memory_request_bytes)
        for pod in sandbox_pods
        if pod.phase not in ("Failed", "Succeeded")
    )
    return Resources(
        status="ok",
        nodes=open_nodes,
        total_capacity=capacity,
        total_allocatable=allocatable,
        total_requested=requested,
        available=Amounts(
            cpu=max(0.0, allocatable.cpu - requested.cpu),
            memory_bytes=max(0, allocatable.memory_bytes - requested.memory_bytes),
        ),
        sandbox_pods=sandbox_pods,
    )


def _is_open(node: ClusterNode, settings: KubernetesSettings) -> bool:
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
    amounts = _sum(_amounts(container.resources.requests) for container in pod.spec.containers)
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


def _sum(amounts: Iterable[Amounts]) -> Amounts:
    listed = list(amounts)
    return Amounts(
        cpu=sum(amount.cpu for amount in listed), memory_bytes=sum(amount.memory_bytes for amount in listed)
    )
