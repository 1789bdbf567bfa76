"""What the views mean: accepted outcomes, what is abandoned, and that nothing gets lost or counted twice."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import duckdb
import pytest

from orchard.schemas import events as e
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import CampaignState
from orchard.schemas.events import encode_event
from orchard.schemas.positions import Position
from orchard.schemas.protection import Protected
from orchard.schemas.subjects import event_subject
from orchard.storage.errors import StorageError
from orchard.storage.reader import beyond, open_tables, position, refresh, within
from orchard.storage.tables import SCHEMAS, TABLES
from orchard.storage.views import VIEWS
from orchard.streams.connection import Connection
from orchard.streams.publisher import Publisher

Write = Callable[..., Awaitable[None]]


def _rows(store: str, query: str) -> list[tuple[object, ...]]:
    with open_tables(store, views=query) as tables:
        return tables.sql(query).fetchall()


def test_every_view_of_an_empty_store_is_empty_and_typed(tmp_path) -> None:
    with open_tables(str(tmp_path)) as tables:
        for view in VIEWS:
            found = tables.sql(f"select * from {view}")
            assert found.fetchall() == []
            assert len(found.columns) > 2
            assert '"NULL"' not in map(str, found.types)
        assert tables.sql("select sum(prompt_tokens) from rollouts").fetchall() == [(None,)]
        assert tables.sql("select list_sum(token_ids), tool_calls[1].name from messages").fetchall() == []


@pytest.mark.parametrize("view", VIEWS)
def test_each_view_can_be_opened_alone(tmp_path, view: str) -> None:
    with open_tables(str(tmp_path), views=[view]) as tables:
        assert tables.sql(f"select * from {view}").fetchall() == []


def test_a_text_of_sql_names_what_it_opens(tmp_path) -> None:
    query = "select * from tables.requests_all anti join rollouts using (rollout_id)"
    with open_tables(str(tmp_path), views=query) as tables:
        assert tables.sql(query).fetchall() == []
        with pytest.raises(duckdb.CatalogException):
            tables.sql("from hack_rates")


async def test_chosen_views_open_no_other_table(publisher: Publisher, store: str, write: Write, log) -> None:
    await publisher.events(log.whole_rollout(0))
    await write()
    with open_tables(store, views=["rollouts"]) as tables:
        opened = tables.sql("select view_name from duckdb_views() where schema_name = 'tables'").fetchall()
        assert sorted(opened) == [("campaigns_all",), ("reopenings_all",), ("rollouts_all",)]
        assert tables.sql("select count(*) from rollouts").fetchall() == [(1,)]


def test_a_store_that_does_not_exist_is_said_so(tmp_path) -> None:
    with pytest.raises(StorageError, match=r"there is no store at .*/nowhere: check the path"):
        open_tables(str(tmp_path / "nowhere"))


async def test_only_the_accepted_attempt_counts(publisher: Publisher, store: str, write: Write, log) -> None:
    rollout = log.rollout(0)
    await publisher.events([log.requested(0)])
    for attempt in (1, 2):
        await publisher.events(
            [
                log.started(rollout, attempt),
                log.message(rollout, attempt, text=f"attempt {attempt}"),
                log.call(rollout, attempt),
                log.reward(rollout, attempt),
            ]
        )
    await publisher.terminal(log.finished(rollout, attempt=2))
    await write()
    assert _rows(store, "select content from messages") == [("attempt 2",)]
    assert _rows(store, "select attempt from rewards") == [(2,)]
    assert _rows(store, "select attempt, cost_usd from llm_calls") == [(2, 0.25)]
    assert _rows(store, "select attempt, abandoned from messages_all order by 1") == [(1, True), (2, False)]
    assert _rows(store, "select attempt, ending from attempts order by 1") == [(1, "lost"), (2, "completed")]


async def test_an_open_rollout_has_no_outcome_and_nothing_abandoned(
    publisher: Publisher, store: str, write: Write, log
) -> None:
    rollout = log.rollout(0)
    await publisher.events([log.requested(0), log.started(rollout), log.message(rollout)])
    await write()
    assert _rows(store, "select * from rollouts") == []
    assert _rows(store, "select * from messages") == []
    assert _rows(store, "select abandoned from messages_all") == [(False,)]
    assert _rows(store, "select ending from attempts") == [("open",)]
    assert _rows(store, "select requested, finished, aborted, open, holds from conservation") == [
        (1, 0, 0, 1, True)
    ]


@pytest.mark.long
async def test_a_reopened_rollout_counts_by_its_later_outcome(
    publisher: Publisher, store: str, write: Write, log
) -> None:
    rollout = log.rollout(0)
    await publisher.event(log.requested(0))
    aborted = await publisher.terminal(log.aborted(rollout))
    await write()
    assert _rows(store, "select status, cause from rollouts") == [("aborted", "llm_unavailable")]

    reopened = await publisher.terminal(log.reopened(rollout, aborted), aborted)
    await write()
    assert _rows(store, "select * from rollouts") == []
    assert _rows(store, "select open, holds from conservation") == [(1, True)]

    await publisher.terminal(log.finished(rollout, attempt=2), fence=reopened)
    await write()
    assert _rows(store, "select status, attempt, keys_masked from rollouts") == [("completed", 2, 2)]
    assert _rows(store, "select status, superseded from rollouts_all order by sequence") == [
        ("aborted", True),
        ("completed", False),
    ]
    assert _rows(store, "select requested, finished, aborted, open, holds from conservation") == [
        (1, 1, 0, 0, True)
    ]


async def test_pass_rates_have_no_aborted_rollout_in_the_denominator(
    publisher: Publisher, store: str, write: Write, log
) -> None:
    outcomes = [
        log.finished(log.rollout(0), resolved=True),
        log.finished(log.rollout(1), resolved=True),
        log.finished(log.rollout(2), resolved=False),
        log.finished(log.rollout(3), resolved=None),
        log.aborted(log.rollout(4)),
        log.aborted(log.rollout(0, "rich"), harness="rich"),
    ]
    for outcome in outcomes:
        await publisher.terminal(outcome)
    await write()
    columns = (
        "campaign, harness, model, model_kind, task_source, rollouts, resolved, graded, aborted, pass_rate"
    )
    assert _rows(store, f"select {columns} from pass_rates order by harness") == [
        ("demo", "mini", "m", "model", "swe-bench", 5, 2, 3, 1, 2 / 3),
        ("demo", "rich", "m", "model", "swe-bench", 1, 0, 0, 1, None),
    ]


async def test_a_reward_of_an_attempt_that_aborted_after_all_is_none(
    publisher: Publisher, store: str, write: Write, log
) -> None:
    rollout = log.rollout(0)
    await publisher.event(log.reward(rollout))
    await publisher.terminal(log.aborted(rollout))
    await write()
    assert _rows(store, "select * from rewards") == []
    assert _rows(store, "select value, cause from rewards_all") == [(1.0, None)]


async def test_an_event_stored_twice_counts_once(
    connection: Connection, publisher: Publisher, store: str, write: Write, log
) -> None:
    """As when a publish is repeated after the stream has forgotten its id."""
    rollout = log.rollout(0)
    request, message, call = log.requested(0), log.message(rollout), log.call(rollout)
    for event in (request, message, call, request, message, call):
        await connection.jetstream.publish(event_subject(event), encode_event(event))
    await publisher.terminal(log.finished(rollout))
    await write()
    assert _rows(store, "select count(*) from events") == [(7,)]
    assert _rows(store, "select sequence from messages") == [(2,)]
    assert _rows(store, "select sequence from messages_all") == [(2,)]
    assert _rows(store, "select sum(cost_usd) from llm_calls") == [(0.25,)]
    assert _rows(store, "select sequence from requests") == [(1,)]
    assert _rows(store, "select requested, holds from conservation") == [(1, True)]


async def test_an_outcome_nobody_requested_breaks_conservation(
    publisher: Publisher, store: str, write: Write, log
) -> None:
    await publisher.event(log.requested(0))
    await publisher.terminal(log.finished(log.rollout(1)))
    await write()
    assert _rows(store, "select requested, finished, open, unrequested, holds from conservation") == [
        (1, 1, 1, 1, False)
    ]


async def test_attempts_tell_how_each_ended(publisher: Publisher, store: str, write: Write, log) -> None:
    rollout = log.rollout(0)
    released = e.AttemptReleased(reason="draining")
    superseded = e.AttemptSuperseded(accepted_attempt=3, accepted_sequence=5, refused_type="rollout.finished")
    await publisher.events([log.started(rollout, attempt) for attempt in (1, 2, 3, 4)])
    await publisher.event(log.event(released, rollout, 1))
    await publisher.terminal(log.finished(rollout, attempt=3))
    await publisher.event(log.event(superseded, rollout, 4))
    await write()
    assert _rows(store, "select attempt, ending, worker, reason from attempts order by attempt") == [
        (1, "released", "w1", "draining"),
        (2, "lost", "w1", None),
        (3, "completed", "w1", None),
        (4, "superseded", "w1", None),
    ]


async def test_tasks_show_the_state_of_their_newest_text(
    publisher: Publisher, store: str, write: Write, log
) -> None:
    def imported(task: str, text: str) -> e.Event:
        return log.event(
            e.TaskImported(
                task_id=task,
                task_hash=text,
                source="pypi",
                repo="a/b",
                image="host",
                blob=BlobRef(sha256=text, size=1),
                fail_to_pass=1,
                pass_to_pass=2,
                labels={"kind": "bug"},
            )
        )

    await publisher.events(
        [
            imported("new", "h1"),
            imported("good", "h1"),
            log.event(e.TaskValidated(task_id="good", task_hash="h1", runs=3, seconds=9.0)),
            log.event(
                e.TaskValidated(
                    task_id="good",
                    task_hash="h1",
                    runs=3,
                    seconds=9.0,
                    protected=Protected.BIT,
                    protected_tests={"t": Protected.BIT},
                    protected_why="it asks for one bit",
                )
            ),
            imported("bad", "h1"),
            log.event(e.TaskRejected(task_id="bad", task_hash="h1", reason="flaky")),
            imported("changed", "h1"),
            log.event(e.TaskValidated(task_id="changed", task_hash="h1", runs=3, seconds=9.0)),
            imported("changed", "h2"),
        ]
    )
    await write()
    assert _rows(store, "select task_id, state, reason, task_hash, labels['kind'] from tasks order by 1") == [
        ("bad", "rejected", "flaky", "h1", "bug"),
        ("changed", "imported", None, "h2", "bug"),
        ("good", "valid", None, "h1", "bug"),
        ("new", "imported", None, "h1", "bug"),
    ]
    labels = "select protected, protected_tests['t'], protected_why from tasks order by task_id"
    assert _rows(store, labels)[1:3] == [(None, None, None), ("bit", "bit", "it asks for one bit")]


async def test_campaigns_show_their_plan_and_state(
    publisher: Publisher, store: str, write: Write, log
) -> None:
    plan = e.CampaignSubmitted(
        spec=BlobRef(sha256="ab" * 32, size=1),
        spec_hash="s",
        size=8,
        tasks=2,
        harnesses=("mini",),
        models=("m", "n"),
        samples=2,
    )
    pause = e.CampaignStateChanged(
        state=CampaignState.PAUSED, previous=CampaignState.RUNNING, reason="lunch", revision=2
    )
    await publisher.event(log.event(plan))
    await write()
    assert _rows(store, "select campaign, state, size, models from campaigns") == [
        ("demo", "running", 8, ["m", "n"])
    ]
    await publisher.event(log.event(pause))
    await write()
    assert _rows(store, "select state, reason, size, spec_hash from campaigns") == [
        ("paused", "lunch", 8, "s")
    ]


async def test_tokens_and_tool_calls_are_columns(publisher: Publisher, store: str, write: Write, log) -> None:
    rollout = log.rollout(0)
    await publisher.event(log.message(rollout, text="caf\u00e9"))
    await publisher.terminal(log.finished(rollout))
    await write()
    query = """select content_length, token_ids, logprobs[2], versions[1].version, tool_calls[1].name,
                      returncode, time from messages"""
    (row,) = _rows(store, query)
    assert row[:6] == (4, [1, 2, 3], -0.2, 7, "bash", 0)
    assert row[6].tzinfo is None


@pytest.mark.long
async def test_a_connection_sees_new_commits_after_refresh(
    publisher: Publisher, store: str, write: Write, log
) -> None:
    await publisher.events(log.whole_rollout(0))
    await write()
    with open_tables(store) as tables:
        await publisher.events(log.whole_rollout(1))
        await write()
        assert tables.sql("select count(*) from rollouts").fetchall() == [(1,)]
        refresh(tables, store)
        assert tables.sql("select count(*) from rollouts").fetchall() == [(2,)]


async def test_the_stored_tables_have_the_declared_columns(
    publisher: Publisher, store: str, write: Write, log
) -> None:
    await publisher.events(log.whole_rollout(0))
    await write()
    with open_tables(store) as tables:
        for table in TABLES:
            assert tables.sql(f"select * from tables.{table}").columns == SCHEMAS[table].names


@pytest.mark.long
async def test_a_range_is_read_from_the_files_alone_that_have_it(
    publisher: Publisher, store: str, write: Write, log
) -> None:
    """The others may even be gone."""
    ends = []
    for number in range(4):
        await publisher.events(log.whole_rollout(number))
        await write()
        ends.append(position(store).last(0))
    query = "select sequence, content, time from tables.messages_all order by sequence"
    with open_tables(store) as tables:
        every = tables.sql(query).fetchall()
        for first, last in ((0, 2**62), (ends[0] + 1, ends[1]), (ends[1], ends[2] + 1), (2**62, 2**62)):
            expected = [row for row in every if first <= row[0] <= last]
            assert tables.sql(within(tables, query, first, last)).fetchall() == expected
        for end in (0, ends[1], ends[1] + 1, ends[3]):
            expected = [row for row in every if row[0] > end]
            assert tables.sql(beyond(tables, query, Position.of(end))).fetchall() == expected
        files = sorted(
            tables.sql(
                "select distinct filename from read_parquet('{}/*.parquet', filename = true)".format(
                    f"{store}/tables/messages_all"
                )
            ).fetchall()
        )
        newest = beyond(tables, query, Position.of(ends[2]))
        narrow = within(tables, query, ends[0] + 1, ends[1])
        expected = [row for row in every if ends[0] < row[0] <= ends[1]]
        assert len(files) == 4 and expected
        for (name,) in files:
            if name not in narrow and name not in newest:
                Path(name).unlink()
        assert tables.sql(narrow).fetchall() == expected
        assert tables.sql(newest).fetchall() == [row for row in every if row[0] > ends[2]]
        with pytest.raises(duckdb.IOException):
            tables.sql(query).fetchall()


@pytest.mark.long
async def test_a_range_ends_where_the_tables_are_whole(
    publisher: Publisher, store: str, write: Write, log
) -> None:
    for number in range(2):
        await publisher.events(log.whole_rollout(number))
        await write()
    end = position(store).last(0)
    query = "select max(sequence) from tables.messages_all"
    with open_tables(store, as_of=Position.of(end // 2)) as tables:
        whole = tables.sql(query).fetchall()
        assert tables.sql(within(tables, query, 0, 2**62)).fetchall() == whole
        refresh(tables, store)
        assert tables.sql(within(tables, query, 0, 2**62)).fetchall() == tables.sql(query).fetchall() != whole
