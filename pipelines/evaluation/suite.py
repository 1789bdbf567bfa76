"""A suite: the TOML file of an evaluation (docs/evaluation.md)."""

import random
import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from orchard.pipelines.domain import domains
from orchard.pipelines.tasks.registry import read_task_refs
from orchard.pipelines.tasks.task_set import Positive, TaskSet
from orchard.schemas.campaigns import (
    DEFAULT_DOMAIN,
    Budget,
    CampaignSpec,
    ModelSpec,
    TaskRef,
    Timeouts,
    check_cap,
)
from orchard.schemas.faults import fault_sentence
from orchard.schemas.identity import check_name
from orchard.schemas.toml_text import parsed_toml


class EvaluationError(ValueError):
    """A suite that cannot be read, planned or reported; the text names the fix."""


class Suite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Models x harnesses x tasks x samples, with one budget for all; its campaign has its name."""

    name: str
    task_sets: tuple[TaskSet, ...]
    harnesses: tuple[str, ...]
    models: tuple[ModelSpec, ...]
    arms: dict[str, tuple[str, ...]] = {}
    """Models that differ in the seed of their training alone, by a name for them all: the interval over seeds
    is made of their scores."""
    samples: Positive = 1
    k: tuple[Positive, ...] = ()
    """Values of k for pass@k and pass^k; empty: 1 and `samples`."""
    budget: Budget = Budget()
    timeouts: Timeouts = Timeouts()
    max_tries: Positive = 3
    priority: str = "normal"
    domain: str = DEFAULT_DOMAIN
    published_rules: bool = False
    """Grade as published benchmarks do; see CampaignSpec."""
    max_cost_usd: float | None = None
    """USD that all model calls may cost before the campaign is paused; None: no cap."""

    def __post_init__(self) -> None:
        check_name(self.name, "suite")
        check_cap(self.max_cost_usd)
        for what, names in (
            ("task set", [each.title for each in self.task_sets]),
            ("source of tasks", [each.source for each in self.task_sets]),
            ("harness", self.harnesses),
            ("model", [model.name for model in self.models]),
        ):
            if not names:
                raise ValueError(f"a suite needs at least one {what}")
            if twice := [name for name, count in Counter(names).items() if count > 1]:
                raise ValueError(f"the {what} {twice[0]!r} is named twice")
        members = [model for models in self.arms.values() for model in models]
        if unknown := set(members) - {model.name for model in self.models}:
            raise ValueError(f"the arm of {min(unknown)!r} names no model of the suite: add it to models")
        if len(set(members)) < len(members) or any(len(models) < 2 for models in self.arms.values()):
            raise ValueError("an arm has two or more models, and a model is in one arm")
        if wrong := [k for k in self.k if k > self.samples]:
            raise ValueError(f"k = {wrong[0]} needs as many samples: there are {self.samples}")

    @property
    def arm_of(self) -> dict[str, str]:
        """Maps models to their arm."""
        return {model: arm for arm, models in self.arms.items() for model in models}

    @property
    def reported(self) -> tuple[int, ...]:
        """The k that are reported, rising."""
        return tuple(sorted(set(self.k or (1, self.samples))))


def read_suite(file: Path) -> Suite:
    """The suite of a TOML file. Raises EvaluationError that names the key and the fix."""
    try:
        tree = parsed_toml(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise EvaluationError(f"{file} does not exist: write a suite there (docs/evaluation.md)") from None
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise EvaluationError(f"{file} cannot be read as TOML: {error}") from error
    try:
        return msgspec.convert(tree, Suite)
    except msgspec.ValidationError as error:
        said = fault_sentence(tree, Suite, error)
        raise EvaluationError(f"{file}: {said}; docs/evaluation.md explains every key") from error


def published() -> dict[str, Path]:
    """Suites of published benchmarks by name."""
    own = Path(__file__).parent.glob("suites/*.toml")
    of_domains = (file for domain in domains().values() for file in domain.suite_files())
    return {file.stem: file for file in sorted([*own, *of_domains], key=lambda file: file.stem)}


def suite_file(given: Path) -> Path:
    """The file, or that of the published suite of this name."""
    return given if given.exists() else published().get(str(given), given)


def chosen_tasks(store: str, wanted: TaskSet) -> list[TaskRef]:
    """The tasks of a set, by id. Raises EvaluationError when there are none, or fewer than its limit."""
    found = read_task_refs(
        store, source=wanted.source, repo=wanted.repo, ids=wanted.ids, only_valid=not wanted.unproven
    )
    if not found:
        proven = "" if wanted.unproven else " proven"
        raise EvaluationError(
            f"the task set {wanted.title!r} has no{proven} task of source {wanted.source!r}: `orchard tasks "
            "list` shows what there is, `orchard tasks import` brings rows, `orchard tasks from-harbor` "
            "directories, `orchard tasks validate` proves them"
        )
    if wanted.limit is None:
        return found
    if len(found) < wanted.limit:
        raise EvaluationError(
            f"the task set {wanted.title!r} has {len(found)} tasks, and limit = {wanted.limit} asks for more"
        )
    drawn = random.Random(wanted.seed).sample(found, wanted.limit)
    return sorted(drawn, key=lambda task: task.task_id)


def campaign_of(suite: Suite, tasks: Sequence[TaskRef]) -> CampaignSpec:
    return CampaignSpec(
        name=suite.name,
        tasks=tuple(tasks),
        harnesses=suite.harnesses,
        models=suite.models,
        samples=suite.samples,
        domain=suite.domain,
        priority=suite.priority,
        budget=suite.budget,
        timeouts=suite.timeouts,
        max_tries=suite.max_tries,
        published_rules=suite.published_rules,
        max_cost_usd=suite.max_cost_usd,
    )
