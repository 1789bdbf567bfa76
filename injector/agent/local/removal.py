"""Removing what a sandbox made, however it made it."""

import shutil
import subprocess
from pathlib import Path

from orchard.injector.agent.errors import AgentError


def remove_tree(directory: Path) -> None:
    """Remove a directory and all below it; nothing when there is none. Blocks.

    Raises AgentError (`remove_failed`).
    """
    try:
        shutil.rmtree(directory)
    except FileNotFoundError:
        return
    except (RecursionError, OSError):
        # Directories nested thousands deep, which Python follows by calls and open descriptors, rm does not.
        done = subprocess.run(
            ["rm", "-rf", "--", str(directory)], stderr=subprocess.PIPE, text=True, check=False
        )
        if done.returncode:
            raise AgentError(
                f"{directory} could not be removed: {done.stderr.strip()}", reason="remove_failed"
            ) from None
