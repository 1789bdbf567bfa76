"""Images for the test node, made without a container tool and kept under what they are made from.

An image is made once for each content of its recipe; the archive's name holds the digest, so a changed
recipe, agent or tool makes a new one and an old one is never mistaken for it.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from orchard.workers.harnesses.programs import layers
from tests.contract import settings_image
from tests.tiny_tasks import COMMIT, WORKDIR, tiny_repository
from tests.workers.harnesses.tiny_program import tiny_archive

FULL = "docker.io/local/orchard-full:1"
"""Debian with what campaigns need, and the repository of the tiny tasks."""
BARE = "docker.io/local/busybox:1"
"""busybox alone: neither bash nor Python."""
AGENT = "docker.io/local/orchard-agent:1"
"""The payload of the agent in /payload, and nothing else."""

TINY_TASKS = 5
RELEASE = "bookworm"
PACKAGES = ("git", "patch", "procps", "python3", "python3-pytest")
_DROPPED = (
    *("dev", "proc", "sys", "debootstrap", "var/cache", "var/lib/apt/lists", "var/log"),
    *("usr/share/doc", "usr/share/info", "usr/share/locale", "usr/share/man", "etc/machine-id"),
)
_MADE = ("dev", "proc", "sys", "var/cache", "var/log", "workspace")


class NoImage(Exception):
    """An image could not be made; what the failing program said."""


@dataclass(frozen=True)
class Workshop:
    """Where images are made and kept."""

    tools: Path
    """The folder with `images.sh` and `mkimage.py`."""
    cache: Path

    def all(self) -> list[Path]:
        """Archives of everything that the tests use; what is missing is made. Raises NoImage."""
        self.cache.mkdir(parents=True, exist_ok=True)
        return [*self.small(), self.settings(), self.agent(), self.full(), self.layer()]

    def small(self) -> list[Path]:
        """The pause image, which every Pod needs, and busybox."""
        scripts = [self.tools / name for name in ("images.sh", "mkimage.py")]
        (busybox,) = [Path(found) for found in [shutil.which("busybox")] if found]
        recipe = _digest(*(path.read_bytes() for path in [*scripts, busybox]))

        def make(directory: Path) -> None:
            _run("bash", str(scripts[0]), str(directory))

        return [self._kept(f"{name}-{recipe}", make, f"{name}.tar") for name in ("pause", "busybox")]

    def settings(self) -> Path:
        """busybox, with an image's user, environment and working directory."""
        archive = settings_image.archive(Path(str(shutil.which("busybox"))).read_bytes())

        def make(directory: Path) -> None:
            (directory / "settings.tar").write_bytes(archive)

        return self._kept(f"settings-{_digest(archive)}", make, "settings.tar")

    def agent(self) -> Path:
        """The agent's payload, built from this tree; the build gives the same bytes for the same code."""
        with _scratch() as directory:
            payload = directory / "payload.tar"
            _run(sys.executable, "-m", "orchard.injector.payload", "build", str(payload))
            recipe = _digest(payload.read_bytes(), self._packer.read_bytes())

            def make(target: Path) -> None:
                place = target / "root" / "payload"
                place.mkdir(parents=True)
                _run("tar", "-C", str(place), "-xf", str(payload))
                self._pack(target / "root", AGENT, target / "agent.tar")

            return self._kept(f"agent-{recipe}", make, "agent.tar")

    def debian(self) -> Path:
        """Debian's smallest system with the packages above, from Debian's own archive; no image yet."""
        recipe = _digest(repr((RELEASE, PACKAGES, _DROPPED, _MADE)).encode())

        def make(directory: Path) -> None:
            root = directory / "root"
            included = f"--include={','.join(PACKAGES)}"
            _run("debootstrap", "--variant=minbase", included, RELEASE, str(root))
            _strip(root)
            _run("tar", "--sort=name", "-C", str(root), "-cf", str(directory / "debian.tar"), ".")

        return self._kept(f"debian-{recipe}", make, "debian.tar")

    def full(self) -> Path:
        """That system, with the repository of the tiny tasks."""
        debian, files = self.debian(), tiny_repository(TINY_TASKS)
        recipe = _digest(debian.name.encode(), repr((files, COMMIT)).encode(), self._packer.read_bytes())

        def make(directory: Path) -> None:
            root = directory / "root"
            root.mkdir()
            _run("tar", "-C", str(root), "-xf", str(debian))
            for path, text in files.items():
                place = root / WORKDIR.lstrip("/") / path
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(text)
            same = [f"GIT_{who}_DATE=2026-01-01T00:00:00Z" for who in ("AUTHOR", "COMMITTER")]
            same += ["GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null"]
            _run("env", "-C", str(root / WORKDIR.lstrip("/")), *same, "sh", "-c", COMMIT)
            self._pack(root, FULL, directory / "full.tar")

        return self._kept(f"full-{recipe}", make, "full.tar")

    def layer(self) -> Path:
        """The layer of the tiny program, as `orchard harness install --archive` writes it."""
        with _scratch() as directory:
            layer, made = tiny_archive(directory)
            recipe = _digest(layer.image.encode(), Path(layers.__file__).read_bytes())

            def make(target: Path) -> None:
                shutil.copyfile(made, target / "layer.tar")

            return self._kept(f"layer-{recipe}", make, "layer.tar")

    @property
    def _packer(self) -> Path:
        return self.tools / "mkimage.py"

    def _pack(self, root: Path, tag: str, archive: Path) -> None:
        _run(sys.executable, str(self._packer), str(root), tag, str(archive))

    def _kept(self, name: str, make: Callable[[Path], None], result: str) -> Path:
        """The archive from the cache, or made there; it has its name only once it is whole."""
        archive = self.cache / f"{name}.tar"
        if not archive.exists():
            print(f"making the image {archive.name}", flush=True)  # noqa: T201
            with _scratch() as directory:
                make(directory)
                partial = archive.with_suffix(f".{os.getpid()}")
                shutil.copyfile(directory / result, partial)
                partial.rename(archive)
        return archive


def _strip(root: Path) -> None:
    """Take away what differs from build to build or serves nobody here.

    Archives are dated 1970, so bytecode must not be compared with its source's date.
    """
    for name in _DROPPED:
        path = root / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    for name in _MADE:
        (root / name).mkdir(parents=True, exist_ok=True)
    for cache in [*root.glob("usr/lib/python3*/**/__pycache__")]:
        shutil.rmtree(cache)
    libraries = [f"/{path.relative_to(root)}" for path in root.glob("usr/lib/python3*")]
    compiling = ["python3", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", *libraries]
    _run("chroot", str(root), *compiling)


def _digest(*contents: bytes) -> str:
    digest = hashlib.sha256()
    for content in contents:
        digest.update(hashlib.sha256(content).digest())
    return digest.hexdigest()[:16]


@contextmanager
def _scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="orchard-images-") as directory:
        yield Path(directory)


def _run(*command: str) -> None:
    """Run a program. Raises NoImage."""
    run = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if run.returncode:
        raise NoImage(f"{' '.join(command[:3])} failed:\n{run.stdout[-2000:]}{run.stderr[-2000:]}")
