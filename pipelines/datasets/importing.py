"""Imports trajectories of other systems, or published ones, as rollouts in the log.

Each is a rollout of one attempt in a campaign; its tools and metadata are kept unchanged.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

import msgspec

from orchard.pipelines.datasets.foreign import UNKNOWN_MODEL, Foreign
from orchard.pipelines.datasets.own_process import in_own_process
from orchard.pipelines.tasks.left_out import LeftOut
from orchard.pipelines.trajectories.reading import assistants, path
from orchard.schemas import events as e
from orchard.schemas.campaigns import ModelSpec, RolloutRequest, TaskRef
from orchard.schemas.datasets import TrajectoryImported
from orchard.schemas.identity import check_name, rollout_id
from orchard.schemas.llm_calls import ModelKind
from orchard.schemas.messages import MessageNode, Role
from orchard.schemas.outcomes import Reward
from orchard.schemas.tasks import UNKNOWN_GRADING, Task
from orchard.storage.blobs import BlobStore
from orchard.streams.errors import MessageTooLarge
from orchard.streams.publisher import Publisher
from orchard.workers.episode.large_messages import slimmed

SOURCE = "orchard/dataset/import"
_BATCH_MESSAGES = 2000
"""Messages whose events are published together."""


@dataclass(frozen=True)
class Imported:
    rollouts: int
    there_already: int
    flags: dict[str, int]
    left_out: list[LeftOut]


@dataclass
class _Ready:
    """The events of a trajectory."""

    name: str
    events: list[e.Event]
    flags: tuple[str, ...]
    count: int = 1
    """How often it stands in the batch."""


@dataclass
class _Batch:
    """Some trajectories by rollout, whose blobs are stored, and what was left out among them."""

    ready: dict[str, _Ready] = field(default_factory=dict)
    left_out: list[LeftOut] = field(default_factory=list)


Found = Iterable[Foreign | LeftOut]


async def import_trajectories(
    publisher: Publisher,
    blobs: BlobStore,
    found: Found | Callable[[], Found],
    *,
    campaign: str,
    dataset: str,
    told: Callable[[int], None] = lambda _: None,
) -> Imported:
    """Publish the events of each trajectory, unless its rollout has an outcome already, and tell after each
    batch how many rollouts there are. The next ones are read in a thread meanwhile; a function that returns
    them is called in a process of its own. Raises what publishing and reading raise."""
    check_name(campaign)
    done, there, flags, left_out = 0, 0, Counter[str](), list[LeftOut]()
    read = partial(_batches, blobs, found, campaign=campaign, dataset=dataset)
    batches = in_own_process(read) if callable(found) else read()
    following = asyncio.create_task(asyncio.to_thread(next, batches, None))
    try:
        while (batch := await following) is not None:
            following = asyncio.create_task(asyncio.to_thread(next, batches, None))
            left_out += batch.left_out
            outcomes = await publisher.outcomes(list(batch.ready))
            new = [
                one for one, outcome in zip(batch.ready.values(), outcomes, strict=True) if outcome is None
            ]
            there += sum(one.count for one in batch.ready.values()) - len(new)
            try:
                await publisher.events([event for one in new for event in one.events[:-1]])
            except MessageTooLarge:
                new = await _one_by_one(publisher, new, left_out)
            stored = await publisher.guarded([(one.events[-1], 0) for one in new])
            for one, sequence in zip(new, stored, strict=True):
                if sequence is None:
                    there += 1
                else:
                    done += 1
                    flags.update(one.flags)
            told(done + there)
    finally:
        await asyncio.wait({following})
    return Imported(done, there, dict(flags), left_out)


def _batches(
    blobs: BlobStore, found: Found | Callable[[], Found], *, campaign: str, dataset: str
) -> Iterator[_Batch]:
    """As many at a time as have few messages."""
    for some in _few(found() if callable(found) else found):
        batch = _Batch()
        with blobs.together() as store:
            for one in some:
                if isinstance(one, LeftOut):
                    batch.left_out.append(one)
                    continue
                name = f"row {one.row}"
                try:
                    made = events_of(store, one, campaign=campaign, dataset=dataset)
                except UnicodeEncodeError as error:
                    batch.left_out.append(LeftOut(name, f"it has text that is no Unicode: {error}"))
                    continue
                rollout = made[-1].rollout_id or ""
                if rollout in batch.ready:
                    batch.ready[rollout].count += 1
                else:
                    batch.ready[rollout] = _Ready(name, made, one.flags)
        yield batch


def _few(found: Found) -> Iterator[list[Foreign | LeftOut]]:
    some: list[Foreign | LeftOut] = []
    messages = 0
    for one in found:
        some.append(one)
        messages += 1 if isinstance(one, LeftOut) else len(one.nodes)
        if messages >= _BATCH_MESSAGES:
            yield some
            some, messages = [], 0
    if some:
        yield some


async def _one_by_one(publisher: Publisher, ready: Sequence[_Ready], left_out: list[LeftOut]) -> list[_Ready]:
    """Publish what is before the outcome of each; those with an event over the server's limit are left
    out."""
    stored = []
    for one in ready:
        try:
            await publisher.events(one.events[:-1])
        except MessageTooLarge as error:
            left_out.append(LeftOut(one.name, str(error)))
        else:
            stored.append(one)
    return stored


def events_of(blobs: BlobStore, one: Foreign, *, campaign: str, dataset: str) -> list[e.Event]:
    """The events of one trajectory: request, start, import, messages, reward where there is one, outcome."""
    nodes = list(one.nodes)
    statement = next((node.content for node in nodes if node.role is Role.USER), "")
    rollout = rollout_id(campaign, one.task_id, one.harness, one.model, one.sample)
    task = Task(
        task_id=one.task_id,
        source=one.source,
        repo=one.repo,
        image="",
        statement=statement,
        grading=UNKNOWN_GRADING,
    )
    blob = blobs.put(msgspec.json.encode(task), "application/json")
    ref = TaskRef(task_id=task.task_id, source=task.source, repo=task.repo, blob=blob)
    request = RolloutRequest(
        rollout_id=rollout,
        campaign=campaign,
        task=ref,
        harness=one.harness,
        model=ModelSpec(name=one.model or UNKNOWN_MODEL),
        sample=one.sample,
    )
    leaf = one.leaf or nodes[-1].node_id
    main = path({node.node_id: node for node in nodes}, leaf)
    value = None if one.resolved is None else 1.0 if one.resolved else -1.0
    if value is not None and one.reward is not None:
        value = one.reward
    now = datetime.now(UTC)
    took = one.took
    finished = e.RolloutFinished(
        task_id=task.task_id,
        task_source=task.source,
        repo=task.repo,
        harness=one.harness,
        model=request.model.name,
        model_kind=ModelKind.MODEL,
        sample=one.sample,
        worker="import",
        started_at=took.started_at or now,
        seconds=took.seconds,
        turns=len(assistants(main)),
        llm_calls=took.llm_calls,
        prompt_tokens=took.prompt_tokens,
        completion_tokens=took.completion_tokens,
        cost_usd=took.cost_usd,
        seconds_creating=took.seconds_creating,
        seconds_llm=None,
        seconds_commands=None,
        seconds_grading=took.seconds_grading,
        status=one.exit_status.status,
        exit_status=one.exit_status,
        reward=value,
        resolved=one.resolved,
        leaf=leaf,
    )
    imported = TrajectoryImported(
        dataset=dataset,
        row=one.row,
        layout=one.layout,
        tools=one.tools,
        metadata=one.metadata,
        flags=one.flags,
    )
    started = e.RolloutStarted(worker="import", request_sequence=0, deliveries=1)
    rewards = [] if value is None else [Reward(value=value, resolved=bool(one.resolved), grader="imported")]
    messages = [slimmed(node, blobs) for node in nodes]

    def event(data: msgspec.Struct, name: str, node: str = "") -> e.Event:
        return e.make_event(
            data,
            id=f"{rollout}.import.{name}",
            source=SOURCE,
            campaign=campaign,
            rollout_id=rollout,
            attempt=None if data is request else 1,
            time=one.times.get(node, now) if node else now,
        )

    *most, last = [
        event(data, str(index), data.node_id if isinstance(data, MessageNode) else "")
        for index, data in enumerate([request, started, imported, *messages, *rewards, finished])
    ]
    calls = (event(call, f"call.{index}", call.node) for index, call in enumerate(one.calls))
    return [*most, *calls, last]
