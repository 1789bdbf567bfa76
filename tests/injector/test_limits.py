"""What one key may ask for, what it is told when it asks for more, and that it takes nothing from others."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from orchard.injector.errors import SandboxOverLimit, SandboxRequestInvalid
from orchard.injector.orchestrator.limits import (
    OVERLOAD,
    REQUESTS,
    Bucket,
    KeyLimits,
    RequestAdmission,
    ServiceLimits,
    load,
    name_of,
)
from orchard.injector.orchestrator.request_queue import RequestQueue

if TYPE_CHECKING:
    from tests.injector.conftest import Service

GREEDY, MODEST, ADMIN = "greedy-key", "modest-key", "admin-key"

steps = st.lists(st.floats(0, 3), min_size=1, max_size=60)


@given(steps, st.floats(0.1, 20), st.integers(1, 10))
def test_a_bucket_lets_through_its_rate_and_burst_and_says_when_there_is_more(
    pauses: list[float], rate: float, burst: int
) -> None:
    bucket, now, taken = Bucket(rate, burst), 0.0, 0
    for pause in pauses:
        now += pause
        seconds = bucket.take(now)
        taken += seconds == 0
        assert taken <= burst + rate * now + 1e-6
        assert seconds <= 1 / rate + 1e-9
        if seconds:
            now += seconds + 1e-9
            assert bucket.take(now) == 0
            taken += 1


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=200), st.integers(1, 30))
def test_no_key_keeps_another_out_of_a_crowded_replica(events: list[tuple[str, bool]], most: int) -> None:
    """Whatever came before: never more than `most`, and who has nothing in hand finds room for something."""
    admission = RequestAdmission(ServiceLimits(concurrent_requests=most), keys=3)
    handled = dict.fromkeys("abc", 0)
    for key, begins in events:
        if not begins and handled[key]:
            admission.leave(key)
            handled[key] -= 1
            continue
        free = most - sum(handled.values())
        excess = admission.enter(key, 0.0)
        assert excess is None or excess.limit == OVERLOAD
        if free > 0 and not handled[key]:
            assert excess is None
        handled[key] += excess is None
        assert sum(handled.values()) <= most
    greedy = RequestAdmission(ServiceLimits(concurrent_requests=10), keys=2)
    assert sum(greedy.enter("a", 0.0) is None for _ in range(20)) == 8
    assert sum(greedy.enter("b", 0.0) is None for _ in range(20)) == 2
    alone = RequestAdmission(ServiceLimits(concurrent_requests=10))
    assert sum(alone.enter("a", 0.0) is None for _ in range(20)) == 10


def test_what_lets_go_is_never_refused() -> None:
    admission = RequestAdmission(
        ServiceLimits(concurrent_requests=1, default=KeyLimits(requests_per_second=0.001))
    )
    assert admission.enter("a", 0.0) is None
    assert admission.enter("a", 0.0) is not None
    assert admission.enter("a", 0.0, counted=False) is None


async def test_ten_thousand_at_once_wait_for_their_turn_and_none_is_refused() -> None:
    limits = ServiceLimits(
        concurrent_requests=48, default=KeyLimits(concurrent_requests=32, waiting_requests=10_000)
    )
    turns, served, most = RequestQueue(RequestAdmission(limits, keys=2)), dict[str, list[int]](a=[], b=[]), 0
    handled = 0

    async def ask(key: str, number: int) -> None:
        nonlocal handled, most
        assert await turns.enter(key) is None
        handled, most = handled + 1, max(most, handled + 1)
        await asyncio.sleep(0)
        served[key].append(number)
        handled -= 1
        turns.leave(key)

    await asyncio.gather(*(ask(key, number) for number in range(5_000) for key in "ab"))

    assert served == {key: list(range(5_000)) for key in "ab"}, "each key's in their order"
    assert most <= 48


async def test_keys_take_turns_and_too_long_a_line_is_refused() -> None:
    admission = RequestAdmission(ServiceLimits(concurrent_requests=1, default=KeyLimits(waiting_requests=2)))
    turns, order = RequestQueue(admission), list[str]()
    assert await turns.enter("a") is None

    async def ask(key: str) -> None:
        assert await turns.enter(key) is None
        order.append(key)
        turns.leave(key)

    tasks = [asyncio.create_task(ask(key)) for key in "aabb"]
    await asyncio.sleep(0)
    refused = await turns.enter("a")
    assert refused is not None and (refused.limit, refused.status) == (REQUESTS, 429)
    assert await turns.enter("a", counted=False) is None, "what lets go does not wait"
    turns.leave("a")
    turns.leave("a")
    await asyncio.gather(*tasks)
    assert order == ["a", "b", "a", "b"]


async def test_commands_of_the_first_do_not_wait_behind_a_crowd_of_creations() -> None:
    """They have a time limit, and their sandboxes are there already."""
    turns = RequestQueue(
        RequestAdmission(ServiceLimits(concurrent_requests=1, default=KeyLimits(waiting_requests=9_999)))
    )
    assert await turns.enter("a", creates=True) is None
    order = list[str]()

    async def ask(what: str, creates: bool) -> None:
        assert await turns.enter("a", creates=creates) is None
        order.append(what)
        turns.leave("a")

    asked = [asyncio.create_task(ask(f"creation {number}", True)) for number in range(1_000)]
    await asyncio.sleep(0)
    asked += [asyncio.create_task(ask(f"command {number}", False)) for number in range(2)]
    await asyncio.sleep(0)
    assert turns.waiting("a") == 1_002
    turns.leave("a")
    await asyncio.gather(*asked)

    assert order == ["command 0", "command 1", *(f"creation {number}" for number in range(1_000))]
    assert turns.waiting("a") == 0


async def test_who_gives_up_keeps_nobody_waiting() -> None:
    turns = RequestQueue(
        RequestAdmission(ServiceLimits(default=KeyLimits(concurrent_requests=1, waiting_requests=9)))
    )
    assert await turns.enter("a") is None
    gone, let_in, last = (asyncio.create_task(turns.enter("a")) for _ in range(3))
    await asyncio.sleep(0)
    gone.cancel()
    turns.leave("a")  # before the first knows that it was given up
    let_in.cancel()  # after it was let in, before it knows
    await asyncio.wait([gone, let_in])
    assert gone.cancelled() and let_in.cancelled()
    assert await last is None
    turns.leave("a")
    assert turns.waiting("a") == 0
    assert await turns.enter("a") is None, "nothing is held by those who went"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[default]\nrequests = 3", "no such key"),
        ("[default]\nsandboxes = 0", "sandboxes"),
        ("[default]\nrequests_per_second = -1.0", "requests_per_second"),
        ("[default]\nburst = 2", "requests_per_second"),
        ("[default]\nwaiting_requests = -1", "waiting_requests"),
        ("concurrent_requests = 0", "concurrent_requests"),
        ("default = ", ""),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_with_its_name(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "limits.toml").write_text(text)
    with pytest.raises(SandboxRequestInvalid, match=rf"limits\.toml is no file of limits: .*{says}"):
        load(tmp_path / "limits.toml")
    with pytest.raises(SandboxRequestInvalid, match="limits"):
        load(tmp_path / "nowhere.toml")


Serve = Callable[[str], "Service"]


@pytest.fixture
def serve(service: "Service", start_service: "type[Service]", tmp_path: Path) -> Iterator[Serve]:
    """More orchestrators over the agent of the others, with two keys and limits."""
    with ExitStack() as stack:

        def start(limits: str) -> "Service":
            path = tmp_path / "limits.toml"
            path.write_text(limits)
            keys = {"SANDBOX_API_KEY": f"{GREEDY},{MODEST}", "SANDBOX_ADMIN_KEYS": ADMIN}
            running = start_service(service.state, "--limits", str(path), env=keys)
            stack.callback(running.kill)
            return running

        yield start


def session(service: "Service", key: str) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(service.url, headers={"X-API-Key": key})


@pytest.mark.long
async def test_too_many_requests_are_429_with_the_time_to_wait_for(serve: Serve) -> None:
    limited = serve("[default]\nrequests_per_second = 0.01\nburst = 3")
    async with session(limited, GREEDY) as greedy, session(limited, MODEST) as modest:
        statuses = [(await greedy.get("/sandboxes")).status for _ in range(3)]
        refused = await greedy.get("/sandboxes")
        assert (statuses, refused.status) == ([200] * 3, 429)
        assert 90 <= int(refused.headers["Retry-After"]) <= 100
        assert refused.headers["X-Error-Reason"] == "limit_rate"
        assert "0.01 requests a second" in (await refused.json())["detail"]
        assert (await greedy.delete("/sandboxes/nobody")).status == 200, "letting go is free"
        assert (await greedy.get("/health")).status == 200
        assert (await modest.get("/sandboxes")).status == 200
        for family in text_string_to_metric_families(await (await modest.get("/metrics")).text()):
            samples = {tuple(sample.labels.values()): sample.value for sample in family.samples}
            if family.name == "orchard_sandbox_requests_refused":
                assert samples[("key-1", "rate")] == 1
            if family.name == "orchard_sandbox_requests_by_key":
                assert samples[("key-1",)] == 4 and samples[("key-2",)] == 1
            assert not any("-key" in label for labels in samples for label in labels)


async def test_the_client_waits_and_gets_through(serve: Serve) -> None:
    limited = serve("[default]\nrequests_per_second = 2.0\nburst = 1")
    async with limited.client(api_key=GREEDY) as client:
        for _ in range(3):
            assert await client.list_sandboxes({"of": "nobody"}) == []
    async with limited.client(api_key=GREEDY, retry_seconds=0.0) as client:
        with pytest.raises(SandboxOverLimit) as refused:
            for _ in range(3):
                await client.list_sandboxes()
    assert (refused.value.status, refused.value.reason, refused.value.retry_after) == (429, "limit_rate", 1.0)


async def test_too_many_at_once(serve: Serve) -> None:
    limited = serve(f"[keys.{name_of(GREEDY)}]\nconcurrent_requests = 2")
    async with (
        session(limited, GREEDY) as greedy,
        session(limited, MODEST) as modest,
        limited.client(api_key=GREEDY) as client,
        limited.client(api_key=ADMIN) as admin,
    ):
        sandbox = await client.create_sandbox("host")
        await sandbox.exec("mkfifo gate")
        job = f"/jobs/{await sandbox.start('read line < gate')}/wait"
        waits = [asyncio.create_task(greedy.get(job)) for _ in range(2)]
        handled = 'orchard_sandbox_requests_in_flight_by_key{key="key-1"} 2.0'
        async with asyncio.timeout(30):
            while handled not in await (await modest.get("/metrics")).text():
                pass
        refused = await greedy.get("/sandboxes")
        assert (refused.status, refused.headers["X-Error-Reason"]) == (429, "limit_requests")
        assert (await modest.get("/sandboxes")).status == 200
        await (await admin.get_sandbox(sandbox.sandbox_id)).exec("echo > gate")
        assert [(await wait).status for wait in waits] == [200, 200]
        assert (await greedy.get("/sandboxes")).status == 200


async def test_creations_beyond_the_limit_wait_their_turn(serve: Serve) -> None:
    limited = serve("concurrent_requests = 1\n[default]\nwaiting_requests = 100")
    async with session(limited, GREEDY) as greedy, session(limited, MODEST) as modest:
        replies = await asyncio.gather(
            *(greedy.post("/sandboxes", json={"image": "host"}) for _ in range(20)),
            *(modest.get("/sandboxes") for _ in range(20)),
        )
        assert {reply.status for reply in replies} == {200}
        for reply in replies[:20]:
            await greedy.delete(f"/sandboxes/{(await reply.json())['sandbox_id']}")
        assert (
            'orchard_sandbox_requests_waiting{key="key-1"} 0.0' in await (await modest.get("/metrics")).text()
        )


async def test_a_busy_replica_is_503_for_the_greedy_key_only(serve: Serve) -> None:
    limited = serve("concurrent_requests = 6")
    async with (
        session(limited, GREEDY) as greedy,
        session(limited, MODEST) as modest,
        limited.client(api_key=GREEDY) as client,
        limited.client(api_key=ADMIN) as admin,
    ):
        sandbox = await client.create_sandbox("host")
        await sandbox.exec("mkfifo gate")
        job = f"/jobs/{await sandbox.start('read line < gate')}/wait"
        waits = [asyncio.create_task(greedy.get(job)) for _ in range(6)]
        done, waiting = await asyncio.wait(waits, timeout=30, return_when=asyncio.FIRST_COMPLETED)
        refused = await done.pop()
        assert (refused.status, refused.headers["X-Error-Reason"]) == (503, "overload")
        assert refused.headers["Retry-After"] == "1"
        assert (await modest.get("/sandboxes")).status == 200
        await (await admin.get_sandbox(sandbox.sandbox_id)).exec("echo > gate")
        assert {(await wait).status for wait in waiting} <= {200, 503}


async def test_a_key_may_have_so_many_sandboxes_at_all_replicas_together(serve: Serve) -> None:
    text = f"[keys.{name_of(GREEDY)}]\nsandboxes = 3"
    one, two = serve(text), serve(text)
    async with (
        one.client(api_key=GREEDY, retry_seconds=0.0) as first,
        two.client(api_key=GREEDY, retry_seconds=0.0) as second,
        two.client(api_key=MODEST) as other,
    ):
        made = await first.create_sandbox("host", labels={"of": "limit"}, idempotency_key="limit-1")
        (fork,) = await made.fork()
        await second.create_sandbox("host", idempotency_key="limit-2")
        for refused in (first.create_sandbox("host"), second.create_sandbox("host"), made.fork()):
            with pytest.raises(SandboxOverLimit, match="has 3 sandboxes and may have 3"):
                await refused
        again = await second.create_sandbox("host", labels={"of": "limit"}, idempotency_key="limit-1")
        assert again.sandbox_id == made.sandbox_id, "a repetition is no further one"
        assert (fork.info.labels["of"], fork.info.labels["orchard.key"]) == ("limit", name_of(GREEDY))
        await other.create_sandbox("host")
        await fork.delete()
        (fork,) = await made.fork(idempotency_key="fork-1")
        (once_more,) = await made.fork(idempotency_key="fork-1")
        assert once_more.sandbox_id == fork.sandbox_id
        for further in (fork.fork(idempotency_key="fork-1"), made.fork(count=2, idempotency_key="fork-1")):
            with pytest.raises(SandboxOverLimit):  # of another origin, and of another number
                await further
        await fork.delete()
        await first.create_sandbox("host")


async def test_creations_at_once_do_not_pass_the_limit(serve: Serve) -> None:
    limited = serve("[default]\nsandboxes = 3")
    async with session(limited, GREEDY) as greedy:
        replies = await asyncio.gather(*(greedy.post("/sandboxes", json={"image": "host"}) for _ in range(8)))
        assert sorted(reply.status for reply in replies) == [200] * 3 + [429] * 5
        for reply in replies:
            if reply.status == 200:
                await greedy.delete(f"/sandboxes/{(await reply.json())['sandbox_id']}")


async def test_nobody_says_for_whom_a_sandbox_counts(serve: Serve) -> None:
    limited = serve("[default]\nsandboxes = 3")
    async with session(limited, GREEDY) as greedy:
        labels = {"orchard.key": name_of(MODEST)}
        reply = await greedy.post("/sandboxes", json={"image": "host", "labels": labels})
        assert (reply.status, (await reply.json())["detail"][0]["loc"]) == (
            422,
            ["body", "labels", "orchard.key"],
        )
