"""Which rollouts a dataset may take: a query over the tables as of one sequence, then the selection."""

from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import duckdb
import msgspec

from orchard.pipelines.datasets.examples import Candidate, segments_of
from orchard.pipelines.datasets.mixing import check_parts, fits, mixed, paired
from orchard.pipelines.datasets.selection import Caps, Choice, select
from orchard.pipelines.datasets.settings import (
    CandidateSource,
    DatasetSettings,
    PassRateCondition,
    Selection,
)
from orchard.pipelines.tasks.contamination import contaminated
from orchard.pipelines.tasks.held_out import Reason, TaskColumns, matches
from orchard.schemas.outcomes import PUBLISHED, ExitStatus
from orchard.schemas.protection import is_at_least
from orchard.schemas.tasks import IMPOSSIBLE
from orchard.schemas.values import MEASURED_CAMPAIGN
from orchard.storage.blobs import BlobStore

_QUERY = """
select r.rollout_id, r.attempt, r.campaign, r.task_id, r.task_source, r.repo, r.harness,
       r.harness_version, r.model,
       r.model_kind, r.sample, r.status, r.exit_status, r.reward, r.resolved, r.protected, r.leaf,
       coalesce(s.sequence, 0) as start_sequence, r.sequence as done_sequence,
       coalesce(t.gold_files, 0) as gold_files, coalesce(t.gold_lines, 0) as gold_lines,
       coalesce(t.state, '') as task_state,
       coalesce(i.tools, '') as tools, coalesce(i.layout, '') as layout,
       coalesce(v.base, 0.0) as base, coalesce(v.curve, []) as curve,
       coalesce(v.sequence, 0) as value_sequence, coalesce(r.turns, 0) as turns,
       p.rollout_id is not null as published_rules,
       coalesce(h.labels, []) as human_labels, h.human_score, coalesce(r.teacher, '') as teacher
from rollouts r
left join (
    select rollout_id, attempt, min(sequence) as sequence from tables.attempts_all
    where kind = 'started' group by all
) s on s.rollout_id = r.rollout_id and s.attempt = r.attempt
left join (
    select distinct rollout_id, attempt from rewards where ends_with(grader, $published)
) p on p.rollout_id = r.rollout_id and p.attempt = r.attempt
left join reviews h on h.rollout_id = r.rollout_id
left join tasks t on t.task_id = r.task_id
left join imports i on i.rollout_id = r.rollout_id
left join values v on v.rollout_id = r.rollout_id and v.annotator = $annotator and not r.resolved
where r.resolved is not null and {conditions}
order by r.sequence
"""

_RATES = """
select task_id, if(len($models) = 0, model, ''), count(*) filter (resolved) / count(*), count(*) from rollouts
where resolved is not null and exit_status <> 'unanswered' and teacher is null
and if(len($campaigns) = 0, campaign <> $measured, list_contains($campaigns, campaign))
and (len($models) = 0 or list_contains($models, model)) group by all
"""

_LENGTHS = """
select r.rollout_id, sum(m.content_length + m.reasoning_length
                         + coalesce(list_sum(list_transform(m.tool_calls, lambda c: length(c.arguments))), 0))
from tables.messages_all m join rollouts r on r.rollout_id = m.rollout_id and r.attempt = m.attempt
where m.role = 'assistant' and r.resolved group by r.rollout_id
"""


class Chosen(NamedTuple):
    candidates: list[Candidate]
    """Rollouts to make examples of, by the sequence of their outcome."""
    contaminated: dict[str, Reason]
    """Task with graded rollouts to why none of them trains."""


def candidates(
    tables: duckdb.DuckDBPyConnection, blobs: BlobStore, settings: DatasetSettings, counts: Counter[str]
) -> Chosen:
    """The rollouts to make examples of.

    Counts what is left out and why, patterns of `exclude` that name neither a task of the store nor a graded
    one, and labels of people that no graded rollout has. Raises TaskError for held-out tasks that there are
    not.
    """
    graded = _graded(tables, settings)
    counts["graded"] = len(graded)
    tasks = {one.task_id: TaskColumns(one.task_id, one.task_source, one.repo) for one in graded}
    stored = tables.execute("select task_id, repo from tasks").fetchall() if settings.source.exclude else []
    names = {name for row in stored for name in row}
    names |= {name for task in tasks.values() for name in (task.task_id, task.repo)}
    named = matches(settings.source.exclude, names)
    if idle := sum(not found for found in named.values()):
        counts["exclude_patterns_unmatched"] = idle
    excluded = set[str]().union(*named.values())
    given = {label for one in graded for label in one.human_labels}
    asked = {*settings.source.human_labels, *settings.source.without_human_labels}
    if unused := len(asked - given):
        counts["human_labels_unmatched"] = unused
    out = contaminated(tables, blobs, settings.held_out, tasks.values())
    found = []
    minimum = settings.source.min_protected
    if minimum is not None and (unknown := sum(one.protected is None for one in graded)):
        counts["without_label"] = unknown
    rates = _rates(tables, settings.pass_rate) if settings.pass_rate else None
    for one in graded:
        reason = _unfit(one, settings.source, excluded, out)
        if reason is None and settings.pass_rate and rates is not None:
            reason = _of_other_rate(one, settings.pass_rate, rates)
        if reason:
            counts[f"dropped_{reason}"] += 1
        else:
            found.append(one)
    resolved = [one for one in found if one.resolved]
    unresolved = [one for one in found if not one.resolved]
    annotated = [one for one in unresolved if one.value_sequence]
    rising = [one for one in annotated if segments_of(one, settings)]
    counts["resolved"] = len(resolved)
    counts["unresolved"] = len(unresolved)
    counts["unresolved_without_values"] = len(unresolved) - len(annotated)
    counts["unresolved_without_segment"] = len(annotated) - len(rising)
    lengths: dict[str, int] = {}
    if settings.selection.strategy == "shortest":
        lengths = dict(tables.execute(_LENGTHS).fetchall())
    if settings.selection.preferences:
        chosen = _pairs(resolved, unresolved, settings.selection, lengths, counts)
    else:
        chosen = _examples(resolved, rising, settings, lengths, counts)
    counts["selected"] = len(chosen)
    left = {task: reason for task, reason in sorted(out.items()) if task in tasks}
    return Chosen([one for one in found if one.rollout_id in chosen], left)


def _pairs(
    resolved: Sequence[Candidate],
    unresolved: Sequence[Candidate],
    selection: Selection,
    lengths: Mapping[str, int],
    counts: Counter[str],
) -> set[str]:
    """Rollout ids for preferences."""

    def take(pool: Sequence[Candidate], number: int) -> set[str]:
        return _chosen(pool, number, selection, Caps(), lengths)

    assert selection.preferences is not None
    chosen = paired(resolved, unresolved, selection.preferences, take, counts)
    counts["not_selected"] = len(resolved) + len(unresolved) - len(chosen)
    return chosen


def _examples(
    resolved: Sequence[Candidate],
    rising: Sequence[Candidate],
    settings: DatasetSettings,
    lengths: Mapping[str, int],
    counts: Counter[str],
) -> set[str]:
    """Rollout ids for imitation, within the budgets and caps and by the mixture."""
    selection = settings.selection
    caps = Caps(selection.per_task, selection.per_repo)
    chosen = _selected(resolved, selection.resolved, settings, caps, lengths, counts)
    chosen |= _selected(rising, selection.unresolved, settings, caps, lengths, counts)
    check_parts(settings.mixture, counts)
    counts.update(caps.turned_away)
    left_out = caps.turned_away.total() + counts["dropped_outside_mixture"]
    counts["not_selected"] = len(resolved) + len(rising) - len(chosen) - left_out
    return chosen


def _unfit(
    one: Candidate, source: CandidateSource, excluded: AbstractSet[str], out: Mapping[str, Reason]
) -> str | None:
    """Say why nothing of a rollout may train, None where it may; `excluded` has ids and repositories."""
    if one.exit_status == ExitStatus.UNANSWERED and not source.unanswered:
        return "unanswered"
    if one.published_rules and not source.published_rules:
        return "published_rules"
    if source.min_protected is not None and not is_at_least(one.protected, source.min_protected):
        return "below_min_protected"
    if reason := _unreviewed(one, source):
        return reason
    if one.task_id in excluded or one.repo in excluded:
        return "excluded"
    if one.task_state == "rejected" or (one.task_state == "imported" and not source.unproven):
        return "task_rejected" if one.task_state == "rejected" else "task_unproven"
    return out[one.task_id].name if one.task_id in out else None


def _unreviewed(one: Candidate, source: CandidateSource) -> str | None:
    """Says why the labels or the score of people leave a rollout out; None where they do not."""
    if not set(source.without_human_labels).isdisjoint(one.human_labels):
        return "human_label"
    if source.human_labels and set(source.human_labels).isdisjoint(one.human_labels):
        return "without_human_label"
    if source.min_human_score is None:
        return None
    if one.human_score is None:
        return "without_human_score"
    return "below_min_human_score" if one.human_score < source.min_human_score else None


def _of_other_rate(
    one: Candidate, wanted: PassRateCondition, rates: Mapping[tuple[str, str], tuple[float, int]]
) -> str | None:
    """Says why the pass rate of a rollout's task does not meet a condition, None where it does."""
    rate, rollouts = rates.get((one.task_id, "" if wanted.models else one.model), (0.0, 0))
    if rollouts < wanted.rollouts:
        return "measured_too_rarely"
    return None if wanted.above < rate <= wanted.at_most else "pass_rate"


def _rates(
    tables: duckdb.DuckDBPyConnection, wanted: PassRateCondition
) -> dict[tuple[str, str], tuple[float, int]]:
    """Pass rate and number of graded rollouts by task and model, or by task alone where models are named."""
    asked = {
        "campaigns": list(wanted.campaigns),
        "models": list(wanted.models),
        "measured": MEASURED_CAMPAIGN,
    }
    found = tables.execute(_RATES, asked).fetchall()
    return {(task, model): (rate, rollouts) for task, model, rate, rollouts in found}


def _selected(
    pool: Sequence[Candidate],
    budget: int | None,
    settings: DatasetSettings,
    caps: Caps,
    lengths: Mapping[str, int],
    counts: Counter[str],
) -> set[str]:
    """Rollout ids of at most `budget` of the pool, within the caps and by the mixture."""
    selection = settings.selection
    if not settings.mixture:
        return _chosen(pool, budget, selection, caps, lengths)
    inside = {one.rollout_id for one in pool if any(fits(part, one) for part in settings.mixture)}
    of_parts = [one for one in pool if one.rollout_id in inside]
    within = _chosen(of_parts, None, selection, caps.trial(), lengths)

    def take(part: Sequence[Candidate], number: int) -> set[str]:
        return _chosen(part, number, selection, Caps(), lengths)

    left = [one for one in pool if one.rollout_id in within or one.rollout_id not in inside]
    chosen = mixed(left, settings.mixture, budget, take, counts)
    return _chosen([one for one in pool if one.rollout_id in chosen], None, selection, caps, lengths)


def _chosen(
    pool: Sequence[Candidate],
    budget: int | None,
    selection: Selection,
    caps: Caps,
    lengths: Mapping[str, int],
) -> set[str]:
    choices = [
        Choice(
            one.rollout_id,
            one.repo,
            one.task_id,
            one.gold_files,
            one.gold_lines,
            one.turns,
            lengths.get(one.rollout_id, 0),
        )
        for one in pool
    ]
    return select(choices, budget, selection.strategy, seed=selection.seed, caps=caps)


def _graded(tables: duckdb.DuckDBPyConnection, settings: DatasetSettings) -> list[Candidate]:
    source = settings.source
    parameters: dict[str, Any] = {"annotator": settings.values.annotator, "published": PUBLISHED}
    conditions = ["r.status in ('completed', 'truncated')" if source.truncated else "r.status = 'completed'"]
    conditions.append(f"r.task_source <> '{IMPOSSIBLE}'")
    for column, names in (
        ("r.campaign", source.campaigns),
        ("r.harness", source.harnesses),
        ("r.model", source.models),
        ("r.task_source", source.task_sources),
        ("r.model_kind", tuple(kind.value for kind in source.model_kinds)),
    ):
        if names:
            key = column.partition(".")[2]
            parameters[key] = list(names)
            conditions.append(f"list_contains(${key}, {column})")
    if not source.campaigns:
        # Continuations begin in the middle of rollouts that are here already.
        conditions.append(f"r.campaign <> '{MEASURED_CAMPAIGN}'")
    found = tables.sql(_QUERY.format(conditions=" and ".join(conditions)), params=parameters)
    return msgspec.convert(found.to_arrow_table().to_pylist(), list[Candidate])
