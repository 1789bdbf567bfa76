"""`python -m orchard.processes.metrics`: a store for Prometheus: outcomes, tokens, costs, times.

A fold over the tables like every other reader: it can be stopped, started and run as often as one likes.
"""

import argparse
import asyncio
import sys
from collections.abc import Iterable

import duckdb
from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from orchard.configuration.config import ConfigError, load
from orchard.schemas.positions import MOST_OWN, STREAM_BITS
from orchard.storage.errors import StorageError
from orchard.storage.reader import open_tables

FAMILIES = {
    "orchard_rollouts": (
        "Rollouts with an outcome; `cause` says why an aborted one was aborted.",
        "select campaign, status, coalesce(cause, '') as cause, count(*) from rollouts group by all",
    ),
    "orchard_rollouts_open": (
        "Rollouts that were requested and have no outcome yet.",
        "select campaign, open from conservation",
    ),
    "orchard_rollouts_reconciled": (
        "Open rollouts that were found on no queue and offered again: more than 0 is a fault.",
        "select campaign, count(*) from events where type = 'rollout.reconciled' group by all",
    ),
    "orchard_hack_rate": (
        "Share of rollouts on impossible tasks that passed them; `bound` is Wilson's interval of 95 %.",
        "unpivot (select campaign, harness, model, coalesce(policy_version::varchar, '') as policy_version, "
        "hack_rate::double as rate, low::double as low, high::double as high from hack_rates) "
        "on rate, low, high into name bound value share",
    ),
    "orchard_tokens": (
        "Tokens of rollouts with an outcome, of those whose tokens are known.",
        "unpivot (select campaign, model, sum(prompt_tokens)::double as prompt, "
        "sum(completion_tokens)::double as completion from rollouts group by all) "
        "on prompt, completion into name kind value tokens",
    ),
    "orchard_cost_usd": (
        "What models cost, of rollouts whose cost is known.",
        "select campaign, model, sum(cost_usd) from rollouts where cost_usd is not null group by all",
    ),
    "orchard_rollouts_unpriced": (
        "Rollouts of models without a price: their cost is unknown, not zero.",
        "select campaign, model, count(*) from rollouts where cost_usd is null group by all",
    ),
    "orchard_inherited_tokens": (
        "Tokens of turns that were replayed from dead attempts, and so not paid again.",
        "select campaign, sum(prompt_tokens + completion_tokens)::bigint from tables.attempts_all "
        "where kind = 'inherited' group by all",
    ),
    "orchard_model_seconds": (
        "Seconds until a model answered, of calls of the last hour.",
        "select endpoint, model, '0.5' as quantile, median(seconds) from calls group by all union all "
        "select endpoint, model, '0.95' as quantile, quantile_cont(seconds, 0.95) from calls group by all",
    ),
    "orchard_model_tries": (
        "Tries of the last hour's calls that were answered in the end; `refused`: 429, 5xx, none in time.",
        "select endpoint, model, 'answered' as ending, count(*) from calls group by all union all "
        "select endpoint, model, 'refused' as ending, sum(tries) - count(*) from calls group by all",
    ),
    "orchard_parts_not_shown": (
        "Parts, items and tools of programs' requests that their models could not read or call, by type, in "
        "calls of the last hour; the 50 commonest.",
        "select campaign, entry.key as kind, sum(entry.value)::bigint as parts from "
        "(select campaign, unnest(map_entries(not_shown)) as entry from calls) group by all "
        "order by parts desc limit 50",
    ),
    "orchard_attempts_released": (
        "Attempts of the last hour that the infrastructure ended and that were tried again, by cause.",
        "select campaign, cause, count(*) from tables.attempts_all where kind = 'released' and cause <> '' "
        "and time > now() at time zone 'UTC' - interval 1 hour group by all",
    ),
    "orchard_endpoint_resting": (
        "1 while nobody asks a model endpoint, because it failed or said wait; 0 when it answers again.",
        "select json_extract_string(payload, '$.endpoint') as endpoint, "
        "arg_max((json_extract(payload, '$.resting')::boolean)::int, sequence) "
        "from events where type = 'endpoint.rested' group by all",
    ),
    "orchard_sandbox_seconds": (
        "Seconds a rollout of the last hour spent on its sandboxes, by step.",
        "select step, '0.5' as quantile, median(seconds) from steps group by all union all "
        "select step, '0.95' as quantile, quantile_cont(seconds, 0.95) from steps group by all",
    ),
    "orchard_log_position": (
        "Sequence in the stream of the last event that the tables have, summed over the streams of events.",
        "select coalesce(sum(last), 0) from "
        f"(select max(sequence) & {MOST_OWN} as last from events group by sequence >> {STREAM_BITS})",
    ),
}
"""Help text of each family, and a query for its labels and value."""

_RECENT = """
create temp view steps as unpivot (
    select seconds_creating as creating, seconds_commands as commands, seconds_grading as grading
    from rollouts where time > now() at time zone 'UTC' - interval 1 hour
) on creating, commands, grading into name step value seconds;
create temp view calls as
select * from tables.llm_calls_all where time > now() at time zone 'UTC' - interval 1 hour
"""


class _Given(Collector):
    def __init__(self, found: Iterable[GaugeMetricFamily]) -> None:
        self._found = found

    def collect(self) -> Iterable[GaugeMetricFamily]:
        return self._found


def families(store_url: str) -> list[GaugeMetricFamily]:
    """Reads every family from the store. Raises StorageError."""
    with open_tables(store_url) as tables:
        tables.execute(_RECENT)
        return [_family(tables, name, text, query) for name, (text, query) in FAMILIES.items()]


def render(found: Iterable[GaugeMetricFamily]) -> str:
    """Formats the families in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Given(found))
    return generate_latest(registry).decode()


def application(store_url: str) -> web.Application:
    """Answers `GET /metrics`; with 503 and the reason while the store cannot be read."""
    one_at_a_time = asyncio.Lock()

    async def metrics(_request: web.Request) -> web.Response:
        try:
            async with one_at_a_time:
                found = await asyncio.to_thread(families, store_url)
        except StorageError as error:
            return web.Response(status=503, text=f"{error}\n")
        return web.Response(text=render(found), headers={"Content-Type": "text/plain; version=0.0.4"})

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    return app


def main() -> int:
    """Serves until SIGTERM or SIGINT and returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m orchard.processes.metrics", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=9464)
    options = parser.parse_args()
    try:
        store = load().store
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 1
    web.run_app(application(store), host=options.host, port=options.port, print=None, access_log=None)
    return 0


def _family(tables: duckdb.DuckDBPyConnection, name: str, text: str, query: str) -> GaugeMetricFamily:
    result = tables.execute(query)
    *labels, _ = [column[0] for column in result.description or []]
    family = GaugeMetricFamily(name, text, labels=labels)
    for *values, value in result.fetchall():
        if value is not None:
            family.add_metric([*map(str, values)], float(value))
    return family


if __name__ == "__main__":
    sys.exit(main())
