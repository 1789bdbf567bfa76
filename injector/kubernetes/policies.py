"""Network policies: the sandboxes' namespace denies everything (infra/); these permit more to single
sandboxes."""

import ipaddress

from orchard.injector.kubernetes import pod_extras, pod_metadata
from orchard.injector.kubernetes.api import ClusterApi, passing_over
from orchard.injector.kubernetes.objects import Manifest, Named, Pod
from orchard.injector.kubernetes.settings import KubernetesSettings

DNS_PORTS = [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]


def path(namespace: str) -> str:
    return f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies"


def allowance(pod: Pod, settings: KubernetesSettings) -> Manifest:
    """Return a policy that lets one sandbox reach the internet, or its permitted destinations; it is
    deleted with its Pod."""
    if pod.annotations.get(pod_metadata.EGRESS):
        return _policy(pod, settings, pod_extras.egress(pod))
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
    names = {"namespaceSelector": {}, "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}}
    return _policy(pod, settings, [{"to": blocks}, {"to": [names], "ports": DNS_PORTS}])


def _policy(pod: Pod, settings: KubernetesSettings, egress: list[Manifest]) -> Manifest:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": pod.name,
            "namespace": settings.namespace,
            "labels": {**pod_metadata.APP, **pod_metadata.MANAGED_BY},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid}],
        },
        "spec": {
            "podSelector": {"matchLabels": {pod_metadata.AGENT: pod.labels[pod_metadata.AGENT]}},
            "policyTypes": ["Egress"],
            "egress": egress,
        },
    }


async def ensure(api: ClusterApi, pod: Pod, settings: KubernetesSettings) -> None:
    """Create the policy that a sandbox asked for, if any; does nothing when it exists."""
    request = pod_metadata.creation_record(pod).request
    if request.block_network and not request.egress:
        return
    with passing_over(409):
        await api.create(Named, path(settings.namespace), allowance(pod, settings), urgent=True)
