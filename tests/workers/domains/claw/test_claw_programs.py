"""A program at a desk: it finds the services as an MCP server at a tunnel of its sandbox."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchard.schemas.campaigns import Timeouts
from orchard.schemas.claw import ClawBundle
from orchard.schemas.events import RolloutAborted, RolloutFinished, payload
from orchard.schemas.outcomes import AbortCause, ExitStatus
from orchard.streams.server import EmbeddedServer
from orchard.workers import harnesses
from orchard.workers.attempts import retries
from orchard.workers.domains.claw.world import ClawAttempt
from orchard.workers.harnesses.programs.catalog.own import MCP_LOOP
from orchard.workers.harnesses.programs.record import Program
from orchard.workers.harnesses.programs.runner import ProgramHarness
from tests.attempts_world import QUICK_RETRIES, World, world
from tests.claw_world import LETTER, LETTER_ONLY, Assistant, desk_task
from tests.sandbox_service import LocalService
from tests.workers.harnesses.tiny_program import archived

pytestmark = pytest.mark.long


@pytest.fixture
def service(tmp_path: Path) -> Iterator[LocalService]:
    made = LocalService(tmp_path / "state")
    yield made
    made.stop()


@pytest.fixture
async def place(nats_server: EmbeddedServer, service: LocalService, tmp_path: Path) -> AsyncIterator[World]:
    async with (
        world(nats_server.url, service.url, tmp_path / "store", ()) as made,
        Assistant(steps=([("mail_list_messages", {})], [LETTER])).served() as model,
    ):
        layer, archive = archived(MCP_LOOP, tmp_path)
        await made.sandboxes.import_image(archive, layer.image)
        made.model = model
        yield made


def _known(monkeypatch: pytest.MonkeyPatch, program: Program) -> None:
    harnesses._built_in.cache_clear()
    monkeypatch.setitem(harnesses._HARNESSES, program.name, lambda: ProgramHarness(program))


async def _outcome(place: World, name: str = "demo", max_tries: int = 1) -> Any:
    (rollout,) = await place.submit(
        desk_task(script=LETTER_ONLY),
        name=name,
        harnesses=("mcp-loop",),
        max_tries=max_tries,
        timeouts=Timeouts(),
    )
    async with place.working():
        return payload((await place.outcomes(rollout))[rollout])


async def test_a_program_does_the_task_by_mcp_and_one_that_takes_no_server_is_refused(
    place: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = await _outcome(place)
    assert isinstance(data, RolloutFinished), data
    assert (data.reward, data.exit_status, data.turns) == (1.0, ExitStatus.FINISHED, 3)
    rows = await place.rows("select number, tool, status, face from service_calls order by number")
    assert rows == [(1, "mail_list_messages", 200, "mcp"), (2, "mail_send_message", 200, "mcp")]
    [(first,)] = await place.rows(
        "select content from messages where role = 'user' order by sequence limit 1"
    )
    assert first.startswith("It is 2026-04-10T09:00+00:00. You work for me@example.com.")
    assert "Do what Diana asks" in first
    text = data.submission or place.blobs.get(data.submission_blob).decode()  # type: ignore[arg-type]
    bundle = msgspec.json.decode(text, type=ClawBundle)
    assert (bundle.answer, len(bundle.audit)) == ("I wrote to Tom.", 2)

    _known(monkeypatch, msgspec.structs.replace(MCP_LOOP, mcp=None))
    refused = await _outcome(place, "refused")
    assert isinstance(refused, RolloutAborted)
    assert (refused.cause, refused.detail) == (
        AbortCause.INVALID_REQUEST,
        "mcp-loop takes no MCP server, as desk-1 needs: use another harness",
    )


async def test_a_call_of_a_tool_that_was_lost_with_its_line_is_not_the_programs_failure(
    place: World, service: LocalService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "ROLLOUTS", QUICK_RETRIES)
    called, losses = ClawAttempt.served, iter([True])

    async def served(attempt: ClawAttempt, *asked: Any) -> Any:
        if next(losses, False):
            await asyncio.to_thread(service.replace_orchestrator)
        return await called(attempt, *asked)

    monkeypatch.setattr(ClawAttempt, "served", served)
    gives_up = ("sh", "-c", f"{' '.join(MCP_LOOP.command)}; exit 0")
    _known(monkeypatch, msgspec.structs.replace(MCP_LOOP, command=gives_up))
    data = await _outcome(place, max_tries=2)
    assert [each.cause for each in await place.released()] == [AbortCause.SANDBOX_UNAVAILABLE]
    assert isinstance(data, RolloutFinished), data
    assert (data.reward, data.exit_status) == (1.0, ExitStatus.FINISHED)
