"""Finds the trajectories that an annotator is asked about: unresolved ones that it has not judged yet."""

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb
import msgspec

from orchard.pipelines.values.judges import BUILT_IN, get_judge
from orchard.schemas.campaigns import ModelSpec
from orchard.schemas.identity import digest
from orchard.schemas.llm_calls import ModelKind
from orchard.schemas.queues import Queue
from orchard.schemas.values import AnnotationRequest
from orchard.streams.enqueue import EnqueueResult
from orchard.streams.entries import FIRST, EntryAddress, QueueEntry, entry
from orchard.streams.errors import QueueFull
from orchard.streams.publisher import Publisher

QUEUE = Queue(kind="annotate", domain="values")

_OPEN = """
select r.rollout_id, r.attempt, r.model, r.model_kind, q.endpoint,
       coalesce(s.sequence, 0) as first, r.sequence as last
from rollouts r
join requests q on q.rollout_id = r.rollout_id
left join (
    select rollout_id, attempt, min(sequence) as sequence from tables.attempts_all
    where kind = 'started' group by all
) s on s.rollout_id = r.rollout_id and s.attempt = r.attempt
where r.campaign = $campaign and r.resolved is not null and not r.resolved and r.turns > 0
and not exists (
    select 1 from tables.values_all v
    where v.rollout_id = r.rollout_id and v.attempt = r.attempt and v.prompt_version = $version
    and v.annotator = coalesce(nullif($annotator, ''), coalesce(nullif($model, ''), r.model))
    and (v.kind = 'annotated' or not $again)
)
order by r.sequence
"""


@dataclass(frozen=True)
class Asking:
    """Model, protocol and layer of an annotation round."""

    model: str | None = None
    """Model that is asked; None: each trajectory's own teacher, at its own endpoint."""
    endpoint: str = "default"
    judge: str = BUILT_IN.version
    """Prompt version: the built-in one, or the name of a plug-in."""
    annotator: str | None = None
    """Name of the layer; None: the model's name."""
    temperature: float | None = None
    max_tokens: int | None = None
    context_characters: int = 200_000
    again: bool = False
    """Ask again about those that failed with this prompt version."""


def open_requests(
    tables: duckdb.DuckDBPyConnection, campaign: str, asking: Asking
) -> list[AnnotationRequest]:
    """One request for each unresolved trajectory of the campaign that the layer does not have.

    Raises PluginError for a judge that there is not.
    """
    get_judge(asking.judge)
    parameters = {
        "campaign": campaign,
        "version": asking.judge,
        "annotator": asking.annotator or "",
        "model": asking.model or "",
        "again": asking.again,
    }
    found = []
    for rollout, attempt, model, kind, endpoint, first, last in tables.execute(_OPEN, parameters).fetchall():
        spec = ModelSpec(
            name=asking.model or model,
            endpoint=asking.endpoint if asking.model else endpoint,
            kind=ModelKind.MODEL if asking.model else ModelKind(kind),
            temperature=asking.temperature,
            max_tokens=asking.max_tokens,
        )
        found.append(
            AnnotationRequest(
                rollout_id=rollout,
                attempt=attempt,
                campaign=campaign,
                annotator=asking.annotator or spec.name,
                model=spec,
                prompt_version=asking.judge,
                first_sequence=first,
                last_sequence=last,
                context_characters=asking.context_characters,
            )
        )
    return found


def queue_entry(request: AnnotationRequest, occasion: str) -> QueueEntry:
    """One entry for each trajectory, layer and prompt version; `streams.entries` explains the occasion."""
    key = digest([request.rollout_id, request.attempt, request.annotator, request.prompt_version])
    return entry(QUEUE, EntryAddress(request.campaign, key), occasion, msgspec.json.encode(request))


async def offer(publisher: Publisher, requests: Sequence[AnnotationRequest], round_: str = "") -> None:
    """Put requests on the annotate queue. The server refuses one that is queued or claimed already; an
    annotator that gets one twice all the same asks once. Raises QueueFull."""
    placed = await publisher.offer_absent([queue_entry(one, FIRST + round_) for one in requests])
    if any(one.result is EnqueueResult.FULL for one in placed):
        raise QueueFull("the work stream is full: wait until requests are done, and run the command again")
