"""Why rollouts were aborted: the commonest detail, and what to do about it."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from orchard.actions.abort_reasons import REMEDIES, abort_reasons, abort_sentence, shortened
from orchard.actions.campaign_hints import hints
from orchard.actions.campaign_rows import STORED, read_rows
from orchard.actions.campaign_status import CampaignView, PipelineView, State, _empty
from orchard.actions.rollout_index import INDEXED, RolloutIndex
from orchard.page.health import recorded as health
from orchard.schemas.events import Event, RolloutAborted, RolloutFacts, payload
from orchard.schemas.outcomes import AbortCause
from orchard.storage.reader import open_tables, position
from tests.orchard.page.conftest import stored
from tests.trajectory_log import CAMPAIGN, Author

KEY = "endpoint 'default' answered 401: wrong key: check the key in OPENAI_API_KEY"


@pytest.mark.parametrize("cause", AbortCause)
def test_every_cause_has_a_remedy(cause: AbortCause) -> None:
    assert REMEDIES[cause] and not REMEDIES[cause].endswith(".")


def test_the_commonest_detail_of_the_commonest_cause_stands_in_the_sentence() -> None:
    rows = [
        {"cause": "sandbox_died", "detail": "gone", "rollouts": 2},
        {"cause": "llm_refused", "detail": "another", "rollouts": 1},
        {"cause": "llm_refused", "detail": KEY, "rollouts": 9},
        {"cause": "cancelled", "detail": "campaign cancelled", "rollouts": 50},
    ]
    said = abort_sentence(abort_reasons(rows), "first")
    assert said == (
        f"12 aborted, 10 of them llm_refused: {KEY}: {REMEDIES[AbortCause.LLM_REFUSED]}, then "
        "`orchard resume first`"
    )
    assert abort_sentence(abort_reasons(rows[-1:]), "first") == ""


def test_a_detail_is_one_line_without_control_characters_and_a_later_cause_has_no_remedy() -> None:
    assert shortened("a\x1b[31m\n  b") == "a [31m b"
    assert len(shortened("x" * 5000)) == 300 and shortened(None) == "no detail"
    (later,) = abort_reasons([{"cause": "not_yet_known", "detail": None, "rollouts": 1}])
    assert later.remedy == ""


def test_a_pause_that_says_the_reason_is_not_followed_by_it_again() -> None:
    reasons = abort_reasons([{"cause": "llm_refused", "detail": KEY, "rollouts": 5}])
    outcomes = {"aborted: llm_refused": 5}
    paused = CampaignView("c", 9, State.PAUSED, outcomes, reason=f"5 in a row: {KEY}", reasons=reasons)
    runs = CampaignView("c", 9, State.RUNNING, outcomes, reasons=reasons)
    assert ["aborted," in hint for hint in hints(paused, PipelineView())] == [False]
    assert ["5 aborted, llm_refused" in hint for hint in hints(runs, PipelineView())] == [True]
    over = replace(paused, size=5, state=State.FINISHED)
    assert ["5 aborted, llm_refused" in hint for hint in hints(over, PipelineView())] == [True]


def aborted(
    author: Author, sample: int, detail: str, cause: AbortCause = AbortCause.LLM_REFUSED
) -> list[Event]:
    *begun, done = author.rollout(sample, ["ls"], resolved=False)
    told = payload(done)
    facts = {name: getattr(told, name) for name in RolloutFacts.__struct_fields__ if name != "status"}
    failed = RolloutAborted(**facts, cause=cause, detail=detail)
    return [*begun, author.event(failed, done.rollout_id or "")]


async def test_tables_page_and_health_count_details_that_differ_in_ids_alone_as_one(tmp_path: Path) -> None:
    author = Author()
    details = [f"{KEY} (request req-{number}-9f3c)" for number in range(3)] + ["b: another", "a: another"]
    events = [event for number, said in enumerate(details) for event in aborted(author, number, said)]
    *begun, done = author.rollout(7, ["ls"], resolved=False)
    nothing = author.event(msgspec.structs.replace(payload(done), submission=""), done.rollout_id or "")
    store = str(await stored(tmp_path, [*events, *begun, nothing]))
    with open_tables(store) as tables:
        index = RolloutIndex(tables)
        index.follow(position(store))
        for sources in (STORED, INDEXED):
            found = read_rows(tables, [CAMPAIGN], {}, [], 0, sources)
            (reason,) = abort_reasons(found.reasons)
            assert (reason.cause, reason.rollouts) == ("llm_refused", 5)
            assert reason.detail == f"{KEY} (request req-0-9f3c)"
            assert [row["empty"] for row in found.outcomes if row["outcome"] == "unresolved"] == [1]
            assert _empty(found.outcomes) == 1
            assert _empty([*found.outcomes, {"outcome": "resolved", "empty": 1}]) == 0
        (row,) = health(tables, position(store)).causes
        assert (row["campaign"], row["rollouts"], row["detail"]) == (CAMPAIGN, 5, reason.detail)
        index.close()
