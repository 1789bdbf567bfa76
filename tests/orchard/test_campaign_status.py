"""What `status` and `watch` say of a campaign and of processes: decided on plain numbers."""

from dataclasses import replace
from datetime import UTC, datetime
from io import StringIO

import msgspec
import pytest
from rich.console import Console, RenderableType

from orchard.actions.abort_reasons import REMEDIES, abort_reasons
from orchard.actions.campaign_hints import hints
from orchard.actions.campaign_rows import CampaignRows
from orchard.actions.campaign_status import (
    NO_LABEL,
    CampaignView,
    InQueues,
    ModelWork,
    PipelineView,
    State,
    _view,
    requests_by_kind,
    state_of,
)
from orchard.actions.endpoint_rests import THROTTLED, rest_sentence
from orchard.pipelines.campaigns.scores import Score
from orchard.pipelines.campaigns.spending import pause_reason
from orchard.pipelines.domain import PROVE
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import CampaignRecord, CampaignState
from orchard.schemas.health import SILENT_SECONDS, Condition, HeardReport, ProcessReport, alive, sick
from orchard.schemas.outcomes import AbortCause
from orchard.schemas.queues import Queue
from orchard.schemas.rests import Rest
from orchard.storage.spending import Spent
from orchard.streams import names
from orchard.streams.claims import Claims
from orchard.streams.connection import connect
from orchard.streams.endpoints import StoredRest
from orchard.streams.publisher import Publisher
from orchard.streams.reading import consumers
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare
from orchard.terminal.campaign_tables import campaign_line, campaign_table, pipeline_line, status_table
from tests.entries import named


def record(state: CampaignState = CampaignState.RUNNING, size: int = 4) -> CampaignRecord:
    return CampaignRecord(spec=BlobRef(sha256="0" * 64, size=1), spec_hash="h", size=size, state=state)


def report(name: str, condition: Condition = Condition.OK, says: str = "") -> ProcessReport:
    return ProcessReport(
        name=name,
        kind="worker",
        host="h",
        pid=7,
        started=datetime(2026, 1, 1, tzinfo=UTC),
        condition=condition,
        says=says,
    )


@pytest.mark.parametrize(
    ("state", "outcomes", "moving", "serving", "says"),
    [
        (CampaignState.RUNNING, {"resolved": 1}, InQueues(), 1, State.RUNNING),
        (CampaignState.RUNNING, {"resolved": 1}, InQueues(running=frozenset("a")), 0, State.RUNNING),
        (CampaignState.RUNNING, {"resolved": 1}, InQueues(delayed=1), 0, State.STUCK),
        (CampaignState.RUNNING, {"resolved": 1, "aborted: cancelled": 3}, InQueues(), 0, State.FINISHED),
        (CampaignState.PAUSED, {"resolved": 4}, InQueues(), 0, State.FINISHED),
        (CampaignState.PAUSED, {"resolved": 3}, InQueues(), 1, State.PAUSED),
        (CampaignState.CANCELLED, {}, InQueues(), 1, State.CANCELLED),
        (CampaignState.CANCELLED, {"aborted: cancelled": 4}, InQueues(), 1, State.CANCELLED),
        (CampaignState.CANCELLED, {"resolved": 4}, InQueues(), 1, State.FINISHED),
        (CampaignState.ARCHIVED, {"resolved": 3}, InQueues(), 1, State.ARCHIVED),
        (CampaignState.RUNNING, {"aborted: llm_unavailable": 4}, InQueues(), 1, State.ABORTED),
    ],
)
def test_the_state_is_what_is_so_and_not_only_what_was_asked_for(
    state: CampaignState, outcomes: dict[str, int], moving: InQueues, serving: int, says: State
) -> None:
    assert state_of(record(state), outcomes, moving, serving) is says


def test_a_campaign_is_not_over_while_its_submitter_adds_rollouts() -> None:
    growing = msgspec.structs.replace(record(size=4), planned=12)
    assert state_of(growing, {"resolved": 4}, InQueues(), 1) is State.RUNNING
    assert state_of(growing, {"resolved": 12}, InQueues(), 1) is State.FINISHED
    rows = CampaignRows([], {"c": {}}, {}, [], [], [], {}, {}, {})
    view = _view("c", growing, rows, InQueues(), "", [])
    assert (view.size, view.unsubmitted, view.waiting, view.over) == (12, 8, 4, False)
    assert "0 of 12 done  4 waiting, 0 running, 0 delayed, 8 not submitted yet" in campaign_line(view)
    assert any("8 rollouts are not submitted yet" in hint for hint in hints(view, PipelineView()))


def test_a_campaign_that_waits_for_others_says_for_how_many() -> None:
    waits = CampaignView("c", 4, State.RUNNING, waiting=4, ahead=1200)
    said = "c waits its turn: 1,200 rollouts of other campaigns are ahead in the queue"
    assert said in hints(waits, PipelineView()) and said in campaign_line(waits)
    assert hints(replace(waits, running=1), PipelineView()) == []


def test_a_process_that_is_silent_or_holds_is_sick_and_one_that_stopped_is_not() -> None:
    heard = [
        HeardReport(report("well"), 3.0),
        HeardReport(report("killed"), SILENT_SECONDS + 1),
        HeardReport(report("holds", Condition.HOLDING, "the stream has lost events"), 3.0),
        HeardReport(report("ended", Condition.STOPPED), 1000.0),
    ]
    silent, holding = sorted(sick(heard), key=lambda sentence: "silent" not in sentence)
    assert silent.startswith("killed") and holding.endswith("the stream has lost events")
    assert [each.name for each in alive(heard)] == ["well", "holds"]


def _pause(spent: Spent) -> str:
    """Why a campaign with a cap of 5 USD is paused."""
    spec = BlobRef(sha256="0" * 64, size=1)
    return pause_reason(CampaignRecord(spec=spec, spec_hash="h", size=4, max_cost_usd=5.0), spent)


def test_a_capped_campaign_that_is_paused_for_a_wrong_key_is_not_told_to_raise_its_cap() -> None:
    for spent in (Spent(0.25), Spent(0.25, unpriced=3)):
        view = CampaignView(
            "c", 4, State.PAUSED, cap_usd=5.0, spent=spent, reason="the endpoint refused its key"
        )
        assert (
            "c is paused, because the endpoint refused its key: `orchard resume c` continues it once that "
            "is mended"
        ) in hints(view, PipelineView())


def test_a_campaign_that_its_cap_has_paused_says_so_and_how_it_goes_on() -> None:
    view = CampaignView(
        "c", 4, State.PAUSED, cap_usd=5.0, spent=Spent(5.25, unpriced=3), reason=_pause(Spent(5.25))
    )
    paused, unseen = hints(view, PipelineView())
    assert "and its cap is 5.00 USD: `orchard resume c --max-cost USD`" in paused
    assert "3 model calls have no known cost" in unseen
    assert "5.25 USD of 5.00 USD are spent, and what 3 calls cost that nobody knows" in campaign_line(view)
    screen = Console(width=200, file=StringIO())
    screen.print(status_table([view], PipelineView()), campaign_table(view, PipelineView()))
    shown = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "≥ 5.25" in shown and "cap: 5.25 USD of 5.00 USD are spent" in shown


def test_a_pause_for_calls_without_a_known_cost_says_how_to_go_on() -> None:
    spent = Spent(0.0, unpriced=3)
    view = CampaignView("c", 4, State.PAUSED, cap_usd=5.0, spent=spent, reason=_pause(spent))
    paused, _ = hints(view, PipelineView())
    assert "prices.MODEL" in paused and "`orchard resume c` continues it" in paused


def test_rewards_are_counted_by_what_protects_them() -> None:
    labels = {"value": 1200, "inside": 2, NO_LABEL: 3}
    view = CampaignView("c", 1205, State.FINISHED, {"resolved": 1205}, labels=labels)
    plain = CampaignView("old", 1, State.FINISHED, {"resolved": 1}, labels={NO_LABEL: 1})

    def screen(*shown: RenderableType) -> str:
        console = Console(width=300, file=StringIO())
        console.print(*shown)
        return console.file.getvalue()  # type: ignore[attr-defined]

    said = "1,200 value, 2 inside, 3 without a label"
    assert f"(docs/own-tasks.md): {said}" in screen(campaign_table(view, PipelineView()))
    assert said not in screen(status_table([view, plain], PipelineView()))


def test_what_is_not_known_of_tokens_and_cost_is_not_shown_as_zero() -> None:
    none = CampaignView("c", 4, State.RUNNING, ended=ModelWork(3, 0, None, counted=False, priced=False))
    some = CampaignView("c", 4, State.RUNNING, ended=ModelWork(3, 500, 1.5, counted=False, priced=False))
    assert "3 turns, tokens not known, no price known" in campaign_line(none)
    assert "3 turns, at least 500 tokens, at least 1.50 USD" in campaign_line(some)
    capped = replace(none, cap_usd=5.0, spent=Spent(None, unpriced=3))
    assert "an unknown amount of 5.00 USD is spent, by 3 calls without a price" in campaign_line(capped)
    begun = CampaignView("new", 4, State.RUNNING)
    failed = replace(none, ended=ModelWork(0, 0, 0.0), live=none.ended)
    for view, cell in ((none, " - "), (failed, " - "), (capped, " - "), (some, " ≥ 1.50 ")):
        screen = Console(width=200, file=StringIO())
        screen.print(status_table([view, begun], PipelineView(), 200))
        head, first, second = [line for line in screen.file.getvalue().splitlines() if line[0] in "┃│"]  # type: ignore[attr-defined]
        assert "cost USD" in head and cell in first and " - " not in second
        assert "0.00" not in first


def test_a_rest_is_said_with_its_end_where_that_is_known_and_a_breakers_pause_with_its_reason() -> None:
    now = datetime(2026, 1, 2, 14, 0, tzinfo=UTC)
    rest = Rest(endpoint="default", model="m", reason="answered 429: quota", seconds=120.0, prober="p")
    stored = StoredRest(key="k", rest=rest, revision=1, left=120.0, age=600.0)
    said = rest_sentence(stored, now)
    remedy = f"{THROTTLED}; its rollouts then resume"
    assert said == f"endpoint default rests until 14:02: answered 429: quota: {remedy}"
    down = msgspec.structs.replace(rest, reason="answered 500")
    unavailable = rest_sentence(msgspec.structs.replace(stored, rest=down), now)
    assert REMEDIES[AbortCause.LLM_UNAVAILABLE] in unavailable
    soon = msgspec.structs.replace(stored, left=4.0)
    assert rest_sentence(soon, now) == (
        "endpoint default rests since 13:50, and is asked again every few seconds: answered 429: quota: "
        + remedy
    )
    pipeline = PipelineView(rests=(said,))
    assert said in hints(CampaignView("c", 4, State.RUNNING), pipeline)
    assert said in campaign_line(CampaignView("c", 4, State.RUNNING), pipeline)
    (broken,) = hints(CampaignView("c", 4, State.PAUSED, reason="5 rollouts were refused"), PipelineView())
    assert (
        broken
        == "c is paused, because 5 rollouts were refused: `orchard resume c` continues it once that is mended"
    )


def test_blocked_rollouts_are_shown_apart_and_are_no_failures() -> None:
    outcomes = {"resolved": 2, "aborted: blocked": 3, "aborted: llm_unavailable": 1}
    reasons = abort_reasons(
        [{"cause": cause, "detail": "no answer", "rollouts": 1} for cause in ("blocked", "llm_unavailable")]
    )
    view = CampaignView("web", 6, State.FINISHED, outcomes, reasons=reasons)
    plain = CampaignView("lab", 1, State.FINISHED, {"resolved": 1})
    assert (view.done, view.aborted, view.blocked) == (6, 1, 3)
    assert any("3 rollouts were kept out by their sites" in hint for hint in hints(view, PipelineView()))
    assert any("web: 1 aborted, llm_unavailable: no answer" in hint for hint in hints(view, PipelineView()))
    screen = Console(width=200, file=StringIO())
    screen.print(status_table([view, plain], PipelineView()), campaign_table(view, PipelineView()))
    shown = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "blocked" in shown and "aborted: blocked" not in shown
    screen = Console(width=200, file=StringIO())
    screen.print(status_table([plain], PipelineView()))
    assert "blocked" not in screen.file.getvalue()  # type: ignore[attr-defined]


def test_hints_name_the_command_that_mends() -> None:
    reasons = abort_reasons([{"cause": "llm_unavailable", "detail": "no answer", "rollouts": 2}])
    over = CampaignView("c", 2, State.ABORTED, {"aborted: llm_unavailable": 2}, reasons=reasons)
    assert any("orchard resume c" in hint for hint in hints(over, PipelineView()))
    for queue, command in {
        "rollout-swe-normal": "orchard up",
        "rollout-swe-high": "orchard worker --priority high",
        "rollout-claw-high": "orchard worker --domain claw --priority high",
    }.items():
        (hint,) = hints(CampaignView("c", 2, State.STUCK, queue=queue), PipelineView())
        assert f"`{command}`" in hint
    assert hints(CampaignView("c", 2, State.RUNNING), PipelineView()) == []
    late = PipelineView(lag_events=9, lag_seconds=600.0, dead_letters=1)
    assert len(hints(CampaignView("c", 2, State.RUNNING), late)) == 2


def test_80_columns_are_enough_and_no_column_is_empty() -> None:
    score = Score(value=0.4167, low=0.301, high=0.539, tasks=60)
    views = [
        CampaignView(
            "a-campaign-with-a-long-name", 1205, State.FINISHED, {"resolved": 5, "unresolved": 1200}, empty=7,
            ended=ModelWork(9000, 123_456_789, 12.5), retries=3, cap_usd=50.0, spent=Spent(12.5), score=score,
        ),
        CampaignView("b", 1, State.RUNNING, running=1),
    ]  # fmt: skip

    def lines(width: int, *shown: CampaignView) -> list[str]:
        console = Console(width=width, file=StringIO())
        console.print(status_table(shown, PipelineView(), width))
        return console.file.getvalue().splitlines()  # type: ignore[attr-defined,no-any-return]

    narrow = lines(80, *views)
    assert max(map(len, narrow)) <= 80
    assert narrow[0].split() == ["campaign", "state", "done", "pass", "rate", "[95", "%]", "cost", "USD"]
    assert any("1,205 of 1,205" in line and "41.7% [30%, 54%]" in line and "12.50" in line for line in narrow)
    below = "7 of them submitted nothing, 3 retries, 123,456,789 tokens, a cap of 50.00 USD"
    assert below in " ".join(" ".join(narrow).split())
    assert "b: 1 running" in [line.rstrip() for line in narrow]
    (head,) = [line for line in lines(80, views[1]) if "state" in line]
    assert head.split() == ["campaign", "state", "done"]
    wide = lines(200, *views)
    assert all(word in wide[1] for word in ("resolved", "running", "retries", "tokens"))
    assert not any(word in wide[1] for word in ("waiting", "delayed", "blocked", "aborted"))


def test_without_a_pipeline_the_status_says_that_it_reads_tables() -> None:
    screen = Console(width=200, file=StringIO())
    reasons = abort_reasons([{"cause": "llm_unavailable", "detail": "no answer", "rollouts": 2}])
    views = [
        CampaignView("c", 2, State.STUCK),
        CampaignView("d", 2, State.ABORTED, {"aborted: llm_unavailable": 2}, reasons=reasons),
    ]
    screen.print(status_table(views, None))
    said = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "no pipeline runs here, so this is what the tables have: `orchard up` starts one" in said
    assert "orchard worker" not in said and "`orchard resume d`" in said


async def test_requests_that_are_no_rollouts_are_counted_by_kind(nats_server: EmbeddedServer) -> None:
    """Claimed ones too."""
    settings = NatsSettings()
    async with connect(settings, name="status", url=nats_server.url) as connection:
        await declare(connection, settings, [Queue(), PROVE, Queue(kind="judge", domain="rollouts")])
        entries = [named(PROVE, "a", b""), named(PROVE, "b", b""), named(Queue(), "c", b"")]
        await Publisher(connection).offer_all(entries)
        async with Claims(connection, PROVE) as claims:
            assert await claims.next(10.0) is not None
            found = requests_by_kind(await consumers(connection, names.WORK))
    assert found == {"prove": 2}
    screen = Console(width=200, file=StringIO())
    screen.print(pipeline_line(PipelineView(requests=found, delayed=1)))
    assert "  2 prove requests  1 delayed" in screen.file.getvalue()  # type: ignore[attr-defined]
