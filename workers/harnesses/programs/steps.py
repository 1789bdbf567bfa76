"""Runs the machine's tools during an installation."""

import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

Say = Callable[[str], None]
"""Shows the user what is done next."""


class BuildError(Exception):
    """The program cannot be installed here; the text is one sentence that says what to do."""


def carried_out(line: Sequence[str], *, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """Returns what a tool prints. Raises BuildError with its error output."""
    try:
        done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=cwd, env=env)
    except FileNotFoundError as error:
        raise BuildError(f"{line[0]} is not installed on this machine: install it") from error
    if done.returncode != 0:
        complaint = (done.stderr.strip() or done.stdout.strip())[-1500:]
        raise BuildError(f"`{' '.join(line)[:200]}` ended with status {done.returncode}: {complaint}")
    return done.stdout
