"""A program's wall clock: its calls count as long as the model works for them, and side by side once."""

import asyncio
from typing import Any

import pytest
from aiohttp import web

from orchard.schemas.campaigns import Budget, ModelSpec
from orchard.schemas.llm_calls import LLMCall
from orchard.schemas.messages import Role
from orchard.schemas.outcomes import ExitStatus
from orchard.storage.blobs import BlobStore
from orchard.workers.episode.message_tree import MessageTree
from orchard.workers.gateway.recording import Recording
from orchard.workers.gateway.wire_types import CallRejected, ProgramMessage, ProgramRequest
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.settings import EndpointSettings
from tests.workers.conftest import MovedTime


def asks(text: str) -> ProgramRequest:
    return ProgramRequest(model="m", messages=(ProgramMessage(role=Role.USER, text=text),))


@pytest.fixture
async def recorded(endpoint: Any, blobs: BlobStore) -> Any:
    """A recording with a wall clock of 30 s, and what it published."""
    published: list[Any] = []

    async def publish(data: object) -> None:
        published.append(data)

    settings = EndpointSettings(base_url=endpoint.url, concurrency=8)
    async with ModelClient({"default": settings}) as models:
        tree, spec = MessageTree(publish, blobs), ModelSpec(name="small")
        budget = Budget(wall_seconds=30.0)
        yield Recording(tree, models, lambda: spec, budget, seed=7, timeout=60.0), tree, published


async def test_four_calls_side_by_side_take_the_time_of_one(
    endpoint: Any, moved_time: MovedTime, recorded: Any
) -> None:
    recording, tree, published = recorded
    together = asyncio.Barrier(4)

    async def answer(_: web.Request) -> web.Response:
        if await together.wait() == 0:
            moved_time.move(10.0)
        await together.wait()
        return web.json_response(endpoint.completion("done"))

    for _ in range(2):  # 20 of the 30 s
        endpoint.replies.extend([answer] * 4)
        await asyncio.gather(*(recording.answer(asks(f"part {each}"), {}) for each in range(4)))
    cost = sum(each.seconds for each in published if isinstance(each, LLMCall))
    assert recording.seconds_left > 0 and recording.ended is None
    assert cost >= 80.0 and tree.totals.seconds_llm == pytest.approx(cost), "the sum is what they cost"
    moved_time.move(10.0)
    with pytest.raises(CallRejected):
        await recording.answer(asks("more"), {})
    assert recording.ended is ExitStatus.TIME_LIMIT
    recording.stop_clock()
    assert 30.0 <= tree.totals.seconds < 80.0


async def test_an_endpoint_that_refuses_takes_none_of_it(
    endpoint: Any, moved_time: MovedTime, recorded: Any
) -> None:
    recording, tree, _ = recorded

    async def refuse(_: web.Request) -> web.Response:
        moved_time.move(50.0)
        return web.json_response({"error": {"message": "busy"}}, status=429, headers={"Retry-After": "0"})

    async def answer(_: web.Request) -> web.Response:
        return web.json_response(endpoint.completion("done"))

    endpoint.replies.extend([refuse, answer])
    await recording.answer(asks("one"), {})
    assert recording.seconds_left > 0
    assert not recording.unanswered
    assert tree.totals.seconds_waiting >= 50.0


async def test_the_time_is_over_while_no_call_is_made(moved_time: MovedTime, recorded: Any) -> None:
    recording, tree, _ = recorded
    moved_time.move(29.9)
    await recording.out_of_time()
    assert recording.seconds_left == 0.0 and tree.totals.seconds >= 30.0
