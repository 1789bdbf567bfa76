"""The annotator: asks a model for the values of a trajectory, checks the reply, publishes the verdict.

Stateless like every worker. The event's id is a digest of the rollout, the layer, the prompt version
and the prompt itself: a request delivered twice finds the result in the log and asks nothing.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable

import duckdb
import msgspec

from orchard.pipelines.trajectories.reading import AttemptSpan
from orchard.pipelines.values.cases import Case, read_case
from orchard.pipelines.values.judges import Judge, get_judge
from orchard.pipelines.values.prompt import AnnotationPrompt
from orchard.pipelines.values.replies import BadReply, Reading
from orchard.pipelines.values.requests import queue_entry
from orchard.schemas.events import Event, make_event, payload
from orchard.schemas.identity import digest
from orchard.schemas.llm_calls import ModelKind
from orchard.schemas.outcomes import AbortCause
from orchard.schemas.plugins import PluginError
from orchard.schemas.requests import InvalidRequest, read_annotation_request
from orchard.schemas.values import AnnotationFacts, AnnotationFailed, AnnotationRequest, ValueAnnotated
from orchard.storage.blobs import BlobStore
from orchard.storage.errors import StorageError
from orchard.storage.reader import open_tables, refresh
from orchard.streams.consumer import ClaimedRequest, RetryPolicy
from orchard.streams.entries import QueueEntry
from orchard.streams.errors import MessageTooLarge
from orchard.streams.publisher import Publisher
from orchard.workers.episode.totals import Totals, used_by
from orchard.workers.failures import InfrastructureError
from orchard.workers.llm.answers import Completion
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.errors import ContextLengthExceeded

log = logging.getLogger("orchard.annotator")

CONTEXT_EXCEEDED = "context_exceeded"


class Cases:
    """Reads cases out of a store that is being written; one reader for all claims of a process."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._blobs = BlobStore(store)
        self._lock = threading.Lock()
        self._tables: duckdb.DuckDBPyConnection | None = None

    def read(self, place: AttemptSpan) -> Case | None:
        """The case, or None while the tables lack it. Raises StorageError."""
        with self._lock:
            if self._tables is None:
                self._tables = open_tables(self._store)
            found = read_case(self._tables, self._blobs, place)
            if found is None:
                refresh(self._tables, self._store)
                found = read_case(self._tables, self._blobs, place)
            return found

    def close(self) -> None:
        with self._lock:
            if self._tables is not None:
                self._tables.close()
                self._tables = None


class Annotator:
    """Handles annotation requests."""

    retries = RetryPolicy(on=(InfrastructureError, StorageError), first=20.0, most=5)

    def __init__(
        self,
        publisher: Publisher,
        models: ModelClient,
        cases: Cases,
        *,
        name: str,
        done: Callable[[Event], None] | None = None,
    ) -> None:
        self._publisher = publisher
        self._models = models
        self._cases = cases
        self._name = name
        self._done = done
        """Called with each published verdict."""

    def read(self, body: bytes) -> AnnotationRequest:
        request = read_annotation_request(body)
        try:
            get_judge(request.prompt_version)
        except PluginError as error:
            raise InvalidRequest(f"it wants prompt version {request.prompt_version}: {error}") from error
        return request

    def entry(self, request: AnnotationRequest, occasion: str) -> QueueEntry:
        return queue_entry(request, occasion)

    async def handle(self, delivery: ClaimedRequest[AnnotationRequest]) -> None:
        """Publish the verdict on a trajectory."""
        request = delivery.request
        if rest := await self._models.resting(request.model.endpoint):
            raise rest
        event = await delivery.run(self._verdict(request, get_judge(request.prompt_version)))
        try:
            await self._publisher.event(event)
        except MessageTooLarge as error:
            raise InvalidRequest(str(error)) from error
        if self._done is not None:
            self._done(event)

    async def _verdict(self, request: AnnotationRequest, judge: Judge) -> Event:
        """The event to publish: the log's own, or the result of asking now."""
        place = AttemptSpan(
            request.rollout_id, request.attempt, None, request.first_sequence, request.last_sequence
        )
        case = await asyncio.to_thread(self._cases.read, place)
        if case is None:
            raise InfrastructureError(
                AbortCause.STORE_FAILED, f"the tables do not have rollout {request.rollout_id} yet"
            )
        prompt = judge.prompt(case, request.context_characters)
        input_hash = digest(prompt.messages, 64)
        key = [request.rollout_id, request.attempt, request.annotator, request.prompt_version, input_hash]
        identity = digest(["annotation", *key])
        known = await self._publisher.annotation(identity)
        if known is not None and known.event is not None:
            verdict = payload(known.event)
            if isinstance(verdict, ValueAnnotated | AnnotationFailed):
                return known.event
        data = await self._ask(request, judge, case, prompt, input_hash)
        return make_event(
            data,
            id=identity,
            source=f"orchard/annotator/{self._name}",
            campaign=case.campaign,
            rollout_id=case.rollout_id,
            attempt=case.attempt,
        )

    async def _ask(
        self, request: AnnotationRequest, judge: Judge, case: Case, prompt: AnnotationPrompt, input_hash: str
    ) -> ValueAnnotated | AnnotationFailed:
        """Ask until a reply keeps the rules, `max_tries` times. Raises InfrastructureError."""
        began = time.monotonic()
        messages = [dict(message) for message in prompt.messages]
        answers: list[Completion] = []
        clamped: Reading | None = None
        fault, detail = "", ""
        for number in range(request.max_tries):
            try:
                answer = await self._models.complete(
                    request.model,
                    messages,
                    [],
                    seed=int(input_hash[:7], 16) + number,
                    timeout=request.timeout_seconds,
                )
            except ContextLengthExceeded as error:
                fault, detail = CONTEXT_EXCEEDED, str(error)
                break
            answers.append(answer)
            try:
                reading = judge.read(answer.text, len(case.steps))
            except BadReply as refused:
                fault, detail, clamped = refused.fault.value, str(refused), refused.clamped
                log.info("rollout %s, reply %d: %s", request.rollout_id, number + 1, detail)
                messages += [
                    {"role": "assistant", "content": answer.text or "(nothing)"},
                    {"role": "user", "content": judge.retry(detail)},
                ]
                continue
            facts = _facts(request, case, prompt, input_hash, answers, time.monotonic() - began)
            return _annotated(facts, reading)
        facts = _facts(request, case, prompt, input_hash, answers, time.monotonic() - began)
        if clamped is not None:
            return _annotated(facts, clamped)
        return AnnotationFailed(**msgspec.structs.asdict(facts), fault=fault, detail=detail)


def _facts(
    request: AnnotationRequest,
    case: Case,
    prompt: AnnotationPrompt,
    input_hash: str,
    answers: list[Completion],
    seconds: float,
) -> AnnotationFacts:
    """The facts of asking, summed over all tries; tokens and cost are known only where each try's are."""
    last = answers[-1] if answers else None
    used = sum(map(used_by, answers), Totals())
    oracle = any(answer.model_kind is ModelKind.ORACLE for answer in answers)
    return AnnotationFacts(
        annotator=request.annotator,
        model=request.model.name,
        served_model=last.served_model if last else "",
        model_kind=ModelKind.ORACLE if oracle else request.model.kind,
        endpoint=request.model.endpoint,
        prompt_version=request.prompt_version,
        input_hash=input_hash,
        steps=len(case.steps),
        omitted_steps=prompt.omitted_steps,
        tries=len(answers),
        prompt_tokens=used.prompt_tokens,
        completion_tokens=used.completion_tokens,
        cost_usd=used.cost_usd,
        seconds=seconds,
    )


def _annotated(facts: AnnotationFacts, reading: Reading) -> ValueAnnotated:
    return ValueAnnotated(
        **msgspec.structs.asdict(facts),
        base=reading.base,
        key_steps=reading.key_steps,
        curve=reading.curve,
        flags=reading.flags,
    )
