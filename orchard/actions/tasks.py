"""Tasks: registered, imported, proven, contradicted."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from orchard.actions.reporter import SILENT, Reporter
from orchard.actions.session import Session
from orchard.configuration.config import ConfigError
from orchard.configuration.run_files import UNSAFE_HOST
from orchard.injector.agent.local.images import ImageStore, StoredImage
from orchard.pipelines.domain import PROVE
from orchard.pipelines.tasks.directories import directory_task, known_services, read_all
from orchard.pipelines.tasks.dockerfiles import build_image
from orchard.pipelines.tasks.errors import TaskError
from orchard.pipelines.tasks.left_out import LeftOut, insist
from orchard.pipelines.tasks.prover import TaskProver
from orchard.pipelines.tasks.registry import (
    TaskRegistry,
    known_hashes,
    read_tasks,
    reference,
    stored_tasks,
)
from orchard.pipelines.tasks.sandboxes import as_ready
from orchard.pipelines.tasks.task_directory import Directory
from orchard.pipelines.tasks.validate import Validator, provable
from orchard.schemas.events import TaskRejected, TaskValidated, payload
from orchard.schemas.protection import Protected
from orchard.schemas.requests import ProveRequest
from orchard.schemas.tasks import IMPOSSIBLE, Task, task_hash
from orchard.streams.answers import OfferedRequests, RequestAnswer, working
from orchard.streams.claims import Claims
from orchard.streams.consumer import Consumer
from orchard.streams.publisher import Publisher
from orchard.streams.topology import declare
from orchard.workers.attempts.deadletters import DeadLetters
from orchard.workers.episode.networks import refusal


@asynccontextmanager
async def registry(session: Session) -> AsyncIterator[TaskRegistry]:
    """Opens a registry; when the block ends, other commands can read in the tables what it published."""
    async with session.connection("tasks") as connection:
        yield TaskRegistry(Publisher(connection), session.blobs)
        await session.committed(connection)


async def register_tasks(session: Session, tasks: Iterable[Task]) -> int:
    """Imports tasks and returns how many are new."""
    async with registry(session) as kept:
        known = await asyncio.to_thread(known_hashes, session.config.store)
        return len(await kept.register(tasks, known))


class Validated(NamedTuple):
    """Number of tasks by result of validation."""

    valid: int
    rejected: int
    undecided: int
    """Tasks not judged because infrastructure failed."""


async def validate_tasks(
    session: Session, *, ids: Sequence[str], runs: int, concurrency: int, told: Reporter = SILENT
) -> Validated:
    """Proves the named tasks, or all unproven ones, by any worker and `concurrency` at once in this
    process. Raises ConfigError for a task that nothing here can prove."""
    chosen = {task_hash(task): task for task in await asyncio.to_thread(_to_validate, session, ids, told)}
    counts: Counter[str] = Counter()

    def request(key: str, fence: int) -> ProveRequest:
        task = reference(chosen[key], session.blobs)
        return ProveRequest(task=task, task_hash=key, runs=runs, fence=fence)

    async with session.connection("tasks") as connection, session.sandboxes() as client:
        await declare(connection, session.config.nats, [PROVE])
        network = session.config.sandbox.task_network
        prover = TaskProver(Publisher(connection), session.blobs, client, task_network=network)
        offered = OfferedRequests(connection, PROVE.kind)
        await offered.offer(
            list(chosen), lambda key, fence, occasion: prover.entry(request(key, fence), occasion)
        )
        async with (
            Claims(connection, PROVE) as claims,
            working(
                offered,
                Consumer(
                    claims,
                    DeadLetters(connection),
                    {PROVE.kind: prover},
                    slots=concurrency,
                    shutdown_seconds=0.0,
                ),
            ),
            aclosing(offered.answers()) as answers,
        ):
            told.progress("validating", 0, len(chosen))
            async for answer in answers:
                verdict, said = _verdict(answer)
                counts[verdict] += 1
                if said:
                    label = "not judged:" if verdict == "undecided" else ""
                    told.note(f"{chosen[answer.key].task_id}: {said}"[:300], label)
                told.progress("validating", counts.total(), len(chosen))
        await session.committed(connection)
    return Validated(counts["valid"], counts["rejected"], counts["undecided"])


def _verdict(answer: RequestAnswer) -> tuple[str, str]:
    """Returns `valid`, `rejected` or `undecided`, and the details."""
    match payload(answer.event) if answer.event is not None else None:
        case TaskValidated(protected=Protected.FORGEABLE) as event:
            return "valid", f"{event.protected}: {event.protected_why}"
        case TaskValidated() as event:
            return "valid", event.detail or ""
        case TaskRejected() as event:
            return "rejected", f"{event.reason}, {event.detail}"
    return "undecided", answer.reason


def _to_validate(session: Session, ids: Sequence[str], told: Reporter) -> list[Task]:
    store, network = session.config.store, session.config.sandbox.task_network
    every = read_tasks(store, ids=ids)
    left_out = [task for task in every if not provable(task)]
    if left_out and ids:
        raise ConfigError(
            f"{left_out[0].task_id} has a world that only a rollout can judge: submit it with --unproven"
        )
    if not ids:
        unproven = {each.task_hash for each in stored_tasks(store) if each.state == "imported"}
        every = [task for task in every if task_hash(task) in unproven and provable(task)]
    refused = [why for task in every if (why := refusal(task, network))]
    if refused and len(refused) == len(every):
        raise ConfigError(refused[0])
    if refused:
        told.note(
            f"{len(refused)} tasks that ask for a network: without it nothing is shown of them. {refused[0]}",
            "left out:",
        )
    return [task for task in every if not refusal(task, network)]


async def impossible_tasks(
    session: Session, *, ids: Sequence[str], limit: int, concurrency: int, told: Reporter = SILENT
) -> int:
    """Makes up to `limit` impossible variants of proven tasks and returns how many are new."""
    store = session.config.store
    every = await asyncio.to_thread(partial(read_tasks, store, ids=ids, only_valid=True))
    known = {each.labels.get("impossible_of") for each in every}
    chosen = [task for task in every if task.source != IMPOSSIBLE and task.task_id not in known]
    made, most = 0, min(limit, len(chosen))
    async with registry(session) as tasks, session.sandboxes() as client:
        validator = Validator(client, session.blobs)
        async for variant in as_ready(chosen, validator.impossible, concurrency=concurrency):
            if variant is None:
                continue
            await tasks.register([variant.task])
            await tasks.record(variant)
            made += 1
            told.progress("contradicting", made, most)
            if made == limit:
                break
    return made


def read_directories(
    session: Session,
    root: Path,
    image: str,
    source: str,
    *,
    strict: bool,
    resolved_at: float | None = None,
    told: Reporter = SILENT,
) -> tuple[list[Task], list[LeftOut]]:
    """Reads the tasks of the directories at `root`, in their own images, which are built if needed, or in
    `image`; `source` replaces theirs unless it is empty, and a Harbor reward of `resolved_at` is solved.
    Raises NotImported for none or, with `strict`, for fewer than all."""
    found, left_out = read_all(root)
    insist(str(root), len(found), left_out, strict=strict)
    tasks = []
    for each in found:
        try:
            task = _directory_task(session, each, image, resolved_at, told)
        except TaskError as error:
            left_out.append(LeftOut(str(each.path), str(error).removeprefix(f"{each.path}: ")))
            insist(str(root), len(found) - 1, left_out, strict=strict)
            continue
        tasks.append(msgspec.structs.replace(task, source=source) if source else task)
    return tasks, left_out


def _directory_task(
    session: Session, directory: Directory, image: str, resolved_at: float | None, told: Reporter
) -> Task:
    for note in directory.notes:
        told.note(f"{directory.task_id}: {note}")
    name = image or directory.image_name
    context = None if image or directory.image else directory.context
    known = _made(session, directory, name, context, "pass --image", told)
    verifier, own, checked = directory.verifier, name, known
    if verifier is not None and verifier.bundled:
        own = directory.verifier_image
        context = None if verifier.image else verifier.context
        instead = "write docker_image under [verifier.environment]"
        checked = _made(session, directory, own, context, instead, told)
    return directory_task(
        directory,
        name,
        known.working_directory if known else "",
        known.environment if known else None,
        verifier_image=own,
        verifier_workdir=checked.working_directory if checked else "",
        verifier_environment=checked.environment if checked else None,
        resolved_at=resolved_at,
        services=known_services(
            directory,
            lambda each: _made(
                session,
                directory,
                directory.service_image(each),
                each.context,
                f"write image in place of build for the service {each.service.names[0]}",
                told,
            ),
        ),
        stages=[_directory_task(session, stage, name, None, told) for stage in directory.stages],
    )


def known_images(session: Session) -> Collection[str] | None:
    """Images of which local sandboxes can be made; None where another service makes them."""
    if session.config.sandbox.url not in (None, UNSAFE_HOST):
        return None
    return ["host", *ImageStore(session.directory / "sandboxes").names()]


def _made(
    session: Session, directory: Directory, name: str, context: Path | None, instead: str, told: Reporter
) -> StoredImage | None:
    """The image, built from `context` where it is missing; None where only the site knows it. Raises
    TaskError, with what to do `instead` where nothing can be built."""
    local = ImageStore(session.directory / "sandboxes")
    if context is not None and name not in local.names():
        if session.config.sandbox.url not in (None, UNSAFE_HOST):
            raise TaskError(
                f"{directory.path}: sandboxes are made at {session.config.sandbox.url}, so build "
                f"{context / 'Dockerfile'} there and {instead}"
            )
        told.note(f"building {name}")
        build_image(session.directory / "sandboxes", context, name, context / "Dockerfile")
    return local.find(name) if name in ("host", *local.names()) else None
