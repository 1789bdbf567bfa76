"""Imports images: OCI image layouts and `docker save` archives, as directories or tar files."""

import hashlib
import json
import os
import tarfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from orchard.injector.agent.errors import RequestInvalid
from orchard.injector.agent.local.images import (
    DEFAULT_ENVIRONMENT,
    ImageStore,
    StoredImage,
    check_layers,
    check_name,
    tree_size,
)
from orchard.injector.agent.local.layers import SizeBudget, unpack
from orchard.injector.agent.local.references import DIGEST

_NAME_ANNOTATIONS = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
IMAGE_LIMIT = 64 * 1024**3
"""Default limit of the bytes that an image's new layers may take."""


class _Source(Protocol):
    def has(self, path: str) -> bool: ...

    def open(self, path: str) -> BinaryIO:
        """Raises RequestInvalid when there is no such file."""


@dataclass(frozen=True)
class _Layer:
    path: str
    digest: str | None


@dataclass(frozen=True)
class _Found:
    names: list[str]
    config: str
    layers: list[_Layer]
    config_digest: str | None = None


def import_image(
    state: Path,
    path: Path,
    name: str | None = None,
    *,
    owner: str | None = None,
    digest: str | None = None,
    limit: int = IMAGE_LIMIT,
) -> StoredImage:
    """Import the image at `path` into the store of `state`, as `name` or under the archive's own name.

    Layers that exist already are not unpacked again. `digest` is the manifest's at the registry, `limit` the
    bytes that new layers may take. Raises RequestInvalid for whatever is wrong with the archive, and Conflict
    when another owner has the name; the store is then unchanged.
    """
    store = ImageStore(state)
    with _opened(path) as source:
        found = _choose(list(_images(source)), name, path)
        name = name or (found.names[0] if found.names else None)
        if name is None:
            raise RequestInvalid(f"{path} does not name its image: give the name with the request")
        check_name(name)
        config = _json(source, found.config, found.config_digest)
        about = config.get("config") or {}
        wanted = ARCHITECTURES[os.uname().machine]
        if config.get("architecture", wanted) != wanted:
            raise RequestInvalid(
                f"{name} is an image for {config['architecture']}, and this machine is"
                f" {wanted}: import one for {wanted}"
            )
        diff_ids = config.get("rootfs", {}).get("diff_ids", [])
        if len(diff_ids) != len(found.layers) or not all(DIGEST.fullmatch(diff_id) for diff_id in diff_ids):
            raise RequestInvalid(
                f"the configuration of {name} has {len(diff_ids)} layers and its manifest"
                f" {len(found.layers)}: save the image again"
            )
        store.check_replaceable(name, owner)
        # Of a layer that is there twice the lower one cannot be seen, and overlayfs takes each once.
        layers = [*dict.fromkeys(diff_id.replace(":", "-") for diff_id in reversed(diff_ids))]
        check_layers(name, layers)
        with store.scratch() as work:
            room = SizeBudget(limit)
            made: dict[str, Path] = {}
            here = store.has(owner)
            for layer, diff_id in zip(found.layers, diff_ids, strict=True):
                layer_name = diff_id.replace(":", "-")
                if layer_name not in made and layer_name not in here:
                    made[layer_name] = work / layer_name
                    with source.open(layer.path) as blob:
                        unpack(blob, work / layer_name, digest=layer.digest, diff_id=diff_id, room=room)
            image = StoredImage(
                name=name,
                layers=layers,
                environment=_environment(about),
                user=about.get("User") or "",
                working_directory="/" + (about.get("WorkingDir") or "").lstrip("/"),
                owner=owner,
                digest=digest,
                size=sum(tree_size(made.get(layer, store.layer(layer))) for layer in layers),
                created_at=time.time(),
                entrypoint=about.get("Entrypoint") or [],
                command=about.get("Cmd") or [],
            )
            store.check_replaceable(name, owner)  # somebody else's may have come meanwhile
            for layer_name, directory in made.items():
                store.publish(directory, layer_name)
            store.save(image)
    return image


def _environment(about: Mapping[str, Any]) -> dict[str, str]:
    pairs = (entry.partition("=") for entry in about.get("Env") or [])
    return {**DEFAULT_ENVIRONMENT, **{name: value for name, _, value in pairs}}


def _images(source: _Source) -> Iterator[_Found]:
    if source.has("index.json"):
        yield from _of_index(source, _json(source, "index.json"), [])
    elif source.has("manifest.json"):
        for manifest in _json(source, "manifest.json"):
            layers = [_Layer(path, None) for path in manifest["Layers"]]
            yield _Found(manifest.get("RepoTags") or [], manifest["Config"], layers)
    else:
        raise RequestInvalid(
            "neither an OCI image layout (index.json) nor a `docker save` archive (manifest.json)"
        )


def _of_index(source: _Source, index: Mapping[str, Any], names: list[str]) -> Iterator[_Found]:
    wanted = ARCHITECTURES[os.uname().machine]
    for entry in index.get("manifests", []):
        platform = entry.get("platform") or {}
        if platform.get("architecture", wanted) != wanted or platform.get("os", "linux") != "linux":
            continue
        annotations = entry.get("annotations") or {}
        called = [annotations[key] for key in _NAME_ANNOTATIONS if key in annotations] or names
        manifest = _json(source, _blob(entry["digest"]), entry["digest"])
        if "manifests" in manifest:
            yield from _of_index(source, manifest, called)
        else:
            layers = [_Layer(_blob(layer["digest"]), layer["digest"]) for layer in manifest["layers"]]
            digest = manifest["config"]["digest"]
            yield _Found(called, _blob(digest), layers, digest)


def _choose(found: list[_Found], name: str | None, path: Path) -> _Found:
    named = [image for image in found if name in image.names]
    if len(named or found) == 1:
        return (named or found)[0]
    if not found:
        raise RequestInvalid(f"{path} has no image for Linux on {os.uname().machine}")
    names = ", ".join(image.names[0] if image.names else "(unnamed)" for image in found)
    raise RequestInvalid(f"{path} has several images ({names}): name the one to import")


def _blob(digest: str) -> str:
    if not DIGEST.fullmatch(digest):
        raise RequestInvalid(f"`{digest}` is not a SHA-256 digest")
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"


def _json(source: _Source, path: str, digest: str | None = None) -> Any:
    with source.open(path) as file:
        data = file.read()
    if digest is not None and digest != f"sha256:{hashlib.sha256(data).hexdigest()}":
        raise RequestInvalid(
            f"{path} of the image does not have the SHA-256 of its name: save the image again"
        )
    try:
        return json.loads(data)
    except ValueError as error:
        raise RequestInvalid(f"{path} of the image is not JSON: save the image again") from error


@contextmanager
def _opened(path: Path) -> Iterator[_Source]:
    if path.is_dir():
        yield _Directory(path)
        return
    try:
        with tarfile.open(path) as archive:
            yield _Archive(archive)
    except FileNotFoundError:
        raise RequestInvalid(f"there is no image archive {path}") from None
    except tarfile.TarError as error:
        raise RequestInvalid(
            f"{path} is no tar archive or is cut short ({error}): save the image again"
        ) from error


class _Directory:
    def __init__(self, path: Path) -> None:
        self._path = path.resolve()

    def has(self, path: str) -> bool:
        return (self._path / path).is_file()

    def open(self, path: str) -> BinaryIO:
        file = (self._path / path).resolve()
        if not file.is_relative_to(self._path) or not file.is_file():
            raise RequestInvalid(f"the image lacks its file {path}: save the image again")
        return file.open("rb")


class _Archive:
    def __init__(self, archive: tarfile.TarFile) -> None:
        self._archive = archive
        self._members = {member.name.removeprefix("./"): member for member in archive}

    def has(self, path: str) -> bool:
        return path in self._members

    def open(self, path: str) -> BinaryIO:
        file = self._archive.extractfile(self._members[path]) if self.has(path) else None
        if file is None:
            raise RequestInvalid(f"the image lacks its file {path}: save the image again")
        return cast(BinaryIO, file)
