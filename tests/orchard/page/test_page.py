"""The page answers what SQL answers, to those who may ask."""

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import aiohttp
import duckdb
import msgspec
import pytest
import pytest_asyncio

from orchard.actions import rollout as one_rollout
from orchard.actions.campaign_rows import CampaignRows, FollowedRows, read_rows
from orchard.actions.campaign_status import recorded
from orchard.actions.rollout_index import INDEXED, RolloutIndex
from orchard.actions.session import Session
from orchard.configuration.config import Config
from orchard.page import server
from orchard.page.campaigns import CampaignWatch
from orchard.page.rollouts import COLUMNS, SORTS, USUAL, BadFilter, Query, page_of, summary_of
from orchard.page.tables import Tables
from orchard.schemas import events as e
from orchard.schemas.llm_calls import CallKind, Usage
from orchard.schemas.messages import MessageNode, Role, node_id
from orchard.schemas.positions import Position
from orchard.storage.reader import one, open_tables, position, refresh, rows
from orchard.streams.connection import connect
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare
from tests.benchmarks.million import Plan, fill_store
from tests.orchard.page.big import append
from tests.orchard.page.conftest import TOKEN, Serve, served, stored
from tests.trajectory_log import Author, llm_call

STRANGER = "https://pages.example"


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rollouts that are resolved, fail, are retried, lose a worker, abort, are reopened, or are open."""
    store = tmp_path_factory.mktemp("history") / "store"
    fill_store(Plan(rollouts=700, campaigns=2, samples=2, turns=2, open_share=0.2), str(store))
    return store


@pytest.fixture(scope="module")
def tables(history: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    with open_tables(str(history)) as connection:
        index = RolloutIndex(connection)
        index.follow(position(str(history)))
        yield connection
    index.close()


# --- who may look --------------------------------------------------------------------------------


@pytest.mark.long
async def test_on_loopback_everybody_here_may_look_and_nobody_elsewhere(history: Path, serve: Serve) -> None:
    async with serve(history) as url, aiohttp.ClientSession(url) as http:
        port = url.rpartition(":")[2]
        for path in ("/", "/rollouts", "/nothing", "/health", "/static/page.js"):
            asked = (
                ({}, 404 if path == "/nothing" else 200),
                ({"Host": f"localhost:{port}"}, 404 if path == "/nothing" else 200),
                ({"Host": "pages.example"}, 421),
                ({"Host": f"127.0.0.1.pages.example:{port}"}, 421),
                ({"Origin": STRANGER}, 403),
            )
            for headers, status in asked:
                async with http.get(path, headers=headers) as reply:
                    assert reply.status == status, (path, headers)
                    assert "default-src 'none'" in reply.headers["Content-Security-Policy"]
                    assert reply.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.long
@pytest.mark.parametrize("door", [{"loopback": False}, {"private": True}])
async def test_elsewhere_and_in_private_the_token_is_needed(
    history: Path, serve: Serve, door: dict[str, bool]
) -> None:
    async with serve(history, **door) as url, aiohttp.ClientSession(url) as http:
        for path, status in (("/", 403), ("/live", 403), ("/static/page.css", 403), ("/?token=wrong", 403)):
            async with http.get(path) as reply:
                assert reply.status == status
        async with http.get(f"/rollouts?turns=2&token={TOKEN}", allow_redirects=False) as reply:
            assert (reply.status, reply.headers["Location"]) == (303, "/rollouts?turns=2")
            cookie = reply.headers["Set-Cookie"]
            assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
            jar = {"Cookie": cookie.partition(";")[0]}
        async with http.get("/rollouts", headers=jar) as reply:
            assert reply.status == 200
            assert TOKEN not in await reply.text()


@pytest.mark.long
async def test_a_token_leads_to_no_other_site(history: Path, serve: Serve) -> None:
    async with serve(history) as url, aiohttp.ClientSession() as http:
        for path in ("//pages.example/", "/\\pages.example/"):
            async with http.get(f"{url}{path}?token={TOKEN}", allow_redirects=False) as reply:
                assert reply.headers["Location"].lstrip("/") == reply.headers["Location"][1:]
                assert not reply.headers["Location"].startswith(("//", "/\\"))


# --- rollouts ------------------------------------------------------------------------------------

FILTERS = [
    ({}, "true"),
    ({"campaign": "million-1"}, "campaign = 'million-1'"),
    ({"model": "small", "harness": "openhands"}, "model = 'small' and harness = 'openhands'"),
    ({"outcome": "resolved"}, "resolved and status <> 'aborted'"),
    ({"outcome": "unresolved", "sort": "tokens"}, "not resolved and status <> 'aborted'"),
    ({"outcome": "aborted"}, "status = 'aborted'"),
    ({"turns": "2", "sort": "seconds", "order": "asc"}, "turns = 2"),
    ({"tokens": "100..3000"}, "prompt_tokens + completion_tokens between 100 and 3000"),
    ({"reward": "..0", "sort": "reward"}, "reward <= 0"),
    ({"task_id": "*1"}, "task_id like '%1'"),
    ({"task_id": "nowhere' or 1=1 --"}, "false"),
]


def _all_pages(tables: duckdb.DuckDBPyConnection, given: dict[str, str]) -> list[dict[str, Any]]:
    found, after = [], None
    while True:
        page = page_of(tables, Query.of({**given, **({"after": after} if after else {})}))
        found += page.rows
        if page.next is None:
            return found
        assert len(page.rows) == 50
        after = page.next


@pytest.mark.parametrize(("given", "where"), FILTERS)
def test_filtered_rollouts_are_those_of_the_view(
    tables: duckdb.DuckDBPyConnection, given: dict[str, str], where: str
) -> None:
    expected = rows(
        tables, f"select rollout_id, turns, cost_usd, resolved, status from rollouts where {where}"
    )
    found = _all_pages(tables, given)
    assert sorted(row["rollout_id"] for row in found) == sorted(row["rollout_id"] for row in expected)
    summary = summary_of(tables, Query.of(given))
    assert summary.total == len(expected)
    assert summary.resolved == sum(bool(row["resolved"]) for row in expected if row["status"] != "aborted")
    assert summary.aborted == sum(row["status"] == "aborted" for row in expected)
    for shown in summary.distributions:
        known = [row for row in found if row[shown.name] is not None]
        assert sum(each.rows for each in shown.bins) == len(known), shown.name


@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_in_any_order_have_each_rollout_once(
    tables: duckdb.DuckDBPyConnection, sort: str, order: str
) -> None:
    found = _all_pages(tables, {"sort": sort, "order": order, "campaign": "million-0"})
    assert len({row["rollout_id"] for row in found}) == len(found) > 200
    column = "sequence" if sort == "newest" else sort
    values = [row[column] for row in found if row[column] is not None]
    assert values == sorted(values, reverse=order == "desc")
    assert all(row[column] is None for row in found[len(values) :]), "those without a value come last"


def test_open_rollouts_are_those_without_an_outcome(tables: duckdb.DuckDBPyConnection) -> None:
    expected = rows(tables, "select campaign, open from conservation where open > 0")
    for row in expected:
        found = _all_pages(tables, {"outcome": "open", "campaign": row["campaign"]})
        assert len(found) == row["open"]
    assert expected


async def test_columns_are_chosen_by_the_address(history: Path, serve: Serve) -> None:
    async with serve(history) as url, aiohttp.ClientSession(url) as http:

        async def titles(path: str) -> list[str]:
            async with http.get(path) as reply:
                assert reply.status == 200, path
                html = await reply.text()
            head = html.partition("<thead>")[2].partition("</thead>")[0]
            assert len(re.findall("<td", html.partition("<tbody>")[2].partition("</tr>")[0])) == head.count(
                "<th "
            )
            return [re.sub("<[^>]*>", "", each).strip() for each in re.findall(r"<th .*?</th>", head)]

        usual = ["Task", "Harness", "Model", "Turns", "Tokens", "Time", "Score", "Cost", "Ended"]
        assert await titles("/rollouts") == ["Outcome", "Rollout", *usual]
        given = Query.of({"columns": "campaign,read,exit", "model": "small", "sort": "turns"})
        assert await titles(given.address()) == ["Outcome", "Rollout", "Campaign", "Tokens read", "Exit"]
        more = Query.of(dict(parse_qsl(urlsplit(given.with_column("cost")).query)))
        assert more.columns == ("campaign", "exit", "read", "cost") and more.filters == given.filters
        assert await titles("/rollouts?outcome=open&columns=" + ",".join(COLUMNS))
        every = Query.of({"columns": "cost"})
        assert Query.of(dict(parse_qsl(urlsplit(every.with_column("cost")).query))).columns == USUAL


WRONG = [
    {"turns": "many"},
    {"sort": "x"},
    {"outcome": "y"},
    {"after": "[[1],2]"},
    {"role": "x"},
    {"turn": "x"},
    {"columns": "task,x"},
]


@pytest.mark.parametrize("wrong", WRONG)
def test_the_error_of_an_invalid_filter_says_what_to_do(wrong: dict[str, str]) -> None:
    with pytest.raises(BadFilter, match=r" is .*: (choose|start|write) "):
        Query.of(wrong)


def test_campaigns_have_the_numbers_of_sql(tables: duckdb.DuckDBPyConnection) -> None:
    """Also from the index, which is what the page asks."""
    found = recorded(tables, INDEXED)
    assert to_nine_digits(found) == to_nine_digits(recorded(tables))
    for view in found:
        expected = rows(tables, "select * from conservation where campaign = $name", {"name": view.name})[0]
        assert (view.done, view.aborted) == (
            expected["finished"] + expected["aborted"],
            expected["aborted"],
        )


def to_nine_digits(views: Any) -> Any:
    """DuckDB's threads add in any order."""
    return json.loads(msgspec.json.encode(views), parse_float=lambda number: round(float(number), 9))


@pytest.mark.long
def test_the_index_follows_what_is_reopened(tmp_path: Path) -> None:
    """Step by step it has the rows of the view, whatever was superseded meanwhile."""
    store = str(tmp_path / "store")
    end = fill_store(Plan(rollouts=200, campaigns=1, samples=2), store)
    with open_tables(store, as_of=Position()) as connection:
        index = RolloutIndex(connection)
        for upto in range(end // 7, end, end // 7):
            refresh(connection, store, as_of=Position.of(upto))
            index.follow(Position.of(upto))
            query = "select rollout_id, sequence, outcome_of from ({}) order by all"
            own = query.replace("outcome_of", "status").format("select * from indexed.ended")
            view = query.replace("outcome_of", "status").format("select * from rollouts")
            assert connection.execute(own).fetchall() == connection.execute(view).fetchall()
        index.close()


@pytest.mark.long
def test_rows_of_campaigns_follow_the_log(tmp_path: Path) -> None:
    """Step by step they are what reading all campaigns gives, and those without news are not read again."""
    store = str(tmp_path / "store")
    end = fill_store(Plan(rollouts=400, campaigns=4, samples=2, open_share=0.3), store)
    names = [f"million-{number}" for number in range(4)]
    with open_tables(store, as_of=Position()) as connection:
        index, reached = RolloutIndex(connection), Position()
        followed = FollowedRows(lambda: reached)
        first = None
        for upto in [*range(end // 9, end, end // 9), end, end // 2]:
            reached = Position.of(upto)
            refresh(connection, store, as_of=reached)
            index.follow(reached)
            asked = "select min_by(rollout_id, sequence) from indexed.attempts where campaign = 'million-3'"
            (started,) = connection.execute(asked).fetchone() or (None,)
            running = {"million-3": {started}} if started else {}
            found = followed.read(connection, names, running, [], reached, INDEXED)
            expected = read_rows(connection, names, running, [], reached, INDEXED)
            assert _in_order(found) == _in_order(expected)
            if first is not None and upto > end // 2:
                assert found.one["million-0"] is first, "it has ended"
            first = found.one["million-0"]
        index.close()


def _in_order(found: CampaignRows) -> object:
    """The rows of each query in an order of their own."""
    return [
        sorted(map(str, each)) if isinstance(each, list) else each
        for each in to_nine_digits(list(vars(found).values()))
    ]


@pytest.mark.long
async def test_what_is_committed_while_the_page_looks_is_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer commits between the page's question how far the tables are and its look at them."""
    author = Author("late")
    store = await stored(tmp_path, author.rollout(0, ["ls"], resolved=True))
    late = [author.rollout(number, ["ls"], resolved=True) for number in (1, 2)]

    def reached(url: str) -> Position:
        found = position(url)
        if late:
            append(store, late.pop())
        return found

    monkeypatch.setattr("orchard.page.tables.position", reached)
    monkeypatch.setattr("orchard.page.tables.LOOK_SECONDS", 0.0)
    tables = Tables(str(store))
    query = "select count(*) as n, count(distinct rollout_id) as different from indexed.ended"
    try:
        found = [await tables.ask(one, query) for _ in range(4)]
    finally:
        await tables.close()
    assert [row["n"] for row in found if row] == [1, 2, 3, 3]
    assert all(row and row["n"] == row["different"] for row in found)


# --- one rollout ---------------------------------------------------------------------------------


def talk_of(author: Author, turns: int) -> list[e.Event]:
    """A rollout of so many turns, with a subagent in turn 2 and a branch that leaves turn 3."""
    made = author.rollout(0, [f"echo {n}" for n in range(turns)], resolved=False)
    name = made[0].rollout_id or ""
    nodes = [e.payload(event) for event in made]
    said = [node for node in nodes if isinstance(node, MessageNode)]
    second = next(node for node in said if node.turn == 2 and node.role is Role.ASSISTANT)
    third = next(node for node in said if node.turn == 3 and node.role is Role.TOOL)

    def add(parent: str | None, role: Role, text: str, turn: int) -> MessageNode:
        node = MessageNode(
            node_id=node_id(parent, role, text, (), ""), parent=parent, role=role, turn=turn, content=text
        )
        made.insert(-1, author.event(node, name))
        return node

    ask = add(None, Role.USER, "look into it", 0)
    answer = add(ask.node_id, Role.ASSISTANT, "looked", 1)
    facts = {"parent": ask.node_id, "node": answer.node_id, "call_kind": CallKind.SUBAGENT}
    made.insert(-1, author.event(llm_call(1, **facts, derived_from=second.node_id), name))
    add(third.node_id, Role.ASSISTANT, "another way", 4)
    for node in said:
        if node.role is Role.ASSISTANT:
            usage = Usage(prompt_tokens=7, completion_tokens=3)
            call = llm_call(node.turn, parent=node.parent or "", node=node.node_id, usage=usage)
            made.insert(-1, author.event(call, name))
    made.append(author.annotated(made, {1: 0.8, turns - 1: 0.1}, turns))
    return made


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def talk(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Path]:
    yield await stored(tmp_path_factory.mktemp("talk"), talk_of(Author(), 100))


def _read(store: Path, view: one_rollout.RolloutView) -> one_rollout.ShownRollout:
    with open_tables(str(store)) as connection:
        index = RolloutIndex(connection)
        index.follow(position(str(store)))
        (name,) = connection.execute("select rollout_id from rollouts").fetchone() or ("",)
        found = one_rollout.read(connection, name, view)
        index.close()
    return found


@pytest.mark.long
async def test_a_rollout_is_its_path_with_branches_beside_it(talk: Path) -> None:
    found = _read(talk, one_rollout.RolloutView())
    assert [turn.number for turn in found.turns] == list(range(101))
    assert [turn.number for turn in found.window] == list(range(40))
    beside = {
        turn.number: [(b.kind, b.messages) for b in turn.branches] for turn in found.turns if turn.branches
    }
    assert beside == {2: [(CallKind.SUBAGENT, 2)], 3: [(CallKind.MAIN, 1)]}
    assert {turn.completion_tokens for turn in found.turns[1:]} == {3}
    (curve,) = found.curves
    assert curve.rises[0].first == 0 and curve.values[0] == 0.4
    leaf = next(b.leaf for turn in found.turns for b in turn.branches if b.kind is CallKind.SUBAGENT)
    assert len(_read(talk, one_rollout.RolloutView(leaf=leaf)).turns) == 2


@pytest.mark.long
async def test_windows_and_moments_of_a_rollout(talk: Path) -> None:
    assert [t.number for t in _read(talk, one_rollout.RolloutView(turn=57)).window] == list(range(40, 80))
    assert [t.number for t in _read(talk, one_rollout.RolloutView(turn=9999)).window] == list(range(80, 101))
    then = _read(talk, one_rollout.RolloutView(as_of=5))
    assert (then.turns[-1].number, then.outcome, then.rewards, then.curves) == (5, None, [], [])
    found = _read(talk, one_rollout.RolloutView(find="ECHO 77"))
    assert {row["turn"] for row in found.found} == {78}


@pytest.mark.long
async def test_the_page_of_a_rollout_shows_what_was_said(talk: Path, serve: Serve) -> None:
    async with serve(talk) as url, aiohttp.ClientSession(url) as http:
        name = _read(talk, one_rollout.RolloutView()).id
        async with http.get(f"/rollouts/{name[:6]}") as reply:
            assert reply.url.path == f"/rollouts/{name}"
            html = await reply.text()
        for said in ("You repair programs.", "echo 38", "unresolved", "subagent", "rise", "teacher"):
            assert said in html
        assert "echo 77: ok" not in html and "echo 38: ok" in html
        async with http.get(f"/rollouts/{name}/events") as reply:
            assert "rollout.finished" in (await reply.text()) or reply.status == 200
        async with http.get(f"/rollouts/{name}/diff") as reply:
            assert (reply.content_type, await reply.text()) == ("text/plain", "diff")
        async with http.get("/rollouts/ffffffff") as reply:
            assert reply.status == 404


@pytest.mark.long
async def test_what_is_committed_is_told_to_open_pages(tmp_path: Path) -> None:
    author = Author("live")
    store = await stored(tmp_path, author.rollout(0, ["ls"], resolved=True))
    async with served(store) as url, aiohttp.ClientSession(url) as http, http.get("/live") as reply:
        assert reply.content_type == "text/event-stream"

        async def told() -> int:
            async for line in reply.content:
                if line.startswith(b"data: "):
                    return int(json.loads(line.removeprefix(b"data: "))["position"])
            raise AssertionError("the stream of events has ended")

        before = await told()
        await stored(tmp_path, author.rollout(1, ["ls"], resolved=True))
        async with asyncio.timeout(60):
            assert await told() > before


@pytest.mark.long
async def test_a_page_follows_from_before_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit between the reading of a page and its sending is told to the open page as a change."""
    author = Author("late")
    talk = author.rollout(1, ["ls"], resolved=True, task="open")
    store = await stored(tmp_path, [*author.rollout(0, ["ls"], resolved=True, task="t0"), *talk[:6]])
    looks: list[Position] = []

    def reached(url: str) -> Position:
        looks.append(position(url))
        append(store, author.rollout(len(looks) + 1, [], resolved=True))
        return looks[-1]

    monkeypatch.setattr("orchard.page.tables.LOOK_SECONDS", 0.0)
    monkeypatch.setattr("orchard.page.tables.position", reached)
    paths = ["/rollouts", f"/rollouts/{talk[0].rollout_id}", "/tasks", "/tasks/t0", "/failures", "/compare"]
    async with served(store) as url, aiohttp.ClientSession(url) as http:
        for path in [*paths, "/evaluations"]:
            async with http.get(path) as reply:
                text, last = await reply.text(), looks[-1]
            found = re.search('data-live="position" data-shown="([0-9]+)"', text)
            assert found is not None and int(found[1]) < last.events, path


async def test_an_overview_is_read_again_after_a_commit_during_its_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    author = Author("late")
    store = await stored(tmp_path, author.rollout(0, ["ls"], resolved=True))
    tables = Tables(str(store))
    watch = CampaignWatch(Session(Config(store=str(store))), tables)
    monkeypatch.setattr("orchard.page.tables.LOOK_SECONDS", 0.0)
    read: list[Position] = []

    def reading(*arguments: Any) -> Any:
        found = recorded(*arguments)
        read.append(tables.reached)
        if len(read) == 1:  # and another page looks, before this one has noted where the tables were
            append(store, author.rollout(1, ["ls"], resolved=True))
            tables._look()
        return found

    monkeypatch.setattr("orchard.page.campaigns.recorded", reading)
    try:
        for _ in range(3):
            await watch.newest()
    finally:
        await tables.close()
    assert len(read) == 2 and read[0] < read[1]


@pytest.mark.long
async def test_the_page_goes_on_without_the_pipeline_and_finds_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that ends, and another at another address."""
    monkeypatch.setattr("orchard.page.campaigns.AGAIN_SECONDS", 0.2)
    monkeypatch.setattr("orchard.page.campaigns.PATIENCE_SECONDS", 2.0)
    store = await stored(tmp_path, Author("gone").rollout(0, ["ls"], resolved=True))
    settings = NatsSettings()
    session = Session(Config(store=str(store)))
    where: list[str] = []
    monkeypatch.setattr(Session, "nats_url", lambda _: where[-1])
    tables = Tables(str(store))
    watch = CampaignWatch(session, tables)
    try:
        for number in range(2):
            async with EmbeddedServer(tmp_path / f"nats-{number}") as server:
                where.append(server.url)
                async with connect(settings, name="test", url=server.url) as connection:
                    await declare(connection, settings, [])
                if not number:
                    watch.start()
                while (await watch.newest()).pipeline is None:
                    await asyncio.sleep(0.05)
            while (await watch.newest()).pipeline is not None:
                await asyncio.sleep(0.05)
    finally:
        await watch.close()
        await tables.close()


async def test_without_a_store_the_page_says_so(tmp_path: Path, serve: Serve) -> None:
    async with serve(tmp_path / "nothing") as url, aiohttp.ClientSession(url) as http, http.get("/") as reply:
        assert reply.status == 503
        assert "there is no store" in await reply.text()


async def test_who_asks_before_the_page_runs_is_answered_when_it_does(history: Path) -> None:
    """`orchard up` listens for the page, so its port is its own while the page is started again."""
    stop, ready = asyncio.Event(), asyncio.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/health"
        async with aiohttp.ClientSession() as http, asyncio.TaskGroup() as tasks:
            early = asyncio.ensure_future(http.get(url))
            running = server.serve(
                Session(Config(store=str(history))),
                port=listening.dup(),
                told=lambda *_: ready.set(),
                stop=stop,
            )
            tasks.create_task(running)
            await ready.wait()
            async with await early as reply:
                assert reply.status == 200
            stop.set()
