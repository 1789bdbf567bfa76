"""Harnesses: the loops around the model. One interface, so that any task, sandbox and log serves them all."""

import hashlib
import inspect
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from orchard.schemas.identity import digest
from orchard.schemas.plugins import Kind
from orchard.workers.harnesses import compact_prompts, orchard_bash_prompts, orchard_task_prompts
from orchard.workers.harnesses.bash_loop import BashLoop
from orchard.workers.harnesses.interface import Harness
from orchard.workers.harnesses.mini_swe_agent import PackageUnusable, TextWords, ToolCallWords
from orchard.workers.harnesses.own_words import OwnWords
from orchard.workers.harnesses.programs.catalog import PROGRAMS
from orchard.workers.harnesses.programs.runner import ProgramHarness
from orchard.workers.plugins import find, names

DEFAULT = "orchard-bash"
"""For tasks that are judged by a patch. Needs no package beside Orchard."""

TASK = "orchard-task"
"""For tasks that are judged otherwise."""

DEFAULTS = {"claw": "claw-react", "gui": "browser"}
"""Harness of a domain where none is named; for others DEFAULT or TASK."""

_HARNESSES: dict[str, Callable[[], Harness]] = {
    DEFAULT: lambda: BashLoop(OwnWords(DEFAULT, orchard_bash_prompts)),
    TASK: lambda: BashLoop(OwnWords(TASK, orchard_task_prompts)),
    "mini-swe-agent-compact": lambda: BashLoop(OwnWords("mini-swe-agent-compact", compact_prompts)),
    "mini-swe-agent": lambda: BashLoop(ToolCallWords()),
    "mini-swe-agent-text": lambda: BashLoop(TextWords()),
    **{program.name: partial(ProgramHarness, program) for program in PROGRAMS},
}

HARNESS_NAMES = tuple(sorted(_HARNESSES))


class UnknownHarness(ValueError):
    """No harness has that name, or what it is made of is not installed."""


def fingerprint(harness: Harness) -> str:
    """Digest of a harness's name, version, configuration and tools, and of the source files of its package:
    two workers with the same one ask a model the same questions."""
    return digest([harness.name, *version_of(harness), harness.tools, _sources(type(harness))])


def version_of(harness: Harness) -> tuple[str | None, str | None]:
    """Version and digest of a harness; a plug-in that has none of its own needs no such attributes."""
    return getattr(harness, "version", None), getattr(harness, "digest", None)


@cache
def _sources(kind: type) -> list[str]:
    """SHA-256 of each source file beside the one that defines a class; of that alone, outside a package."""
    file = Path(inspect.getfile(kind))
    packaged = bool(sys.modules[kind.__module__].__package__)
    files = sorted(file.parent.glob("*.py")) if packaged else [file]
    return [hashlib.sha256(each.read_bytes()).hexdigest() for each in files]


def get_harness(name: str) -> Harness:
    """The harness of that name, built in or a plug-in; raises UnknownHarness with the names there are or what
    to install, and PluginError for a plug-in that cannot be used."""
    if name in _HARNESSES:
        return _built_in(name)
    harness: Harness | None = find(Kind.HARNESS, name)
    if harness is None:
        known = ", ".join([*HARNESS_NAMES, *names(Kind.HARNESS)])
        raise UnknownHarness(f"no harness is named {name!r}: use one of {known}")
    return harness


def planned_harness(name: str, version: str | None) -> Harness:
    """The harness that a request, a plan or a rollout means by a name, with the version that it has beside
    it. Raises as get_harness does.

    Until there was the exact one, `mini-swe-agent` were Orchard's own words: so it is where no version
    stands beside the name (decision 0039).
    """
    return get_harness(DEFAULT if name == "mini-swe-agent" and version is None else name)


@cache
def _built_in(name: str) -> Harness:
    try:
        return _HARNESSES[name]()
    except PackageUnusable as error:
        raise UnknownHarness(str(error)) from error
