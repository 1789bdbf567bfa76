"""Numbers on pages are those of SQL and of the command line for the same question."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from html import unescape
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import aiohttp
import duckdb
import pytest
import pytest_asyncio
from typer.testing import CliRunner

from orchard.cli.app import app
from orchard.page import figures
from orchard.storage.reader import open_tables, rows
from tests.benchmarks.million import Plan, fill_store
from tests.orchard.page.conftest import served, stored
from tests.orchard.page.gallery import compared

pytestmark = pytest.mark.long


def made_at_once(place: Path) -> Path:
    """With retries, lost workers, aborted, reopened and open rollouts."""
    fill_store(Plan(rollouts=400, campaigns=2, samples=2, turns=2, open_share=0.3), str(place / "store"))
    return place / "store"


class Look(NamedTuple):
    """A store, its page and its tables."""

    store: Path
    http: aiohttp.ClientSession
    tables: duckdb.DuckDBPyConnection

    async def page(self, path: str) -> str:
        async with self.http.get(path) as reply:
            assert reply.status == 200, path
            return await reply.text()

    async def orchard(self, *words: str) -> str:
        """What the command line says."""
        runner = CliRunner(env={"COLUMNS": "400"})
        done = await asyncio.to_thread(runner.invoke, app, ["--store", str(self.store), *words])
        assert done.exit_code == 0, done.output
        return done.stdout

    def sql(self, query: str, *values: Any) -> list[dict[str, Any]]:
        return rows(self.tables, query, list(values) or None)


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=["written", "at once"])
async def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("numbers")
    return await stored(place, compared()) if request.param == "written" else made_at_once(place)


@pytest_asyncio.fixture
async def look(store: Path) -> AsyncIterator[Look]:
    with open_tables(str(store)) as tables:
        async with served(store) as url, aiohttp.ClientSession(url) as http:
            yield Look(store, http, tables)


def text_of(html: str) -> str:
    """What one reads of a part of a page."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


def facts(html: str) -> dict[str, str]:
    """Names and values of the lists of facts."""
    return dict(re.findall(r"<dt>([^<]*)</dt><dd[^>]*>([^<]*)</dd>", html))


def cells(html: str, label: str) -> Iterator[list[str]]:
    """Texts of the rows of the table of this label."""
    region = html.partition(f'aria-label="{label}"')[2]
    body = region.partition("<tbody>")[2].partition("</tbody>")[0]
    for row in re.findall(r"<tr[ >].*?</tr>", body, re.DOTALL):
        yield [text_of(cell) for cell in re.findall(r"<t[dh][ >].*?</t[dh]>", row, re.DOTALL)]


def cards(html: str) -> dict[str, str]:
    """The campaigns of a page by name."""
    found = re.findall(r'<article class="card campaign".*?</article>', html, re.DOTALL)
    return {text_of(card.partition("<h1>")[2].partition("</h1>")[0]): card for card in found}


def outcomes(card: str) -> dict[str, int]:
    """Of a campaign's card, those that ended."""
    found = re.findall(r"<li><a class=\"o-[^>]*><b>([\d,]+)</b> ([^<]*)</a>", card)
    return {unescape(name): int(number.replace(",", "")) for number, name in found if name != "open"}


BY_OUTCOME = """
select case when status = 'aborted' then 'aborted: ' || cause when resolved is null then 'ungraded'
       when resolved then 'resolved' else 'unresolved' end as outcome, count(*) as n
from rollouts where campaign = ? group by 1
"""
BY_TASK = """
select avg(rate) as rate from (
    select count(*) filter (resolved) / count(resolved) as rate from rollouts
    where campaign = ? group by task_id having count(resolved) > 0
)
"""
TOTALS = """
select count(*) as done, sum(r.turns) + any_value(more.turns) as turns,
       sum(prompt_tokens + completion_tokens) + any_value(more.tokens) as tokens,
       (select sum(cost_usd) from (select distinct on (event_id) * from tables.llm_calls_all)
        where campaign = $1) as cost,
       count(*) filter (resolved) / nullif(count(resolved), 0) as rate,
       (select count(*) - count(distinct rollout_id) from tables.attempts_all
        where kind = 'started' and campaign = $1) as retries
from rollouts r, (
    select count(*) as turns, coalesce(sum(prompt_tokens + completion_tokens), 0) as tokens
    from (select distinct on (event_id) * from tables.llm_calls_all) c
    where campaign = $1 and not exists (from rollouts o where o.rollout_id = c.rollout_id)
) more
where campaign = $1
"""
"""What the rollouts of a campaign took, those without an outcome included; the cost of all attempts."""


async def test_campaigns(look: Look) -> None:
    listed = {row[1].partition(" ")[0]: row for row in cells(await look.page("/"), "Campaigns") if row[1]}
    known = look.sql("select campaign, size from campaigns")
    assert listed.keys() - {"million-0:", "million-1:"} == {row["campaign"] for row in known}
    for row in known:
        card = cards(await look.page(f"/campaigns/{row['campaign']}"))[row["campaign"]]
        (totals,) = look.sql(TOTALS, row["campaign"])
        (each,) = look.sql(BY_TASK, row["campaign"])
        cell = listed[row["campaign"]]
        assert cell[4].startswith(f"{figures.share(each['rate'])} [")
        assert f"{totals['done']:,} of {row['size']:,}" in cell[5]
        assert cell[6] == (figures.usd(totals["cost"]) if totals["cost"] is not None else "–")
        assert outcomes(card) == {
            each["outcome"]: each["n"] for each in look.sql(BY_OUTCOME, row["campaign"])
        }
        assert f"{totals['done']:,} of {row['size']:,}" in text_of(card)
        said = facts(card)
        assert said["pass rate"] == figures.share(totals["rate"])
        assert said["turns"] == figures.count(totals["turns"])
        assert said["tokens"] == figures.short(totals["tokens"])
        assert said.get("cost") == (figures.usd(totals["cost"]) if totals["cost"] is not None else None)
        assert said.get("retries", "0") == figures.count(totals["retries"])
        waiting = row["size"] - totals["done"]
        assert said.get("waiting", "0") == figures.count(waiting), "nothing runs"


@pytest.mark.parametrize("asked", ["", "?outcome=resolved&sort=tokens", "?turns=2..&order=asc&sort=seconds"])
async def test_rollouts(look: Look, asked: str) -> None:
    html = await look.page(f"/rollouts{asked}")
    where = {"": "true", "?o": "resolved and status <> 'aborted'", "?t": "turns >= 2"}[asked[:2]]
    (totals,) = look.sql(
        f"select count(*) as n, count(*) filter (resolved) as resolved, count(resolved) as graded, "
        f"count(*) filter (status = 'aborted') as aborted from rollouts where {where}"
    )
    head = text_of(html.partition("<h1>Rollouts</h1>")[2].partition("</p>")[0])
    said = f"{totals['n']:,} match · pass rate {figures.share(totals['resolved'] / totals['graded'])}"
    assert head.startswith(f"{said} ({totals['resolved']:,} of {totals['graded']:,})")
    assert (f"{totals['aborted']:,} aborted" in head) == (totals["aborted"] > 0)
    found = list(cells(html, "Rollouts"))
    assert len(found) == min(50, totals["n"])
    for row in found:
        (known,) = look.sql("select * from rollouts where starts_with(rollout_id, ?)", row[1])
        assert row[5:10] == [
            figures.count(known["turns"]),
            figures.short(known["prompt_tokens"] + known["completion_tokens"]),
            figures.duration(known["seconds"]),
            figures.score(known["reward"]),
            figures.usd(known["cost_usd"]),
        ]


async def test_tasks_compare_failures_and_health(look: Look) -> None:
    listed = {row[0]: row[2] for row in cells(await look.page("/tasks"), "Tasks")}
    counted = (
        "select task_id, count(*) filter (resolved) as resolved, count(resolved) as graded from rollouts"
    )
    assert listed == {
        row["task_id"]: f"{row['resolved']:,} of {row['graded']:,}"
        for row in look.sql(f"{counted} group by 1")
    }
    arms = [
        (row[0], row[1], row[2], row[5], row[7]) for row in cells(await look.page("/compare"), "All arms")
    ]
    expected = look.sql(
        "select campaign, harness, model, sum(resolved)::bigint as resolved, sum(graded)::bigint as graded, "
        "sum(aborted)::bigint as aborted from pass_rates group by all"
    )
    assert sorted(arms) == sorted(
        (
            r["campaign"],
            r["harness"],
            r["model"],
            f"{r['resolved']:,} of {r['graded']:,}",
            f"{r['aborted']:,}",
        )
        for r in expected
    )
    failed = look.sql(
        "select count(*) as n from rollouts where status = 'aborted' or not coalesce(resolved, true)"
    )
    assert f"{failed[0]['n']:,} failed rollouts" in text_of(await look.page("/failures"))
    health = await look.page("/status")
    causes = look.sql(
        "select cause, campaign, count(*) as n from rollouts where status = 'aborted' group by 1, 2"
    )
    assert sorted(row[:3] for row in cells(health, "Aborted")) == sorted(
        [row["cause"], row["campaign"], f"{row['n']:,}"] for row in causes
    )
    calls = look.sql("select model, count(*) as n from tables.llm_calls_all group by 1 order by 2 desc")
    assert [[row[1], row[2]] for row in cells(health, "Endpoints") if len(row) > 2] == [
        [row["model"], f"{row['n']:,}"] for row in calls
    ]


async def test_one_rollout_and_what_show_says_of_it(look: Look) -> None:
    for known in look.sql("select * from rollouts where status <> 'aborted' order by sequence desc limit 3"):
        html = await look.page(f"/rollouts/{known['rollout_id']}")
        said = facts(html.partition('aria-label="Facts"')[2].partition("</section>")[0])
        assert said["turns"] == figures.count(known["turns"])
        assert said["score"] == figures.score(known["reward"])
        assert said["tokens in"] == figures.short(known["prompt_tokens"])
        assert said["took"] == figures.duration(known["seconds"])
        told = await look.orchard("show", known["rollout_id"], "--json")
        lines = [json.loads(line) for line in told.splitlines()]
        spoken = {line["node_id"] for line in lines if "node_id" in line}
        assert spoken == set(re.findall(r'id="m-([0-9a-f-]+)"', html)) and spoken


async def test_an_evaluation_is_the_report_of_the_command(look: Look) -> None:
    for row in look.sql("select campaign from evaluations"):
        name = row["campaign"]
        html = await look.page(f"/evaluations/{quote(name)}")
        told = CliRunner(env={"COLUMNS": "300"}).invoke(
            app, ["--store", str(look.store), "eval", "report", name]
        )
        figures_of_the_command = set(re.findall(r"[\d.]+%|\d+\.\d+", told.stdout))
        assert len(figures_of_the_command) > 3
        assert {each for each in figures_of_the_command if each not in text_of(html)} == set()
        for cell in look.sql("select * from evaluation_cells where campaign = ?", name):
            places = [place for row in cells(html, f"Matrix of {cell['task_set']}") for place in row[1:]]
            (place,) = places
            assert f"{cell['resolved']:,} of {cell['graded']:,}" in place
            assert place.startswith(f"{cell['pass_at_1']:.1%}")
