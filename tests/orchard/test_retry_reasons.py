"""Why rollouts wait for another attempt: real workers, queues and tables, an endpoint over HTTP that refuses,
and a sandbox service that is away."""

import asyncio
import dataclasses
import html
from collections.abc import AsyncIterator
from io import StringIO
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from rich.console import Console

from orchard.actions.abort_reasons import REMEDIES, abort_reasons
from orchard.actions.campaign_hints import hints
from orchard.actions.campaign_rows import STORED, read_rows
from orchard.actions.campaign_status import CampaignView, PipelineView, State, Status
from orchard.actions.campaigns import all_campaigns
from orchard.actions.rollout_index import INDEXED, RolloutIndex
from orchard.actions.session import Session
from orchard.configuration.config import load
from orchard.injector.client import AsyncSandboxClient
from orchard.schemas.blobs import BlobRef
from orchard.schemas.events import (
    AttemptReleased,
    CampaignSubmitted,
    RolloutStarted,
    SandboxCreated,
    SandboxFailure,
)
from orchard.schemas.outcomes import AbortCause
from orchard.storage.reader import open_tables, position
from orchard.streams.server import EmbeddedServer
from orchard.terminal.campaign_tables import campaign_line, campaign_table
from orchard.workers.episode.sandboxes import SandboxSettings
from orchard.workers.llm import endpoint_rests, rest_policy
from tests.attempts_world import SECONDS, World, world
from tests.orchard.page.conftest import served, stored
from tests.sandbox_service import LocalService
from tests.tiny_tasks import tiny_service, tiny_task
from tests.trajectory_log import CAMPAIGN, Author


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalService]:
    async with tiny_service(tmp_path_factory.mktemp("retried") / "state") as service:
        yield service


@pytest.fixture
async def place(nats_server: EmbeddedServer, service: LocalService, tmp_path: Path) -> AsyncIterator[World]:
    async with world(nats_server.url, service.url, tmp_path / "store", ()) as made:
        yield made


async def said(place: World, part: str) -> tuple[str, Status]:
    """Waits for a hint with this text; the status that has it, too."""
    session = Session(load({"store": str(place.store), "nats": {"url": place.nats_url}}))
    async with asyncio.timeout(SECONDS):
        while True:
            await place.rows("select 1 from rollouts")  # writes the tables
            found = await all_campaigns(session)
            assert found.pipeline is not None
            status = Status(found.campaigns, found.pipeline)
            for hint in hints(status.campaigns[0], status.pipeline):
                if part in hint:
                    return hint, status
            await asyncio.sleep(0.1)


@pytest.mark.long
@pytest.mark.parametrize(
    ("status", "part", "remedy"),
    [
        (401, "1 aborted, llm_refused: ", "correct the key"),
        (429, "endpoint default rests ", "raise its rate limit"),
        (500, "endpoint default rests ", "see that the endpoint runs"),
    ],
)
async def test_an_endpoint_that_refuses_is_the_reason_with_a_remedy(
    place: World, status: int, part: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rest_policy, "HELD_SECONDS", 0.1)
    monkeypatch.setattr(endpoint_rests, "POLL_SECONDS", 0.2)
    reply = {"error": {"message": "not today"}}
    place.model.refuses = lambda: web.json_response(reply, status=status)
    await place.submit(tiny_task(1), max_tries=1)
    async with place.working():
        hint, _ = await said(place, part)
    assert f"answered {status}" in hint and "not today" in hint and remedy in hint


@pytest.mark.long
@pytest.mark.parametrize("tries", [1, 9], ids=["between two attempts", "within an attempt"])
async def test_a_sandbox_service_that_is_away_is_the_reason_while_rollouts_wait(
    place: World, tries: int, unused_tcp_port: int
) -> None:
    async with AsyncSandboxClient(f"http://127.0.0.1:{unused_tcp_port}", retry_seconds=1.0) as away:
        without = dataclasses.replace(place, sandboxes=away)
        await without.submit(tiny_task(1))
        async with without.working(sandbox=SandboxSettings(creation_tries=tries)):
            hint, status = await said(place, "1 rollout is retried after sandbox_unavailable: ")
    assert str(unused_tcp_port) in hint and "orchard doctor" in hint
    view = status.campaigns[0]
    assert hint in campaign_line(view, status.pipeline)
    screen = Console(width=400, file=StringIO())
    screen.print(campaign_table(view, status.pipeline))
    assert hint in screen.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.long
async def test_a_retry_counts_by_its_newest_failure_until_a_sandbox_is_there(tmp_path: Path) -> None:
    author = Author()
    plan = CampaignSubmitted(
        spec=BlobRef(sha256="0" * 64, size=1),
        spec_hash="",
        size=6,
        tasks=6,
        harnesses=("h",),
        models=("m",),
        samples=1,
    )
    events = [author.event(plan, "", None)]

    def failed(detail: str) -> AttemptReleased:
        return AttemptReleased(reason="infrastructure", cause=AbortCause.LLM_UNAVAILABLE, detail=detail)

    away = SandboxFailure(cause=AbortCause.SANDBOX_UNAVAILABLE, detail="away", will_retry=True)
    made = SandboxCreated(sandbox_id="s", image="i", purpose="rollout", seconds=1.0, tries=2)
    started = RolloutStarted(worker="w", request_sequence=1, deliveries=1)
    for rollout, what in {
        "a" * 16: [started, failed("no answer to req-1")],
        "b" * 16: [started, away, away, failed("no answer to req-2")],
        "c" * 16: [started, away],
        "d" * 16: [started, away, made],
        "e" * 16: [started, AttemptReleased(reason="draining")],
    }.items():
        events += [author.event(one, rollout) for one in what]
    events += author.rollout(1, ["ls"], resolved=True)
    events.append(author.event(failed("earlier"), events[-1].rollout_id or ""))
    store, running = str(await stored(tmp_path, events)), ["c" * 16, "d" * 16]
    with open_tables(store) as tables:
        index = RolloutIndex(tables)
        index.follow(position(store))
        for sources in (STORED, INDEXED):
            found = read_rows(tables, [CAMPAIGN], {CAMPAIGN: running}, [], 0, sources).retried
            counted = {(row["cause"], row["detail"], row["open"]): row["rollouts"] for row in found}
            assert counted == {
                ("llm_unavailable", "no answer to req-1", True): 2,
                ("sandbox_unavailable", "away", True): 1,
                ("llm_unavailable", "earlier", False): 1,
            }
        index.close()
    async with (
        served(Path(store)) as url,
        aiohttp.ClientSession(url) as http,
        http.get("/status") as reply,
    ):
        health = html.unescape(await reply.text())
    assert "no answer to req-1" in health and REMEDIES[AbortCause.LLM_UNAVAILABLE] in health


def test_a_resting_endpoint_is_told_once() -> None:

    rows = [{"cause": "llm_unavailable", "detail": "endpoint 'e' rests: answered 500", "rollouts": 3}]
    view = CampaignView("c", 9, State.RUNNING, retrying=abort_reasons(rows))
    rests = PipelineView(rests=("endpoint e rests since 13:50: answered 500",))
    assert hints(view, rests) == list(rests.rests)
    (hint,) = hints(view, PipelineView())
    assert hint.startswith(
        "c: 3 rollouts are retried after llm_unavailable: endpoint 'e' rests: answered 500"
    )
