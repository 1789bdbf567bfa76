"""Collects the payload's loader and shared libraries, and cuts them off from any image."""

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

from orchard.injector.payload import elf
from orchard.injector.payload.elf import PayloadError

LOADER = "ld.so"
_FOUND = re.compile(r"^\s+(\S+) => (.+?)(?: \(0x[0-9a-f]+\))?$", re.MULTILINE)

_DETOURS = {
    LOADER: {b"/etc/ld.so.preload": b"/dev/null/preload."},
    "libc.so.6": {
        b"/etc/nsswitch.conf": b"/dev/null/nsswitch",
        b"/usr/lib/locale": b"/dev/null/local",
    },
}
"""Files of the image by which the loader or libc would load its libraries (preloads, name services) or
tables.

In the payload's copies their paths lead nowhere, which both treat as missing files.
"""


def collect(program: Path, extensions: Iterable[Path]) -> dict[str, bytes]:
    """Return the loader, as `ld.so`, and every library that these files need, by name.

    Raises PayloadError when one cannot be found, and if libc is not glibc.
    """
    loader = Path(elf.interpreter(program.read_bytes()))
    if not loader.name.startswith("ld-linux"):
        raise PayloadError(
            f"{program} is not a program for glibc ({loader}): build on Debian, say, or Fedora"
        )
    # libc itself loads libgcc_s, by name, when a thread is cancelled.
    found = _needed(loader, program, "--preload", "libgcc_s.so.1")
    for extension in extensions:
        for name, path in _needed(loader, extension).items():
            if found.setdefault(name, path) != path:
                raise PayloadError(f"two libraries are called {name}: {found[name]} and {path}")
    if "libgcc_s.so.1" not in found:
        raise PayloadError("libgcc_s.so.1 is missing: install it (Debian: `apt-get install libgcc-s1`)")
    files = {name: elf.condensed(Path(path).read_bytes()) for name, path in found.items()}
    files[LOADER] = elf.condensed(loader.read_bytes())
    for name, detours in _DETOURS.items():
        for wanted, detour in detours.items():
            files[name] = _detoured(files[name], name, wanted, detour)
    return files


def _needed(loader: Path, file: Path, *options: str) -> dict[str, str]:
    """Return the file's direct and indirect libraries by name, as the loader finds them."""
    done = subprocess.run(
        [str(loader), *options, "--list", str(file)], capture_output=True, text=True, check=False, env={}
    )
    if done.returncode != 0:
        raise PayloadError(f"install what is missing: {done.stderr.strip()}")
    found = dict(_FOUND.findall(done.stdout))
    found.pop(str(loader), None)
    return found


def _detoured(file: bytes, name: str, path: bytes, detour: bytes) -> bytes:
    assert len(path) == len(detour), "the file must stay as it is otherwise"
    if path not in file:
        raise PayloadError(f"{name} of this machine does not know {path.decode()}: build with a common glibc")
    return file.replace(path, detour)
