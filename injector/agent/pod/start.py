"""Starts the agent of a container in the one order that keeps its key from its commands."""

import os
import resource
from pathlib import Path

from orchard.injector.agent import kernel, spawner
from orchard.injector.agent.pod.variables import parsed, unpacked

OF_THE_CLUSTER = "KUBERNETES_"
"""Prefix of the variables that a kubelet adds to every container: the address of its API server."""


def run(host: str, port: int, sandbox_id: str, left_out: frozenset[str], grace: float) -> int:
    """Serve until a signal, and `grace` seconds longer while somebody asks; returns the exit status.

    The spawner comes first, while this process is small, and never has the key. Commands start from the
    environment that the container gave this process, without the `left_out` variables that are empty.
    """
    os.umask(0o022)
    environment = _environment(left_out)  # before `protect`: after it the file is not ours to read
    channel = spawner.start(among_tasks=True)
    protect()

    import asyncio

    from orchard.injector.agent.pod.service import serve

    loop = asyncio.new_event_loop()
    try:
        # Not asyncio.run, which needs a new thread at the end: there may be no room for one.
        return loop.run_until_complete(serve((host, port), sandbox_id, channel, environment, grace))
    finally:
        loop.close()


def protect() -> None:
    """Deny processes without CAP_SYS_PTRACE all access to this one: ptrace, /proc/PID/mem, core files.

    Call it before there is anything to protect.
    """
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _environment(left_out: frozenset[str]) -> dict[str, str]:
    """Environment of image and Pod, read from the kernel because the interpreter adds LC_CTYPE to
    `os.environ`."""
    return unpacked(
        {
            name: value
            for name, value in parsed(Path("/proc/self/environ").read_bytes()).items()
            if not name.startswith(OF_THE_CLUSTER) and (value or name not in left_out)
        }
    )
