"""Layers of programs: images of the sandbox service, named by program, version and digest."""

import hashlib
import json
import os
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from orchard.injector.agent import layer_files
from orchard.injector.agent.local.archives import ARCHITECTURES
from orchard.injector.agent.local.images import ImageStore
from orchard.injector.client import AsyncSandboxClient
from orchard.injector.errors import SandboxUnsupported
from orchard.schemas.outcomes import AbortCause
from orchard.schemas.sandboxes import ImageInfo
from orchard.workers.episode.sandboxes import classified
from orchard.workers.failures import InfrastructureError

_MEDIA = "application/vnd.oci.image"


class Layer(NamedTuple):
    program: str
    version: str
    digest: str
    """SHA-256 of the archive of its files."""

    @property
    def image(self) -> str:
        return f"orchard-program/{self.program}:{self.version}-{self.digest}"


def layers_among(images: Iterable[ImageInfo]) -> list[tuple[Layer, ImageInfo]]:
    """Selects the layers among the images of a service, newest first."""
    found = [
        (Layer(*match.groups()), image)
        for image in images
        if (match := layer_files.NAME.fullmatch(image.name))
    ]
    return sorted(found, key=lambda pair: pair[1].created_at or 0.0, reverse=True)


def stored_images(state: Path) -> list[ImageInfo]:
    """Lists the images in the state directory of a local sandbox service, which need not be running."""
    return [
        ImageInfo(
            name=image.name,
            layers=len(image.layers),
            sandboxes=0,
            shared=image.owner is None,
            size=image.size,
            created_at=image.created_at,
        )
        for image in ImageStore(state).all()
    ]


async def installed(client: AsyncSandboxClient, program: str) -> Layer:
    """Returns the program's newest layer. Raises InfrastructureError (HARNESS_MISSING) if there is none."""
    try:
        with classified():
            images = await client.list_images()
    except InfrastructureError as error:
        if not isinstance(error.__cause__, SandboxUnsupported):
            raise
        raise InfrastructureError(
            AbortCause.HARNESS_MISSING,
            f"the harness {program} is a program, and this sandbox service has no layers for programs: use "
            "sandboxes of one machine, or on a cluster name its image in `layers` of kubernetes.toml",
        ) from error
    layers = (layer for layer, _ in layers_among(images) if layer.program == program)
    if (newest := next(layers, None)) is None:
        raise InfrastructureError(
            AbortCause.HARNESS_MISSING,
            f"the harness {program} is not installed at this sandbox service: run `orchard harness install "
            f"{program}`",
        )
    return newest


def layout(files: Path, program: str, version: str, target: Path) -> Layer:
    """Writes the directory `files` as the OCI layout `target`, which registries' tools can read. Equal files
    give equal bytes."""
    blobs = target / "blobs/sha256"
    blobs.mkdir(parents=True)
    with (target / "layer").open("xb") as file:
        digest = layer_files.pack(files, file.write)
    size = (target / "layer").stat().st_size
    (target / "layer").rename(blobs / digest)
    layer = Layer(program, version, digest)
    tar = {"mediaType": f"{_MEDIA}.layer.v1.tar", "digest": f"sha256:{digest}", "size": size}
    config = {
        "architecture": ARCHITECTURES[os.uname().machine],
        "os": "linux",
        "config": {},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_MEDIA}.manifest.v1+json",
        "config": _blob(blobs, f"{_MEDIA}.config.v1+json", config),
        "layers": [tar],
    }
    named = _blob(blobs, str(manifest["mediaType"]), manifest)
    # What containerd calls it, so that an archive can be loaded on a node without a registry.
    named["annotations"] = {"io.containerd.image.name": f"docker.io/{layer.image}"}
    index = {"schemaVersion": 2, "mediaType": f"{_MEDIA}.index.v1+json", "manifests": [named]}
    (target / "index.json").write_text(json.dumps(index))
    (target / "oci-layout").write_text(json.dumps({"imageLayoutVersion": "1.0.0"}))
    return layer


def packed(layout: Path, archive: Path) -> Path:
    """Packs the layout as one tar archive, for a service on another machine or a registry's tools."""
    partial = archive.with_name(f"{archive.name}.partial")
    with tarfile.open(partial, "w") as tar:
        for path in sorted(layout.rglob("*")):
            tar.add(path, path.relative_to(layout).as_posix(), recursive=False)
    return partial.rename(archive)


def _blob(blobs: Path, media: str, document: dict[str, Any]) -> dict[str, Any]:
    raw = json.dumps(document, sort_keys=True).encode()
    digest = hashlib.sha256(raw).hexdigest()
    (blobs / digest).write_bytes(raw)
    return {"mediaType": media, "digest": f"sha256:{digest}", "size": len(raw)}
