"""Proves tasks: the known solution must resolve a task and nothing at all must not, each time."""

import time

import msgspec

from orchard.injector.client import AsyncSandboxClient
from orchard.pipelines.domain import kind_of, offered
from orchard.pipelines.tasks.errors import TaskError
from orchard.pipelines.tasks.proving import (
    UNFIT,
    Contradiction,
    ProofContext,
    Proven,
    Prover,
    Refuted,
    ValidationSettings,
    Verdict,
    prove_whole,
)
from orchard.schemas.events import TaskRejected, TaskValidated
from orchard.schemas.tasks import Task, task_hash
from orchard.storage.blobs import BlobStore
from orchard.workers.discovery import load
from orchard.workers.episode.networks import refusal
from orchard.workers.episode.settings import TaskNetwork
from orchard.workers.failures import InfrastructureError


class Validation(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on a task."""

    original: Task
    task: Task
    """The proven task: the original, or what remains without unsteady tests."""
    event: TaskValidated | TaskRejected
    dropped: dict[str, str] = {}
    """Reason of each dropped test."""


def validation(task: Task, verdict: Verdict, seconds: float) -> Validation:
    """The validation of a task, from its prover's verdict."""
    if isinstance(verdict, Refuted):
        refused = TaskRejected(
            task_id=task.task_id, task_hash=task_hash(task), reason=verdict.reason, detail=verdict.detail
        )
        return Validation(original=task, task=task, event=refused)
    proven = TaskValidated(
        task_id=task.task_id,
        task_hash=task_hash(verdict.task),
        runs=verdict.runs,
        seconds=seconds,
        detail=verdict.detail,
        protected=verdict.protected,
        protected_tests=verdict.protected_tests,
        protected_why=verdict.protected_why,
    )
    return Validation(original=task, task=verdict.task, dropped=verdict.dropped, event=proven)


def provable(task: Task) -> bool:
    """Whether a verdict can be reached without a rollout: a task with a world beside its sandbox needs a
    prover that knows it."""
    return task.world is msgspec.UNSET or kind_of(task) in offered(lambda domain: domain.provers)


class Validator:
    """Proves tasks, each by the prover of its kind. With `play`, provers act out what they could prove
    without. `task_network` is the network of workers for tasks that ask for one."""

    def __init__(
        self,
        client: AsyncSandboxClient,
        blobs: BlobStore,
        settings: ValidationSettings | None = None,
        *,
        play: bool = False,
        task_network: TaskNetwork = "never",
    ) -> None:
        self.settings = settings or ValidationSettings()
        self._task_network = task_network
        self._context = ProofContext(client, blobs, self.settings, play=play)

    async def validate(self, task: Task) -> Validation:
        """Prove or reject one task.

        Raises InfrastructureError when the machine, and not the task, is to blame, and TaskError for a
        task that asks for a network where none is given: without it nothing is shown.
        """
        started = time.monotonic()
        if (why := refusal(task, self._task_network)) is not None:
            raise TaskError(why)
        reference = offered(lambda domain: domain.provers).get(kind_of(task))
        prove: Prover = load(reference) if reference else prove_whole
        try:
            verdict = await prove(task, self._context)
        except InfrastructureError as error:
            if error.cause not in UNFIT:
                raise
            verdict = Refuted(reason=UNFIT[error.cause], detail=error.detail)
        return validation(task, verdict, time.monotonic() - started)

    async def impossible(self, task: Task) -> Validation | None:
        """The first variant of a task that contradicts its statement; None where there is none. Raises
        like `validate`."""
        started = time.monotonic()
        reference = offered(lambda domain: domain.contradictions).get(kind_of(task))
        if reference is None:
            return None
        contradict: Contradiction = load(reference)
        variant = await contradict(task, self._context)
        return (
            None if variant is None else validation(variant, Proven(task=variant), time.monotonic() - started)
        )
