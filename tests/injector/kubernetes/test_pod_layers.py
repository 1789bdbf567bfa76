"""The layer of a harness program as part of a Pod, and what the agent's program does to put it there."""

import hashlib
import os
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from orchard.injector.agent import layer_files
from orchard.injector.errors import SandboxRequestInvalid, SandboxUnsupported
from orchard.injector.kubernetes import pod_extras, pod_metadata, pods, warm
from orchard.injector.kubernetes.api import ClusterApi
from orchard.injector.kubernetes.demand import Demand
from orchard.injector.kubernetes.images import ClusterImages
from orchard.injector.kubernetes.objects import Manifest
from orchard.injector.kubernetes.prepull import Prepull
from orchard.injector.kubernetes.settings import KubernetesSettings, Volume, WarmPool, load
from orchard.injector.payload import launch
from orchard.schemas.sandboxes import CreateSandbox, ImageInfo
from orchard.workers.harnesses.programs.layers import layers_among
from tests.injector.kubernetes.conftest import born

DIGEST = "0123456789abcdef" * 4
NAME = f"orchard-program/codex:0.169.0-{DIGEST}"
OLD = f"orchard-program/codex:0.168.0-{DIGEST}"
IMAGE = f"registry.example/codex@sha256:{DIGEST}"
AGENT = f"registry.example/agent@sha256:{DIGEST}"


@pytest.fixture
def settings() -> KubernetesSettings:
    return KubernetesSettings(
        agent_image=AGENT,
        ephemeral_storage="20Gi",
        gpus=1,
        layers={NAME: IMAGE, OLD: "old"},
        volumes={"data": Volume(claim="data")},
        warm={"debian:12": WarmPool(count=1, cpu="1", memory="1Gi")},
    )


async def made(settings: KubernetesSettings, *layers: str, gpus: int = 0) -> Manifest:
    birth = born(layers=list(layers), gpus=gpus)
    body = pods.manifest("n", "a", "debian:12", "1", "1Gi", settings, pod_metadata.claim_metadata("a", birth))
    await pod_extras.add(body, birth.request, settings)
    return body


async def test_a_layer_is_copied_before_the_agent_starts_and_read_only_beside_it(
    settings: KubernetesSettings,
) -> None:
    plain, spec = (await made(settings))["spec"], (await made(settings, NAME, gpus=1))["spec"]
    installer, copier = spec["initContainers"]
    assert installer == plain["initContainers"][0]
    assert copier["image"] == IMAGE
    words = ("--layer", "/opt/orchard/programs", "--into", "/layer", "--digest", DIGEST)
    assert copier["command"] == launch.command("/orchard", *words), "nothing of the layer is executed"
    assert copier["volumeMounts"] == [
        {"name": "orchard", "mountPath": "/orchard", "readOnly": True},
        {"name": "layer", "mountPath": "/layer"},
    ]
    assert copier["securityContext"] == installer["securityContext"]
    (main,), (without,) = spec["containers"], plain["containers"]
    mount = {"name": "layer", "mountPath": "/opt/orchard/programs", "readOnly": True}
    assert main["volumeMounts"] == [*without["volumeMounts"], mount]


async def test_a_layer_counts_as_the_sandboxes_storage_and_the_pod_asks_its_node_for_no_more(
    settings: KubernetesSettings,
) -> None:
    spec = (await made(settings, NAME, gpus=1))["spec"]
    assert {"name": "layer", "emptyDir": {"sizeLimit": "20Gi"}} in spec["volumes"]
    (main,) = spec["containers"]
    for kind, amounts in spec["initContainers"][1]["resources"].items():
        assert amounts["ephemeral-storage"], kind
        assert amounts.items() <= main["resources"][kind].items()
        assert settings.gpu_resource not in amounts


@pytest.mark.parametrize(
    ("layers", "word"),
    [(["orchard-program/other:1"], "named no image .* `orchard harness install"), ([NAME, OLD], "one layer")],
)
async def test_what_the_administrator_has_not_named_is_refused(
    settings: KubernetesSettings, layers: list[str], word: str
) -> None:
    with pytest.raises(SandboxRequestInvalid, match=word):
        await made(settings, *layers)
    body = pods.manifest("n", "a", "debian:12", "1", "1Gi", settings, {})
    with_program = CreateSandbox(image="debian:12", programs=["codex"])
    with pytest.raises(SandboxRequestInvalid, match="no programs on the PATH, and `codex`"):
        await pod_extras.add(body, with_program, settings)
    over = CreateSandbox(image="debian:12", volumes={"data": f"{layer_files.PLACE}/lib"})
    with pytest.raises(SandboxRequestInvalid, match="no volume can be mounted"):
        await pod_extras.add(body, over, settings)


def test_a_sandbox_with_a_layer_is_no_warm_pod(settings: KubernetesSettings) -> None:
    request = CreateSandbox(image="debian:12", cpu="1", memory="1Gi")
    assert warm.pool_for(request, settings) is not None
    assert warm.pool_for(msgspec.structs.replace(request, layers=[NAME]), settings) is None
    assert warm.pool_for(msgspec.structs.replace(request, programs=["codex"]), settings) is None


async def test_workers_are_told_of_the_layers_and_take_the_first(
    api: ClusterApi, settings: KubernetesSettings
) -> None:
    def images_of(settings: KubernetesSettings) -> ClusterImages:
        return ClusterImages(settings, Demand(api, settings.namespace), Prepull(api, settings))

    images = images_of(settings)
    told = layers_among(await images.call(list[ImageInfo], "GET", "/images"))
    assert [layer.image for layer, _ in told] == [NAME, OLD]
    with pytest.raises(SandboxUnsupported, match=r"kubernetes\.toml"):
        await images.call(ImageInfo, "POST", "/images/pull")
    bare = msgspec.structs.replace(settings, layers={})
    with pytest.raises(SandboxUnsupported, match="registries"):
        await images_of(bare).call(list[ImageInfo], "GET", "/images")


@pytest.mark.parametrize(
    ("line", "word"),
    [
        (f'"{NAME}" = "codex:1"', "`codex:1` is not named by digest"),
        (f'"codex" = "{IMAGE}"', "`codex` is not the name of a layer"),
        (f'"{NAME}" = "{IMAGE}"', None),
    ],
)
def test_settings_name_layers_as_they_are_printed_and_images_by_digest(
    tmp_path: Path, line: str, word: str | None
) -> None:
    file = tmp_path / "kubernetes.toml"
    file.write_text(f'agent_image = "{AGENT}"\nimages_by_digest = true\n[layers]\n{line}\n')
    if word is None:
        assert load(file).layers == {NAME: IMAGE}
    else:
        with pytest.raises(SandboxRequestInvalid, match=word):
            load(file)


class TestCopying:
    @pytest.fixture
    def files(self, tmp_path: Path) -> Path:
        files = tmp_path / "files"
        (files / "bin").mkdir(parents=True)
        (files / "empty").mkdir()
        (files / "bin/program").write_text("program")
        (files / "bin/program").chmod(0o755)
        (files / "bin/link").symlink_to("program")
        (files / "data").write_bytes(bytes(3000))
        return files

    @staticmethod
    def copied(files: Path, target: Path, digest: str) -> "subprocess.CompletedProcess[str]":
        """By the program that the payload is."""
        target.mkdir(exist_ok=True)
        words = ["--layer", str(files), "--into", str(target), "--digest", digest]
        line = [sys.executable, "-m", "orchard.injector.payload.entry", *words]
        return subprocess.run(line, capture_output=True, text=True, check=False)

    def test_the_copy_is_what_the_digest_names_however_often_it_is_made(
        self, files: Path, tmp_path: Path
    ) -> None:
        pieces: list[bytes] = []
        digest = layer_files.pack(files, pieces.append)
        assert digest == hashlib.sha256(b"".join(pieces)).hexdigest()
        (files / "bin/program").chmod(0o4755)  # an image may say more of a file than its digest does
        for _ in range(2):  # a kubelet that starts a Pod anew runs its init containers again
            done = self.copied(files, tmp_path / "target", digest)
            assert (done.returncode, done.stderr) == (0, "")
        assert (tmp_path / "target/bin/link").read_text() == "program"
        assert stat.S_IMODE((tmp_path / "target/bin/program").stat().st_mode) == 0o755
        assert (tmp_path / "target/empty").is_dir()

    @pytest.mark.parametrize("change", ["content", "executable", "more", "gone"])
    def test_other_files_are_refused(self, files: Path, tmp_path: Path, change: str) -> None:
        digest = layer_files.pack(files, lambda _: None)
        match change:
            case "content":
                (files / "data").write_bytes(bytes(2999) + b"x")
            case "executable":
                (files / "data").chmod(0o755)
            case "more":
                (files / "bin/more").write_text("")
            case _:
                files.rename(tmp_path / "elsewhere")
        done = self.copied(files, tmp_path / "target", digest)
        assert done.returncode == 1
        assert f"in place of {digest}" in done.stderr and done.stderr.count(os.linesep) == 1
