"""The image store of a state directory: names, and layers shared by any number of images and sandboxes.

    images/<hash of the name>.json   the image: its name, its layers (topmost first), environment, ...
    layers/<layer>/                  one unpacked layer, complete, never changed after it got this name
    tmp/                             work in progress and what is being removed; emptied at start

Everything appears by a rename, so a killed import or snapshot leaves nothing half-visible.
"""

import asyncio
import fcntl
import hashlib
import json
import os
import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from orchard.injector.agent.errors import Conflict, NotFound, RequestInvalid
from orchard.injector.agent.files import remove_tree
from orchard.injector.agent.local.overlay import MAX_LAYERS

HOST = "host"
"""Name of the image that is the machine's own root file system, and of its layers within other images."""

FORK = "fork-"
"""Prefix of the names of layers that are removed once nothing uses them."""

DEFAULT_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
}


@dataclass(frozen=True, kw_only=True)
class StoredImage:
    """A named stack of layers, topmost first, with the defaults of its commands."""

    name: str
    layers: Sequence[str]
    environment: dict[str, str] = field(default_factory=dict)
    working_directory: str = "/"
    user: str = ""
    """Default user of commands: a name or number of the image, perhaps with `:group`; empty: root."""
    owner: str | None = None
    """The key whose sandbox it was made from, or that imported it; None: it is for all."""
    digest: str | None = None
    """Digest that the registry gave for its name."""
    size: int | None = None
    """Bytes of the files of all layers; None: not measured."""
    created_at: float | None = None
    """When it was added here, in epoch seconds."""
    entrypoint: Sequence[str] = field(default_factory=list)
    """The program that a container of the image runs, with its first arguments. Sandboxes do not run it."""
    command: Sequence[str] = field(default_factory=list)
    """Its further arguments, or the program if there is no entrypoint."""


class ImageStore:
    """Images below a state directory. Any process may import while an agent runs."""

    def __init__(self, state: Path) -> None:
        self._names = state / "images"
        self._layers = state / "layers"
        self._tmp = state / "tmp"
        self._held: Counter[str] = Counter()
        self._counting = threading.Lock()
        for directory in (self._names, self._layers, self._tmp):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def names(self) -> list[str]:
        return [image.name for image in self.all()]

    def all(self) -> list[StoredImage]:
        return sorted(self._stored(), key=lambda image: image.name)

    def find(self, name: str, owner: str | None = None) -> StoredImage:
        """Return the image. Raises NotFound (`image_missing`), also for another owner's, and says how to
        get it."""
        if name == HOST:
            return StoredImage(name=HOST, layers=[HOST], environment=dict(DEFAULT_ENVIRONMENT))
        try:
            image = self._read(name)
            if owner is not None and image.owner not in (None, owner):
                raise FileNotFoundError(name)
            return image
        except FileNotFoundError:
            raise NotFound(
                f"there is no image `{name}` on this machine: fetch it with `orchard images pull {name}`, or "
                f"save it elsewhere with `docker save {name} -o image.tar` and bring it with `orchard images "
                f"import image.tar --name {name}` (in programs: the client's `pull_image`, `import_image`)",
                reason="image_missing",
            ) from None

    def _read(self, name: str) -> StoredImage:
        return StoredImage(**json.loads(self._path(name).read_text()))

    def _stored(self) -> Iterator[StoredImage]:
        for path in self._names.glob("*.json"):
            with suppress(FileNotFoundError):  # removed meanwhile
                yield StoredImage(**json.loads(path.read_text()))

    def has(self, owner: str | None) -> set[str]:
        """Layers of the images that `owner` may use.

        Layers of others' images must be uploaded again: a layer's name is no secret, its content may be one.
        """
        seen = (image for image in self._stored() if owner is None or image.owner in (None, owner))
        return {layer for image in seen for layer in image.layers if self.layer(layer).is_dir()}

    def delete(self, name: str) -> None:
        """Delete the name; `sweep` removes its layers."""
        self._path(name).unlink(missing_ok=True)

    def layer(self, name: str) -> Path:
        return self._layers / name

    def save(self, image: StoredImage) -> None:
        """Make the image visible, replacing an older one of its name. Raises RequestInvalid for a bad
        name."""
        check_name(image.name)
        check_layers(image.name, image.layers)
        with self.scratch() as work:
            (work / "image.json").write_text(json.dumps(asdict(image)))
            (work / "image.json").rename(self._path(image.name))

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A new directory for work in progress, on the file system of the layers; removed at the end."""
        with self.locked(fcntl.LOCK_SH):
            work = self._tmp / uuid.uuid4().hex
            work.mkdir(mode=0o700)
            try:
                yield work
            finally:
                remove_tree(work)

    def publish(self, work: Path, layer: str) -> None:
        """Give a finished directory its name among the layers; an existing layer of that name stays."""
        try:
            work.rename(self.layer(layer))
        except OSError:
            if not self.layer(layer).is_dir():
                raise

    def clean(self) -> None:
        """Remove unfinished work and unused layers, unless an import is running. Blocks."""
        with suppress(BlockingIOError), self.locked(fcntl.LOCK_EX | fcntl.LOCK_NB):
            for path in self._tmp.iterdir():
                remove_tree(path)
            self._unused(forks=True)
            for path in self._tmp.iterdir():
                remove_tree(path)

    def sweep(self) -> list[Path]:
        """Move layers that no image and no sandbox of this process uses out of the way; returns what to
        remove.

        Returns nothing while an import is running: a later sweep finds them. Layers of forks are left to
        `release`.
        """
        with suppress(BlockingIOError), self.locked(fcntl.LOCK_EX | fcntl.LOCK_NB):
            return self._unused(forks=False)
        return []

    def _unused(self, *, forks: bool) -> list[Path]:
        kept = self._used()
        with self._counting:
            kept |= set(self._held)
        moved = []
        for path in self._layers.iterdir():
            name = path.name
            if name not in kept and not name.startswith(HOST) and (forks or not name.startswith(FORK)):
                moved.append(path.rename(self._tmp / uuid.uuid4().hex))
        return moved

    @contextmanager
    def locked(self, operation: int) -> Iterator[None]:
        """Hold the store's lock: shared while something is made, exclusive while something is removed."""
        fd = os.open(self._names.parent / "store.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, operation)
            yield
        finally:
            os.close(fd)

    async def snapshot(self, upper: Path, below: StoredImage, name: str, owner: str | None) -> StoredImage:
        """Make an image of `below` with a copy of the changes in `upper`.

        Raises Conflict if an image of this name belongs to another owner.
        """
        check_name(name)
        self.check_replaceable(name, owner)
        with self.locked(fcntl.LOCK_SH):
            layer = await self.copy(upper, "snapshot-")
            image = replace(
                below,
                name=name,
                layers=[layer, *below.layers],
                owner=owner,
                digest=None,
                size=None,
                created_at=time.time(),
            )
            self.check_replaceable(name, owner)  # somebody else's may have come meanwhile
            self.save(image)
        return image

    def check_replaceable(self, name: str, owner: str | None) -> None:
        """Raise Conflict if an image of this name belongs to another owner."""
        with suppress(FileNotFoundError):
            if owner is not None and self._read(name).owner != owner:
                raise Conflict(
                    f"the image `{name}` belongs to another key: use another name", reason="exists"
                )

    async def copy(self, upper: Path, kind: str) -> str:
        """Copy the directory `upper`, which may change meanwhile, as a new layer; returns its name."""
        layer = f"{kind}{uuid.uuid4().hex}"
        with self.scratch() as work:
            copy = work / "layer"
            process = await asyncio.create_subprocess_exec(
                *("cp", "-a", "--reflink=auto", "--", str(upper), str(copy)),
                stderr=asyncio.subprocess.PIPE,
                env={**os.environ, "LC_ALL": "C"},
            )
            try:
                _, complaints = await process.communicate()
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
            told = complaints.decode(errors="replace").splitlines()
            # What was removed before its turn came is not part of the copy.
            serious = [line for line in told if not line.endswith(": No such file or directory")]
            if process.returncode and (serious or not copy.is_dir()):
                raise Conflict(
                    f"the file system could not be copied: {' '.join(serious or told)}"[:500],
                    reason="snapshot_failed",
                )
            self.publish(copy, layer)
        return layer

    def hold(self, layers: Sequence[str]) -> None:
        """Mark these layers as used, until `release`."""
        with self._counting:
            self._held.update(layers)

    def release(self, layers: Sequence[str]) -> None:
        """Unmark these layers; removes those of forks that no sandbox and no image uses. Blocks."""
        unused = []
        with self._counting:
            for layer in layers:
                self._held[layer] -= 1
                if not self._held[layer]:
                    del self._held[layer]
                    if layer.startswith(FORK):
                        unused.append(layer)
        if unused:
            kept = self._used()
            for layer in unused:
                if layer not in kept:
                    remove_tree(self.layer(layer))

    def _used(self) -> set[str]:
        return {layer for image in self._stored() for layer in image.layers}

    def _path(self, name: str) -> Path:
        return self._names / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.json"


def laid_over(image: StoredImage, top: StoredImage) -> StoredImage:
    """Return `image` with the files of `top` laid over its own.

    Raises RequestInvalid for more layers than can be mounted.
    """
    layers = [*dict.fromkeys([*top.layers, *image.layers])]  # overlayfs takes each once
    check_layers(f"{image.name} with {top.name} over it", layers)
    return replace(image, layers=layers)


def check_name(name: str) -> None:
    if name == HOST or not name or name != name.strip() or any(ord(letter) < 33 for letter in name):
        raise RequestInvalid(f"`{name}` cannot be the name of an image: use `repository:tag`")


def check_layers(name: str, layers: Sequence[str]) -> None:
    if len(layers) > MAX_LAYERS:
        raise RequestInvalid(
            f"the image {name} has {len(layers)} layers, and {MAX_LAYERS} can be mounted: squash some"
        )


def tree_size(directory: Path) -> int:
    total = 0
    waiting = [os.fspath(directory)]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    total += entry.stat(follow_symlinks=False).st_size
    return total
