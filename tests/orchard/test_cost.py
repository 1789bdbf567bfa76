"""`orchard cost`: what campaigns and models have cost, by every call of every attempt."""

import json
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from orchard.cli.app import app
from orchard.schemas.blobs import BlobRef
from orchard.schemas.events import CampaignSubmitted
from tests.orchard.test_facts import check
from tests.pipelines.datasets.conftest import connection, keep
from tests.trajectory_log import TIME, Author, judge_call, llm_call

__all__ = ["connection", "keep"]


BY = ("user", "team", "day")
PLAN = CampaignSubmitted(
    spec=BlobRef(sha256="0" * 64, size=0),
    spec_hash="h",
    size=3,
    tasks=1,
    harnesses=("h",),
    models=("m",),
    samples=3,
)


def lines(store: str, *words: str) -> dict[str, dict[str, Any]]:
    done = CliRunner().invoke(app, ["--store", store, "cost", *words, "--json"])
    check("cost", done.stdout)
    return {line["name"]: line for line in json.loads(done.stdout)["lines"]}


@pytest.mark.long
async def test_every_call_counts_and_what_is_not_known_is_no_zero(keep: Any) -> None:
    events = []
    for name, model, cost in (("dear", "m", 0.5), ("free", "n", None)):
        author = Author(name)
        events.append(author.event(PLAN, "", None))
        for sample, resolved in enumerate((True, True, False)):
            *before, outcome = author.rollout(sample, ["ls"], resolved=resolved)
            rollout = outcome.rollout_id or ""
            call = msgspec.structs.replace(llm_call(1), model=model, cost_usd=cost)
            lost = msgspec.structs.replace(author.event(call, rollout), attempt=7)
            events += [*before, author.event(call, rollout), lost, outcome]
    store = await keep(events)
    found = lines(store)
    assert list(found) == ["dear", "free"], "the most expensive first"
    for name, cost, each, unpriced in (("dear", 3.0, 1.5, 0), ("free", None, None, 6)):
        line = found[name]
        assert (line["rollouts"], line["resolved"], line["calls"]) == (3, 2, 6)
        assert (line["tokens"], line["tokens_per_resolved"]) == (6 * 110, 3 * 110)
        assert (line["cost_usd"], line["usd_per_resolved"], line["unpriced"]) == (cost, each, unpriced)
    assert lines(store, "dear").keys() == {"dear"}
    assert lines(store, "dear", "free", "--by", "model").keys() == {"m", "n"}
    shown = CliRunner().invoke(app, ["--store", store, "cost"]).output.splitlines()
    dear, free = (
        next(line.split() for line in shown if line.split()[0] == name) for name in ("dear", "free")
    )
    assert (dear[-3], dear[-1]) == ("3.00", "1.50") and (free[-3], free[-1]) == ("-", "-")
    refused = CliRunner().invoke(app, ["--store", store, "cost", "nonesuch"])
    assert "there is no campaign 'nonesuch' in the tables" in str(refused.exception)


@pytest.mark.parametrize("by", ["campaign", "model", "team"])
async def test_calls_of_judges_count(keep: Any, by: str) -> None:
    author = Author()
    *before, outcome = author.rollout(0, ["ls"], resolved=True)
    rollout = outcome.rollout_id or ""
    plan = author.event(msgspec.structs.replace(PLAN, team="vision"), "", None)
    calls = [author.event(llm_call(1), rollout), author.event(judge_call(0.5), rollout)]
    store = await keep([plan, *before, *calls, calls[-1], outcome])

    found = lines(store, "--by", by)

    names = {"campaign": {"demo"}, "model": {"m", "judge"}, "team": {"vision"}}
    assert found.keys() == names[by]
    assert sum(line["cost_usd"] for line in found.values()) == 0.75
    assert sum(line["calls"] for line in found.values()) == 2
    assert sum(line["tokens"] for line in found.values()) == 110 + 55


@pytest.mark.long
async def test_cost_by_user_team_and_day(keep: Any) -> None:
    events = []
    for name, plan in (
        ("ones", {"submitter": "ana", "team": "vision"}),
        ("twos", {"submitter": "ben", "team": "vision"}),
        ("olds", {}),
    ):
        author = Author(name)
        events.append(author.event(msgspec.structs.replace(PLAN, **plan), "", None))
        *before, outcome = author.rollout(0, ["ls"], resolved=True)
        call = author.event(llm_call(1), outcome.rollout_id or "")
        later = msgspec.structs.replace(call, id=f"{name}-later", time=TIME + timedelta(days=1))
        events += [*before, call, later, outcome]
    store = await keep(events)
    costs = {by: {name: line["cost_usd"] for name, line in lines(store, "--by", by).items()} for by in BY}
    assert costs == {
        "user": {"ana": 0.5, "ben": 0.5, "": 0.5},
        "team": {"vision": 1.0, "": 0.5},
        "day": {"2026-01-01": 0.75, "2026-01-02": 0.75},
    }
    assert lines(store, "--by", "team")["vision"]["resolved"] == 2
    assert lines(store, "ones", "--by", "team").keys() == {"vision"}
