"""Installing a program: its layer is built aside and appears whole, or not at all."""

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from orchard.injector.agent.files import remove_tree
from orchard.workers.harnesses.programs.building import build
from orchard.workers.harnesses.programs.layers import Layer
from orchard.workers.harnesses.programs.record import Program
from orchard.workers.harnesses.programs.steps import Say

Bring = Callable[[Path, Layer], None]
"""Makes the OCI layout an image of the sandbox service, under the layer's name."""


def install(
    program: Program,
    directory: Path,
    bring: Bring,
    say: Say,
    *,
    version: str | None = None,
    supplied: Path | None = None,
    python: Path | None = None,
) -> Layer:
    """Build the program's layer in `directory` and bring it; the same files again are the same layer.

    Waits for another installation in the same directory, and removes what one that was killed left; the
    packages that it fetched are in the caches of pip and npm. `version` is in place of the record's. Raises
    BuildError, and what `bring` raises.
    """
    with _workplace(directory, say) as work:
        layer, image = build(program, work, say, version=version, supplied=supplied, python=python)
        say(f"image: {layer.image}")
        bring(image, layer)
    return layer


@contextmanager
def _workplace(directory: Path, say: Say) -> Iterator[Path]:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another installation")
            fcntl.flock(lock, fcntl.LOCK_EX)
        for left in directory.glob("building-*"):
            remove_tree(left)
        work = Path(tempfile.mkdtemp(prefix="building-", dir=directory))
        try:
            yield work
        finally:
            remove_tree(work)
    finally:
        os.close(lock)
