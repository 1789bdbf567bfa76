"""The record of what a domain adds to a worker, and how the core finds the records.

The core names no domain. It asks the records, which name parts of the domain as `module:attribute`, loaded at
first use. Records of Orchard's own domains are in `workers/domains/*/__init__.py`; other packages declare an
entry point of the group `orchard.worker_domains`. A module of a domain's package names its components in a
dictionary of texts, such as `HARNESSES = {"browser": "BrowserHarness"}`: names that tasks, campaigns and logs
use, and attributes. GRADERS and WORLDS are the same; JUDGES has protocols with their versions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path

from orchard.schemas.plugins import Kind
from orchard.workers.discovery import code_of, components_in, matching, records

GROUP = "orchard.worker_domains"
COMPONENTS = (Kind.HARNESS, Kind.GRADER, Kind.WORLD, Kind.JUDGE)


@dataclass(frozen=True, kw_only=True)
class WorkerDomain:
    """The components of a domain that a worker runs, by the names that tasks, campaigns and logs use."""

    name: str
    package: str
    """Dotted name of the package that holds its components and `sources`."""
    gradings: Mapping[str, str] = field(default_factory=dict)
    """Maps the tag of a struct in the union `Grading` to the function `(grading, judgement)` that grades by
    it."""
    default_harness: str = ""
    """Harness of campaigns that name none; empty: chosen by how their tasks are judged."""
    patch_harness: str = ""
    """Harness for tasks of any domain that are judged by a patch."""
    text_harness: str = ""
    """Harness for models without tools."""
    unversioned: Mapping[str, str] = field(default_factory=dict)
    """Maps a harness's name to the one that it meant in rollouts that record no version of it."""
    oracle: str = ""
    """The domain's part of the oracle: a class that is called with the tasks and the mix (`OraclePlayer`)."""
    standby: str = ""
    """Function that keeps sandboxes ready for the domain's attempts (`MakeStandby`)."""
    sources: tuple[str, ...] = ("**/*.py",)
    """Files, as patterns in `package`, that decide what its harnesses ask a model. Digests of harnesses and
    of datasets' code cover them."""

    @property
    def bundled(self) -> bool:
        return self.package.startswith("orchard.")

    @cached_property
    def components(self) -> dict[str, dict[str, str]]:
        """Maps each kind of component to its names and `module:attribute`."""
        return {kind: components_in(self.package, kind.upper()) for kind in COMPONENTS}

    def files(self) -> list[Path]:
        return matching(self.package, self.sources)

    def code(self) -> list[str]:
        """Returns digests of `sources`, and the distribution if another package brings the domain."""
        return code_of(self.package, self.sources, GROUP)


@cache
def domains() -> dict[str, WorkerDomain]:
    """Returns all domains by name, Orchard's own first."""
    return records("orchard.workers.domains", GROUP, WorkerDomain)


def components(kind: Kind, *, bundled: bool = False) -> dict[str, str]:
    """Maps the names of all components of a kind to `module:attribute`, those of domains `bundled` with
    Orchard alone if so asked. The first domain's counts if several have one name."""
    return {
        name: reference
        for record in reversed(domains().values())
        if record.bundled or not bundled
        for name, reference in record.components.get(kind, {}).items()
    }


def domain_of(kind: Kind, name: str) -> WorkerDomain | None:
    return next((each for each in domains().values() if name in each.components.get(kind, {})), None)
