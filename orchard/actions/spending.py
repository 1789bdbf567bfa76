"""What calls of models and judges have cost, and what each resolved rollout: by campaign, model, user, team
or day."""

from enum import StrEnum

import duckdb
import msgspec

from orchard.storage.reader import rows


class SpendingBy(StrEnum):
    """What spending is summed by."""

    CAMPAIGN = "campaign"
    MODEL = "model"
    USER = "user"
    """Who submitted the campaign."""
    TEAM = "team"
    DAY = "day"
    """UTC day of the call, and of the outcome."""


_COLUMNS = {
    SpendingBy.CAMPAIGN: "campaign",
    SpendingBy.MODEL: "model",
    SpendingBy.USER: "coalesce(submitter, '')",
    SpendingBy.TEAM: "coalesce(team, '')",
    SpendingBy.DAY: "strftime(time, '%Y-%m-%d')",
}
"""Expression over calls, and over outcomes; user and team are empty where none is known."""


class SpendingLine(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of models and judges in all attempts under one name, and the outcomes of its rollouts."""

    name: str
    rollouts: int
    """Number of rollouts with an outcome."""
    resolved: int
    calls: int
    """Number of calls of models and judges, those of attempts that were given up included."""
    tokens: int
    """Tokens of prompts and answers, as far as they were counted."""
    uncounted: int
    """Calls whose tokens are not known."""
    cost_usd: float | None
    """Cost as far as it is known; None if no call has a price."""
    unpriced: int
    """Calls of models whose cost is not known, which the sum lacks; the oracle's cost nothing."""
    tokens_per_resolved: float | None
    """None without a resolved rollout."""
    usd_per_resolved: float | None
    """None without a resolved rollout or a known cost."""


_SPENDING = """
with every as (
    select event_id, campaign, time, model, prompt_tokens, completion_tokens, cost_usd, model_kind
    from tables.llm_calls_all
    union all by name
    select event_id, campaign, time, model, prompt_tokens, completion_tokens, cost_usd, model_kind
    from tables.judge_calls_all
), called as (
    select distinct on (event_id) {by} as name, prompt_tokens + completion_tokens as tokens, cost_usd,
           model_kind
    from every left join submitters using (campaign)
    where len($campaigns) = 0 or list_contains($campaigns, campaign)
), spent as (
    select name, count(*) as calls, coalesce(sum(tokens), 0)::bigint as tokens,
           count(*) filter (tokens is null) as uncounted, sum(cost_usd) as cost_usd,
           count(*) filter (cost_usd is null and model_kind <> 'oracle') as unpriced
    from called group by name
), ended as (
    select {by} as name, count(*) as rollouts, count(*) filter (resolved) as resolved
    from rollouts where len($campaigns) = 0 or list_contains($campaigns, campaign) group by 1
)
select name, coalesce(rollouts, 0) as rollouts, coalesce(resolved, 0) as resolved,
       coalesce(calls, 0) as calls, coalesce(tokens, 0) as tokens, coalesce(uncounted, 0) as uncounted,
       cost_usd, coalesce(unpriced, 0) as unpriced,
       tokens / nullif(resolved, 0) as tokens_per_resolved, cost_usd / nullif(resolved, 0) as usd_per_resolved
from spent full join ended using (name) order by cost_usd desc nulls last, tokens desc, name
"""


def spending(tables: duckdb.DuckDBPyConnection, by: SpendingBy, campaigns: list[str]) -> list[SpendingLine]:
    """Lines of some campaigns, or of all: days in order, others the most expensive first."""
    found = rows(tables, _SPENDING.format(by=_COLUMNS[by]), {"campaigns": campaigns})
    lines = [SpendingLine(**row) for row in found]
    return sorted(lines, key=lambda line: line.name) if by is SpendingBy.DAY else lines
