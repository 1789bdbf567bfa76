"""Which steps have both an annotated and a measured value, out of the tables."""

from dataclasses import dataclass

import duckdb

from orchard.pipelines.values.calibration import Point

_QUERY = """
with newest as (
    select distinct on (rollout_id, attempt, step, model) * from measurements
    order by rollout_id, attempt, step, model, samples desc, sequence desc
)
select v.annotator, m.model, m.rollout_id, m.step,
       case when m.step < 0 then v.base else v.curve[m.step + 1] end as annotated,
       m.value, m.low, m.high, m.samples
from newest m
join values v on v.rollout_id = m.rollout_id and v.attempt = m.attempt and m.step < len(v.curve)
where v.annotator = coalesce($annotator, v.annotator)
order by v.annotator, m.model, m.rollout_id, m.step
"""


@dataclass(frozen=True)
class Pair:
    """Whose values are compared: an annotator's with a policy's."""

    annotator: str
    model: str
    """The policy that the continuations were left to."""


def compared(tables: duckdb.DuckDBPyConnection, annotator: str | None = None) -> dict[Pair, list[Point]]:
    """The points of each pair, by rollout and step. Of several measurements of a step, that with the most
    samples counts, the newest of those."""
    found: dict[Pair, list[Point]] = {}
    for name, model, *values in tables.execute(_QUERY, {"annotator": annotator}).fetchall():
        found.setdefault(Pair(name, model), []).append(Point(*values))
    return found
