"""Adds to a Pod what a request asks for beyond image and limits: layers, egress, GPUs, volumes.

A NetworkPolicy has addresses and ports, no names. So names are resolved when the Pod is made: /etc/hosts has
the result, the policy permits those addresses, and the Pod uses no name server, because DNS queries can carry
data to anybody.
"""

import asyncio
import ipaddress
import posixpath
import socket
from typing import Any

import msgspec

from orchard.injector.agent.egress import Rule
from orchard.injector.agent.layer_files import PLACE
from orchard.injector.errors import SandboxRequestInvalid
from orchard.injector.kubernetes import layers, pod_metadata
from orchard.injector.kubernetes.objects import Manifest, Pod
from orchard.injector.kubernetes.pods import INSTALLED
from orchard.injector.kubernetes.settings import KubernetesSettings
from orchard.schemas.sandboxes import CreateSandbox

KEPT = (INSTALLED, PLACE, "/dev", "/etc", "/proc", "/sys")
"""Directories that no volume may cover."""


class EgressDestination(msgspec.Struct, frozen=True):
    """A destination that an egress rule permits."""

    network: str
    excepted: list[str]
    port: int
    host: str = ""
    """The name that it was resolved from, or empty."""


async def add(body: Manifest, request: CreateSandbox, settings: KubernetesSettings) -> None:
    """Add what `request` asks for to the manifest of its Pod. Raises SandboxRequestInvalid."""
    layers.add(body, request, settings)
    spec, main = body["spec"], body["spec"]["containers"][0]
    if request.gpus > settings.gpus:
        raise SandboxRequestInvalid(
            f"{request.gpus} GPUs are more than the {settings.gpus} that the cluster's administrator allows "
            "(`gpus` of the settings)"
        )
    if request.gpus:
        for kind in ("requests", "limits"):
            main["resources"][kind][settings.gpu_resource] = str(request.gpus)
    for name, where in request.volumes.items():
        volume = _volume(name, settings)
        spec["volumes"].append({"name": f"volume-{len(spec['volumes'])}", **volume})
        mount = {"name": spec["volumes"][-1]["name"], "mountPath": _mount_point(where)}
        main["volumeMounts"].append({**mount, "readOnly": settings.volumes[name].read_only})
    if request.egress:
        places = [place for text in request.egress for place in await _places(Rule.of(text), settings)]
        body["metadata"]["annotations"][pod_metadata.EGRESS] = pod_metadata.encoded(places)
        named = {(place.network.partition("/")[0], place.host) for place in places if place.host}
        spec["hostAliases"] = [{"ip": address, "hostnames": [host]} for address, host in sorted(named)]
        spec["dnsPolicy"], spec["dnsConfig"] = "None", {"nameservers": ["127.0.0.1"]}


def egress(pod: Pod) -> list[Manifest]:
    places = msgspec.json.decode(pod.annotations[pod_metadata.EGRESS], type=list[EgressDestination])
    return [
        {
            "to": [{"ipBlock": {"cidr": place.network, "except": place.excepted}}],
            "ports": [{"protocol": "TCP", "port": place.port}],
        }
        for place in places
    ]


def _volume(name: str, settings: KubernetesSettings) -> dict[str, Any]:
    allowed = settings.volumes.get(name)
    if allowed is None:
        there = ", ".join(settings.volumes) or "none"
        raise SandboxRequestInvalid(
            f"the cluster's administrator allows no volume `{name}` (`volumes` of the settings); there are: "
            f"{there}"
        )
    if allowed.claim is not None:
        claim = {"claimName": allowed.claim, "readOnly": allowed.read_only}
        return {"persistentVolumeClaim": claim}
    return {"hostPath": {"path": allowed.host_path, "type": "Directory"}}


def _mount_point(where: str) -> str:
    path = posixpath.normpath(where)
    kept = any(path == one or path.startswith(f"{one}/") for one in KEPT)
    if not where.startswith("/") or path.strip("/") == "" or ":" in path or kept:
        raise SandboxRequestInvalid(
            f"no volume can be mounted at `{where}`: name an absolute path outside of {', '.join(KEPT)}"
        )
    return path


async def _places(rule: Rule, settings: KubernetesSettings) -> list[EgressDestination]:
    if rule.network is not None:
        return [_place(rule.network, rule, settings)]
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            rule.host, None, family=socket.AF_INET, type=socket.SOCK_STREAM
        )
    except OSError as error:
        raise SandboxRequestInvalid(
            f"`{rule.host}` cannot be resolved, which a cluster does when the sandbox is made: {error}"
        ) from error
    addresses = dict.fromkeys(str(address[0]) for *_, address in found)
    return [_place(ipaddress.IPv4Network(address), rule, settings) for address in addresses]


def _place(network: ipaddress.IPv4Network, rule: Rule, settings: KubernetesSettings) -> EgressDestination:
    closed = [one for one in map(ipaddress.ip_network, settings.closed_networks) if one.version == 4]
    for one in closed:
        if network.subnet_of(one):
            raise SandboxRequestInvalid(
                f"`{rule.host or network}` is {network}, which the cluster keeps from sandboxes: it lies in "
                f"{one} (`closed_networks` of the settings)"
            )
    within = [str(one) for one in closed if one.subnet_of(network)]
    return EgressDestination(str(network), within, rule.port, rule.host)
