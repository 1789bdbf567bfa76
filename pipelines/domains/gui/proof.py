"""Proof of tasks on generated sites: by their records, and by playing them in a browser."""

import time
from contextlib import AbstractAsyncContextManager

import msgspec

from orchard.pipelines.tasks.proving import UNFIT, ProofContext, Proven, Refuted, Verdict
from orchard.schemas.identity import digest
from orchard.schemas.outcomes import AbortCause, ExitStatus, Reward
from orchard.schemas.protection import Protected
from orchard.schemas.tasks import Task, WorldUse
from orchard.storage.blobs import BlobStore
from orchard.workers.domains.gui.sites.catalog import content_of
from orchard.workers.domains.gui.sites.goals import goal_of
from orchard.workers.domains.gui.sites.grading import SiteSubmission, expected_of, graded, read_submission
from orchard.workers.domains.gui.sites.oracle import PATIENCE, play
from orchard.workers.domains.gui.sites.window import look
from orchard.workers.episode.machine import Machine
from orchard.workers.episode.worlds import SharedResources, WorldContext, get_world
from orchard.workers.failures import InfrastructureError

_COMMAND_SECONDS = 120.0


_WHY = "the site's records decide; how much of them must be known is not measured"


async def prove_task(task: Task, context: ProofContext) -> Verdict:
    """The prover of tasks on generated sites: by their records, and with `play` in a browser, too. Raises
    InfrastructureError."""
    try:
        verdict = by_records(task)
    except msgspec.ValidationError as error:
        return Refuted(reason=UNFIT[AbortCause.INVALID_REQUEST], detail=f"settings of its grader: {error}")
    if context.play and isinstance(verdict, Proven):
        async with context.fresh(task) as machine:
            return await by_playing(task, machine, context.blobs)
    return verdict


def by_records(task: Task) -> Verdict:
    """The verdict without a browser: the right end is accepted, and an end at which nothing was done and
    nothing was said is not. Raises InfrastructureError (GRADER_FAILED) for records that are none of the
    site."""
    expected = expected_of(task)
    right = expected.answer.value if expected.answer is not None else ""
    at_end = SiteSubmission(records=expected.records, ended=ExitStatus.FINISHED, answer=right)
    at_start = SiteSubmission(records=content_of(expected.site).records(), ended=ExitStatus.FINISHED)
    if (reward := graded(expected, at_end)).value != 1.0:
        return Refuted(reason="gold_does_not_resolve", detail=reward.detail)
    if graded(expected, at_start).value > 0:
        return Refuted(reason="empty_resolves", detail="")
    return Proven(task=task, protected=Protected.BIT, protected_why=_WHY)


async def by_playing(task: Task, machine: Machine, blobs: BlobStore) -> Verdict:
    """The verdict of the oracle, which plays the task without a mistake in Chromium, in a fresh sandbox.
    A task whose site is closed by a captcha, or down, is not played. Raises InfrastructureError."""
    if expected_of(task).site.fault in ("captcha", "down"):
        return by_records(task)
    reward, turns = await played(task, machine, blobs)
    if reward.value != 1.0:
        said = f"in {turns} turns of the oracle: {reward.detail}"
        return Refuted(reason="gold_does_not_resolve", detail=said)
    return Proven(task=task, detail=f"played in {turns} turns", protected=Protected.BIT, protected_why=_WHY)


async def played(task: Task, machine: Machine, blobs: BlobStore) -> tuple[Reward, int]:
    """The oracle's reward on a task, and its turns."""
    assert isinstance(task.world, WorldUse)
    expected = expected_of(task)
    goal = goal_of(expected.site, expected.goal)
    world, settings = get_world(task.world)
    shared, seed = SharedResources(), int(digest([task.task_id, time.monotonic_ns()], 7), 16)
    opening = WorldContext(
        task=task,
        machine=machine,
        seed=seed,
        name=f"proof-{task.task_id}",
        publish=_unheard,
        blobs=blobs,
        sandbox=_no_sandbox,
        command_seconds=_COMMAND_SECONDS,
        shared=shared,
    )
    try:
        async with world.open(settings, opening) as attempt:
            ended, number = ExitStatus.STEP_LIMIT, 0
            while ended is not ExitStatus.FINISHED and number < PATIENCE:
                said = play(expected.site, goal, await look(seed), seed=seed, number=number, mistakes=0.0)
                number += 1
                for call in said.calls:
                    await attempt.call(call)
                    if call.name == "done":
                        ended = ExitStatus.FINISHED
            handed = read_submission(await attempt.hand_in(ended, ()))
    finally:
        await shared.close()
    return graded(expected, handed), number


async def _unheard(_: object) -> None:
    """Ignores an event: a proof is no attempt."""


def _no_sandbox(image: str, purpose: str) -> AbstractAsyncContextManager[Machine]:
    raise InfrastructureError(
        AbortCause.INVALID_REQUEST, f"a proof opens no sandbox of {image} for {purpose}"
    )
