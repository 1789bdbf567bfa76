"""Sums up capacity for sandboxes and what they request."""

from collections.abc import Iterable, Sequence

from orchard.schemas.sandboxes import Amounts, Node, Resources, SandboxPod


def resources(nodes: Sequence[Node], pods: Sequence[SandboxPod]) -> Resources:
    """Sum up nodes and Pods; Pods that have ended request nothing, and availability is never negative."""
    capacity = total(node.capacity for node in nodes)
    allocatable = total(node.allocatable for node in nodes)
    requested = total(
        Amounts(cpu=pod.cpu_request, memory_bytes=pod.memory_request_bytes)
        for pod in pods
        if pod.phase not in ("Failed", "Succeeded")
    )
    return Resources(
        status="ok",
        nodes=list(nodes),
        total_capacity=capacity,
        total_allocatable=allocatable,
        total_requested=requested,
        available=Amounts(
            cpu=max(0.0, allocatable.cpu - requested.cpu),
            memory_bytes=max(0, allocatable.memory_bytes - requested.memory_bytes),
        ),
        sandbox_pods=list(pods),
    )


def total(amounts: Iterable[Amounts]) -> Amounts:
    listed = list(amounts)
    return Amounts(cpu=sum(one.cpu for one in listed), memory_bytes=sum(one.memory_bytes for one in listed))
