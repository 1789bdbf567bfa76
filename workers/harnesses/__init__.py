"""Harnesses: the loops around the model. They have one interface, so all tasks, sandboxes and logs serve them
all."""

import hashlib
import inspect
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from orchard.schemas.identity import digest
from orchard.schemas.plugins import Kind, PluginError
from orchard.workers.discovery import distributions, installed
from orchard.workers.domain import components, domain_of, domains
from orchard.workers.harnesses import orchard_task_prompts
from orchard.workers.harnesses.bash_loop import BashLoop
from orchard.workers.harnesses.interface import Harness
from orchard.workers.harnesses.module_prompts import ModulePrompts
from orchard.workers.harnesses.programs.catalog import PROGRAMS
from orchard.workers.harnesses.programs.runner import ProgramHarness
from orchard.workers.plugins import find, names

TASK = "orchard-task"
"""Harness for tasks that are judged by what the agent leaves, and not by a patch."""

_HARNESSES: dict[str, Callable[[], Harness]] = {
    TASK: lambda: BashLoop(ModulePrompts(TASK, orchard_task_prompts)),
    **{program.name: partial(ProgramHarness, program) for program in PROGRAMS},
}


class UnknownHarness(PluginError):
    """No harness has that name, or a package that it needs is not installed."""


def built_in_names() -> list[str]:
    """Returns the names of the harnesses that every installation of Orchard has, sorted."""
    return sorted([*_HARNESSES, *components(Kind.HARNESS, bundled=True)])


def default_harness(domain: str) -> str | None:
    """Returns the harness of a domain's campaigns that name none; None if their tasks decide."""
    record = domains().get(domain)
    return (record and record.default_harness) or None


def patch_harness() -> str:
    return next((each.patch_harness for each in domains().values() if each.patch_harness), TASK)


def text_harness() -> str:
    """Returns the name of the harness for models without tools; it may need a package."""
    return next((each.text_harness for each in domains().values() if each.text_harness), TASK)


def needs_tools(harness: Harness) -> bool:
    """Whether its model must call tools; programs are believed to need that."""
    return isinstance(harness, ProgramHarness) or bool(getattr(harness, "tools", ()))


def fingerprint(harness: Harness) -> str:
    """Digest of a harness's name, version, configuration and tools, of the source files of its classes'
    packages and its domain, and of the distribution that brings it: two workers with the same one ask a model
    the same questions."""
    domain = domain_of(Kind.HARNESS, harness.name)
    entry = installed(f"orchard.{Kind.HARNESS}").get(harness.name)
    code = domain.code() if domain is not None else distributions([entry] if entry is not None else [])
    return digest([harness.name, *version_of(harness), harness.tools, _sources(type(harness)), code])


def version_of(harness: Harness) -> tuple[str | None, str | None]:
    """Returns version and digest of a harness; a plug-in without them needs no such attributes."""
    return getattr(harness, "version", None), getattr(harness, "digest", None)


@cache
def _sources(kind: type) -> list[str]:
    """Returns name and SHA-256 of each source file beside those that define a class and its bases; of those
    alone outside a package."""
    files = set[Path]()
    for each in kind.__mro__:
        if each.__module__.partition(".")[0] not in sys.stdlib_module_names:
            file = Path(inspect.getfile(each))
            packaged = bool(sys.modules[each.__module__].__package__)
            files.update(file.parent.glob("*.py") if packaged else [file])
    return sorted(f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}" for file in files)


def get_harness(name: str) -> Harness:
    """Returns the harness of that name, built in or a plug-in. Raises UnknownHarness with the known names or
    what to install, and PluginError for a plug-in that cannot be used."""
    if name in _HARNESSES:
        return _built_in(name)
    harness: Harness | None = find(Kind.HARNESS, name)
    if harness is None:
        known = ", ".join([*sorted(_HARNESSES), *names(Kind.HARNESS)])
        raise UnknownHarness(f"no harness is named {name!r}: use one of {known}")
    return harness


def planned_harness(name: str, version: str | None) -> Harness:
    """Returns the harness that a request, a plan or a rollout means by a name and the version beside it.
    Raises as get_harness does."""
    if version is None:
        for domain in domains().values():
            name = domain.unversioned.get(name, name)
    return get_harness(name)


@cache
def _built_in(name: str) -> Harness:
    return _HARNESSES[name]()
