"""Pulls an image from a registry: its blobs become an OCI image layout, which is then imported.

Nothing is kept of a pull that fails. Layers that the store has are not downloaded.
"""

import asyncio
import hashlib
import json
import os
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchard.injector.agent.errors import AgentError, NotFound, RequestInvalid
from orchard.injector.agent.local.archives import ARCHITECTURES, IMAGE_LIMIT, import_image
from orchard.injector.agent.local.images import ImageStore, StoredImage, check_name
from orchard.injector.agent.local.references import DIGEST, Reference, parse
from orchard.injector.agent.local.registry import (
    DOCUMENT_LIMIT,
    Credentials,
    PullRetry,
    Registry,
    RegistryUnavailable,
)
from orchard.injector.agent.local.ssrf_guard import REFUSED

AT_ONCE = 3
PULL_SECONDS = 3600.0
_INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)


@dataclass(frozen=True, kw_only=True)
class Pull:
    reference: str
    name: str | None = None
    credentials: Credentials | None = None
    plain_http: bool = False
    public_only: bool = False
    """Permit no registry at a private address."""
    owner: str | None = None
    limit: int = IMAGE_LIMIT
    """Bytes that its new layers may take, compressed and then unpacked."""
    seconds: float = PULL_SECONDS


@dataclass(frozen=True, kw_only=True)
class _Descriptor:
    digest: str
    size: int


def pull(
    state: Path,
    wanted: Pull,
    patience: PullRetry | None = None,
    *,
    run: Callable[[Coroutine[Any, Any, str]], str] = asyncio.run,
) -> StoredImage:
    """Pull an image into the store of `state`; `run` executes the download's coroutine. Blocks.

    Raises what `Registry` and `import_image` raise, and RegistryUnavailable on timeout.
    """
    reference = parse(wanted.reference)
    name = wanted.name or wanted.reference
    check_name(name)
    store = ImageStore(state)
    store.check_replaceable(name, wanted.owner)
    if reference.digest is not None and (there := _there(store, name, reference.digest, wanted.owner)):
        return there
    with store.scratch() as work:
        digest = run(_download(store, work, reference, wanted, patience))
        there = _there(store, name, digest, wanted.owner)
        return there or import_image(state, work, name, owner=wanted.owner, digest=digest, limit=wanted.limit)


def _there(store: ImageStore, name: str, digest: str, owner: str | None) -> StoredImage | None:
    """Return the image if it is here already, equal to the registry's."""
    try:
        image = store.find(name, owner)
    except NotFound:
        return None
    whole = image.digest == digest and all(store.layer(layer).is_dir() for layer in image.layers)
    return image if whole and image.owner == owner else None


async def _download(
    store: ImageStore, work: Path, reference: Reference, wanted: Pull, patience: PullRetry | None
) -> str:
    """Fill `work` with an OCI image layout, less the layers that exist here. Returns the image's digest."""
    registry = Registry(
        reference,
        wanted.credentials,
        plain_http=wanted.plain_http,
        public_only=wanted.public_only,
        patience=patience,
    )
    try:
        async with asyncio.timeout(wanted.seconds), registry:
            return await _Download(registry, store.has(wanted.owner), work, reference, wanted.limit).run()
    except TimeoutError:
        raise RegistryUnavailable(
            f"{wanted.reference} was not pulled within {wanted.seconds:g} s, and nothing of"
            " it is kept: try again"
        ) from None


class _Download:
    def __init__(
        self, registry: Registry, here: set[str], work: Path, reference: Reference, limit: int
    ) -> None:
        self._registry = registry
        self._here = here
        self._work = work
        self._blobs = work / "blobs" / "sha256"
        self._reference = reference
        self._limit = limit

    async def run(self) -> str:
        self._blobs.mkdir(parents=True)
        asked = self._reference.digest or self._reference.tag
        data, digest = await self._registry.manifest(asked)
        manifest = self._object(data)
        if "manifests" in manifest or manifest.get("mediaType") in _INDEXES:
            data, _ = await self._registry.manifest(self._of_this_machine(manifest))
            manifest = self._object(data)
        if not isinstance(manifest.get("layers"), list):
            raise self._refused("is in a form that is no longer in use: push it again with a newer program")
        layers = [self._descriptor(layer) for layer in manifest["layers"]]
        config = self._descriptor(manifest.get("config"))
        if config.size > DOCUMENT_LIMIT:
            raise self._refused(f"has a configuration of {config.size} bytes")
        await self._blob(config)
        missing = self._missing(layers, self._object((self._blobs / config.digest[7:]).read_bytes()))
        size = sum(missing.values())
        if size > self._limit:
            raise RequestInvalid(
                f"{self._reference.repository} has {size} bytes of compressed layers, and {self._limit} are "
                "allowed: raise ORCHARD_IMAGE_LIMIT, or use a smaller one",
                reason="image_too_large",
            )
        slots = asyncio.Semaphore(AT_ONCE)

        async def fetch(layer: _Descriptor) -> None:
            async with slots:
                await self._blob(layer)

        try:
            async with asyncio.TaskGroup() as group:
                for layer_digest, layer_size in missing.items():
                    group.create_task(fetch(_Descriptor(digest=layer_digest, size=layer_size)))
        except* AgentError as group_of_errors:
            raise _first(group_of_errors) from None
        self._write_layout(data)
        return digest

    def _missing(self, layers: list[_Descriptor], config: Mapping[str, Any]) -> dict[str, int]:
        """Digests and sizes of the layers that are not here, which are known by the digest of their tar."""
        diff_ids = (config.get("rootfs") or {}).get("diff_ids")
        if not isinstance(diff_ids, list) or len(diff_ids) != len(layers):
            raise self._refused("has a configuration that does not match its layers")
        return {
            layer.digest: layer.size
            for layer, diff_id in zip(layers, diff_ids, strict=True)
            if str(diff_id).replace(":", "-") not in self._here
        }

    async def _blob(self, one: _Descriptor) -> None:
        await self._registry.blob(one.digest, one.size, self._blobs / one.digest.removeprefix("sha256:"))

    def _of_this_machine(self, index: Mapping[str, Any]) -> str:
        machine = os.uname().machine
        wanted = ARCHITECTURES[machine]
        entries = index.get("manifests")
        for entry in entries if isinstance(entries, list) else []:
            platform = (entry.get("platform") if isinstance(entry, dict) else None) or {}
            if (platform.get("os"), platform.get("architecture")) == ("linux", wanted):
                return self._descriptor(entry).digest
        raise self._refused(f"has no image for Linux on {machine}")

    def _descriptor(self, one: Any) -> _Descriptor:
        digest, size = (one.get("digest"), one.get("size")) if isinstance(one, dict) else (None, None)
        if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
            raise self._refused(f"names `{str(digest)[:100]}` where a SHA-256 digest should be")
        if not isinstance(size, int) or size < 0:
            raise self._refused(f"gives {digest} no size")
        return _Descriptor(digest=digest, size=size)

    def _object(self, data: bytes) -> dict[str, Any]:
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise self._refused("has a part that should be a JSON object and is none")
        return found

    def _refused(self, what: str) -> RequestInvalid:
        return RequestInvalid(
            f"{self._reference.repository} of {self._reference.registry} {what}", reason=REFUSED
        )

    def _write_layout(self, manifest: bytes) -> None:
        digest = hashlib.sha256(manifest).hexdigest()
        (self._blobs / digest).write_bytes(manifest)
        index = {"manifests": [{"digest": f"sha256:{digest}"}]}
        (self._work / "index.json").write_text(json.dumps(index))


def _first(errors: BaseExceptionGroup[AgentError]) -> AgentError:
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
