"""Finds the trajectories that an annotator is asked about: those that it has not judged yet."""

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb
import msgspec

from orchard.pipelines.values.judges import BUILT_IN, get_judge
from orchard.schemas.blobs import BlobRef
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
       coalesce(s.sequence, 0) as first, r.sequence as last, {rubric}
from rollouts r
join requests q on q.rollout_id = r.rollout_id
left join (
    select rollout_id, attempt, min(sequence) as sequence from tables.attempts_all
    where kind = 'started' group by all
) s on s.rollout_id = r.rollout_id and s.attempt = r.attempt
{join}
where r.campaign = $campaign and r.resolved is not null and r.turns > 0 and {which}
and not exists (
    select 1 from tables.values_all v
    where v.rollout_id = r.rollout_id and v.attempt = r.attempt and v.prompt_version = $version
    and v.annotator = coalesce(nullif($annotator, ''), coalesce(nullif($model, ''), r.model))
    and (v.kind = 'annotated' or not $again) {same}
)
order by r.sequence
"""
_VALUES = _OPEN.format(rubric="null", join="", which="not r.resolved", same="")
_SCORES = _OPEN.format(
    rubric="b.rubric_sha256",
    join="join rubrics b on b.task_sha256 = q.task_sha256 and b.teacher = $rubric",
    which="true",
    same="and coalesce(v.rubric_sha256, b.rubric_sha256) = b.rubric_sha256",
)


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
    rubric: str | None = None
    """Teacher whose rubrics score the turns of all graded trajectories; None: values of unresolved ones."""
    max_cost_usd: float | None = None
    """USD after which nothing more is asked, over all that the layer has cost; None: no cap."""


def open_requests(
    tables: duckdb.DuckDBPyConnection, campaign: str, asking: Asking
) -> list[AnnotationRequest]:
    """One request for each trajectory of the campaign that the layer does not have.

    Raises PluginError for a judge that there is not.
    """
    if asking.rubric is None:
        get_judge(asking.judge)
    parameters = {
        "campaign": campaign,
        "version": asking.judge,
        "annotator": asking.annotator or "",
        "model": asking.model or "",
        "again": asking.again,
    }
    query = _VALUES
    if asking.rubric is not None:
        query, parameters = _SCORES, {**parameters, "rubric": asking.rubric}
    found = []
    for rollout, attempt, model, kind, endpoint, first, last, sha256 in tables.execute(
        query, parameters
    ).fetchall():
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
                again=asking.again,
                rubric=BlobRef(sha256=sha256, size=0) if sha256 else None,
            )
        )
    return found


def queue_entry(request: AnnotationRequest, occasion: str) -> QueueEntry:
    """One entry for each trajectory, layer and prompt version; `streams.entries` explains the occasion."""
    asked = [request.rollout_id, request.attempt, request.annotator, request.prompt_version]
    key = digest([*asked, request.rubric.sha256] if request.rubric is not None else asked)
    return entry(QUEUE, EntryAddress(request.campaign, key), occasion, msgspec.json.encode(request))


def layer_cost(tables: duckdb.DuckDBPyConnection, annotator: str) -> float:
    """USD that a layer of annotations has cost so far, as far as prices are known."""
    query = "select coalesce(sum(cost_usd), 0) from values_all where annotator = ?"
    (usd,) = tables.execute(query, [annotator]).fetchall()[0]
    return float(usd)


async def offer(publisher: Publisher, requests: Sequence[AnnotationRequest], round_: str = "") -> None:
    """Put requests on the annotate queue. The server refuses one that is queued or claimed already; an
    annotator that gets one twice all the same asks once. Raises QueueFull."""
    placed = await publisher.offer_absent([queue_entry(one, FIRST + round_) for one in requests])
    if any(one.result is EnqueueResult.FULL for one in placed):
        raise QueueFull("the work stream is full: wait until requests are done, and run the command again")
