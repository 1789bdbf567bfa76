"""A campaign's rollouts, the worst first, and its hardest tasks: what its page shows below its arms."""

from typing import NamedTuple

import duckdb

from orchard.page.rollouts import reviewed
from orchard.page.tasks import TaskPage, listed
from orchard.schemas.outcomes import AbortCause
from orchard.storage.reader import Row, rows

ROLLOUTS, TASKS = 12, 12
OF_A_CAUSE = 3
"""Maximum number of rollouts shown of one cause of aborts, so that others have room."""

_WORST = f"""
with placed as (
    select sequence, outcome, cause, reward, count(*) over (partition by outcome, cause) as alike,
           row_number() over (partition by outcome, cause order by sequence desc) as place,
           outcome = 'aborted' and cause not in ('{AbortCause.CANCELLED}', '{AbortCause.BLOCKED}') as broken
    from indexed.ended where campaign = $campaign
), chosen as (
    select sequence, row_number() over (
        order by broken desc, outcome = 'unresolved' desc, outcome = 'ungraded' desc,
                 if(outcome = 'aborted', alike, 0) desc, cause, reward nulls first, sequence desc
    ) as rank
    from placed where outcome <> 'aborted' or place <= {OF_A_CAUSE} order by rank limit {ROLLOUTS}
)
select e.* from indexed.ended e join chosen using (sequence) order by rank
"""


class CampaignDetails(NamedTuple):
    rollouts: list[Row]
    """At most ROLLOUTS: aborted ones by cause, the commonest first, then unresolved ones, then the others."""
    tasks: TaskPage
    """The TASKS hardest."""


def details(tables: duckdb.DuckDBPyConnection, campaign: str) -> CampaignDetails:
    """Reads a campaign's worst rollouts and hardest tasks."""
    worst = reviewed(tables, rows(tables, _WORST, {"campaign": campaign}))
    return CampaignDetails(worst, listed(tables, campaign, "", "hardest", 0, TASKS))
