"""From a queue with unresolved trajectories to their values in the log, whatever the endpoint does."""

import asyncio
import json
from typing import Any

import msgspec
import pytest
from aiohttp import web

from orchard.pipelines.values.annotator import Annotator, Cases
from orchard.pipelines.values.prompt import PROMPT_VERSION
from orchard.pipelines.values.requests import QUEUE, Asking, offer, open_requests
from orchard.schemas.llm_calls import ModelKind
from orchard.storage.reader import open_tables
from orchard.streams.claims import Claims
from orchard.streams.connection import connect
from orchard.streams.consumer import Consumer, WorkerLifetime
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.tasks import end
from orchard.workers.attempts.deadletters import DeadLetters
from orchard.workers.attempts.queue_maintenance import maintain_queues
from orchard.workers.llm import rest_policy
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.endpoint_rests import RestTracker
from orchard.workers.llm.settings import EndpointSettings, Price
from orchard.workers.oracle.server import OracleServer
from tests.entries import named
from tests.killing import killed_in_the_middle
from tests.tiny_tasks import tiny_task
from tests.trajectory_log import Author

GOOD = json.dumps(
    [
        {"step": -1, "p_resolve": 0.4, "reasoning": "base"},
        {"step": 0, "p_resolve": 0.55, "reasoning": "reads"},
        {"step": 1, "p_resolve": 0.6, "reasoning": "reproduces"},
        {"step": 2, "p_resolve": 0.1, "reasoning": "breaks"},
    ]
)
HIGH = GOOD.replace("0.1", "0.5")
TASK = tiny_task(1)
PATH = "arithmetic/mod_1.py"
COMMANDS = [
    f"cat {PATH}",
    "python3 -m unittest tests.test_mod_1",
    f"sed -i '6c\\    total = left * right' {PATH}",
    "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT",
]


def observation(command: str) -> str:
    return (
        "<returncode>1</returncode>\nFAILED (failures=1)"
        if "unittest" in command
        else "<returncode>0</returncode>"
    )


async def unresolved(
    pipeline: Any, author: Author, count: int = 1, commands: list[str] | None = None
) -> None:
    """Rollouts that failed, and one that did not."""
    blob = pipeline.blobs.put(msgspec.json.encode(TASK))
    more = {"blob": blob, "user": TASK.statement, "observation": observation, "task": TASK.task_id}
    tests = dict.fromkeys(TASK.grading.fail_to_pass, "FAILED")
    events = author.rollout(99, COMMANDS, resolved=True, **more)
    for sample in range(count):
        events += author.rollout(sample, commands or COMMANDS[:3], resolved=False, tests=tests, **more)
    await pipeline.keep(*events)


async def run(
    pipeline: Any,
    url: str,
    asking: Asking,
    verdicts: int,
    prices: dict[str, Price] | None = None,
    idle_exit: float = 0.0,
    max_age: float = 0.0,
) -> list[Any]:
    """Offer what is open and annotate until so many verdicts are in; the events."""
    with open_tables(pipeline.store) as tables:
        requests = open_requests(tables, "demo", asking)
    await offer(pipeline.publisher, requests)
    done: list[Any] = []

    def told(event: Any) -> None:
        done.append(event)
        if len(done) >= verdicts:
            consumer.drain()

    settings = EndpointSettings(base_url=url, prices=prices or {}, max_tries=1)
    async with (
        RestTracker(pipeline.connection, "test") as rests,
        ModelClient({"default": settings}, rests) as models,
        Claims(pipeline.connection, QUEUE) as claims,
    ):
        cases = Cases(pipeline.store)
        annotator = Annotator(pipeline.publisher, models, cases, name="test", done=told)
        lifetime = WorkerLifetime(idle=idle_exit, age=max_age)
        dead = DeadLetters(pipeline.connection)
        consumer = Consumer(claims, dead, {QUEUE.kind: annotator}, slots=2, lifetime=lifetime)
        async with asyncio.timeout(60):
            await consumer.run()
        cases.close()
    await pipeline.keep()
    return done


def rows(pipeline: Any, query: str) -> list[Any]:
    with open_tables(pipeline.store, views=query) as tables:
        return tables.execute(query).fetchall()


@pytest.mark.long
async def test_a_good_reply_becomes_values_with_its_cost(pipeline: Any, teacher: Any) -> None:
    await unresolved(pipeline, Author(), 2)
    teacher.replies.append(GOOD)
    price = {"judge": Price(prompt=1.0, completion=10.0)}
    await run(pipeline, teacher.url, Asking(model="judge"), 2, price)
    found = rows(
        pipeline,
        "select annotator, model, served_model, base, curve, tries, prompt_tokens, cost_usd, flags, "
        "prompt_version from values",
    )
    assert (
        found
        == [
            (
                "judge",
                "judge",
                "served",
                0.4,
                [0.55, 0.6, 0.1],
                1,
                100,
                pytest.approx(0.0002),
                [],
                PROMPT_VERSION,
            )
        ]
        * 2
    )
    assert len(teacher.asked) == 2
    assert TASK.grading.fail_to_pass[0] in teacher.asked[0]["messages"][1]["content"]


@pytest.mark.long
async def test_without_work_it_ends_where_it_is_told_to(pipeline: Any, teacher: Any) -> None:
    await unresolved(pipeline, Author(), 2)
    teacher.replies.append(GOOD)
    assert len(await run(pipeline, teacher.url, Asking(model="judge"), 99, idle_exit=1.0)) == 2


@pytest.mark.long
async def test_an_old_one_leaves_what_waits_to_others(pipeline: Any, teacher: Any) -> None:
    """Its Job has a deadline, at which what it had claimed would be cut off."""
    await unresolved(pipeline, Author(), 2)
    teacher.replies.append(GOOD)
    assert await run(pipeline, teacher.url, Asking(model="judge"), 99, max_age=1e-9) == []
    assert len(await run(pipeline, teacher.url, Asking(model="judge"), 2)) == 2


@pytest.mark.long
async def test_a_bad_reply_is_asked_for_again_with_the_fault_named(pipeline: Any, teacher: Any) -> None:
    await unresolved(pipeline, Author())
    teacher.replies += ["I think it went well.", GOOD]
    await run(pipeline, teacher.url, Asking(model="judge"), 1)
    assert rows(pipeline, "select kind, tries, prompt_tokens from values_all") == [("annotated", 2, 200)]
    roles = [message["role"] for message in teacher.asked[1]["messages"]]
    assert roles == ["system", "user", "assistant", "user"]
    assert "not JSON" in teacher.asked[1]["messages"][-1]["content"]


@pytest.mark.long
async def test_three_bad_replies_are_a_failure_with_its_cause(pipeline: Any, teacher: Any) -> None:
    await unresolved(pipeline, Author())
    teacher.replies += ["[]", "[1]", GOOD.replace("0.1", "7")]
    await run(pipeline, teacher.url, Asking(model="judge"), 1)
    assert rows(pipeline, "select kind, fault, tries from values_all") == [("failed", "p_out_of_range", 3)]
    assert rows(pipeline, "select * from values") == []


@pytest.mark.long
async def test_an_end_that_stays_high_is_kept_clamped_and_flagged(pipeline: Any, teacher: Any) -> None:
    await unresolved(pipeline, Author())
    teacher.replies.append(HIGH)
    await run(pipeline, teacher.url, Asking(model="judge"), 1)
    assert rows(pipeline, "select curve[3], flags, tries from values") == [(0.2, ["final_clamped"], 3)]


@pytest.mark.long
async def test_a_prompt_over_the_models_context_is_a_failure(pipeline: Any, teacher: Any) -> None:
    await unresolved(pipeline, Author())
    body = {
        "error": {"message": "too long", "type": "invalid_request_error", "code": "context_length_exceeded"}
    }
    teacher.replies.append(web.json_response(body, status=400))
    await run(pipeline, teacher.url, Asking(model="judge"), 1)
    assert rows(pipeline, "select kind, fault, tries from values_all") == [("failed", "context_exceeded", 0)]


@pytest.mark.long
async def test_only_open_trajectories_are_offered_and_none_is_asked_about_twice(
    pipeline: Any, teacher: Any
) -> None:
    await unresolved(pipeline, Author(), 3)
    teacher.replies.append(GOOD)
    asking = Asking(model="judge")
    with open_tables(pipeline.store) as tables:
        requests = open_requests(tables, "demo", asking)
        assert len(requests) == 3
        assert open_requests(tables, "other", asking) == []
    await run(pipeline, teacher.url, asking, 3)
    with open_tables(pipeline.store) as tables:
        assert open_requests(tables, "demo", asking) == []
        assert len(open_requests(tables, "demo", Asking(model="judge", annotator="second"))) == 3
    await offer(pipeline.publisher, requests, "-once-more")
    done = await run(pipeline, teacher.url, asking, 3)
    assert len(done) == 3 and len(teacher.asked) == 3
    assert rows(pipeline, "select count(*) from tables.values_all") == [(3,)]


async def test_layers_stand_beside_each_other_and_the_latest_of_each_counts(pipeline: Any) -> None:
    author = Author()
    events = author.rollout(0, COMMANDS, resolved=False)
    await pipeline.keep(
        *events,
        author.annotated(events, {0: 0.5, 3: 0.1}, 4, "a"),
        author.annotated(events, {0: 0.6, 3: 0.1}, 4, "b"),
        author.annotated(events, {0: 0.7, 3: 0.1}, 4, "a"),
    )
    assert rows(pipeline, "select annotator, curve[1] from values order by 1") == [("a", 0.7), ("b", 0.6)]
    assert rows(pipeline, "select count(*) from values_all") == [(3,)]


@pytest.mark.long
async def test_what_is_no_request_of_this_version_becomes_a_dead_letter(pipeline: Any, teacher: Any) -> None:
    await unresolved(pipeline, Author())
    teacher.replies.append(GOOD)
    with open_tables(pipeline.store) as tables:
        (request,) = open_requests(tables, "demo", Asking(model="judge"))
    old = msgspec.structs.replace(request, prompt_version="0")
    await pipeline.publisher.offer(named(QUEUE, "old", msgspec.json.encode(old)))
    await pipeline.publisher.offer(named(QUEUE, "junk", b"{}"))
    await run(pipeline, teacher.url, Asking(model="judge"), 1)
    letters = [await DeadLetters(pipeline.connection).get(number) for number in (1, 2)]
    assert all(letter is not None and "terminated" in letter.reason for letter in letters)


@pytest.mark.long
async def test_the_oracle_annotates_over_the_same_wire_and_is_labelled(pipeline: Any) -> None:
    """It opens the right file, reproduces, and twists the line: rises, rises, falls."""
    await unresolved(pipeline, Author(), commands=COMMANDS)
    async with OracleServer(lambda: [TASK]) as oracle:
        await run(pipeline, oracle.url, Asking(model="oracle", annotator="oracle"), 1)
    ((kind, base, curve, flags),) = rows(pipeline, "select model_kind, base, curve, flags from values")
    assert kind == ModelKind.ORACLE and flags == []
    assert base < curve[0] < curve[1] > curve[2] > curve[3]
    assert curve[1] == pytest.approx(0.67) and curve[2] == pytest.approx(0.15)


@pytest.mark.long
async def test_the_oracle_credits_an_edit_that_makes_gold_lines(pipeline: Any) -> None:
    right = f"sed -i '6c\\    total = left + right' {PATH}"
    await unresolved(pipeline, Author(), commands=["ls", right, "echo bye"])
    async with OracleServer(lambda: [TASK]) as oracle:
        await run(pipeline, oracle.url, Asking(model="oracle"), 1)
    ((curve,),) = rows(pipeline, "select curve from values")
    assert curve == [0.4, 0.52, 0.05]


@pytest.mark.long
async def test_an_annotator_waits_for_an_endpoint_that_rests_and_counts_no_failure(
    pipeline: Any, teacher: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More often refused than a request may fail, and put off as the endpoint says."""
    for name, value in {"HELD_SECONDS": 0.2, "FIRST_PAUSE": 0.1, "LONGEST_PAUSE": 0.2}.items():
        monkeypatch.setattr(rest_policy, name, value)
    await unresolved(pipeline, Author(), 3)
    refusal = web.json_response({"error": {"message": "quota"}}, status=429)
    teacher.replies += [refusal] * (3 * (Annotator.retries.most or 0)) + [GOOD]
    keeping = asyncio.create_task(maintain_queues(pipeline.connection))
    try:
        await run(pipeline, teacher.url, Asking(model="judge"), 3)
    finally:
        await end(keeping)
    assert rows(pipeline, "select count(*) from values") == [(3,)]
    assert await DeadLetters(pipeline.connection).list() == []


@pytest.mark.long
async def test_an_annotator_that_is_killed_costs_nothing(
    pipeline: Any, teacher: Any, nats_server: EmbeddedServer
) -> None:
    await unresolved(pipeline, Author())
    teacher.replies.append(GOOD)
    teacher.open.clear()
    with open_tables(pipeline.store) as tables:
        await offer(pipeline.publisher, open_requests(tables, "demo", Asking(model="judge")))

    async def begun() -> None:
        while not teacher.asked:
            await asyncio.sleep(0.02)

    environment = {
        "ORCHARD_STORE": pipeline.store,
        "ORCHARD_NATS__URL": nats_server.url,
        "ORCHARD_NATS__ACK_WAIT": "2.0",
        "ORCHARD_NATS__HEARTBEAT": "0.5",
        "ORCHARD_ENDPOINTS__DEFAULT__BASE_URL": teacher.url,
    }
    await killed_in_the_middle(("values", "worker"), environment, begun())
    teacher.open.set()
    short = NatsSettings(ack_wait=2.0, heartbeat=0.5)
    async with connect(short, name="second", url=nats_server.url) as connection:
        pipeline.connection = connection
        assert len(await run(pipeline, teacher.url, Asking(model="judge"), 1)) == 1
    assert rows(pipeline, "select count(*) from values") == [(1,)] and len(teacher.asked) == 2
