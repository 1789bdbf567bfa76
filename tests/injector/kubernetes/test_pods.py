"""The Pod that a request becomes."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchard.injector.agent.pod.variables import VARIABLES, packed
from orchard.injector.errors import SandboxRequestInvalid
from orchard.injector.kubernetes import pod_metadata, pods, policies
from orchard.injector.kubernetes.objects import Manifest, Pod
from orchard.injector.kubernetes.settings import KubernetesSettings, load
from orchard.injector.kubernetes.status import judge
from orchard.injector.payload import launch
from tests.injector.kubernetes.conftest import NOW, born, pod

DIGEST = f"sha256:{'0123456789abcdef' * 4}"


def made(
    settings: KubernetesSettings,
    cpu: str = "4",
    memory: str = "16Gi",
    image: str = "debian:12",
    **fields: Any,
) -> Manifest:
    birth = born(cpu=cpu, memory=memory, **fields)
    metadata = pod_metadata.claim_metadata("a", birth)
    return pods.manifest("sandbox-a", "a", image, cpu, memory, settings, metadata)


def test_it_has_no_way_to_the_cluster_and_no_more_rights_than_it_needs(settings: KubernetesSettings) -> None:
    spec = made(settings)["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
    assert spec["restartPolicy"] == "Never"
    (main,) = spec["containers"]
    rights = main["securityContext"]["capabilities"]
    assert rights["drop"] == ["ALL"]
    assert not {"SYS_PTRACE", "SYS_ADMIN", "NET_RAW", "MKNOD"} & set(rights["add"])
    assert main["volumeMounts"] == [{"name": "orchard", "mountPath": "/orchard", "readOnly": True}]


def test_the_agent_is_started_by_its_own_loader_from_the_volume(settings: KubernetesSettings) -> None:
    spec = made(settings)["spec"]
    (installer,) = spec["initContainers"]
    assert installer["command"] == launch.command("/payload", "--install", "/orchard")
    command = spec["containers"][0]["command"]
    assert command[0] == "/orchard/lib/ld.so"
    assert command[-6:] == ["--host", "0.0.0.0", "--port", "8700", "--sandbox", "a"]
    given = {variable["name"] for variable in spec["containers"][0]["env"]}
    assert given == set(launch.ENVIRONMENT), "a secret here could be read by every command"


def test_variables_of_the_sandbox_are_packed_where_kubernetes_expands_nothing(
    settings: KubernetesSettings,
) -> None:
    metadata = pod_metadata.claim_metadata("a", born(env={"A": "$(B)", "LD_PRELOAD": "x"}))
    spec = pods.manifest("n", "a", "debian:12", "1", "1Gi", settings, metadata, {"A": "$(B)"})["spec"]
    given = {variable["name"]: variable["value"] for variable in spec["containers"][0]["env"]}
    assert given == {**launch.ENVIRONMENT, VARIABLES: packed({"A": "$(B)"})}
    assert VARIABLES not in str(spec["initContainers"])


def test_it_asks_for_less_than_it_may_use(settings: KubernetesSettings) -> None:
    resources = made(settings, cpu="2", memory="1Gi")["spec"]["containers"][0]["resources"]
    assert resources["limits"] == {"cpu": "2", "memory": "1Gi", "ephemeral-storage": "16Gi"}
    assert resources["requests"] == {"cpu": "500m", "memory": f"{1 << 30}", "ephemeral-storage": "1Gi"}


@pytest.mark.parametrize(("cpu", "memory"), [("four", "1Gi"), ("0", "1Gi"), ("1", "-1"), ("1", "")])
def test_quantities_that_are_none_are_refused(settings: KubernetesSettings, cpu: str, memory: str) -> None:
    with pytest.raises(SandboxRequestInvalid):
        made(settings, cpu=cpu, memory=memory)


def test_labels_that_kubernetes_cannot_have_are_kept_all_the_same(settings: KubernetesSettings) -> None:
    labels = {"campaign": "nightly", "rollout": "a b/c", "bad name": "x"}
    manifest = made(settings, labels=labels)
    assert manifest["metadata"]["labels"]["labels.orchard/campaign"] == "nightly"
    assert not any("a b" in value for value in manifest["metadata"]["labels"].values())
    decoded = msgspec.json.decode(json.dumps(manifest).encode(), type=Pod)
    info = pods.info(decoded, "sandboxes", judge(decoded, settings, NOW))
    assert info.labels == labels


def test_what_cannot_be_enforced_is_said(settings: KubernetesSettings) -> None:
    sandbox = pod(birth=born(pids=10))
    assert "podPidsLimit" in pods.info(sandbox, "sandboxes", judge(sandbox, settings, NOW)).status_message


def test_a_way_out_is_for_one_sandbox_and_goes_with_its_pod(settings: KubernetesSettings) -> None:
    sandbox = pod(birth=born(block_network=False))
    policy = policies.allowance(sandbox, settings)
    assert policy["spec"]["podSelector"] == {"matchLabels": {pod_metadata.AGENT: "sandbox-a"}}
    assert policy["spec"]["policyTypes"] == ["Egress"]
    assert policy["metadata"]["ownerReferences"][0]["uid"] == sandbox.uid
    world, world6 = (peer["ipBlock"] for peer in policy["spec"]["egress"][0]["to"])
    assert (world["cidr"], world6["cidr"]) == ("0.0.0.0/0", "::/0")
    assert "169.254.0.0/16" in world["except"], "the cloud's metadata stay out of reach"


@pytest.mark.parametrize(
    "image",
    ["a/b:1", "a/b", "a/b@sha256:12", f"{DIGEST}/a:1", f"a@{DIGEST}:1", f"a@{DIGEST}\n", f"a@{DIGEST}0"],
)
def test_what_is_behind_a_tag_is_refused_where_images_are_named_by_digest(
    settings: KubernetesSettings, image: str
) -> None:
    strict = msgspec.structs.replace(settings, images_by_digest=True)
    made(settings, image=image)
    with pytest.raises(SandboxRequestInvalid, match="not named by digest"):
        made(strict, image=image)
    for named in (f"a/b@{DIGEST}", f"registry.example:5000/a/b:1@{DIGEST}"):
        (container,) = made(strict, image=named)["spec"]["containers"]
        assert container["image"] == named


class TestSettings:
    def test_only_the_agents_image_must_be_named(self, tmp_path: Path) -> None:
        file = tmp_path / "kubernetes.toml"
        file.write_text('agent_image = "x"\n[warm."debian:12"]\ncount = 2\n')
        settings = load(file)
        assert (settings.namespace, settings.warm["debian:12"].count) == ("orchard-sandboxes", 2)

    @pytest.mark.parametrize(
        ("text", "word"),
        [
            ("", "agent_image"),
            ('agent_image = "x"\nnamspace = "y"\n', "namspace"),
            ('agent_image = "x"\nephemeral_storage = "much"\n', "ephemeral_storage"),
            ('agent_image = "x"\nephemeral_storage = "1Mi"\n', "ephemeral_storage_request"),
            ('agent_image = "x"\nport = "\n', "kubernetes.toml"),
            ('agent_image = "x"\nimages_by_digest = true\n', "`x` is not named by digest"),
            (
                f'agent_image = "x@{DIGEST}"\nimages_by_digest = true\n[warm."y:1"]\ncount = 1\n',
                "`y:1` is not",
            ),
        ],
    )
    def test_a_mistake_is_named_with_its_file(self, tmp_path: Path, text: str, word: str) -> None:
        file = tmp_path / "kubernetes.toml"
        file.write_text(text)
        with pytest.raises(SandboxRequestInvalid, match=word) as caught:
            load(file)
        assert str(file) in caught.value.detail

    def test_a_file_that_is_not_there_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(SandboxRequestInvalid, match=r"none\.toml"):
            load(tmp_path / "none.toml")


def test_where_pods_have_ipv6_addresses_agents_listen_on_them(settings: KubernetesSettings) -> None:
    for host in ("0.0.0.0", "::"):
        told = msgspec.structs.replace(settings, agent_host=host)
        command = pods.manifest("sandbox-x", "x", "image", "1", "1Gi", told, {})["spec"]["containers"][0][
            "command"
        ]
        assert command[command.index("--host") + 1] == host
