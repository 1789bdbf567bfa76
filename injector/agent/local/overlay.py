"""Overlay mounts: read-only layers below, a sandbox's own changes on top."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path

from orchard.injector.agent import kernel
from orchard.injector.agent.local import user_namespace

MAX_LAYERS = 200
"""Descriptor paths of so many layers fit in the one page that mount(2) takes for options."""

REDIRECT = "trusted.overlay.redirect"
"""Extended attribute that only root's overlays follow."""


@cache
def _unprivileged() -> bool:
    """Whether overlays keep their marks in attributes that a user namespace may write."""
    return user_namespace.inside()


def opaque() -> str:
    """Name of the attribute of a directory that hides the contents of lower layers."""
    return "user.overlay.opaque" if _unprivileged() else "trusted.overlay.opaque"


def options(
    layers: Sequence[str], *, data: Sequence[str] = (), upper: str | None = None, work: str | None = None
) -> str:
    """Build mount options for `layers` (topmost first), writable when `upper` and `work` are given.

    `data`: layers seen only through files of `layers` that name their content (`metadata.py`). Paths must not
    contain `:` or `,`. `volatile`: a sandbox's writes need not survive a crash of the machine, so its fsync
    calls cost nothing.
    """
    below = "lowerdir=" + "::".join([":".join(layers), *data])
    if upper is None or work is None:
        return below + (",userxattr,ro" if _unprivileged() else ",redirect_dir=follow,ro")
    marks = ",userxattr" if _unprivileged() else ",redirect_dir=on"
    return f"{below},upperdir={upper},workdir={work},volatile{marks}"


def mount(
    point: Path,
    layers: Sequence[Path],
    *,
    data: Sequence[Path] = (),
    upper: Path | None = None,
    work: Path | None = None,
) -> None:
    """Mount `layers` (topmost first) at `point`, as `options` describes them.

    Layers are named by descriptor, so their paths may be of any length and contain any character.
    """
    with ExitStack() as opened:

        def name(path: Path) -> str:
            fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            opened.callback(os.close, fd)
            return f"/proc/self/fd/{fd}"

        names = [name(layer) for layer in layers]
        own = (None, None) if upper is None or work is None else (name(upper), name(work))
        text = options(names, data=[name(layer) for layer in data], upper=own[0], work=own[1])
        kernel.mount("overlay", str(point), "overlay", 0, text)


def make_whiteout(path: str, directory: int) -> None:
    """Hide what lower layers have at `path`, relative to the descriptor `directory`."""
    os.mknod(path, 0o000 | 0o020000, os.makedev(0, 0), dir_fd=directory)


def is_opaque(directory: int) -> bool:
    """Whether the contents that lower layers have in this directory are hidden."""
    try:
        return os.getxattr(directory, opaque()) == b"y"
    except OSError:  # no such attribute, or none at all on this file system
        return False


def make_opaque(directory: int) -> None:
    os.setxattr(directory, opaque(), b"y")
