"""Plans a suite before anything runs: rollouts, images, and their expected cost."""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple

import duckdb
import msgspec

from orchard.pipelines.evaluation.suite import EvaluationError, Suite, campaign_of, chosen_tasks
from orchard.schemas.campaigns import CampaignSpec
from orchard.storage.reader import open_tables


class Experience(NamedTuple):
    """Means over the log's rollouts of a harness and a model, or of the model alone."""

    rollouts: int
    turns: float
    tokens: float | None
    """None where no rollout's tokens are known."""
    seconds: float | None
    """None where no rollout's duration is known."""
    cost_usd: float | None
    """Mean of the `priced` rollouts; None where there are none."""
    counted: int
    """Rollouts whose tokens are known."""
    priced: int
    """Rollouts whose cost is known."""
    same_harness: bool


class Planned(NamedTuple):
    """The rollouts of one task set under one harness and model."""

    task_set: str
    harness: str
    model: str
    tasks: int
    rollouts: int
    like: Experience | None
    """Means of earlier rollouts of the same kind; None for a model that never ran here."""


class SuitePlan(msgspec.Struct, frozen=True, kw_only=True):
    """A suite with its tasks and their rollouts."""

    suite: Suite
    spec: CampaignSpec
    cells: tuple[Planned, ...]
    images: dict[str, int]
    """Image to the number of tasks that run in it."""
    done: int
    """Rollouts of the campaign that have an outcome."""

    @property
    def most_usd(self) -> float | None:
        """Upper limit of the cost of all rollouts; None without a limit."""
        each = self.suite.budget.cost_usd
        return each * self.spec.size if each else None

    @property
    def partly_priced(self) -> bool:
        """Whether a mean behind the expected cost leaves out rollouts whose cost is not known."""
        return any(cell.like and 0 < cell.like.priced < cell.like.rollouts for cell in self.cells)

    @property
    def expected_usd(self) -> float | None:
        """Expected cost by the log's means; None where it has nothing of one of the models."""
        costs = [cell.like.cost_usd if cell.like else None for cell in self.cells]
        known = [
            cost * cell.rollouts for cost, cell in zip(costs, self.cells, strict=True) if cost is not None
        ]
        return sum(known) if len(known) == len(self.cells) else None


def lacking(plan: SuitePlan, images: Collection[str] | None) -> list[str]:
    """Sentences on what this site lacks of the published benchmarks, and of the images, where it is known
    which there are."""
    notes = []
    found = {cell.task_set: cell.tasks for cell in plan.cells}
    for wanted in plan.suite.task_sets:
        here = found[wanted.title]
        if wanted.published is not None and here < wanted.published:
            notes.append(
                f"{wanted.title} has {wanted.published} tasks, and {wanted.published - here} of them are not "
                f"here: their import says why each was left out; a score over {here} is not comparable with "
                "published ones"
            )
    absent = [] if images is None else [image for image in plan.images if image not in images]
    if absent:
        notes.append(
            f"{sum(plan.images[image] for image in absent)} tasks need {len(absent)} images that are not "
            f"here, such as {absent[0]}: `orchard images pull` or `orchard images import` brings them"
        )
    return notes


def gone_on(made: CampaignSpec, cap: float | None, wanted: CampaignSpec) -> tuple[CampaignSpec, float | None]:
    """How to resume a suite whose campaign was `made` and has `cap` now: the plan to submit, and the new
    cap. The new cap is in USD, 0 for none, where the suite's file was given another; None leaves the
    campaign's. Only a cap may differ: of any other plan the submission says so."""
    same = msgspec.structs.replace(wanted, max_cost_usd=made.max_cost_usd)
    if not is_plan_of(wanted, made):
        return wanted, None
    return same, None if wanted.max_cost_usd in (made.max_cost_usd, cap) else wanted.max_cost_usd or 0.0


def is_plan_of(wanted: CampaignSpec, made: CampaignSpec) -> bool:
    """Whether a suite's plan is that of the campaign `made`: what a submission keeps may differ, and the
    cap."""
    kept = ("max_cost_usd", "harness_versions", "team", "event_streams")
    return msgspec.structs.replace(wanted, **{name: getattr(made, name) for name in kept}) == made


def plan_suite(suite: Suite, store: str) -> SuitePlan:
    """The plan over the tasks that the store has. Raises what `chosen_tasks` raises, and EvaluationError when
    one task is in two sets."""
    chosen = {wanted.title: chosen_tasks(store, wanted) for wanted in suite.task_sets}
    tasks = [task for found in chosen.values() for task in found]
    if twice := [task for task, count in Counter(task.task_id for task in tasks).items() if count > 1]:
        raise EvaluationError(f"the task {twice[0]!r} is in two sets: an id names one task")
    spec = campaign_of(suite, tasks)
    with open_tables(store, views=["tasks", "rollouts"]) as tables:
        image_of = dict(tables.execute("select task_id, image from tasks").fetchall())
        known = _experience(tables)
        ended = tables.execute("select count(*) from rollouts where campaign = ?", [suite.name]).fetchone()
    cells = [
        Planned(
            task_set=title,
            harness=harness,
            model=model.name,
            tasks=len(found),
            rollouts=len(found) * suite.samples,
            like=known.get((model.name, harness)) or known.get((model.name, "")),
        )
        for title, found in chosen.items()
        for harness in suite.harnesses
        for model in suite.models
    ]
    images = Counter(image_of[task.task_id] for task in tasks)
    assert ended is not None
    return SuitePlan(
        suite=suite, spec=spec, cells=tuple(cells), images=dict(images.most_common()), done=ended[0]
    )


def _experience(tables: duckdb.DuckDBPyConnection) -> Mapping[tuple[str, str], Experience]:
    """Means by model and harness; with an empty harness, by model alone."""
    rows = tables.execute(
        "select model, coalesce(harness, ''), count(*), avg(turns), avg(prompt_tokens + completion_tokens), "
        "avg(seconds), avg(cost_usd), count(prompt_tokens + completion_tokens), count(cost_usd), "
        "grouping(harness) = 0 from rollouts where status <> 'aborted' "
        "group by grouping sets ((model, harness), (model))"
    ).fetchall()
    return {(model, harness): Experience(*means) for model, harness, *means in rows}
