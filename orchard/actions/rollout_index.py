"""Copies the columns of filters into a file, which follows the tables and is deleted at the end.

The tables are many Parquet files, and a view over them finds out anew in each query which outcomes count.
Here each rollout is one row in the order of the log, and only what is new since the last look is read. The
rows are those of the views `rollouts` and `requests`.
"""

import tempfile
from pathlib import Path

import duckdb

from orchard.actions.campaign_rows import Sources
from orchard.schemas.positions import START, Position
from orchard.storage.reader import beyond

_ENDED = """
select sequence, time, campaign, rollout_id, attempt, task_id, task_source, repo, harness, model, model_kind,
       sample, status, exit_status, cause, resolved, reward, protected, turns,
       prompt_tokens + completion_tokens as tokens, prompt_tokens, completion_tokens, cost_usd, seconds,
       started_at, case when status = 'aborted' then left(detail, 1000) end as detail,
       left(submission, 1) as submission, submission_sha256,
       case when status = 'aborted' then 'aborted' when resolved is null then 'ungraded'
            when resolved then 'resolved' else 'unresolved' end as outcome
from tables.rollouts_all r anti join tables.reopenings_all o on o.superseded_sequence = r.sequence
"""
_ASKED = """
select sequence, time, campaign, rollout_id, task_id, task_source, repo, harness, model, model_kind, sample,
       task_sha256
from tables.requests_all
"""
_ATTEMPTS = "select * from tables.attempts_all"
_REVIEWS = "select * from main.reviews"
_EVENTS = """
select sequence, campaign, rollout_id, type, payload from tables.events
where (type in ('rollout.reconciled', 'sandbox.failed')
       or (type = 'sandbox.created' and (payload->>'$.tries')::int > 1))
"""

INDEXED = Sources(rollouts="indexed.ended", attempts="indexed.attempts", events="indexed.events")
"""Copies of the columns that `orchard.actions.campaign_rows` asks for."""


def index_views(connection: duckdb.DuckDBPyConnection) -> None:
    """Makes the tables that rollouts are read from as views, for a process that reads few of them."""
    connection.execute("create schema indexed")
    first = "qualify row_number() over (partition by rollout_id order by sequence) = 1"
    queries = {"ended": _ENDED, "asked": f"{_ASKED} {first}", "attempts": _ATTEMPTS, "reviews": _REVIEWS}
    for name, query in queries.items():
        connection.execute(f"create view indexed.{name} as {query}")


class RolloutIndex:
    """Maintains the tables `ended`, `asked`, `attempts`, `events` and `reviews` of the schema `indexed`;
    `close` removes them."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="orchard-page-")
        self._connection = connection
        self._upto = START
        connection.execute(f"attach '{Path(self._folder.name, 'page.duckdb')}' as indexed")
        connection.execute(f"create table indexed.ended as {_ENDED} where false")
        connection.execute(f"create table indexed.asked as {_ASKED} where false")
        connection.execute(f"create table indexed.attempts as {_ATTEMPTS} where false")
        connection.execute(f"create table indexed.events as {_EVENTS} and false")
        connection.execute(f"create table indexed.reviews as {_REVIEWS} where false")

    def follow(self, position: Position) -> None:
        """Adds the rows that the tables have received since the last call, up to `position`."""
        run = self._connection.execute
        if not position.reaches(self._upto):  # another store is in its place
            for table in ("ended", "asked", "attempts", "events", "reviews"):
                run(f"delete from indexed.{table}")
            self._upto = START

        def new(query: str) -> str:
            return beyond(self._connection, query, self._upto)

        run("begin")
        try:
            superseded = new("select superseded_sequence from tables.reopenings_all")
            run(f"delete from indexed.ended where sequence in ({superseded})")
            run(f"insert into indexed.ended {new(_ENDED)}")
            run(
                f"insert into indexed.asked {new(_ASKED)} new where not exists "
                "(select 1 from indexed.asked old where old.rollout_id = new.rollout_id) "
                "qualify row_number() over (partition by rollout_id order by sequence) = 1"
            )
            run(f"insert into indexed.attempts {new(_ATTEMPTS)}")
            run(f"insert into indexed.events {new(_EVENTS)} and {position.sql()}")
            noted = new("select rollout_id from tables.notes_all")
            run(f"delete from indexed.reviews where rollout_id in ({noted})")
            run(f"insert into indexed.reviews {_REVIEWS} where rollout_id in ({noted})")
            run("commit")
        except BaseException:
            run("rollback")
            raise
        self._upto = position

    def close(self) -> None:
        """Removes the file; the connection is closed or will be."""
        self._folder.cleanup()
