"""The record of what a domain adds to the pipelines, and how the core finds them all.

The core names no domain. It asks the records, which name their components as `module:attribute`,
loaded at first use. Records of Orchard's own domains are in `pipelines/domains/*/__init__.py`; other
packages declare an entry point of the group `orchard.pipeline_domains`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from orchard.schemas.queues import Queue
from orchard.schemas.tasks import PluginGrading, Task
from orchard.workers.discovery import code_of, matching, records

GROUP = "orchard.pipeline_domains"
"""Entry-point group of other packages' records."""
PROVE = Queue(kind="prove", domain="tasks")
"""Queue of tasks to prove, whatever their domain."""

K = TypeVar("K")
T = TypeVar("T")


class TaskKind(NamedTuple):
    """What decides how a task is proven."""

    grading: str
    """Name of its plug-in, or tag of its grading."""
    world: str = ""
    """Kind of its world; empty for a task without one."""


def kind_of(task: Task) -> TaskKind:
    grading = task.grading
    tag = str(type(grading).__struct_config__.tag)
    world = "" if task.world is msgspec.UNSET else task.world.kind
    return TaskKind(grading.grader if isinstance(grading, PluginGrading) else tag, world)


@dataclass(frozen=True, kw_only=True)
class ReleasedLayout:
    """A layout in which trajectories are published."""

    reader: str
    calls_in_texts: bool = False
    """Whether calls and their results are part of the texts, so a trajectory without tools has none that
    its harness defines."""


class RequestKind(NamedTuple):
    """A kind of requests that are not rollouts and that workers handle."""

    queue: Queue
    handler: str
    """Function of a worker's AttemptDependencies that makes a `streams.consumer.Handler`."""


@dataclass(frozen=True, kw_only=True)
class PipelineDomain:
    """What is done before and after the rollouts of a domain."""

    name: str
    package: str
    """Dotted name of the package whose files `sources` and `suites` are."""
    provers: Mapping[TaskKind, str] = field(default_factory=dict)
    """`tasks.proving.Prover` by kind of task. Tasks of other kinds are proven as a whole."""
    contradictions: Mapping[TaskKind, str] = field(default_factory=dict)
    """`tasks.proving.Contradiction` by kind of task, which makes impossible tasks of them."""
    task_sources: Mapping[str, str] = field(default_factory=dict)
    """`tasks.sources.TaskSource` by the name that `orchard tasks from-source` takes."""
    exporters: Mapping[str, str] = field(default_factory=dict)
    """`datasets.exporters.interface.Exporter` by the name of its layout."""
    released_layouts: Mapping[str, ReleasedLayout] = field(default_factory=dict)
    """Released layouts by the name that `orchard dataset import --format` takes."""
    dataset_preset: Mapping[str, Any] = field(default_factory=dict)
    """What `preset = NAME` sets in a dataset's file."""
    sft_preset: Mapping[str, Any] = field(default_factory=dict)
    """What `preset = NAME` sets in the file of a fine-tuning run."""
    rl_preset: Mapping[str, Any] = field(default_factory=dict)
    """What `preset = NAME` sets in the file of a reinforcement-learning run."""
    request_kinds: Mapping[str, RequestKind] = field(default_factory=dict)
    """Kinds of requests by the name of their queue, each with what a worker needs to serve it."""
    suites: str = "suites/*.toml"
    """Suites of published benchmarks, as a pattern in `package`."""
    sources: tuple[str, ...] = ("__init__.py",)
    """Files, as patterns in `package`, that decide what a dataset's rows are. What its harnesses tell a model
    is in `WorkerDomain.sources`."""

    def code(self) -> list[str]:
        """Digests of the files of `sources`; for another package also its distribution and version."""
        return code_of(self.package, self.sources, GROUP)

    def suite_files(self) -> list[Path]:
        return matching(self.package, [self.suites])


@cache
def domains() -> dict[str, PipelineDomain]:
    """Returns all domains by name, Orchard's own first."""
    return records("orchard.pipelines.domains", GROUP, PipelineDomain)


def offered(field_of: Callable[[PipelineDomain], Mapping[K, T]]) -> dict[K, T]:
    """The entries of one field over all domains; the first of two with one name wins."""
    return {
        name: value for domain in reversed(domains().values()) for name, value in field_of(domain).items()
    }


def request_kinds() -> dict[str, RequestKind]:
    """All kinds of requests other than rollouts that `orchard worker` serves."""
    prove = RequestKind(PROVE, "orchard.pipelines.tasks.prover:task_prover")
    return {PROVE.kind: prove, **offered(lambda domain: domain.request_kinds)}


def presets(field_of: Callable[[PipelineDomain], Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The presets of one kind, by the names of their domains."""
    return {name: dict(preset) for name, domain in domains().items() if (preset := field_of(domain))}
