"""Network policies: the sandboxes' namespace denies everything (infra/), here is what single ones may do."""

import ipaddress

from orchard.injector.kubernetes import marks
from orchard.injector.kubernetes.api import ClusterApi, passing_over
from orchard.injector.kubernetes.objects import Manifest, Named, Pod
from orchard.injector.kubernetes.settings import KubernetesSettings

DNS_PORTS = [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]


def path(namespace: str) -> str:
    """Of the namespace's policies."""
    return f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies"


def allowance(pod: Pod, settings: KubernetesSettings) -> Manifest:
    """A policy that lets one sandbox reach the world outside, and goes with its Pod."""
    networks = [ipaddress.ip_network(network) for network in settings.closed_networks]
    blocks = [
        {
            "ipBlock": {
                "cidr": whole,
                "except": [str(network) for network in networks if network.version == version],
            }
        }
        for version, whole in ((4, "0.0.0.0/0"), (6, "::/0"))
    ]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": pod.name,
            "namespace": settings.namespace,
            "labels": {**marks.APP, **marks.MANAGED_BY},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid}],
        },
        "spec": {
            "podSelector": {"matchLabels": {marks.AGENT: pod.labels[marks.AGENT]}},
            "policyTypes": ["Egress"],
            "egress": [
                {"to": blocks},
                {
                    "to": [
                        {"namespaceSelector": {}, "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}}
                    ],
                    "ports": DNS_PORTS,
                },
            ],
        },
    }


async def ensure(api: ClusterApi, pod: Pod, settings: KubernetesSettings) -> None:
    """Make the allowance that a sandbox asked for, if it did; nothing when it is there."""
    if marks.birth(pod).request.block_network:
        return
    with passing_over(409):
        await api.create(Named, path(settings.namespace), allowance(pod, settings))
