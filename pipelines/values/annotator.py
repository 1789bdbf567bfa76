"""The annotator: asks a model for the values of a trajectory, checks the reply, publishes the verdict.

Stateless like every worker. The event's id is a digest of the rollout, the layer, the prompt version
and the prompt itself: a request delivered twice finds the result in the log and asks nothing.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence

import duckdb
import msgspec

from orchard.pipelines.trajectories.reading import AttemptSpan
from orchard.pipelines.values.asking import ask
from orchard.pipelines.values.cases import Case, read_case
from orchard.pipelines.values.judges import Judge, get_judge
from orchard.pipelines.values.prompt import AnnotationPrompt
from orchard.pipelines.values.requests import queue_entry
from orchard.pipelines.values.rubrics import JUDGE_VERSION, RubricJudge
from orchard.schemas.blobs import BlobRef
from orchard.schemas.events import Event, make_event, payload
from orchard.schemas.identity import canonical, digest
from orchard.schemas.outcomes import AbortCause
from orchard.schemas.plugins import PluginError
from orchard.schemas.requests import InvalidRequest, read_annotation_request
from orchard.schemas.values import (
    AnnotationFacts,
    AnnotationFailed,
    AnnotationRequest,
    Rubric,
    ValueAnnotated,
)
from orchard.storage.blobs import BlobStore
from orchard.storage.errors import StorageError
from orchard.storage.reader import open_tables, refresh
from orchard.streams.consumer import ClaimedRequest, RetryPolicy
from orchard.streams.entries import QueueEntry
from orchard.streams.errors import MessageTooLarge
from orchard.streams.publisher import Publisher
from orchard.workers.failures import InfrastructureError
from orchard.workers.llm.client import ModelClient


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

    def rubric(self, blob: BlobRef) -> Rubric:
        """Raises StorageError, and msgspec's errors for a blob that is no rubric."""
        return msgspec.json.decode(self._blobs.get(blob), type=Rubric)

    def keep(self, prompt: Sequence[dict[str, str]]) -> None:
        """Store a prompt as a blob; its SHA-256 is the `input_hash` of what is asked with it."""
        self._blobs.put(canonical(prompt), "application/json")

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
        if request.rubric is not None:
            if request.prompt_version != JUDGE_VERSION:
                raise InvalidRequest(f"it wants version {request.prompt_version} of the judge by a rubric")
            return request
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
        event = await delivery.run(self._verdict(request))
        try:
            await self._publisher.event(event)
        except MessageTooLarge as error:
            raise InvalidRequest(str(error)) from error
        if self._done is not None:
            self._done(event)

    async def _verdict(self, request: AnnotationRequest) -> Event:
        """The event to publish: the log's own, or the result of asking now."""
        judge = (
            get_judge(request.prompt_version) if request.rubric is None else await self._by(request.rubric)
        )
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
        while (known := await self._publisher.annotation(identity)) is not None and known.event is not None:
            verdict = payload(known.event)
            if isinstance(verdict, ValueAnnotated):
                return known.event
            if isinstance(verdict, AnnotationFailed) and not request.again:
                return known.event
            identity = digest(["again", identity])
        data = await self._ask(request, judge, case, prompt, input_hash)
        return make_event(
            data,
            id=identity,
            source=f"orchard/annotator/{self._name}",
            campaign=case.campaign,
            rollout_id=case.rollout_id,
            attempt=case.attempt,
        )

    async def _by(self, rubric: BlobRef) -> Judge:
        """The judge by a rubric. Raises InvalidRequest for a blob that is none, StorageError."""
        try:
            return RubricJudge(await asyncio.to_thread(self._cases.rubric, rubric))
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            raise InvalidRequest(f"the blob {rubric.sha256} is no rubric: {error}") from error

    async def _ask(
        self, request: AnnotationRequest, judge: Judge, case: Case, prompt: AnnotationPrompt, input_hash: str
    ) -> ValueAnnotated | AnnotationFailed:
        """Raises InfrastructureError."""
        await asyncio.to_thread(self._cases.keep, prompt.messages)
        asked = await ask(
            self._models,
            request.model,
            prompt.messages,
            lambda text: judge.read(text, len(case.steps)),
            judge.retry,
            what=f"rollout {request.rollout_id}",
            seed=int(input_hash[:7], 16),
            tries=request.max_tries,
            timeout=request.timeout_seconds,
        )
        facts = AnnotationFacts(
            annotator=request.annotator,
            prompt_version=request.prompt_version,
            input_hash=input_hash,
            steps=len(case.steps),
            omitted_steps=prompt.omitted_steps,
            **asked.facts,
        )
        known = msgspec.structs.asdict(facts)
        if (reading := asked.found or asked.clamped) is None:
            return AnnotationFailed(**known, fault=asked.fault, detail=asked.detail)
        return ValueAnnotated(**known, **msgspec.structs.asdict(reading), rubric=request.rubric)
