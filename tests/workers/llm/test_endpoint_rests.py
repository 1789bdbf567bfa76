"""Resting endpoints over a real queue: several processes' clients, an endpoint over real HTTP."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from aiohttp import web

from orchard.schemas.campaigns import ModelSpec
from orchard.schemas.events import payload
from orchard.schemas.rests import EndpointRested
from orchard.streams import names
from orchard.streams.connection import Connection, connect
from orchard.streams.endpoints import EndpointBook
from orchard.streams.publish import OutgoingMessage, store
from orchard.streams.replay import replay
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare
from orchard.workers.failures import EndpointRests, InfrastructureError
from orchard.workers.llm import endpoint_rests, rest_policy
from orchard.workers.llm.answers import Completion
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.endpoint_rests import RestTracker
from orchard.workers.llm.rest_policy import rest_key
from orchard.workers.llm.settings import EndpointSettings
from tests.workers.conftest import Endpoint

HELLO = [{"role": "user", "content": "hello"}]
MODEL = ModelSpec(name="m")
SECONDS = 60.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "HELD_SECONDS": 1.0,
        "FIRST_PAUSE": 0.1,
        "LONGEST_PAUSE": 0.3,
        "LEAST_PAUSE": 0.1,
        "GRACE_SECONDS": 0.3,
    }.items():
        monkeypatch.setattr(rest_policy, name, value)
    monkeypatch.setattr(endpoint_rests, "POLL_SECONDS", 0.2)


@pytest.fixture
async def connection(nats_server: EmbeddedServer) -> AsyncIterator[Connection]:
    async with connect(NatsSettings(), name="test", url=nats_server.url) as opened:
        await declare(opened, opened.settings, [])
        yield opened


@pytest.fixture
async def process(endpoint: Endpoint, connection: Connection) -> AsyncIterator[Callable[..., Any]]:
    """Makes the model client of another process."""
    async with AsyncExitStack() as stack:

        async def made(name: str, *, waits: bool = False, **settings: Any) -> ModelClient:
            own = await stack.enter_async_context(RestTracker(connection, name))
            named = EndpointSettings(**{"base_url": endpoint.url, **settings})
            return await stack.enter_async_context(ModelClient({"default": named}, own, waits=waits))

        yield made


async def ask(client: ModelClient, seed: int = 7) -> Completion:
    return await client.complete(MODEL, HELLO, [], seed=seed, timeout=30.0)


async def rested(client: ModelClient) -> EndpointRests:
    async with asyncio.timeout(SECONDS):
        while (rest := await client.resting("default")) is None:
            await asyncio.sleep(0.02)
    return rest


async def test_an_endpoint_that_says_wait_rests_for_all_processes_and_costs_one_call(
    endpoint: Endpoint, process: Callable[..., Any]
) -> None:
    one, two = await process("one"), await process("two", max_tries=1)
    endpoint.answer({"error": {"message": "slow down"}}, 429, {"Retry-After": "3600"})
    with pytest.raises(EndpointRests, match="answered 429: slow down") as caught:
        await ask(one)
    assert 3590 < caught.value.seconds <= 3600
    assert (await rested(two)).key == caught.value.key
    for client in (one, two):
        with pytest.raises(EndpointRests):
            await ask(client)
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_calls_wait_for_a_short_rest_and_one_process_asks_for_all(
    endpoint: Endpoint,
    process: Callable[..., Any],
    status: int,
    connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rest_policy, "HELD_SECONDS", SECONDS)
    clients = [await process(str(number)) for number in range(3)]
    endpoint.answer({"error": {"message": "loading model"}}, status)
    calls = [asyncio.create_task(ask(client, seed)) for client in clients for seed in range(4)]
    async with asyncio.timeout(SECONDS):
        while not any(one.rest.probes > 1 for one in (await EndpointBook(connection).rests()).values()):
            await asyncio.sleep(0.02)
    asked = len(endpoint.requests)
    endpoint.replies.clear()
    endpoint.says("hello")
    answers = await asyncio.gather(*calls)
    assert asked <= 12 * 2 + 2 * 8  # the tries before the rest was known, and the questions
    assert {answer.text for answer in answers} == {"hello"}
    told = [payload(one.event) async for one in replay(connection, subjects="orchard.events.endpoints.>")]
    assert [one.resting for one in told if isinstance(one, EndpointRested)] == [True, False]


async def test_a_longer_outage_lets_calls_go_and_costs_less_than_a_question_a_pause(
    endpoint: Endpoint, process: Callable[..., Any]
) -> None:
    clients = [await process(str(number)) for number in range(3)]
    endpoint.answer({"error": {"message": "Loading model"}}, 503)
    calls = [asyncio.create_task(ask(client, seed)) for client in clients for seed in range(4)]
    ended = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(one, EndpointRests) for one in ended), ended
    before = len(endpoint.requests)
    assert before <= 12 * 3  # each call's tries before the rest, and questions
    async with asyncio.timeout(SECONDS):
        while len(endpoint.requests) < before + 4:
            await asyncio.sleep(0.01)
    assert all(request["max_tokens"] == 1 for request in endpoint.requests[before:])
    endpoint.replies.clear()
    endpoint.says("back")
    async with asyncio.timeout(SECONDS):
        for client in clients:
            while await client.resting("default") is not None:
                await asyncio.sleep(0.02)
        answers = await asyncio.gather(*(ask(client) for client in clients))
    assert {answer.text for answer in answers} == {"back"}


async def test_a_request_that_fails_while_others_are_answered_is_no_rest(
    endpoint: Endpoint, process: Callable[..., Any], connection: Connection
) -> None:
    """Its own attempt fails, as before; the control question shows that the endpoint is well."""
    client = await process("one", max_tries=3)

    async def reply(request: Any) -> Any:
        own = (await request.json()).get("max_tokens") != 1
        body = {"error": {"message": "cannot parse"}} if own else endpoint.completion("y")
        return web.json_response(body, status=500 if own else 200)

    endpoint.replies.append(reply)
    with pytest.raises(InfrastructureError, match="no completion in 3 tries") as caught:
        await ask(client)
    assert not isinstance(caught.value, EndpointRests)
    assert await EndpointBook(connection).rests() == {}


async def test_the_question_repeats_the_shortest_request_that_was_answered(
    endpoint: Endpoint, process: Callable[..., Any]
) -> None:
    client = await process("one", max_tries=1)
    endpoint.says("hello")
    await ask(client)
    endpoint.replies.clear()
    endpoint.answer({"error": {"message": "x"}}, 502)
    with pytest.raises(EndpointRests):
        await client.complete(MODEL, [*HELLO, *HELLO], [], seed=7, timeout=30.0)
    async with asyncio.timeout(SECONDS):
        while len(endpoint.requests) < 3:
            await asyncio.sleep(0.02)
    assert endpoint.requests[2] == endpoint.requests[0] | {"max_tokens": 1}


async def test_a_server_that_fails_at_the_question_alone_is_tried_with_what_it_refused_and_by_trial(
    endpoint: Endpoint, process: Callable[..., Any], connection: Connection
) -> None:
    """One that looks for what every prompt of its task has, say."""
    down = True

    async def reply(request: web.Request) -> web.StreamResponse:
        known = (await request.json())["messages"][-1]["content"] == "hello"
        if down or not known:
            return web.json_response(
                {"error": {"message": "KeyError"}}, status=503 if down and known else 500
            )
        return web.json_response(endpoint.completion("back"))

    endpoint.replies.append(reply)
    async with RestTracker(connection, "first") as own:
        settings = EndpointSettings(base_url=endpoint.url, max_tries=1)
        async with ModelClient({"default": settings}, own) as first:
            with pytest.raises(EndpointRests):
                await ask(first)
            down = False
            async with asyncio.timeout(SECONDS):
                while await first.resting("default") is not None:
                    await asyncio.sleep(0.02)
            down = True
            with pytest.raises(EndpointRests):
                await ask(first)
    down = False
    second = await process("second")  # has seen no prompt
    async with asyncio.timeout(SECONDS):
        while await second.resting("default") is not None:
            await asyncio.sleep(0.02)
    assert (await ask(second)).text == "back"


async def test_when_the_process_that_asks_has_died_another_one_does(
    endpoint: Endpoint, process: Callable[..., Any], connection: Connection
) -> None:
    async with RestTracker(connection, "first") as own:
        settings = EndpointSettings(base_url=endpoint.url)
        async with ModelClient({"default": settings}, own) as first:
            endpoint.answer({"error": {"message": "no"}}, 429, {"Retry-After": "1"})
            with pytest.raises(EndpointRests):
                await asyncio.gather(*(ask(first) for _ in range(2)))
    endpoint.replies.clear()
    endpoint.says("back")
    second = await process("second")
    async with asyncio.timeout(SECONDS):
        while await second.resting("default") is not None:
            await asyncio.sleep(0.02)
    assert (await ask(second)).text == "back"


async def test_a_client_that_nobody_takes_up_again_waits(
    endpoint: Endpoint, process: Callable[..., Any]
) -> None:
    """As `orchard judge`, which is no queue."""
    client = await process("one", waits=True)
    endpoint.answer({"error": {"message": "no"}}, 429, {"Retry-After": "2"})
    endpoint.says("back")
    assert (await ask(client)).text == "back"


async def test_where_the_book_cannot_be_read_a_call_ends_by_its_own_tries(
    endpoint: Endpoint, process: Callable[..., Any], connection: Connection
) -> None:
    """As with a record that a later version has written in another form."""
    key = rest_key(EndpointSettings(base_url=endpoint.url), socket.gethostname())
    subject = f"{names.ENDPOINTS_PREFIX}rest.{key}"
    await store(
        connection, OutgoingMessage(subject=subject, payload=b'{"until": "soon"}', id="later", expected=0)
    )
    endpoint.answer(b"down", 503)
    client = await process("one", max_tries=2)
    with pytest.raises(InfrastructureError, match="no completion in 2 tries"):
        await ask(client)


async def test_how_long_an_endpoint_asks_to_wait_is_told_whatever_the_number(
    endpoint: Endpoint, process: Callable[..., Any], connection: Connection
) -> None:
    endpoint.answer(b"slow", 429, {"Retry-After": "9" * 400})
    client = await process("one")
    with pytest.raises(EndpointRests):
        await ask(client)
    told = [payload(one.event) async for one in replay(connection, subjects="orchard.events.endpoints.>")]
    assert [type(one) for one in told] == [EndpointRested]


async def test_another_key_at_the_same_server_does_not_rest(
    endpoint: Endpoint, process: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTHER_KEY", "secret-of-the-other")
    one, other = await process("one"), await process("two", api_key_env="OTHER_KEY")
    endpoint.answer({"error": {"message": "quota of this key"}}, 429, {"Retry-After": "60"})
    endpoint.says("yes")
    with pytest.raises(EndpointRests):
        await ask(one)
    assert (await ask(other)).text == "yes"


async def test_the_book_has_no_key_and_no_address(
    endpoint: Endpoint, process: Callable[..., Any], connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "secret-of-mine")
    client = await process("one", api_key_env="MY_KEY")
    said = f"key secret-of-mine at {endpoint.url} has no quota left"
    endpoint.answer({"error": {"message": said}}, 429, {"Retry-After": "60"})
    with pytest.raises(EndpointRests):
        await ask(client)
    key = rest_key(EndpointSettings(base_url=endpoint.url, api_key_env="MY_KEY"), socket.gethostname())
    (stored,) = (await EndpointBook(connection).rests()).values()
    assert stored.key == key
    assert stored.rest.reason == "answered 429: key *** at *** has no quota left"
