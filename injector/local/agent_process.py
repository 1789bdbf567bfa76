"""Starts the agent of a state directory as a process of its own, which outlives its starter."""

import asyncio
import os
import sys
from pathlib import Path

from orchard.injector.errors import SandboxUnavailable

LOG = "agent.log"
ENVIRONMENT = (
    *("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "LD_LIBRARY_PATH"),
    *("ORCHARD_SANDBOX_DISK", "ORCHARD_SANDBOX_FILES", "ORCHARD_EGRESS_PRIVATE"),
)
"""Variables that are passed to the agent; others may be keys."""


def command(state: Path, *, backend: str = "local", parent_pid: int | None = None) -> list[str]:
    line = [sys.executable, "-P", "-m", "orchard.injector.agent", "--state", str(state), "--backend", backend]
    return line if parent_pid is None else [*line, "--parent-pid", str(parent_pid)]


async def start(state: Path, *, backend: str = "local") -> None:
    """Start an agent and wait until it serves. Raises SandboxUnavailable with its error message."""
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    reader, writer = os.pipe()
    environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    environment |= {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with (state / LOG).open("ab") as log:
        begin = log.tell()
        try:
            process = await asyncio.create_subprocess_exec(
                *command(state, backend=backend),
                "--ready-fd",
                str(writer),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(writer,),
                env=environment,
                start_new_session=True,
            )
        finally:
            os.close(writer)
    with os.fdopen(reader, "rb") as ready:
        if await asyncio.to_thread(ready.read, 1):
            return
    await process.wait()
    complaint = (state / LOG).read_bytes()[begin:].decode(errors="replace").strip()
    raise SandboxUnavailable(f"the sandbox agent did not start: {complaint}", reason="agent_not_started")
