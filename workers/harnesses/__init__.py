"""Harnesses: the loops around the model. One interface, so that any task, sandbox and log serves them all."""

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
from orchard.workers.harnesses.own_words import OwnWords
from orchard.workers.harnesses.programs.catalog import PROGRAMS
from orchard.workers.harnesses.programs.runner import ProgramHarness
from orchard.workers.plugins import find, names

TASK = "orchard-task"
"""For tasks that are judged by what the agent leaves, and not by a patch."""

_HARNESSES: dict[str, Callable[[], Harness]] = {
    TASK: lambda: BashLoop(OwnWords(TASK, orchard_task_prompts)),
    **{program.name: partial(ProgramHarness, program) for program in PROGRAMS},
}


class UnknownHarness(PluginError):
    """No harness has that name, or what it is made of is not installed."""


def built_in_names() -> list[str]:
    """Names of the harnesses that every installation of Orchard has, sorted."""
    return sorted([*_HARNESSES, *components(Kind.HARNESS, bundled=True)])


def default_harness(domain: str) -> str | None:
    """The harness of a domain's campaigns that name none; None where their tasks decide."""
    record = domains().get(domain)
    return (record and record.default_harness) or None


def patch_harness() -> str:
    """The harness for tasks that are judged by a patch."""
    return next((each.patch_harness for each in domains().values() if each.patch_harness), TASK)


def fingerprint(harness: Harness) -> str:
    """Digest of a harness's name, version, configuration and tools, of the source files of its classes'
    packages and its domain, and of the distribution that brings it: two workers with the same one ask a model
    the same questions."""
    domain = domain_of(Kind.HARNESS, harness.name)
    entry = installed(f"orchard.{Kind.HARNESS}").get(harness.name)
    code = domain.code() if domain is not None else distributions([entry] if entry is not None else [])
    return digest([harness.name, *version_of(harness), harness.tools, _sources(type(harness)), code])


def version_of(harness: Harness) -> tuple[str | None, str | None]:
    """Version and digest of a harness; a plug-in that has none of its own needs no such attributes."""
    return getattr(harness, "version", None), getattr(harness, "digest", None)


@cache
def _sources(kind: type) -> list[str]:
    """Name and SHA-256 of each source file beside those that define a class and its bases; of that alone,
    outside a package."""
    files = set[Path]()
    for each in kind.__mro__:
        if each.__module__.partition(".")[0] not in sys.stdlib_module_names:
            file = Path(inspect.getfile(each))
            packaged = bool(sys.modules[each.__module__].__package__)
            files.update(file.parent.glob("*.py") if packaged else [file])
    return sorted(f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}" for file in files)


def get_harness(name: str) -> Harness:
    """The harness of that name, built in or a plug-in; raises UnknownHarness with the names there are or what
    to install, and PluginError for a plug-in that cannot be used."""
    if name in _HARNESSES:
        return _built_in(name)
    harness: Harness | None = find(Kind.HARNESS, name)
    if harness is None:
        known = ", ".join([*sorted(_HARNESSES), *names(Kind.HARNESS)])
        raise UnknownHarness(f"no harness is named {name!r}: use one of {known}")
    return harness


def planned_harness(name: str, version: str | None) -> Harness:
    """The harness that a request, a plan or a rollout means by a name, with the version that it has beside
    it. Raises as get_harness does."""
    if version is None:
        for domain in domains().values():
            name = domain.unversioned.get(name, name)
    return get_harness(name)


@cache
def _built_in(name: str) -> Harness:
    return _HARNESSES[name]()
