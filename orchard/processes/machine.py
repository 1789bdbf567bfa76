"""Checks what the pipeline needs of this machine: `doctor` shows all findings, and `up` refuses to start
where a needed one is missing, in the same words."""

import ctypes
import errno
import fcntl
import os
import platform
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from orchard.configuration.config import Config, ConfigError
from orchard.configuration.findings import Finding
from orchard.configuration.run_files import UNSAFE_HOST
from orchard.injector.agent.local.requirements import filesystem, nearest
from orchard.injector.local.capabilities import capabilities
from orchard.injector.local.outer_limits import processes_left, usable_cores, usable_memory
from orchard.storage.location import Location
from orchard.streams.disk_space import disk_shortage
from orchard.streams.errors import StreamsError
from orchard.streams.loopback import loopback
from orchard.streams.server import find_binary

LOW_DISK_BYTES = 5 * 2**30
PROCESSES = 256
"""Processes and threads of the pipeline without workers, with some for sandboxes."""
PROCESSES_OF_A_SLOT = 32
"""Processes and threads for each rollout at once: its share of a worker, its sandboxes and their tests."""


def insist(config: Config) -> None:
    """Raises ConfigError with the remedies of what `up` needs and the machine lacks."""
    missing = [each.remedy for each in examine(config) if each.needed and not each.good]
    if missing:
        raise ConfigError("; ".join(missing))


def examine(config: Config) -> Iterator[Finding]:
    """Checks the machine, the store and the state directory."""
    yield Finding("python", sys.version_info >= (3, 11), platform.python_version())
    machine = f"{usable_cores():.3g} cores, {usable_memory() / 2**30:.3g} GiB memory"
    yield Finding("machine", True, machine)
    yield _processes(config)
    if not config.nats.url:
        yield _server()
    yield _loopback()
    state = _directory("state directory", config.directory, "--state")
    yield state
    location = Location.parse(config.store)
    if not location.is_s3 and Path(config.store).expanduser().absolute() != config.directory:
        yield _directory("store", Path(config.store).expanduser().absolute(), "--store")
    if state.good and config.sandbox.url in (None, UNSAFE_HOST):
        for name, able, says, remedy in capabilities(config.directory):
            needed = name == "local sandboxes" and config.sandbox.url is None
            yield Finding(name, able, says, remedy, needed)
    yield _disk(config)


def _processes(config: Config) -> Finding:
    needed = PROCESSES + PROCESSES_OF_A_SLOT * config.up.workers * config.worker.slots
    if (found := processes_left()) is None:
        return Finding("processes", True, "no limit")
    left, limit = found
    remedy = (
        f"{limit}, which leaves {max(left, 0)} processes and threads, and {config.up.workers} workers need "
        f"{needed}: raise it, or run fewer --workers"
    )
    return Finding("processes", left >= needed, f"{left} left", remedy if left < needed else "", needed=True)


def _server() -> Finding:
    try:
        binary = find_binary()
    except StreamsError as error:
        return Finding("nats-server", False, "not found", str(error), needed=True)
    able = os.access(binary, os.X_OK)
    remedy = f"{binary} may not be executed: install on a file system that is not mounted with `noexec`"
    return Finding("nats-server", able, str(binary), "" if able else remedy, needed=True)


def _loopback() -> Finding:
    try:
        return Finding("loopback", True, loopback(), needed=True)
    except StreamsError as error:
        return Finding("loopback", False, "no address", str(error), needed=True)


def _directory(what: str, path: Path, option: str) -> Finding:
    """Whether files, locks and sockets can be made there."""
    try:
        with tempfile.TemporaryDirectory(prefix=".orchard-", dir=nearest(path)) as made:
            with Path(made, "file").open("w") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            descriptor = os.open(made, os.O_PATH | os.O_DIRECTORY)
            try:  # by its descriptor, because a socket's path may have only 107 bytes
                with socket.socket(socket.AF_UNIX) as made_socket:
                    made_socket.bind(f"/proc/self/fd/{descriptor}/socket")
            finally:
                os.close(descriptor)
    except OSError as error:
        why = error.strerror or str(error)
        remedy = f"the {what} {path} cannot be used ({why}): choose another {option}"
        return Finding(what, False, "not usable", remedy, needed=True)
    return Finding(what, True, str(path), needed=True)


def _disk(config: Config) -> Finding:
    """The disk of the state directory. A store that exists is opened on a full disk too: its work waits."""
    where = nearest(config.directory)
    free = shutil.disk_usage(where).free
    remedy = "" if free > LOW_DISK_BYTES else "free some space, or choose another --store or --state"
    first = not (config.directory / "nats").exists()
    shortage = "" if config.nats.url else disk_shortage(where, config.nats)
    if first and not shortage and not config.nats.url and filesystem(where) != "tmpfs":
        shortage = _quota_shortage(where, config.nats.reserve_bytes)
    says = f"{free / 2**30:.3g} GiB free for {config.directory}"
    return Finding("disk", not remedy, says, shortage or remedy, needed=bool(shortage) and first)


def _quota_shortage(where: Path, size: int) -> str:
    """Reserves `size` bytes for a moment: a quota refuses what the free space does not show.

    Not for a tmpfs, which would take them from memory.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    with tempfile.TemporaryFile(dir=where) as file:
        if libc.fallocate(file.fileno(), 0, ctypes.c_long(0), ctypes.c_long(size)) == 0:
            return ""
    if ctypes.get_errno() not in (errno.EDQUOT, errno.ENOSPC):
        return ""  # not every file system can
    return (
        f"the disk quota for {where} leaves less than the {size} bytes of nats.reserve_bytes: raise it, or "
        "choose another --store or --state"
    )
