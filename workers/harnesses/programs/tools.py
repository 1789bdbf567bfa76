"""What the builders of layers share: tools that they start, what they return, how they fail."""

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

Say = Callable[[str], None]
"""Shows the user what is done next."""


class BuildError(Exception):
    """The program cannot be installed here; the text is one sentence that says what to do."""


class Built(NamedTuple):
    version: str
    commands: Sequence[str]
    """Names below `bin` that users start."""


def run_tool(line: Sequence[str]) -> str:
    """Returns what a tool prints. Raises BuildError with its error output."""
    try:
        done = subprocess.run(line, capture_output=True, text=True, check=False)
    except (FileNotFoundError, PermissionError) as error:
        raise BuildError(f"{line[0]} is not installed on this machine: install it") from error
    if done.returncode != 0:
        complaint = (done.stderr.strip() or done.stdout.strip())[-1500:]
        raise BuildError(f"`{' '.join(line)[:200]}` ended with status {done.returncode}: {complaint}")
    return done.stdout


def write_executable(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)
