"""Generated sites: what follows from a seed, what graders accept and refuse, and what a browser is served."""

import copy
import random
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import aiohttp
import msgspec
import numpy as np
import pytest

from orchard.pipelines.domains.gui.proof import by_records
from orchard.pipelines.domains.gui.synthesis import SITES, synthesize
from orchard.pipelines.tasks.proving import Proven
from orchard.schemas.gui import ExpectedAnswer, SiteGrading, SiteSpec
from orchard.schemas.outcomes import AbortCause, ExitStatus
from orchard.schemas.tasks import Task
from orchard.workers.domains.gui.sites.appearance import LAYOUTS, THEMES
from orchard.workers.domains.gui.sites.catalog import content_of
from orchard.workers.domains.gui.sites.desk import DeskSite
from orchard.workers.domains.gui.sites.engine import open_site
from orchard.workers.domains.gui.sites.goals import KINDS
from orchard.workers.domains.gui.sites.grading import SiteSubmission, answered, expected_of, graded
from orchard.workers.domains.gui.sites.pages import Missing
from orchard.workers.domains.gui.sites.tiny import SIDE, SIZE, TinySite
from orchard.workers.failures import InfrastructureError

ALL = (*SITES, "tiny")


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    """Several of each kind, of both splits."""
    per_site = 3 * max(len([kind for kind in KINDS if kind.startswith(site)]) for site in ALL)
    count = per_site * len(ALL)
    return [*synthesize(5, count, sites=ALL), *synthesize(5, count, sites=ALL, split="held-out")]


def _ended(expected: SiteGrading, **changes: Any) -> SiteSubmission:
    right = expected.answer.value if expected.answer else ""
    return SiteSubmission(
        **{"records": expected.records, "ended": ExitStatus.FINISHED, "answer": right, **changes}  # type: ignore[arg-type]
    )


def test_a_seed_gives_the_same_tasks_and_splits_share_nothing(tasks: list[Task]) -> None:
    again = [
        *synthesize(5, len(tasks) // 2, sites=ALL),
        *synthesize(5, len(tasks) // 2, sites=ALL, split="held-out"),
    ]
    assert msgspec.json.encode(again) == msgspec.json.encode(tasks)
    by_split = {
        split: [expected_of(each).site for each in tasks if each.labels["split"] == split]
        for split in LAYOUTS
    }
    for field in ("seed", "layout", "theme"):
        train, held = ({getattr(site, field) for site in found} for found in by_split.values())
        assert train and held and not train & held
    assert {each.labels["goal"] for each in tasks} == set(KINDS)
    others = synthesize(6, len(tasks) // 2, sites=ALL)
    assert not {each.task_id for each in others} & {each.task_id for each in tasks}


def test_the_right_end_is_accepted_and_the_beginning_is_not(tasks: list[Task]) -> None:
    for task in tasks:
        assert isinstance(by_records(task), Proven), task
        expected = expected_of(task)
        begun = content_of(expected.site).records()
        assert graded(expected, _ended(expected)).value == 1.0
        assert graded(expected, _ended(expected, answer="", records=begun)).value == 0.0


def test_every_neighbour_of_the_right_end_is_refused(tasks: list[Task]) -> None:
    """One leaf changed, one entry missing, one entry twice: bought two, booked also another."""
    seen = 0
    for task in tasks:
        expected = expected_of(task)
        for records in _neighbours(expected.records):
            seen += 1
            found = graded(expected, _ended(expected, records=records))
            assert (found.value, found.resolved) == (0.0, False), (task.task_id, records)
            assert "FAILED" in found.tests.values()
        if expected.answer is not None:
            right = expected.answer.value
            several = [f"{right} or {other}" for other in expected.answer.others]
            for other in ("", f"{right}7", *expected.answer.others, *several):
                assert graded(expected, _ended(expected, answer=other)).value == 0.0, (task.statement, other)
    assert seen > 2 * len(tasks)


def _neighbours(value: Any) -> Iterator[Any]:
    """The value with one thing changed, over all places."""
    match value:
        case dict():
            for key in value:
                yield from ({**value, key: other} for other in _neighbours(value[key]))
        case list():
            for at, each in enumerate(value):
                yield [*value[:at], *value[at + 1 :]]
                yield [*value, copy.deepcopy(each)]
                yield from ([*value[:at], other, *value[at + 1 :]] for other in _neighbours(each))
        case bool():
            yield not value
        case int() | float():
            yield value + 1
        case str():
            yield f"{value}x"
        case None:
            yield "x"


def test_rewards_follow_the_end_and_the_form_and_a_strange_record_is_no_reward(tasks: list[Task]) -> None:
    expected = expected_of(tasks[0])
    assert graded(expected, _ended(expected, ended=ExitStatus.FORMAT_FAILURE)).value == -1.0
    assert graded(expected, _ended(expected, parsed=False)).value == 0.0
    assert graded(expected, _ended(expected, ended=ExitStatus.STEP_LIMIT)).value == 0.0
    for records in (None, {}, {"other": []}):
        with pytest.raises(InfrastructureError) as caught:
            graded(expected, _ended(expected, records=records))
        assert caught.value.cause is AbortCause.GRADER_FAILED


def test_who_sees_nothing_hits_few_targets_of_the_tiny_family() -> None:
    """No fixed point of the screen is in the target of a quarter of the first screens."""
    for split in LAYOUTS:
        hits = np.zeros((SIDE, SIDE))
        for task in synthesize(1, 300, sites=("tiny",), kinds=("tiny.one",), split=split):
            tiny = content_of(expected_of(task).site)
            assert isinstance(tiny, TinySite)
            left, top = dict(tiny.screens[0])[tiny.targets[0]]
            assert 0 <= left <= SIDE - SIZE and 0 <= top <= SIDE - SIZE
            hits[top : top + SIZE, left : left + SIZE] += 1
        assert hits.max() / 300 < 0.25


@pytest.mark.parametrize(
    ("value", "others", "said", "right"),
    [
        ("Brisk Mug", ("Alto Mug",), "The cheapest is the brisk mug.", True),
        ("Brisk Mug", ("Alto Mug",), "Brisk Mug or Alto Mug", False),
        ("Brisk Mug", ("Brisk Mug Large",), "Brisk Mug Large", False),
        ("Brisk Mug", (), "Brisk Muggle", False),
        ("12.50", (), "It costs $12.5.", True),
        ("1200", (), "1,200 g", True),
        ("12", (), "12 of 40", False),
        ("12", (), "1,2", False),
        ("12", (), "12" + " " * 5000, False),
        ("12", (), "twelve", False),
    ],
)
def test_an_answer_says_the_value_and_no_other(
    value: str, others: tuple[str, ...], said: str, right: bool
) -> None:
    assert answered(ExpectedAnswer(value=value, others=others), said) is right


async def test_every_page_of_every_site_is_served_and_asks_for_nothing_outside() -> None:
    """All links are followed, with the names of the theme and layout in turn; what was typed is escaped."""
    looks = [(split, layout) for split, found in LAYOUTS.items() for layout in found]
    for number, name in enumerate(SITES):
        split, layout = looks[number % len(looks)]
        theme = sorted(THEMES[split])[0]
        site = SiteSpec(name=name, seed=11 + number, layout=layout, theme=theme)  # type: ignore[arg-type]
        async with open_site(site) as served, aiohttp.ClientSession() as session:
            root = f"http://127.0.0.1:{served.port}"
            before = served.records()
            if isinstance(content := served._content, DeskSite):
                content.signed_in = True
            todo, seen = ["/"], {"/", "/leave"}
            while todo and len(seen) < 80:
                async with session.get(root + todo.pop()) as answer:
                    assert answer.status == 200, answer.url
                    text = await answer.text()
                if answer.content_type != "text/html":
                    continue
                assert not re.search(r"(?:src|href|action)=\"(?:https?:)?//", text)
                new = {each.replace("&amp;", "&") for each in re.findall(r'href="(/[^"#]*)"', text)} - seen
                seen |= new
                todo += sorted(new)
            assert len(seen) > 5
            assert served.records() == before
            async with session.get(f"{root}/nowhere/at/all") as answer:
                assert answer.status == 404
            async with session.get(f"{root}/search?q=%3Cscript%3Ealert(1)") as answer:
                assert "<script>alert" not in await answer.text()


async def test_whatever_is_sent_to_a_site_is_answered_and_leaves_records_of_its_form() -> None:
    """Strange paths and forms, as an agent can make them by addresses and by scripts in the address bar."""
    dice = random.Random(4)
    words = ("", "0", "-1", "99999999999", "\u00b2", "x", "\udcff", "../..", "'\"><b>", "a|b", "1,2", "\x00")
    for name in ALL:
        layout, theme = ("grid", "sand") if name == "tiny" else ("side-list", "dense")
        site = SiteSpec(name=name, seed=4, layout=layout, theme=theme)  # type: ignore[arg-type]
        content = content_of(site)
        if isinstance(content, DeskSite):
            content.signed_in = True
        keys = (
            "q",
            "page",
            "state",
            "count",
            "colour",
            "start",
            "end",
            "hours",
            "people",
            "order",
            "rows",
            "place",
        )
        roots = (
            "search",
            "product/1",
            "cart/remove",
            "week",
            "book/x",
            "ticket",
            "page",
            "set",
            "save",
            "tour",
            "",
        )
        for _ in range(300):
            path = f"/{dice.choice(roots)}/{dice.choice(words)}".rstrip("/") or "/"
            given = {key: dice.choice(words) for key in dice.sample(keys, 4)}
            for ask in (content.get, content.post):
                with suppress(Missing):
                    ask(path, given)
        assert content.records().keys() == content_of(site).records().keys()
        async with open_site(site) as served, aiohttp.ClientSession() as session:
            for body, kind in (
                (b"\xff=%zz", "application/x-www-form-urlencoded; charset=none"),
                (b"x", "multipart/form-data"),
            ):
                async with session.post(
                    f"http://127.0.0.1:{served.port}/search", data=body, headers={"Content-Type": kind}
                ) as answer:
                    assert answer.status == 404


async def test_faults_lie_over_any_site(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchard.workers.domains.gui.sites.engine.SLOW", 0.01)
    seen = {}
    for fault in ("captcha", "down", "slow", "consent"):
        site = SiteSpec(name="shop", seed=1, layout="top-cards", theme="plain", fault=fault)  # type: ignore[arg-type]
        async with open_site(site) as served, aiohttp.ClientSession() as session:
            root = f"http://127.0.0.1:{served.port}"
            async with session.get(f"{root}/cart") as answer:
                seen[fault] = (answer.status, "consent-accept" in await answer.text())
            if fault == "consent":
                async with session.post(f"{root}/-/consent", data={"choice": "accept"}) as answer:
                    assert "consent-accept" not in await answer.text()
            if fault == "captcha":
                async with session.get(f"{root}/") as answer:
                    assert "recaptcha" in await answer.text()
    assert seen == {
        "captcha": (403, False),
        "down": (503, False),
        "slow": (200, False),
        "consent": (200, True),
    }
