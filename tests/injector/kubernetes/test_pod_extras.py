"""What a request asks for beyond an image and limits: places to reach, GPUs, volumes."""

import asyncio
import socket
from typing import Any

import msgspec
import pytest

from orchard.injector.errors import SandboxConflict, SandboxRequestInvalid
from orchard.injector.kubernetes import pod_extras, pod_metadata, pods, policies, warm
from orchard.injector.kubernetes.api import ClusterApi
from orchard.injector.kubernetes.cache import PodCache
from orchard.injector.kubernetes.creation import Creation
from orchard.injector.kubernetes.objects import Manifest, Pod
from orchard.injector.kubernetes.settings import KubernetesSettings, Volume, WarmPool
from orchard.schemas.sandboxes import CreateSandbox
from tests.injector.kubernetes.conftest import born


@pytest.fixture
def settings() -> KubernetesSettings:
    volumes = {
        "datasets": Volume(claim="all-datasets"),
        "scratch": Volume(host_path="/srv/scratch", read_only=False),
    }
    return KubernetesSettings(agent_image="agent:1", namespace="sandboxes", gpus=2, volumes=volumes)


ADDRESSES = {"two.example": ["203.0.113.1", "203.0.113.2"], "inside.example": ["10.0.0.7"]}


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """What names stand for."""

    async def resolve(_loop: object, host: str, *_: object, **__: object) -> list[Any]:
        if host not in ADDRESSES:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in ADDRESSES[host]]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", resolve)


async def made(settings: KubernetesSettings, **fields: Any) -> Manifest:
    birth = born(**fields)
    body = pods.manifest("n", "a", "debian:12", "1", "1Gi", settings, pod_metadata.claim_metadata("a", birth))
    await pod_extras.add(body, birth.request, settings)
    return body


def policy_of(body: Manifest, settings: KubernetesSettings) -> list[Manifest]:
    pod = msgspec.convert(body, Pod, strict=False)
    egress: list[Manifest] = policies.allowance(pod, settings)["spec"]["egress"]
    return egress


async def test_what_may_be_reached_is_written_down_as_addresses_and_no_name_server_is_asked(
    settings: KubernetesSettings,
) -> None:
    body = await made(settings, egress=["Two.example:443", "198.51.100.0/24:5432"])
    spec = body["spec"]
    assert spec["hostAliases"] == [
        {"ip": address, "hostnames": ["two.example"]} for address in ("203.0.113.1", "203.0.113.2")
    ]
    assert (spec["dnsPolicy"], spec["dnsConfig"]) == ("None", {"nameservers": ["127.0.0.1"]})
    assert [(rule["to"][0]["ipBlock"]["cidr"], rule["ports"][0]) for rule in policy_of(body, settings)] == [
        ("203.0.113.1/32", {"protocol": "TCP", "port": 443}),
        ("203.0.113.2/32", {"protocol": "TCP", "port": 443}),
        ("198.51.100.0/24", {"protocol": "TCP", "port": 5432}),
    ]


async def test_a_wide_network_leaves_out_what_is_closed(settings: KubernetesSettings) -> None:
    (rule,) = policy_of(await made(settings, egress=["0.0.0.0/0:443"]), settings)
    assert {"10.0.0.0/8", "169.254.0.0/16"} <= set(rule["to"][0]["ipBlock"]["except"])


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"egress": ["10.1.2.3:80"]}, "closed_networks"),
        ({"egress": ["169.254.169.254:80"]}, "closed_networks"),
        ({"egress": ["inside.example:80"]}, "`inside.example` is 10.0.0.7/32"),
        ({"egress": ["nowhere.example:80"]}, "cannot be resolved"),
        ({"gpus": 3}, "more than the 2"),
        ({"volumes": {"other": "/data"}}, "there are: datasets, scratch"),
        ({"volumes": {"datasets": "data"}}, "absolute path"),
        ({"volumes": {"datasets": "/"}}, "absolute path"),
        ({"volumes": {"datasets": "/x/../orchard/lib"}}, "absolute path"),
        ({"volumes": {"datasets": "/proc"}}, "absolute path"),
        ({"volumes": {"datasets": "/a:b"}}, "absolute path"),
    ],
)
async def test_what_is_not_allowed_is_refused_with_the_reason(
    settings: KubernetesSettings, fields: dict[str, Any], word: str
) -> None:
    with pytest.raises(SandboxRequestInvalid, match=word):
        await made(settings, **fields)


async def test_volumes_are_mounted_as_the_administrator_says(settings: KubernetesSettings) -> None:
    spec = (await made(settings, volumes={"datasets": "/data/", "scratch": "/workspace/s"}))["spec"]
    own, *mounts = spec["containers"][0]["volumeMounts"]
    assert own["mountPath"] == "/orchard"
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert [(mount["mountPath"], mount["readOnly"]) for mount in mounts] == [
        ("/data", True),
        ("/workspace/s", False),
    ]
    claim, directory = (volumes[mount["name"]] for mount in mounts)
    assert claim["persistentVolumeClaim"] == {"claimName": "all-datasets", "readOnly": True}
    assert directory["hostPath"] == {"path": "/srv/scratch", "type": "Directory"}


async def test_gpus_are_a_limit_of_the_resource_that_the_settings_name(settings: KubernetesSettings) -> None:
    amd = msgspec.structs.replace(settings, gpu_resource="amd.com/gpu")
    resources = (await made(amd, gpus=2))["spec"]["containers"][0]["resources"]
    assert resources["limits"]["amd.com/gpu"] == resources["requests"]["amd.com/gpu"] == "2"


@pytest.mark.parametrize(
    "fields", [{"egress": ["a.example:1"]}, {"gpus": 1}, {"volumes": {"datasets": "/data"}}]
)
def test_a_warm_pod_has_none_of_it(settings: KubernetesSettings, fields: dict[str, Any]) -> None:
    pooled = msgspec.structs.replace(settings, warm={"debian:12": WarmPool(count=1)})
    assert warm.pool_for(CreateSandbox(image="debian:12"), pooled) is not None
    assert warm.pool_for(CreateSandbox(image="debian:12", **fields), pooled) is None


@pytest.mark.parametrize(
    ("volume", "word"),
    [
        (Volume(), "either `claim` or `host_path`"),
        (Volume(claim="a", host_path="/b"), "either `claim` or `host_path`"),
        (Volume(host_path="b"), "absolute"),
    ],
)
def test_a_volume_of_the_settings_is_one_of_two(volume: Volume, word: str) -> None:
    with pytest.raises(SandboxRequestInvalid, match=word):
        KubernetesSettings(agent_image="a", volumes={"x": volume}).check()


@pytest.mark.parametrize("sandbox_id", [None, "mine"])
async def test_a_key_that_made_another_sandbox_is_refused_and_makes_none(
    api: ClusterApi, settings: KubernetesSettings, sandbox_id: str | None
) -> None:
    creation = Creation(api, PodCache(api, "sandboxes"), settings, "one", "print")
    elsewhere = Creation(api, PodCache(api, "sandboxes"), settings, "two", "print")
    wanted = CreateSandbox(image="debian:12", sandbox_id=sandbox_id)
    first = await creation.create(wanted, "key")
    assert (await elsewhere.create(wanted, "key")).name == first.name
    for changed in ({"cpu": "2"}, {"egress": ["198.51.100.1:1"]}, {"env": {"A": "b"}}):
        with pytest.raises(SandboxConflict) as error:
            await elsewhere.create(msgspec.structs.replace(wanted, **changed), "key")
        assert error.value.reason == "key_reused"
