"""A seeded history of a million rollouts: as the tables of a store, and as a real stream with its queue.

Campaigns run one after another; within each, rollouts live 256 at a time. A rollout is resolved, fails,
is retried, loses a worker, aborts, or aborts and is reopened, with fixed probabilities; the last campaign
still has rollouts that are queued, delayed or running. The same plan always gives the same events at the same
sequences, so the tables of `fill_store` are those that a writer makes from the stream of `fill_stream`.

Run as `python -m tests.benchmarks.million --help`.
"""

import argparse
import os
import random
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import accumulate, islice
from typing import Any, NamedTuple, TypeVar

import msgspec
import uvloop

from orchard.pipelines.campaigns.commands import requested_event
from orchard.schemas import events as e
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import (
    CampaignRecord,
    CampaignSpec,
    ModelSpec,
    RolloutRequest,
    TaskRef,
    rollout_requests,
    spec_hash,
)
from orchard.schemas.llm_calls import LLMCall, ModelKind, Usage
from orchard.schemas.messages import MessageNode, Role, ToolCall, ToolResult
from orchard.schemas.outcomes import AbortCause, ExitStatus, Reward, RolloutStatus
from orchard.schemas.positions import Position
from orchard.schemas.queues import Queue
from orchard.schemas.subjects import event_subject
from orchard.storage.blobs import BlobStore
from orchard.storage.delta import DataFile, StoreTable, write_file
from orchard.storage.derive import derive_tables
from orchard.storage.location import Location
from orchard.storage.log import log_batch
from orchard.storage.tables import EVENTS, PROGRESS, TABLES
from orchard.streams import names
from orchard.streams.campaigns import CampaignBook
from orchard.streams.connection import Connection, Pending, connect
from orchard.streams.entries import FIRST, QueueEntry, after_attempt, rollout_entry
from orchard.streams.publish import result_in
from orchard.streams.publisher import Publisher
from orchard.streams.reading import bounds
from orchard.streams.records import StoredEvent, stored_event
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare

_T = TypeVar("_T")
START = datetime(2026, 1, 1, tzinfo=UTC)
HARNESSES = ("mini-swe-agent", "openhands")
MODELS = ("small", "medium", "large", "frontier", "policy")
AT_ONCE = 256
"""Rollouts whose events are interleaved."""
UNIT_ROLLOUTS = 32 * AT_ONCE
"""Rollouts of one unit of work, which a process makes alone."""
CONFIRMED_EVERY = 500
"""Events published for one that the stream must confirm; the server's inbound buffer holds 10,000."""
UNDER_WAY = 8

FATES: dict[str, tuple[float, tuple[str, ...]]] = {
    "resolved": (0.34, ("started", "turns", "reward", "resolved")),
    "failed": (0.42, ("started", "turns", "reward", "failed")),
    "truncated": (0.08, ("started", "turns", "reward", "truncated")),
    "retried": (0.06, ("started", "turns", "released", "started", "turns", "reward", "resolved")),
    "lost": (0.03, ("started", "turns", "started", "turns", "reward", "failed")),
    "aborted": (0.04, ("started", "released", "started", "released", "started", "aborted")),
    "reopened": (0.03, ("started", "aborted", "reopened", "started", "turns", "reward", "failed")),
}
"""Fate to its probability and its steps after the request."""
OPEN_FATES: dict[str, tuple[float, tuple[str, ...]]] = {
    "queued": (0.70, ()),
    "running": (0.20, ("started", "turns")),
    "delayed": (0.10, ("started", "released")),
}
"""The same for the rollouts of the last campaign that have no outcome yet."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is made. Equal plans give equal events."""

    rollouts: int = 1_000_000
    campaigns: int = 5
    samples: int = 4
    turns: int = 1
    """Model calls of an attempt: an assistant message, its call record and a tool message each."""
    text: int = 200
    """Characters of a message."""
    open_share: float = 0.1
    """Of the last campaign's rollouts, those without an outcome."""
    seed: int = 1

    def spec(self, campaign: int) -> CampaignSpec:
        """The campaign's plan, with at least its share of the rollouts; those beyond are not requested."""
        slots = len(HARNESSES) * len(MODELS) * self.samples
        tasks = -(-self.size(campaign) // slots)
        return CampaignSpec(
            name=f"million-{campaign}",
            tasks=tuple(map(_task, range(tasks))),
            harnesses=HARNESSES,
            models=tuple(ModelSpec(name=name) for name in MODELS),
            samples=self.samples,
        )

    def size(self, campaign: int) -> int:
        """Rollouts of one campaign."""
        return self.rollouts // self.campaigns + (campaign < self.rollouts % self.campaigns)

    def fates(self, campaign: int) -> list[str]:
        """The fate of each rollout of a campaign, by index."""
        chance = random.Random(f"{self.seed}-{campaign}")
        share = self.open_share if campaign == self.campaigns - 1 else 0.0
        weights = {name: weight * (1 - share) for name, (weight, _) in FATES.items()}
        weights |= {name: weight * share for name, (weight, _) in OPEN_FATES.items()}
        return chance.choices(list(weights), list(weights.values()), k=self.size(campaign))


class Unit(NamedTuple):
    """Consecutive events that one process makes: requests, or whole lives, of rollouts of one campaign."""

    plan: Plan
    campaign: int
    requests: bool
    first: int
    """Index of the first rollout."""
    fates: list[str]
    sequence: int
    """Of the first event."""


def units(plan: Plan) -> Iterator[Unit]:
    """All units, in the order of the stream."""
    sequence = 1
    for campaign in range(plan.campaigns):
        fates = plan.fates(campaign)
        for requests in (True, False):
            for first in range(0, len(fates), UNIT_ROLLOUTS):
                unit = Unit(plan, campaign, requests, first, fates[first : first + UNIT_ROLLOUTS], sequence)
                yield unit
                sequence += _length(unit)


def messages(unit: Unit) -> list[StoredEvent]:
    """The unit's events as the stream has them, from the unit's sequence on."""
    made = _requested(unit) if unit.requests else _interleaved(unit)
    return [
        stored_event(sequence, event_subject(event), event.time, e.encode_event(event))
        for sequence, event in enumerate(made, start=unit.sequence)
    ]


def fill_store(plan: Plan, store: str) -> int:
    """Makes the tables of an empty store, several files each; how many events they hold."""
    location = Location.parse(store)
    tables = {table: StoreTable(location, table) for table in TABLES}
    progress = StoreTable(location, PROGRESS)
    if tables[EVENTS].watermark:
        raise RuntimeError(f"the store {store} is not empty: choose another directory")
    written: dict[str, list[DataFile]] = {table: [] for table in TABLES}
    last = 0
    for reached, files in _in_order(partial(_files, location), units(plan)):
        last = reached
        for table, file in files.items():
            written[table].append(file)
    for name, table in tables.items():
        table.replace(written[name], Position.of(last))
    progress.append(progress.schema.empty_table(), Position.of(last))
    return last


async def fill_stream(plan: Plan, connection: Connection, store: str) -> int:
    """Fills the empty streams of a declared topology; how many events there are then.

    The book has the campaigns, whose plans become blobs of `store`. The queue has the requests of queued and
    running rollouts (no worker holds these), and the delayed ones wait for an hour. Raises RuntimeError when
    an event has another sequence than in the plan.
    """
    if (await bounds(connection, names.EVENTS)).last:
        raise RuntimeError("the event stream is not empty: use a new server")
    last = 0
    for batch in _in_order(messages, units(plan)):
        await _publish(connection, batch)
        last = batch[-1].sequence
    book, blobs, publisher = CampaignBook(connection), BlobStore(store), Publisher(connection)
    for campaign in range(plan.campaigns):
        spec, size = plan.spec(campaign), plan.size(campaign)
        blob = blobs.put(msgspec.json.encode(spec), "application/json")
        record = CampaignRecord(spec=blob, spec_hash=spec_hash(spec), size=size, offered=size)
        await book.create(spec.name, record)
        waiting: list[QueueEntry] = []
        for request, fate in zip(rollout_requests(spec), plan.fates(campaign), strict=False):
            if fate == "delayed":
                renewed = msgspec.structs.replace(request, attempt_base=3, failures=1)
                await publisher.offer(rollout_entry(renewed, after_attempt(3)), delay=3600.0)
            elif fate in OPEN_FATES:
                waiting.append(rollout_entry(request, FIRST))
        await publisher.offer_all(waiting)
    return last


def _in_order(work: Callable[[Unit], _T], items: Iterable[Unit]) -> Iterator[_T]:
    """The results of `work`, made in a process for each processor, a few units ahead of the caller."""
    count = os.cpu_count() or 1
    waiting: deque[Future[_T]] = deque()
    with ProcessPoolExecutor(count) as processes:
        for item in items:
            waiting.append(processes.submit(work, item))
            if len(waiting) > count + 1:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _files(location: Location, unit: Unit) -> tuple[int, dict[str, DataFile]]:
    """The unit's rows as files that no commit names yet, by table, and the last sequence."""
    batch = log_batch(messages(unit))
    tables = {EVENTS: batch.rows, **derive_tables(batch.facts)}
    files = {table: write_file(location, table, [rows]) for table, rows in tables.items()}
    return unit.sequence + batch.rows.num_rows - 1, files


async def _publish(connection: Connection, batch: Sequence[StoredEvent]) -> None:
    """Stores events without ids, one in CONFIRMED_EVERY confirmed, which proves those before it stored."""
    pending: list[tuple[int, Pending]] = []
    for message in batch:
        if message.sequence % CONFIRMED_EVERY and message is not batch[-1]:
            await connection.nats.publish(message.subject, message.raw)
            continue
        pending.append((message.sequence, await connection.send(message.subject, message.raw)))
        while len(pending) > UNDER_WAY or (pending and message is batch[-1]):
            expected, answer = pending.pop(0)
            stored = result_in(await answer.future).sequence
            if stored != expected:
                raise RuntimeError(f"event {expected} was stored as {stored}: the server lost some before it")


def _task(number: int) -> TaskRef:
    source = ("swe-bench", "swe-gym", "swe-smith", "nemotron")[number % 4]
    blob = BlobRef(sha256=f"{number:064x}", size=4096)
    return TaskRef(task_id=f"task-{number}", source=source, repo=f"owner/repo-{number % 300}", blob=blob)


def _length(unit: Unit) -> int:
    """Events of a unit."""
    if unit.requests:
        return len(unit.fates) + (unit.first == 0)
    steps = {fate: steps for fate, (_, steps) in (FATES | OPEN_FATES).items()}
    each = {
        fate: sum(3 * unit.plan.turns if step == "turns" else 1 for step in steps[fate]) for fate in steps
    }
    return sum(each[fate] for fate in unit.fates)


def _of_unit(unit: Unit) -> list[RolloutRequest]:
    requests = rollout_requests(unit.plan.spec(unit.campaign), unit.first)
    return list(islice(requests, len(unit.fates)))


def _at(sequence: int) -> datetime:
    return START + timedelta(milliseconds=10 * sequence)


def _requested(unit: Unit) -> Iterator[e.Event]:
    spec = unit.plan.spec(unit.campaign)
    sequence = unit.sequence
    if unit.first == 0:
        submitted = e.CampaignSubmitted(
            spec=BlobRef(sha256="0" * 64, size=1),
            spec_hash=spec_hash(spec),
            size=unit.plan.size(unit.campaign),
            tasks=len(spec.tasks),
            harnesses=spec.harnesses,
            models=tuple(model.name for model in spec.models),
            samples=spec.samples,
        )
        identity = f"{spec.name}.submitted"
        yield e.make_event(
            submitted, id=identity, source="orchard/million", campaign=spec.name, time=_at(sequence)
        )
        sequence += 1
    for offset, request in enumerate(_of_unit(unit)):
        yield msgspec.structs.replace(requested_event(request), time=_at(sequence + offset))


Life = Generator[e.Event, int, None]
"""Gives events with the time still to be set; is sent the sequence of each."""


def _interleaved(unit: Unit) -> Iterator[e.Event]:
    """The lives of the unit's rollouts, AT_ONCE at a time, taking turns."""
    sequence = unit.sequence
    pairs = zip(_of_unit(unit), unit.fates, strict=True)
    while block := [_life(unit.plan, request, fate) for request, fate in islice(pairs, AT_ONCE)]:
        waiting = [(life, event) for life in block if (event := next(life, None)) is not None]
        while waiting:
            following = []
            for life, event in waiting:
                yield msgspec.structs.replace(event, time=_at(sequence))
                with suppress(StopIteration):
                    following.append((life, life.send(sequence)))
                sequence += 1
            waiting = following


def _life(plan: Plan, request: RolloutRequest, fate: str) -> Life:
    """What happens to a rollout after its request."""
    chance = random.Random(f"{plan.seed}-{request.rollout_id}")
    attempt, made, ended, parent = 0, 0, 0, None
    worker = f"worker-{chance.randrange(64)}"
    seconds = chance.lognormvariate(5.5, 0.8)

    def event(data: Any, causing: int | None) -> e.Event:
        nonlocal made
        made += 1
        return e.make_event(
            data,
            id=f"{request.rollout_id}.{made}",
            source=f"orchard/worker/{worker}",
            campaign=request.campaign,
            rollout_id=request.rollout_id,
            attempt=causing,
            time=START,
        )

    for step in (FATES | OPEN_FATES)[fate][1]:
        match step:
            case "started":
                attempt, parent = attempt + 1, None
                yield event(e.RolloutStarted(worker=worker, request_sequence=1, deliveries=1), attempt)
            case "turns":
                for turn in range(1, plan.turns + 1):
                    for data in _turn(plan, request, parent, turn, chance):
                        yield event(data, attempt)
                    parent = f"{turn:x}-{request.rollout_id}"[:24]
            case "released":
                released = e.AttemptReleased(
                    reason="infrastructure",
                    cause=AbortCause.SANDBOX_DIED,
                    detail="the sandbox did not answer",
                    retry_in_seconds=30.0,
                    next_attempt_base=attempt,
                )
                yield event(released, attempt)
            case "reward":
                resolved = fate in ("resolved", "retried")
                value = 1.0 if resolved else -1.0
                parts = {"fail_to_pass": float(resolved), "pass_to_pass": 1.0}
                yield event(Reward(value=value, resolved=resolved, grader="swe-tests", parts=parts), attempt)
            case "reopened":
                reopened = e.RolloutReopened(
                    superseded_sequence=ended, cause=AbortCause.LLM_UNAVAILABLE, reason="resumed, round 1"
                )
                yield event(reopened, None)
            case _:
                ended = yield event(_outcome(plan, request, step, worker, seconds, chance), attempt)


def _turn(
    plan: Plan, request: RolloutRequest, parent: str | None, turn: int, chance: random.Random
) -> Iterator[Any]:
    """An assistant message, the call that made it, and what the tool answered."""
    node, answer = f"{turn:x}a{request.rollout_id}"[:24], f"{turn:x}-{request.rollout_id}"[:24]
    at = chance.randrange(len(_WORDS) - plan.text)
    call = ToolCall(id=f"call-{turn}", name="bash", arguments='{"command": "git diff"}')
    text = _WORDS[at : at + plan.text]
    yield MessageNode(
        node_id=node, parent=parent, role=Role.ASSISTANT, turn=turn, content=text, tool_calls=(call,)
    )
    yield LLMCall(
        parent=parent or "",
        node=node,
        turn=turn,
        endpoint="default",
        model=request.model.name,
        served_model=request.model.name,
        model_kind=ModelKind.MODEL,
        finish_reason="tool_calls",
        usage=Usage(prompt_tokens=chance.randrange(50_000), completion_tokens=chance.randrange(800)),
        cost_usd=chance.random() * 0.05,
        seconds=chance.random() * 20,
    )
    yield MessageNode(
        node_id=answer,
        parent=node,
        role=Role.TOOL,
        turn=turn,
        content=text[::-1],
        tool_call_id=call.id,
        result=ToolResult(returncode=int(chance.random() < 0.2), seconds=chance.random() * 5),
    )


def _outcome(
    plan: Plan, request: RolloutRequest, step: str, worker: str, seconds: float, chance: random.Random
) -> Any:
    turns = plan.turns
    known: dict[str, Any] = {
        "task_id": request.task.task_id,
        "task_source": request.task.source,
        "repo": request.task.repo,
        "harness": request.harness,
        "model": request.model.name,
        "model_kind": ModelKind.MODEL,
        "sample": request.sample,
        "worker": worker,
        "started_at": START,
        "seconds": seconds,
        "turns": turns,
        "llm_calls": turns,
        "prompt_tokens": turns * chance.randrange(50_000),
        "completion_tokens": turns * chance.randrange(800),
        "cost_usd": turns * chance.random() * 0.05,
    }
    if step == "aborted":
        return e.RolloutAborted(**known, cause=AbortCause.LLM_UNAVAILABLE, detail="no answer", failures=3)
    cut = step == "truncated"
    return e.RolloutFinished(
        **known,
        status=RolloutStatus.TRUNCATED if cut else RolloutStatus.COMPLETED,
        exit_status=ExitStatus.STEP_LIMIT if cut else ExitStatus.SUBMITTED,
        reward=1.0 if step == "resolved" else -1.0,
        resolved=step == "resolved",
        submission=f"diff --git a/{request.task.task_id}.py b/{request.task.task_id}.py\n",
    )


def _words() -> str:
    """Two million characters that compress about as prose does."""
    chance = random.Random(0)
    words = ["".join(chance.choices("etaoinshrdlu", k=chance.randint(2, 9))) for _ in range(5000)]
    weights = list(accumulate(1 / rank for rank in range(1, len(words) + 1)))
    return " ".join(chance.choices(words, cum_weights=weights, k=400_000))[:2_000_000]


_WORDS = _words()


async def _fill_stream(plan: Plan, url: str, store: str) -> int:
    settings = NatsSettings()
    async with connect(settings, name="million", url=url) as connection:
        await declare(connection, settings, [Queue()])
        return await fill_stream(plan, connection, store)


def main() -> None:
    """Makes what the flags ask for."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.million", description=__doc__)
    for field in msgspec.structs.fields(Plan):
        flag = f"--{field.name.replace('_', '-')}"
        parser.add_argument(flag, type=field.type, default=field.default, dest=field.name)
    parser.add_argument("--store", required=True, help="a directory or s3:// URL: gets tables and blobs")
    parser.add_argument("--nats", help="fill the empty streams of this server too, with book and queue")
    parser.add_argument(
        "--no-tables", action="store_true", help="only the streams: a writer makes the tables"
    )
    flags = vars(parser.parse_args())
    store, url, no_tables = flags.pop("store"), flags.pop("nats"), flags.pop("no_tables")
    plan = Plan(**flags)
    for name, wanted, fill in (
        ("store", not no_tables, lambda: fill_store(plan, store)),
        ("stream", url is not None, lambda: uvloop.run(_fill_stream(plan, url, store))),
    ):
        if wanted:
            began = time.perf_counter()
            count = fill()
            sys.stdout.write(f"{name}: {count:,} events in {time.perf_counter() - began:.0f} s\n")


if __name__ == "__main__":
    main()
