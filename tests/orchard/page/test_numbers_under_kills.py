"""Numbers of pages while processes are killed: those of SQL at the place in the log that the page names."""

import asyncio
from pathlib import Path

import aiohttp
import pytest

from orchard.page import figures
from orchard.schemas.positions import Position
from orchard.storage.reader import open_tables, position, rows
from tests.chaos.faults import chosen
from tests.chaos.run import Report, run
from tests.chaos.world import CAMPAIGN
from tests.orchard.page.conftest import served
from tests.orchard.page.test_numbers import BY_OUTCOME, TOTALS, cards, facts, outcomes, text_of

ROLLOUTS = 30


async def _compared(store: Path, http: aiohttp.ClientSession) -> int | None:
    """Outcomes of which both pages had the numbers; None where there was nothing to see yet."""
    async with http.get(f"/campaigns/{CAMPAIGN}") as reply:
        html = await reply.text()
    if reply.status != 200:
        return None
    card = cards(html)[CAMPAIGN]
    with open_tables(str(store), as_of=Position.parse(reply.headers["Orchard-Position"])) as tables:
        expected = {row["outcome"]: row["n"] for row in rows(tables, BY_OUTCOME, [CAMPAIGN])}
        (totals,) = rows(tables, TOTALS, [CAMPAIGN])
    assert outcomes(card) == expected
    assert f"{totals['done']:,} of {ROLLOUTS}" in text_of(card)
    assert facts(card).get("retries", "0") == figures.count(totals["retries"])
    assert facts(card).get("pass rate") == (
        figures.share(totals["rate"]) if totals["rate"] is not None else None
    )
    async with http.get("/rollouts") as reply:
        head = text_of((await reply.text()).partition("<h1>Rollouts</h1>")[2].partition("</p>")[0])
    with open_tables(str(store), as_of=Position.parse(reply.headers["Orchard-Position"])) as tables:
        (row,) = rows(tables, "select count(*) as n, count(*) filter (resolved) as resolved from rollouts")
    assert head.startswith(f"{row['n']:,} match")
    assert row["resolved"] == 0 or f"({row['resolved']:,} of " in head
    return sum(expected.values())


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_numbers_while_processes_are_killed(tmp_path: Path) -> None:
    store, kinds = tmp_path / "store", chosen("kill")
    campaign: asyncio.Task[Report] = asyncio.create_task(
        run(store, rollouts=ROLLOUTS, workers=2, slots=2, faults=6, kinds=kinds, tasks=5, seed=3)
    )
    seen: list[int] = []
    while not campaign.done() and not (store.is_dir() and position(str(store))):
        await asyncio.sleep(0.2)
    async with served(store) as url, aiohttp.ClientSession(url) as http:
        while not campaign.done():
            done = await _compared(store, http)
            seen += [done] if done is not None else []
            await asyncio.sleep(0.5)
        report = await campaign
        assert await _compared(store, http) == ROLLOUTS
    assert report.findings == [] and sum(report.faults.values()) > 0
    assert len({done for done in seen if 0 < done < ROLLOUTS}) >= 3, "it was looked at while it ran"
