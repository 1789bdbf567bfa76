"""The table of campaigns, the arms' plots and the curves of runs: figures, addresses, use in a browser."""

import re
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import aiohttp
import duckdb
import msgspec
import pytest
import pytest_asyncio

from orchard.actions.campaign_status import CampaignView, State, recorded
from orchard.actions.rollout_index import INDEXED, RolloutIndex
from orchard.page.campaign_table import CampaignFacts, CampaignQuery, CampaignRow, facts_of
from orchard.page.charts import ScatterPoint, scatter
from orchard.page.compare import ComparedArm, arm_points, default_arms, matrix, together
from orchard.page.rollouts import BadFilter
from orchard.page.runs import runs
from orchard.pipelines.campaigns.scores import Score, interval
from orchard.schemas import events as e
from orchard.schemas.groups import GroupAssembled, GroupMember, GroupOutcome, PolicyEvaluated, PolicyUpdated
from orchard.schemas.outcomes import RolloutStatus
from orchard.schemas.training import PolicyStep
from orchard.storage.reader import open_tables, position
from tests.orchard.page.conftest import served, stored
from tests.orchard.page.gallery import FIRST, SECOND, compared
from tests.orchard.page.look import WIDE, chromium, tab
from tests.trajectory_log import Author


def _row(
    name: str, state: State, *models: str, rate: float | None = None, tags: tuple[str, ...] = ()
) -> CampaignRow:
    known = None if rate is None else Score(value=rate, low=0, high=1, tasks=9)
    return CampaignRow(
        CampaignView(name, 9, state, tags=tags, score=known), CampaignFacts(None, ("h",), models)
    )


ROWS = [
    _row("new", State.FINISHED, "a", rate=0.2, tags=("nightly",)),
    _row("mid", State.RUNNING, "a", "b"),
    _row("old", State.ABORTED, "b", rate=0.9),
]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("", [("", ["mid", "new", "old"])]),
        ("order=asc&sort=newest", [("", ["mid", "old", "new"])]),
        ("sort=pass_rate", [("", ["old", "new", "mid"])]),
        ("model=b", [("", ["mid", "old"])]),
        ("state=running&name=i", [("", ["mid"])]),
        ("tag=nightly", [("", ["new"])]),
        ("group=tags", [("", ["mid", "old"]), ("nightly", ["new"])]),
        ("group=model", [("a", ["new"]), ("a, b", ["mid"]), ("b", ["old"])]),
    ],
)
def test_the_address_decides_rows_order_and_groups(asked: str, expected: object) -> None:
    query = CampaignQuery.of({name: value[0] for name, value in parse_qs(asked).items()})
    shown = query.applied(ROWS)
    assert [(name, [row.view.name for row in some]) for name, some in shown] == expected
    again = {name: value[0] for name, value in parse_qs(urlsplit(query.address()).query).items()}
    assert CampaignQuery.of(again) == query, "a link has the whole view"


@pytest.mark.parametrize("given", [{"sort": "x"}, {"group": "x"}, {"state": "x"}])
def test_an_unknown_choice_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(BadFilter, match="choose one of"):
        CampaignQuery.of(given)


def _trained() -> list[e.Event]:
    """A run of three steps, the second of which was trained on one group of two rollouts."""
    author = Author("rl-1")
    made = [author.rollout(number, ["ls"], resolved=number == 0, task="g") for number in range(2)]
    zeros = dict.fromkeys(PolicyStep.__struct_fields__, 0)
    steps = [
        PolicyStep(**{**zeros, "run": "rl-1", "step": n, "version": n, "pass_rate": n / 4, "generated": 40})  # type: ignore[arg-type]
        for n in (1, 2, 3)
    ]
    members = tuple(
        GroupMember(
            rollout_id=each[0].rollout_id or "",
            attempt=1,
            reward=1.0,
            status=RolloutStatus.COMPLETED,
            tokens=9,
        )
        for each in made
    )
    group = GroupAssembled(
        run="rl-1",
        group_id="g",
        prompt=0,
        task_id="g",
        outcome=GroupOutcome.FIXED,
        members=members,
        positive=1,
        degenerate=False,
        generated=2,
    )
    decided = msgspec.structs.replace(author.event(group, "", None), subject="prompts/rl-1/0")
    used = author.event(PolicyUpdated(run="rl-1", version=2, step=2, groups=("g",), position=1), "", None)
    scores = [
        PolicyEvaluated(
            run="rl-1", version=version, evaluation=f"rl-1-v{version}", tasks=10, graded=10, resolved=2,
            ungraded=0, score=score, low=score - 0.1, high=score + 0.2,
        )
        for version, score in ((0, 0.2), (2, 0.5))
    ]  # fmt: skip
    return [
        *(event for each in made for event in each),
        *(author.event(score, "", None) for score in scores),
        decided,
        used,
        *(author.event(s, "", None) for s in steps),
    ]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return await stored(tmp_path_factory.mktemp("campaigns"), [*compared(), *_trained()])


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def tables(store: Path) -> AsyncIterator[duckdb.DuckDBPyConnection]:
    with open_tables(str(store)) as connection:
        index = RolloutIndex(connection)
        index.follow(position(str(store)))
        yield connection
    index.close()


async def test_rates_and_intervals_are_those_of_evaluations(tables: duckdb.DuckDBPyConnection) -> None:
    facts, entries = facts_of(tables), {entry.arm: entry for entry in matrix(tables, ["first", "second"])}
    views = {view.name: view for view in recorded(tables, INDEXED)}
    for arm in (FIRST, SECOND):
        asked = (
            "select count(*) filter (resolved) / count(*) from rollouts where campaign = ? group by task_id"
        )
        rates = [row[0] for row in tables.execute(asked, [arm.campaign]).fetchall()]
        found = entries[arm].score
        assert found is not None and found == views[arm.campaign].score
        assert (found.low, found.high) == interval(rates) and found.value == pytest.approx(sum(rates) / 12)
        assert facts[arm.campaign].progress[-1:] in ((), (24,))
    (point,) = arm_points([entries[FIRST]], "tokens_each")
    assert (point.score, point.address) == (entries[FIRST].score, FIRST.address())


@pytest.mark.long
async def test_arms_without_a_common_task_are_not_compared_by_themselves(tmp_path: Path) -> None:
    other = Author("other")
    apart = [event for n in range(3) for event in other.rollout(n, ["ls"], resolved=True, task="elsewhere")]
    store = await stored(tmp_path, [*compared(), *apart])
    with open_tables(str(store)) as tables:
        index = RolloutIndex(tables)
        index.follow(position(str(store)))
        arms = [entry.arm for entry in matrix(tables)]
        assert arms[0].campaign == "other", "the newest"
        assert default_arms(arms, together(tables)) == ((FIRST, SECOND), 2)
        assert default_arms(arms, together(tables, ["other"])) == ((), 3)
        index.close()
    async with served(store) as url, aiohttp.ClientSession(url) as http:
        for query, said in (
            ("", "the first pair that has one"),
            ("?campaign=first&campaign=other", "No two arms"),
        ):
            async with http.get(f"/compare{query}") as reply:
                html = await reply.text()
            assert said in html and ('class="verdict"' in html) == (not query)


def test_of_equal_arms_those_of_two_campaigns_come_first() -> None:
    names = [("b", "h", "n"), ("b", "h", "m"), ("a", "h", "m")]
    arms = [ComparedArm(*name) for name in names]
    assert default_arms(arms, [arms]) == ((arms[2], arms[1]), 0)
    assert default_arms(arms[:1], []) == ((), 0)
    assert default_arms(arms, [arms], ["a"]) == ((arms[1], arms[0]), 0), "finished ones come before these"


def test_points_of_very_different_costs_stay_apart() -> None:
    known = Score(value=0.5, low=0.4, high=0.6, tasks=9)
    drawn = scatter([ScatterPoint(x, known, f"arm {x}", "/x", 0) for x in (0.001, 0.01, 1.0)], "cost", "$")
    places = [float(x) for x in re.findall(r'cx="([\d.]+)%"', drawn)]
    assert "logarithmic" in drawn and min(b - a for a, b in pairwise(places)) > 10
    assert "arm 0.01: 50.0% [40.0%, 60.0%], cost $0.01" in drawn


async def test_a_point_of_a_curve_leads_to_its_groups_and_rollouts(
    store: Path, tables: duckdb.DuckDBPyConnection
) -> None:
    found = runs(tables, ["rl-1"])
    assert found.bands["pass_rate"]["rl-1"] == [
        (n, *interval([1.0] * (10 * n) + [0.0] * (40 - 10 * n))) for n in (1, 2, 3)
    ]
    assert found.curves["held_out"]["rl-1"] == [(0, 0.2), (2, 0.5)]
    assert found.bands["held_out"]["rl-1"] == [(0, 0.1, 0.4), (2, 0.4, 0.7)]
    assert [row["group_id"] for row in runs(tables, ["rl-1"], among="2").groups] == ["g"]
    assert runs(tables, ["rl-1"], among="3..").groups == []
    with pytest.raises(BadFilter, match="write a range"):
        runs(tables, ["rl-1"], among="x")
    async with served(store) as url, aiohttp.ClientSession(url) as http:
        async with http.get("/runs?run=rl-1") as reply:
            text = await reply.text()
            led = re.findall(r'href="(/runs\?run=rl-1&amp;step=2\.\.2)#groups"', text)
        assert "held out" in text and "or over held-out tasks" in text
        async with http.get(led[0].replace("&amp;", "&")) as reply:
            assert len(re.findall(r'class="member yes" href="/rollouts/', await reply.text())) == 2


@pytest.mark.long
async def test_chosen_campaigns_are_compared_and_views_are_kept(store: Path) -> None:
    async with chromium() as browser, served(store) as url, tab(browser, url, WIDE) as watched:
        page = watched.page
        await page.goto(url)
        compare = page.get_by_role("button", name="Compare")
        assert await compare.is_disabled()
        for name in ("first", "second"):
            await page.get_by_label(f"Choose {name}").focus()
            await page.keyboard.press("Space")
        await compare.click()
        await page.wait_for_url("**/compare?campaign=*&campaign=*")
        assert "points" in await page.locator(".verdict").inner_text()
        await page.goto(url)
        await page.get_by_text("Filter", exact=True).click()
        await page.get_by_label("name", exact=True).fill("fir")
        await page.keyboard.press("Enter")
        await page.wait_for_url("**/?name=fir")
        assert await page.locator("tbody [data-item]").count() == 1
        await page.get_by_text("Views", exact=True).click()
        await page.get_by_label("Name of this view").fill("mine <b>")
        await page.keyboard.press("Enter")
        await page.get_by_label("Remove the filter name fir").click()
        await page.wait_for_url(url + "/")
        await page.get_by_text("Views", exact=True).click()
        await page.get_by_role("link", name="mine <b>").click()
        await page.wait_for_url("**/?name=fir")
        assert await page.evaluate(
            "() => [...document.querySelectorAll('details.pop')].every(each => !each.open)"
        ), "filters are folded until used"
    assert watched.wrong == []
