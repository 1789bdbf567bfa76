"""The image `host`: this machine's own programs, and nothing else of it.

Its layers, topmost first:

1. the interpreter that runs this agent, below /usr/local, when no visible directory holds it. It is kept in
   the state directory, and images that are made over `host` name it: they keep the Python that their packages
   were installed for;
2. a read-only overlay whose directory /usr is redirected to the machine's, with an /etc of copies of what
   programs need and the usual empty directories; whatever else the machine has is not visible.

An ordinary user's overlay can neither stand on `/` nor redirect. There the second layer has everything but
/usr, a third one gives the machine's /usr new owners (`metadata.py`), and a second overlay is mounted at /usr
of each sandbox.
"""

import asyncio
import hashlib
import os
import shutil
import stat
import sys
from asyncio.subprocess import PIPE
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from orchard.injector.agent import kernel
from orchard.injector.agent.errors import AgentError, NotFound
from orchard.injector.agent.local import metadata, overlay, user_namespace
from orchard.injector.agent.local.distribution import unchanged
from orchard.injector.agent.local.images import HOST, ImageStore, StoredImage

SHOWN = ("usr",)
"""Excludes /opt: what machines keep there, such as package mirrors, may hold the very solutions of tasks."""
LINKED = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
EMPTY = ("boot", "home", "media", "mnt", "opt", "srv")
"""Empty directories that every distribution has (Filesystem Hierarchy Standard 3.0)."""

# fmt: off
ETC = (
    "adjtime", "alternatives", "bash.bashrc", "bindresvport.blacklist", "ca-certificates",
    "ca-certificates.conf", "crypto-policies", "debian_version", "fonts", "gai.conf", "host.conf", "inputrc",
    "java", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "login.defs", "lsb-release", "magic",
    "mime.types", "nsswitch.conf", "os-release", "perl", "pki/ca-trust", "pki/tls/cert.pem", "pki/tls/certs",
    "pki/tls/openssl.cnf", "profile", "profile.d", "protocols", "redhat-release", "rpc", "services", "shells",
    "skel", "ssl/certs", "ssl/openssl.cnf", "terminfo", "timezone", "vim",
)
# fmt: on
"""Names copied from /etc: no passwords, keys, hosts, mounts, package sources or configuration of tools.

Files that are as the distribution ships them (`distribution.unchanged`) are copied too, for programs in /usr.
"""

VISIBLE = ".orchard-visible"
"""The directory of the overlay that becomes `/`; opaque, so that no directory of this name shows through."""

PYTHON = f"{HOST}-python-"
"""Prefix of the names of interpreters' layers."""
_USR = Path("/usr")
PREFIX = Path("/usr/local")
"""Where the interpreter is placed, as in the official images of Python."""

_LEFT_OUT = frozenset({"test", "tests", "idlelib", "turtledemo", "tkinter", "lib2to3", "site-packages"})


class HostImage:
    """Mounts what the image needs, once in the agent's life, in the agent's own mount namespace."""

    def __init__(self, state: Path, store: ImageStore) -> None:
        self._place = state / "host"
        self._store = store
        self._interpreter = python_layer()
        self._layers: list[Path] | None = None
        self._usr_has = metadata.FILES
        """What the layer of an ordinary user's /usr contains: `metadata.FILES` or DIRECTORIES."""
        for shown in SHOWN:
            if state.is_relative_to(f"/{shown}"):
                raise AgentError(
                    f"the state directory {state} would be visible in sandboxes; put it outside /{shown}"
                )

    def with_python(self, image: StoredImage) -> StoredImage:
        """Names the running interpreter's layer in an image over `host` that names none."""
        if HOST not in image.layers or any(name.startswith(PYTHON) for name in image.layers):
            return image
        at = image.layers.index(HOST)
        return replace(image, layers=[*image.layers[:at], self._interpreter, *image.layers[at:]])

    async def layers(self) -> list[Path]:
        """Returns the layers below the interpreter's, topmost first; made at the first call, which must have
        ended before the next.

        Raises AgentError (`host_image_unavailable`) if the kernel refuses the overlay.
        """
        if self._layers is None:
            if user_namespace.inside():
                copy = await asyncio.to_thread(self._copy)
                self._layers = [copy, await self._usr()]
            else:
                self._layers = [await asyncio.to_thread(self._mount)]
        return self._layers

    async def python(self, name: str, image: str) -> Path:
        """Returns the interpreter's layer that `image` names.

        Where that one is not whole in itself, the running interpreter stands in for it if it is of the same
        minor version. Raises NotFound (`image_missing`) if it is not.
        """
        layer = self._store.layer(name)
        if layer.is_dir() and (name == self._interpreter or (layer / "usr/local/lib").is_dir()):
            return layer
        wanted, running = _minor(name), _minor(self._interpreter)
        if wanted != running:
            raise NotFound(
                f"the image `{image}` was made for Python {wanted} and this is {running}: run Orchard by "
                f"Python {wanted} again, or make the image again in another --store",
                reason="image_missing",
            )
        return await asyncio.to_thread(self._python)

    def usr(self, layers: Sequence[Path]) -> tuple[list[Path], list[Path]]:
        """Layers at /usr of an ordinary user's sandbox over `layers`: visible ones, and data-only ones."""
        parts = [layer / "usr" for layer in layers if (layer / "usr").is_dir()]
        return (parts, [_USR]) if self._usr_has == metadata.FILES else ([*parts, _USR], [])

    @property
    def note(self) -> str:
        """A sentence that says what sandboxes cannot do here, or empty."""
        if self._usr_has == metadata.FILES:
            return ""
        return "files of this machine's /usr can be removed and replaced, not changed in place"

    def _python(self) -> Path:
        python = self._store.layer(self._interpreter)
        if not python.is_dir():
            with self._store.scratch() as work:
                build_python(work / "python")
                self._store.publish(work / "python", python.name)
        return python

    async def _usr(self) -> Path:
        """Build the layer of /usr from the machine's current one, in memory: on a disk it would take
        minutes."""
        layer = self._place / "usr"
        layer.mkdir(mode=0o755, parents=True, exist_ok=True)
        kernel.mount("tmpfs", str(layer), "tmpfs", 0, "mode=0755")
        try:
            self._usr_has = await _mirrored(_USR, layer / "usr")
        except BaseException:
            kernel.unmount(str(layer))
            raise
        return layer

    def _copy(self) -> Path:
        root = self._place / VISIBLE
        if root.exists():
            shutil.rmtree(root)
        root.mkdir(mode=0o755, parents=True)
        for name in LINKED:
            original = Path("/") / name
            if original.is_symlink():
                (root / name).symlink_to(original.readlink())
            elif original.is_dir():
                raise AgentError(
                    f"this machine has its programs in /{name} and not in /usr only, which an ordinary user "
                    "cannot show in a sandbox: import an image and use it in place of `host`, or run as root",
                    reason="host_image_unavailable",
                )
        (root / "usr").mkdir()
        _fill(root)
        return root

    def _mount(self) -> Path:
        skeleton, point = self._place / "skeleton", self._place / "root"
        for directory in (skeleton, point):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        kernel.mount("tmpfs", str(skeleton), "tmpfs", 0, "mode=0755")
        root = skeleton / VISIBLE
        root.mkdir()
        os.setxattr(root, overlay.opaque(), b"y")
        _show_directories(root)
        _fill(root)
        try:
            # The skeleton lies in memory because a layer must not be inside another one, here `/`.
            overlay.mount(point, [skeleton, Path("/")])
        except OSError as error:
            raise AgentError(
                f"the kernel cannot show this machine's files in a sandbox ({error.strerror}): "
                "import an image and use it in place of `host`",
                reason="host_image_unavailable",
            ) from error
        return point / VISIBLE


def _show_directories(root: Path) -> None:
    for name in (*SHOWN, *LINKED):
        original = Path("/") / name
        if original.is_symlink():
            (root / name).symlink_to(original.readlink())
        elif original.is_dir():
            (root / name).mkdir()
            os.setxattr(root / name, overlay.REDIRECT, f"/{name}".encode())


async def _mirrored(source: Path, target: Path) -> str:
    """Run `metadata.py`, which takes seconds, in a process that ends with the agent; returns its output."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", metadata.__name__, str(source), str(target)),
        stdout=PIPE,
        stderr=PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        made, complaint = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        why = complaint.decode(errors="replace").strip() or f"exit status {process.returncode}"
        raise AgentError(
            f"this machine's {source} cannot be shown in a sandbox: {why}", reason="host_image_unavailable"
        )
    return made.decode().strip()


def _fill(root: Path) -> None:
    """Make what is not the machine's own but resembles it."""
    for name in EMPTY:
        (root / name).mkdir()
    _copy_etc(root / "etc")


def _copy_etc(target: Path) -> None:
    target.mkdir()
    for name in ETC:
        source = Path("/etc") / name
        if not os.path.lexists(source):
            continue
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir() and not source.is_symlink():
            shutil.copytree(source, copy, symlinks=True, ignore=_unreadable_for_others)
        elif source.is_symlink() or _public(source):
            shutil.copy2(source, copy, follow_symlinks=False)
    for path in unchanged():
        copy = target / path
        if not os.path.lexists(copy) and copy.parent.resolve().is_relative_to(target.resolve()):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(Path("/etc") / path, copy, follow_symlinks=False)
    for name in ("passwd", "group"):
        lines = Path("/etc", name).read_text().splitlines()
        (target / name).write_text("".join(f"{line}\n" for line in lines if _system_account(line)))
    (target / "hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")


def _public(path: Path) -> bool:
    return bool(path.stat().st_mode & stat.S_IROTH)


def _unreadable_for_others(directory: str, names: list[str]) -> Iterable[str]:
    paths = [Path(directory, name) for name in names]
    return [path.name for path in paths if not path.is_symlink() and not _public(path)]


def _system_account(line: str) -> bool:
    fields = line.split(":")
    return (
        len(fields) > 2
        and fields[2].isdigit()
        and (int(fields[2]) < 1000 or fields[0] in ("nobody", "nogroup"))
    )


def python_layer() -> str:
    """Name of the interpreter's layer, which differs for each interpreter."""
    identity = f"{_base_prefix()} {sys.version} {_base_prefix().stat().st_mtime_ns}"
    version = ".".join(map(str, sys.version_info[:3]))
    return f"{PYTHON}{version}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"


def _minor(layer: str) -> str:
    """Returns the minor version in a layer's name: `3.11` of `host-python-3.11.7-0c41`."""
    return ".".join(layer.removeprefix(PYTHON).split(".")[:2])


def build_python(target: Path) -> None:
    """Build a layer at `target` with the running interpreter as /usr/local/bin/python3 (and `python`).

    If sandboxes see its installation anyway, scripts that call it suffice; else the installation is placed
    below /usr/local, by hard links where the file system allows. It finds its libraries by its own path.
    """
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    prefix = _base_prefix()
    programs = target / "usr/local/bin"
    programs.mkdir(parents=True)
    if any(prefix.is_relative_to(f"/{shown}") for shown in SHOWN):
        for name in ("python3", "python"):
            if prefix not in (Path("/usr"), PREFIX) or not (prefix / "bin" / name).exists():
                # Not a link: an interpreter looks for its libraries from the path it was called by.
                _write_script(programs / name, f'#!/bin/sh\nexec {prefix}/bin/{version} "$@"\n')
    else:
        _copy_installation(prefix, target / PREFIX.relative_to("/"), version)


def _copy_installation(prefix: Path, target: Path, version: str) -> None:
    library, programs = target / "lib" / version, target / "bin"
    _link_tree(prefix / "lib" / version, library, left_out=_LEFT_OUT)
    # The machine's own /usr/local may have one of the same version.
    os.setxattr(library, overlay.opaque(), b"y")
    packages = library / "site-packages"
    packages.mkdir()
    for package in (prefix / "lib" / version).glob("site-packages/pip*"):
        _link_tree(package, packages / package.name)
    _link_tree(prefix / "include" / version, target / "include" / version)
    for shared in (prefix / "lib").glob("libpython*.so*"):
        _link(shared, target / "lib" / shared.name)
    program = (prefix / "bin" / version).resolve()
    (programs / version).write_bytes(relocated(program.read_bytes(), prefix))
    (programs / version).chmod(0o755)
    for name in ("python3", "python"):
        (programs / name).symlink_to(version)
    for name in ("pip", "pip3"):
        _write_script(
            programs / name,
            f"#!{PREFIX}/bin/{version}\n"
            "import sys\nfrom pip._internal.cli.main import main\nsys.exit(main())\n",
        )


def _write_script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def relocated(program: bytes, prefix: Path) -> bytes:
    """Make the executable's library path `prefix`/lib, if it names one, relative to itself.

    Otherwise the loader would find another libpython of the machine. The replacement has the same length, so
    that the rest of the file stays as it is.
    """
    old = os.fsencode(prefix / "lib") + b"\0"
    new = b"$ORIGIN/../lib"
    return program if len(old) <= len(new) else program.replace(old, new.ljust(len(old), b"\0"))


def _link_tree(source: Path, target: Path, left_out: frozenset[str] = frozenset()) -> None:
    """Hard-link the tree, compiled modules included, which spare every sandbox the compilation."""
    for directory, subdirectories, names in os.walk(source):
        relative = Path(directory).relative_to(source)
        subdirectories[:] = [
            name for name in subdirectories if name not in left_out and not name.startswith("config-")
        ]
        (target / relative).mkdir(parents=True)
        for name in names:
            if not name.endswith(".a"):
                _link(Path(directory, name), target / relative / name)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # another file system, or one without hard links
        shutil.copy2(source, target, follow_symlinks=False)


def _base_prefix() -> Path:
    return Path(sys.base_prefix).resolve()
