"""What a domain adds to a worker: one record for each, and how the core finds them.

The core names no domain. It asks the records, which name their components as `module:attribute`, loaded at
first use. Records of Orchard's own domains are in `workers/domains/*/__init__.py`; a package of others
declares an entry point of the group `orchard.worker_domains`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from orchard.schemas.plugins import Kind
from orchard.workers.discovery import code_of, matching, records

GROUP = "orchard.worker_domains"
"""Entry points of other packages' records."""


@dataclass(frozen=True, kw_only=True)
class WorkerDomain:
    """The components of a domain that a worker runs, by the names that tasks, campaigns and logs use."""

    name: str
    package: str
    """Dotted name of the package whose files `sources` are."""
    harnesses: Mapping[str, str] = field(default_factory=dict)
    """Harness to `module:attribute`."""
    graders: Mapping[str, str] = field(default_factory=dict)
    """Grader, as `PluginGrading` names it, to `module:attribute`."""
    worlds: Mapping[str, str] = field(default_factory=dict)
    """World to `module:attribute`."""
    judges: Mapping[str, str] = field(default_factory=dict)
    """Protocol of a judge, with its version, to `module:attribute`."""
    gradings: Mapping[str, str] = field(default_factory=dict)
    """Tag of a struct in the union `Grading` to the function `(grading, judgement)` that grades by it."""
    default_harness: str = ""
    """Harness of its campaigns that name none; empty: chosen by how their tasks are judged."""
    patch_harness: str = ""
    """Harness for tasks of any domain that are judged by a patch."""
    unversioned: Mapping[str, str] = field(default_factory=dict)
    """Harness to the one that its name meant in rollouts that record no version of it."""
    oracle: str = ""
    """Its part of the oracle: a class that is called with the tasks and the mix (`OraclePlayer`)."""
    standby: str = ""
    """Function that keeps machines ready for its attempts (`MakeStandby`)."""
    sources: tuple[str, ...] = ("**/*.py",)
    """Files, as patterns in `package`, that decide what its harnesses ask a model. Digests of harnesses and
    of datasets' code cover them."""

    @property
    def bundled(self) -> bool:
        """Whether it comes with Orchard."""
        return self.package.startswith("orchard.")

    def files(self) -> list[Path]:
        """The files that `sources` match."""
        return matching(self.package, self.sources)

    def code(self) -> list[str]:
        """Digests of `sources`, and its distribution where it is a package of others."""
        return code_of(self.package, self.sources, GROUP)


@cache
def domains() -> dict[str, WorkerDomain]:
    """All domains by name, Orchard's own first; of two with one name the first."""
    found: dict[str, WorkerDomain] = {}
    for record in records("orchard.workers.domains", GROUP, WorkerDomain):
        found.setdefault(record.name, record)
    return found


def components(kind: Kind, *, bundled: bool = False) -> dict[str, str]:
    """What all domains, or those that are `bundled` with Orchard, have of a kind of plug-in: name to
    `module:attribute`, the first domain's of each."""
    return {
        name: reference
        for record in reversed(domains().values())
        if record.bundled or not bundled
        for name, reference in getattr(record, kind.value, {}).items()
    }


def domain_of(kind: Kind, name: str) -> WorkerDomain | None:
    """The domain that has a component of that kind and name."""
    return next((each for each in domains().values() if name in getattr(each, kind.value, {})), None)
