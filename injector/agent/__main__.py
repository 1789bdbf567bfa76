"""`python -m orchard.injector.agent --state DIR`: runs the agent of a state directory until it is stopped."""

import argparse
import fcntl
import os
import select
import signal
import sys
import time
from pathlib import Path

from orchard.injector.agent import kernel, spawner
from orchard.injector.agent.errors import AgentError
from orchard.injector.agent.local import user_namespace
from orchard.injector.agent.protocol import COUNT_LIMIT_VARIABLE

LOCK = "agent.lock"
DISK_LIMIT_VARIABLE = "ORCHARD_SANDBOX_DISK"
FILES_LIMIT_VARIABLE = "ORCHARD_SANDBOX_FILES"
PRIVATE_VARIABLE = "ORCHARD_EGRESS_PRIVATE"
STOP_TIMEOUT = 60.0
"""Seconds that `--stop` waits for an agent to delete its sandboxes, and a new agent for a killed one to end.
"""


def main() -> int:
    options = _options()
    os.umask(0o022)
    options.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    state = options.state.resolve()
    try:
        if options.stop:
            return _stop(state)
        isolated = options.backend == "local"
        if isolated and os.geteuid() != 0:
            user_namespace.enter()
        if options.import_image is not None:
            from orchard.injector.agent.local.archives import import_image

            print(import_image(state, options.import_image, options.name).name)  # noqa: T201
            return 0
        return _run(state, options)
    except AgentError as error:
        print(error.detail, file=sys.stderr)  # noqa: T201
        return 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m orchard.injector.agent", description=__doc__)
    parser.add_argument("--state", type=Path, required=True, help="directory of sandboxes and images")
    parser.add_argument("--backend", choices=("local", "unsafe-host"), default="local")
    parser.add_argument(
        "--parent-pid", type=int, default=None, help="end, with all sandboxes, when this process ends"
    )
    parser.add_argument("--ready-fd", type=int, default=None, help="a byte is written here once it serves")
    parser.add_argument(
        "--disk-limit",
        default=os.environ.get(DISK_LIMIT_VARIABLE, "20Gi"),
        metavar="SIZE",
        help=f"disk that one sandbox may take (default: ${DISK_LIMIT_VARIABLE} or 20Gi)",
    )
    parser.add_argument(
        "--files-limit",
        default=os.environ.get(FILES_LIMIT_VARIABLE, "256Ki"),
        metavar="NUMBER",
        help="files and directories that one sandbox may make, beside those of its image "
        f"(default: ${FILES_LIMIT_VARIABLE} or 256Ki)",
    )
    parser.add_argument(
        "--count-limit",
        default=os.environ.get(COUNT_LIMIT_VARIABLE) or None,
        metavar="NUMBER",
        help=f"most sandboxes at once; more wait (default: ${COUNT_LIMIT_VARIABLE} or no limit)",
    )
    parser.add_argument(
        "--egress-private",
        default=os.environ.get(PRIVATE_VARIABLE, ""),
        metavar="NETWORKS",
        help="private networks, separated by commas, that rules of egress may lead to "
        f"(default: ${PRIVATE_VARIABLE} or none)",
    )
    parser.add_argument("--stop", action="store_true", help="stop the agent of this state directory")
    parser.add_argument(
        "--import-image", type=Path, default=None, metavar="PATH", help="OCI layout or docker save"
    )
    parser.add_argument(
        "--name", default=None, help="name of the imported image; default: what the archive says"
    )
    return parser.parse_args()


def _run(state: Path, options: argparse.Namespace) -> int:
    _close_inherited(options.ready_fd)
    lock = os.open(state / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + STOP_TIMEOUT
    while not _locked(lock):
        if _holder_runs(lock) or time.monotonic() > deadline:
            raise AgentError(f"another agent runs in {state}; stop it with `--stop` or use another directory")
        time.sleep(0.01)  # it was killed, and the processes it had started, which have the lock too, will be
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)

    if options.ready_fd is not None:
        os.set_inheritable(options.ready_fd, False)
    isolated = options.backend == "local"
    if isolated and kernel.may_mount():
        # Mounts made from here on are nobody else's and end with us.
        kernel.unshare(kernel.CLONE_NEWNS)
        kernel.mount("", "/", None, kernel.MS_REC | kernel.MS_SLAVE)
    if isolated:
        # Should the spawner die, what it was just starting becomes our child, and ends with us.
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    channel = spawner.start()

    # Only now, because every fork of the spawner pays for what is in memory at its own.
    import asyncio

    from orchard.injector.agent.local.disk import DiskLimits
    from orchard.injector.agent.local.requirements import inspect
    from orchard.injector.agent.service import serve

    requirements = inspect(state)
    if isolated:
        requirements.insist()

    def ready() -> None:
        if options.ready_fd is not None:
            os.write(options.ready_fd, b"1")
            os.close(options.ready_fd)

    return asyncio.run(
        serve(
            state,
            channel,
            requirements,
            options.backend,
            DiskLimits(
                _number("--disk-limit", DISK_LIMIT_VARIABLE, options.disk_limit),
                _number("--files-limit", FILES_LIMIT_VARIABLE, options.files_limit),
            ),
            options.count_limit and _number("--count-limit", COUNT_LIMIT_VARIABLE, options.count_limit),
            _networks(options.egress_private),
            options.parent_pid,
            ready,
        )
    )


def _networks(text: str) -> list[str]:
    from ipaddress import IPv4Network

    try:
        return [str(IPv4Network(one.strip())) for one in text.split(",") if one.strip()]
    except ValueError as error:
        raise AgentError(f"--egress-private (or {PRIVATE_VARIABLE}): {error}") from error


def _close_inherited(kept: int | None) -> None:
    """Close the descriptors inherited from the parent: its pipes must not stay open as long as the agent
    runs."""
    first = 3
    if kept is not None:
        os.closerange(first, kept)
        first = kept + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def _number(option: str, variable: str, text: str) -> int:
    from orchard.injector.agent.interfaces import quantity

    try:
        return int(quantity(text))
    except ValueError as error:
        raise AgentError(f"{option} (or {variable}): {error}") from error


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder_runs(lock: int) -> bool:
    """Whether the process that took the lock still runs; also true until it has written its process id."""
    try:
        pidfd = os.pidfd_open(int(os.pread(lock, 64, 0)))
    except ValueError:
        return True
    except ProcessLookupError:
        return False
    try:
        return not select.select([pidfd], [], [], 0)[0]
    finally:
        os.close(pidfd)


def _stop(state: Path) -> int:
    lock = os.open(state / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + STOP_TIMEOUT
    text = os.pread(lock, 64, 0).decode().strip()
    if _locked(lock):
        return 0
    pidfd = os.pidfd_open(int(text))
    signal.pidfd_send_signal(pidfd, signal.SIGTERM)
    ended, _, _ = select.select([pidfd], [], [], deadline - time.monotonic())
    if not ended:
        raise AgentError(f"the agent of {state} (process {text}) did not end within {STOP_TIMEOUT:g} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
