"""Graded rollouts of a log, by task, in the order in which they ended: what what-if deals out."""

import duckdb

from orchard.pipelines.rl.bar import Rollout
from orchard.schemas.outcomes import RolloutStatus

_QUERY = """
select task_id, status, completion_tokens, reward from rollouts
where campaign = ? and reward is not null and exit_status <> 'unanswered' and task_source <> 'impossible'
order by task_id, sequence
"""


def graded_pools(tables: duckdb.DuckDBPyConnection, campaign: str) -> dict[str, list[Rollout]]:
    """By task id. Aborted rollouts, which have no reward, are not in it, nor those of impossible tasks."""
    pools: dict[str, list[Rollout]] = {}
    for task, status, tokens, reward in tables.execute(_QUERY, [campaign]).fetchall():
        rollout = Rollout(status=RolloutStatus(status), tokens=tokens, reward=reward)
        pools.setdefault(task, []).append(rollout)
    return pools
