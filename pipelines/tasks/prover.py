"""Proves tasks from a queue: any number of workers prove, each request has one accepted verdict."""

import asyncio
import logging

import msgspec

from orchard.injector.client import AsyncSandboxClient
from orchard.pipelines.domain import PROVE
from orchard.pipelines.tasks.errors import TaskError
from orchard.pipelines.tasks.proving import ValidationSettings
from orchard.pipelines.tasks.registry import CAMPAIGN, TaskRegistry
from orchard.pipelines.tasks.validate import Validator
from orchard.schemas.requests import InvalidRequest, ProveRequest, read_known, read_prove_request
from orchard.schemas.tasks import Task, task_hash
from orchard.storage.blobs import BlobStore
from orchard.storage.errors import StorageError
from orchard.streams.consumer import ClaimedRequest, RetryPolicy
from orchard.streams.entries import EntryAddress, QueueEntry, entry
from orchard.streams.errors import OutcomeRefused
from orchard.streams.publisher import Publisher
from orchard.workers.attempts.dependencies import AttemptDependencies
from orchard.workers.episode.settings import TaskNetwork
from orchard.workers.failures import InfrastructureError

log = logging.getLogger("orchard.prover")


class TaskProver:
    """Handles requests to prove a task."""

    retries = RetryPolicy(
        on=(InfrastructureError, StorageError, TaskError), first=20.0, longest=300.0, most=3
    )

    def __init__(
        self,
        publisher: Publisher,
        blobs: BlobStore,
        client: AsyncSandboxClient,
        *,
        task_network: TaskNetwork = "never",
    ) -> None:
        self._publisher = publisher
        self._blobs = blobs
        self._client = client
        self._task_network = task_network
        self._validators: dict[int, Validator] = {}
        """Validators by number of runs: what one has learned of a task's checks serves the next request."""

    def read(self, body: bytes) -> ProveRequest:
        return read_prove_request(body)

    def entry(self, request: ProveRequest, occasion: str) -> QueueEntry:
        place = EntryAddress(CAMPAIGN, request.task_hash, request.fence)
        return entry(PROVE, place, occasion, msgspec.json.encode(request))

    async def handle(self, delivery: ClaimedRequest[ProveRequest]) -> None:
        """Publish the verdict on the task, unless the request has one."""
        request = delivery.request
        known = await self._publisher.answer(PROVE.kind, request.task_hash)
        if known is not None and known.sequence != request.fence:
            return
        raw = await asyncio.to_thread(self._blobs.get, request.task.blob)
        task = read_known(raw, Task, f"the task {request.task.task_id}")
        if task_hash(task) != request.task_hash:
            raise InvalidRequest(
                f"task_hash is {request.task_hash}, but that of its task is {task_hash(task)}"
            )
        settings = ValidationSettings(runs=request.runs)
        validator = self._validators.setdefault(
            request.runs, Validator(self._client, self._blobs, settings, task_network=self._task_network)
        )
        verdict = await delivery.run(validator.validate(task))
        try:
            await TaskRegistry(self._publisher, self._blobs).record(verdict, request)
        except OutcomeRefused as refused:
            log.info("the proof of %s comes too late: %s", request.task.task_id, refused)


def task_prover(dependencies: AttemptDependencies) -> TaskProver:
    """The factory of the handler, for a worker."""
    network = dependencies.sandbox_settings.task_network
    return TaskProver(
        dependencies.publisher, dependencies.blobs, dependencies.sandboxes, task_network=network
    )
