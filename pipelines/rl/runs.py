"""A run's plan, made from its settings and the store, or read back from the log."""

import asyncio
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import duckdb
import msgspec

from orchard.pipelines.datasets.selection import lottery
from orchard.pipelines.evaluation.suite import EvaluationError, chosen_tasks
from orchard.pipelines.rl.coordinator import RunError, beginning
from orchard.pipelines.rl.plan import RunPlan
from orchard.pipelines.rl.settings import RlSettings, TaskPool
from orchard.pipelines.tasks.contamination import contaminated
from orchard.pipelines.tasks.held_out import TaskColumns, matches
from orchard.pipelines.tasks.protection import protected_tasks
from orchard.pipelines.tasks.registry import read_task_refs, stored_tasks
from orchard.pipelines.tasks.task_set import TaskSet
from orchard.schemas.campaigns import ModelSpec, TaskRef
from orchard.schemas.protection import Protected
from orchard.schemas.tasks import IMPOSSIBLE
from orchard.storage.blobs import BlobStore
from orchard.storage.reader import open_tables
from orchard.streams.connection import Connection
from orchard.workers.harnesses import planned_harness

_PASS_RATES = """
select task_id, count(*) filter (resolved) / count(resolved), count(resolved) from rollouts
where campaign = $campaign and resolved is not null and exit_status <> 'unanswered' and teacher is null
and (len($models) = 0 or list_contains($models, model)) group by task_id
"""

UNMATCHED = "exclude_patterns_unmatched"
"""Count of the patterns of `tasks.exclude` that name no task of the store, in `choose_tasks`."""
_NAMED = 10
"""Tasks that an error names."""
_SHARED = {*RunPlan.__struct_fields__} & {*RlSettings.__struct_fields__} - {"model", "tasks"}


def make_plan(
    settings: RlSettings,
    tasks: tuple[TaskRef, ...],
    traps: tuple[TaskRef, ...] = (),
    held_out: tuple[TaskRef, ...] = (),
) -> RunPlan:
    """The plan of a run on these tasks, and on impossible ones, evaluated on those held out. Raises RunError
    for settings that make none."""
    try:
        return RunPlan(
            name=settings.run,
            tasks=tasks,
            traps=traps,
            held_out=held_out,
            model=ModelSpec(
                name=settings.served_as,
                endpoint=settings.endpoint,
                temperature=settings.temperature,
                max_tokens=settings.max_tokens,
                logprobs=True,
            ),
            baseline=settings.loss.baseline,
            **{name: getattr(settings, name) for name in _SHARED},
        )
    except ValueError as error:
        raise RunError(f"the run cannot be planned: {error}") from error


def choose_held_out(store: str, wanted: Sequence[TaskSet]) -> tuple[TaskRef, ...]:
    """The tasks on which a run's policies are evaluated, by id. Raises RunError for a set without any."""
    try:
        found = {task.task_id: task for each in wanted for task in chosen_tasks(store, each)}
    except EvaluationError as error:
        raise RunError(f"eval_tasks: {error}") from error
    return tuple(found[name] for name in sorted(found))


def without_held_out(pool: TaskPool, held_out: Sequence[TaskRef]) -> TaskPool:
    """The pool without these tasks, and without what is nearly the same."""
    names = (*pool.held_out.tasks, *(task.task_id for task in held_out))
    return msgspec.structs.replace(pool, held_out=msgspec.structs.replace(pool.held_out, tasks=names))


def choose_tasks(store: str, pool: TaskPool, counts: Counter[str]) -> tuple[TaskRef, ...]:
    """The tasks of a pool, by id. Counts what is left out and why, and UNMATCHED patterns; RunError when none
    fits, TaskError for held-out tasks that there are not."""
    known = [task for task in stored_tasks(store) if task.ref.source != IMPOSSIBLE]
    names = {name for task in known for name in (task.ref.task_id, task.ref.repo)}
    if idle := sum(not found for found in matches(pool.exclude, names).values()):
        counts[UNMATCHED] = idle
    ids = set[str]().union(*matches(pool.ids, names).values())
    fitting = [
        task
        for task in known
        if (task.state == "valid" or (pool.unproven and task.state == "imported"))
        and (not pool.sources or task.ref.source in pool.sources)
        and (not pool.ids or task.ref.task_id in ids)
    ]
    if not fitting:
        raise RunError(
            f"no proven task of {store} fits the pool: widen `tasks`, import some, prove those there are "
            "with `orchard tasks validate`, or set `tasks.unproven`"
        )
    refs = [task.ref for task in protected_tasks(fitting, pool.min_protected, counts)]
    if not refs:
        raise RunError(f"no task of the pool is at least `{pool.min_protected}`: lower `tasks.min_protected`")
    if pool.measured_in is not None:
        with open_tables(store) as tables:
            rates = pass_rates(tables, pool.measured_in, pool.measured_models)
        if not rates:
            of = f" of {', '.join(pool.measured_models)}" if pool.measured_models else ""
            raise RunError(
                f"campaign {pool.measured_in!r} has no graded rollout{of}: it cannot say what is hard"
            )
        measured = [ref for ref in refs if ref.task_id in rates]
        if unknown := len(refs) - len(measured):
            counts["not_measured"] = unknown
        refs = [ref for ref in measured if rates[ref.task_id].rollouts >= pool.measured_rollouts]
        if rare := len(measured) - len(refs):
            counts["measured_too_rarely"] = rare
        if not refs:
            raise RunError(
                f"no task of the pool has {pool.measured_rollouts} graded rollouts in {pool.measured_in!r}: "
                "run more of them, or lower `tasks.measured_rollouts`"
            )
        refs = [ref for ref in refs if pool.above < rates[ref.task_id].rate <= pool.at_most]
        if not refs:
            raise RunError(
                f"no task has a pass rate above {pool.above:g} and at most {pool.at_most:g} in "
                f"{pool.measured_in!r}: widen `tasks.above` and `tasks.at_most`"
            )
    with open_tables(store) as tables:
        known_tasks = [TaskColumns(ref.task_id, ref.source, ref.repo) for ref in refs]
        out = contaminated(tables, BlobStore(store), pool.held_out, known_tasks)
    counts.update(out[ref.task_id].name for ref in refs if ref.task_id in out)
    found = drawn((ref for ref in refs if ref.task_id not in out), pool, counts)
    if not found:
        left = ", ".join(f"{number} {reason}" for reason, number in sorted(counts.items()))
        raise RunError(f"`tasks.exclude` and `tasks.held_out` leave no task ({left}): narrow them")
    forgeable = {task.ref.task_id for task in fitting if task.protected is Protected.FORGEABLE}
    _refuse_forgeable([ref.task_id for ref in found if ref.task_id in forgeable], pool)
    return found


def _refuse_forgeable(tasks: Sequence[str], pool: TaskPool) -> None:
    """Raise RunError for tasks whose +1 a forger gets, unless the pool allows them."""
    if tasks and not pool.allow_forgeable:
        more = f" and {len(tasks) - _NAMED} more" if len(tasks) > _NAMED else ""
        raise RunError(
            f"code that repairs nothing gets a +1 on {', '.join(tasks[:_NAMED])}{more}, and a policy learns "
            f'that: leave such tasks out by tasks.min_protected = "{Protected.INSIDE}", or train on them by '
            "tasks.allow_forgeable = true"
        )


def drawn(refs: Iterable[TaskRef], pool: TaskPool, counts: Counter[str] | None = None) -> tuple[TaskRef, ...]:
    """Those of the pool's tasks that its exclusions, caps and limit leave, by id. Which these are is a draw
    by `seed`, whatever their order."""
    counts = Counter() if counts is None else counts
    refs = sorted(refs, key=lambda ref: lottery(pool.seed, ref.task_id))
    names = {name for ref in refs for name in (ref.task_id, ref.repo)}
    excluded = set[str]().union(*matches(pool.exclude, names).values())
    taken: Counter[str] = Counter()
    found = []
    for ref in refs:
        if ref.task_id in excluded or ref.repo in excluded:
            counts["excluded"] += 1
        elif taken[ref.repo] >= (pool.per_repo or math.inf):
            counts["repo_cap"] += 1
        else:
            taken[ref.repo] += 1
            found.append(ref)
    counts["over_limit"] += len(found) - len(found[: pool.limit])
    return tuple(sorted(found[: pool.limit], key=lambda ref: ref.task_id))


def choose_traps(store: str, share: float) -> tuple[TaskRef, ...]:
    """The store's impossible tasks, where a share of prompts is to be such; RunError when it has none."""
    traps = read_task_refs(store, source=IMPOSSIBLE) if share else []
    if share and not traps:
        raise RunError(
            f"a share of {share:g} is to be impossible tasks, and the store has none: `orchard tasks "
            "impossible` makes some"
        )
    return tuple(sorted(traps, key=lambda ref: ref.task_id))


class PassRate(NamedTuple):
    """The share of a task's graded rollouts that resolved it, and their number."""

    rate: float
    rollouts: int


def pass_rates(
    tables: duckdb.DuckDBPyConnection, campaign: str, models: Sequence[str] = ()
) -> dict[str, PassRate]:
    """Pass rates of a campaign's tasks, by all models or by those named; an outcome after a teacher took over
    is not theirs."""
    found = tables.execute(_PASS_RATES, {"campaign": campaign, "models": list(models)}).fetchall()
    return {task: PassRate(*measured) for task, *measured in found}


async def planned(connection: Connection, blobs: BlobStore, run: str) -> tuple[RunPlan, int] | None:
    """The plan of a run that the log knows, and the sequence it began at."""
    known = await beginning(connection, run)
    if known is None:
        return None
    raw = await asyncio.to_thread(blobs.get, known[0].plan)
    return msgspec.json.decode(raw, type=RunPlan), known[1]


def planned_by(settings: RlSettings, plan: RunPlan) -> bool:
    """Whether these settings make the plan, whatever tasks the store has by now, and whoever begins."""
    if bool(settings.impossible) != bool(plan.traps) or bool(settings.eval_every) != bool(plan.held_out):
        return False
    version = plan.harness_version
    made = make_plan(settings, plan.tasks, plan.traps, plan.held_out)
    same = planned_harness(made.harness, version) is planned_harness(plan.harness, version)
    baseline = plan.baseline and made.baseline  # plans of before it was there say nothing of it
    told = {"harness": plan.harness, "harness_version": version, "baseline": baseline, "team": plan.team}
    return same and plan == msgspec.structs.replace(made, **told)
