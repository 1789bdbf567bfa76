"""Deletes a sandbox's files, whatever their modes and owners."""

import os
from pathlib import Path

from orchard.injector.agent.errors import AgentError
from orchard.injector.agent.files import remove_at


def remove_tree(path: Path) -> None:
    """Remove a directory recursively, or a file; does nothing when there is none. Blocks.

    Raises AgentError (`remove_failed`).
    """
    if not os.path.lexists(path):
        return
    try:
        parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            remove_at(parent, path.name)
        finally:
            os.close(parent)
    except OSError as error:
        raise AgentError(f"{path} could not be removed: {error.strerror}", reason="remove_failed") from error
