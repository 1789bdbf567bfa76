"""Overlay mounts: read-only layers below, a sandbox's own changes on top."""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

from injector.agent import kernel
from injector.agent.local import user_namespace

MAX_LAYERS = 200
"""Descriptor paths of so many layers fit in the one page that mount(2) takes for options."""

REDIRECT = "trusted.overlay.redirect"
"""Only root's overlays follow it."""


@cache
def _unprivileged() -> bool:
    """Whether overlays keep their marks in attributes that a user namespace may write."""
    return user_namespace.inside()


def opaque() -> str:
    """The attribute of a directory that hides what the layers below have in it."""
    return "user.overlay.opaque" if _unprivileged() else "trusted.overlay.opaque"


def mount(
    point: Path, layers: Sequence[Path], *, upper: Path | None = None, work: Path | None = None
) -> None:
    """Mount `layers` (topmost first) at `point`, writable when `upper` and `work` are given.

    Layers are named by descriptor, so their paths may be of any length and contain any character.
    `volatile`: what a sandbox wrote need not survive a crash of the machine, so its fsync calls cost
    nothing.
    """
    with ExitStack() as opened:

        def name(path: Path) -> str:
            fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            opened.callback(os.close, fd)
            return f"/proc/self/fd/{fd}"

        options = "lowerdir=" + ":".join(name(layer) for layer in layers)
        if upper is not None and work is not None:
            options += f",upperdir={name(upper)},workdir={name(work)},volatile"
            options += ",userxattr" if _unprivileged() else ",redirect_dir=on"
        else:
            options += ",userxattr,ro" if _unprivileged() else ",redirect_dir=follow,ro"
        kernel.mount("overlay", str(point), "overlay", 0, options)


@contextmanager
def mounted(
    point: Path, layers: Sequence[Path], *, upper: Path | None = None, work: Path | None = None
) -> Iterator[None]:
    """The same for the time of a block."""
    mount(point, layers, upper=upper, work=work)
    try:
        yield
    finally:
        kernel.unmount(str(point))


def make_whiteout(path: str, directory: int) -> None:
    """Hide what the layers below have at `path`, relative to the descriptor `directory`."""
    os.mknod(path, 0o000 | 0o020000, os.makedev(0, 0), dir_fd=directory)


def make_opaque(directory: int) -> None:
    """Hide the contents that the layers below have in this directory."""
    os.setxattr(directory, opaque(), b"y")
