"""Plug-ins: the kinds that there are, and how a configuration names them. `workers/plugins.py` loads them."""

from enum import StrEnum
from typing import Annotated

import msgspec

GUIDE = "docs/extending.md"

REFERENCE = r"^[\w.]+:[\w.]+$"
Reference = Annotated[str, msgspec.Meta(pattern=REFERENCE)]
"""`module:attribute`."""


class Kind(StrEnum):
    """What can be added; the value is the key in `[plugins]`, and with `orchard.` before it the group."""

    HARNESS = "harnesses"
    GRADER = "graders"
    WORLD = "worlds"
    TASK_SOURCE = "task_sources"
    EXPORTER = "exporters"
    JUDGE = "judges"
    BACKEND = "backends"
    LOSS = "losses"


class PluginSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Plug-ins by name (configuration section `[plugins]`), beside those of installed packages."""

    harnesses: dict[str, Reference] = {}
    """Harnesses: name to `module:attribute`."""
    graders: dict[str, Reference] = {}
    """Graders: name to `module:attribute`."""
    worlds: dict[str, Reference] = {}
    """Worlds of tasks: name to `module:attribute`."""
    task_sources: dict[str, Reference] = {}
    """Sources of tasks: name to `module:attribute`."""
    exporters: dict[str, Reference] = {}
    """Exporters of datasets: name to `module:attribute`."""
    judges: dict[str, Reference] = {}
    """Judges of values: name to `module:attribute`."""
    losses: dict[str, Reference] = {}
    """Losses of reinforcement learning: name to `module:attribute`."""


class PluginError(ValueError):
    """A plug-in that is missing or cannot be used, in one sentence."""
