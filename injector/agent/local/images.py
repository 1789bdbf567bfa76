"""The images of a state directory: names, and layers that any number of images and sandboxes share.

    images/<hash of the name>.json   the image: its name, its layers (topmost first), environment, working
    directory layers/<layer>/                  one unpacked layer, complete and never changed after it got
    this name tmp/                             work in progress, removed at the agent's start

Everything appears by a rename, so a killed import or snapshot leaves nothing half-visible.
"""

import asyncio
import fcntl
import hashlib
import json
import os
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from orchard.injector.agent.errors import Conflict, NotFound, RequestInvalid
from orchard.injector.agent.local.overlay import MAX_LAYERS
from orchard.injector.agent.local.removal import remove_tree

HOST = "host"
"""Name of the image that is the machine's own root file system, and of its layers within other images."""

FORK = "fork-"
"""How the names of layers begin that stay only as long as something stands on them."""

DEFAULT_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
}


@dataclass(frozen=True, kw_only=True)
class Image:
    """A named stack of layers, topmost first, with what its commands start with."""

    name: str
    layers: Sequence[str]
    environment: dict[str, str] = field(default_factory=dict)
    working_directory: str = "/"
    user: str = ""
    """Whom commands run as: a name or number of the image, perhaps with `:group`; empty: root."""
    owner: str | None = None
    """Whose sandbox it was made of; None: it is for all."""


class ImageStore:
    """Images below a state directory. Any process may import while an agent runs."""

    def __init__(self, state: Path) -> None:
        self._names = state / "images"
        self._layers = state / "layers"
        self._tmp = state / "tmp"
        self._held: Counter[str] = Counter()
        for directory in (self._names, self._layers, self._tmp):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def names(self) -> list[str]:
        """Names of all images but `host`, sorted."""
        return sorted(json.loads(path.read_text())["name"] for path in self._names.glob("*.json"))

    def find(self, name: str, owner: str | None = None) -> Image:
        """Raises NotFound (`image_missing`), with how to get the image; so is one of another owner."""
        if name == HOST:
            return Image(name=HOST, layers=[HOST], environment=dict(DEFAULT_ENVIRONMENT))
        try:
            image = self._read(name)
            if owner is not None and image.owner not in (None, owner):
                raise FileNotFoundError(name)
            return image
        except FileNotFoundError:
            raise NotFound(
                f"there is no image `{name}` on this machine; save it with `docker save {name} -o image.tar` "
                f"(or `skopeo copy docker://{name} oci-archive:image.tar`) where it can be pulled, then run "
                f"`python -m orchard.injector.agent --state STATE --import-image image.tar --name {name}`",
                reason="image_missing",
            ) from None

    def _read(self, name: str) -> Image:
        return Image(**json.loads(self._path(name).read_text()))

    def layer(self, name: str) -> Path:
        """Where the layer of this name lies or would lie."""
        return self._layers / name

    def save(self, image: Image) -> None:
        """Make the image visible, in place of an older one of its name; RequestInvalid for a bad name."""
        check_name(image.name)
        if len(image.layers) > MAX_LAYERS:
            raise RequestInvalid(f"image {image.name} has more than {MAX_LAYERS} layers")
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
        """Give a finished directory its name among the layers; the first of a name stays."""
        try:
            work.rename(self.layer(layer))
        except OSError:
            if not self.layer(layer).is_dir():
                raise

    def clean(self) -> None:
        """Remove unfinished work and layers that no image has, unless an import is going on."""
        try:
            with self.locked(fcntl.LOCK_EX | fcntl.LOCK_NB):
                for path in self._tmp.iterdir():
                    remove_tree(path)
                used = self._used()
                for path in self._layers.iterdir():
                    if path.name not in used and not path.name.startswith(HOST):
                        remove_tree(path)
        except BlockingIOError:
            return

    @contextmanager
    def locked(self, operation: int) -> Iterator[None]:
        """Hold the store's lock: shared while something is made, exclusive while things are thrown away."""
        fd = os.open(self._names.parent / "store.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, operation)
            yield
        finally:
            os.close(fd)

    async def snapshot(self, upper: Path, below: Image, name: str, owner: str | None) -> Image:
        """Make an image of `below` with the changes in `upper`, which is copied as it is now.

        Raises Conflict where an image of this name is not the owner's to replace.
        """
        check_name(name)
        self._check_replaceable(name, owner)
        with self.locked(fcntl.LOCK_SH):
            layer = await self.copy(upper, "snapshot-")
            image = replace(below, name=name, layers=[layer, *below.layers], owner=owner)
            self._check_replaceable(name, owner)  # somebody else's may have come meanwhile
            self.save(image)
        return image

    def _check_replaceable(self, name: str, owner: str | None) -> None:
        with suppress(FileNotFoundError):
            if owner is not None and self._read(name).owner != owner:
                raise Conflict(f"the image `{name}` is of somebody else: use another name", reason="exists")

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
        """These layers are in use, until `release`."""
        self._held.update(layer for layer in layers if layer.startswith(FORK))

    def release(self, layers: Sequence[str]) -> None:
        """Remove those layers that came from a fork and that neither a sandbox nor an image uses. Blocks."""
        unused = []
        for layer in layers:
            if layer.startswith(FORK):
                self._held[layer] -= 1
                if not self._held[layer]:
                    del self._held[layer]
                    unused.append(layer)
        if unused:
            kept = self._used()
            for layer in unused:
                if layer not in kept:
                    remove_tree(self.layer(layer))

    def _used(self) -> set[str]:
        """The layers of all images."""
        images = (json.loads(path.read_text()) for path in self._names.glob("*.json"))
        return {layer for image in images for layer in image["layers"]}

    def _path(self, name: str) -> Path:
        return self._names / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.json"


def check_name(name: str) -> None:
    """Raise RequestInvalid for a name that cannot be given to an image."""
    if name == HOST or not name or name != name.strip() or any(ord(letter) < 33 for letter in name):
        raise RequestInvalid(f"`{name}` cannot be the name of an image; use `repository:tag`")


def tree_size(directory: Path) -> int:
    """Bytes of the regular files below `directory`."""
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
