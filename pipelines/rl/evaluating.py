"""Evaluation of policy versions on held-out tasks while a run goes on.

The rollouts of a version are a campaign of their own, RUN-vVERSION, on the queue of the run's other rollouts.
The trainer waits meanwhile, so that this version alone samples them. All that is remembered is in the log:
a coordinator that starts again asks for nothing twice.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from statistics import fmean
from uuid import uuid4

import msgspec

from orchard.pipelines.campaigns.commands import requested_event
from orchard.pipelines.campaigns.scores import interval
from orchard.pipelines.evaluation.suite import Suite
from orchard.pipelines.rl.plan import RunPlan
from orchard.pipelines.rl.progress import RunProgress
from orchard.pipelines.tasks.task_set import TaskSet
from orchard.schemas.campaigns import EvaluationPlanned
from orchard.schemas.events import (
    Event,
    RolloutAborted,
    RolloutFinished,
    RolloutReopened,
    make_event,
    payload,
)
from orchard.schemas.groups import PolicyEvaluated
from orchard.schemas.outcomes import ExitStatus
from orchard.schemas.subjects import type_subjects
from orchard.storage.blobs import BlobStore
from orchard.streams import names
from orchard.streams.connection import Connection
from orchard.streams.entries import FIRST, QueueEntry, rollout_entry
from orchard.streams.publisher import Publisher
from orchard.streams.reading import next_message
from orchard.workers.attempts.reopen import open_at, opened

SOURCE = "orchard/rl"
Outcome = RolloutFinished | RolloutAborted

log = logging.getLogger("orchard.rl")


def evaluated(plan: RunPlan, version: int, outcomes: Mapping[str, Outcome]) -> PolicyEvaluated | None:
    """The evaluation of a version by the outcomes of its rollouts, by their ids; None while one is missing.
    The score is the mean over tasks of the share of graded rollouts that resolved them; a task without a
    graded one is in no score. A rollout that nobody answered says nothing of the policy and counts as not
    graded."""
    requests = plan.eval_requests(version)
    if any(request.rollout_id not in outcomes for request in requests):
        return None
    of_task: dict[str, list[bool]] = {}
    for request in requests:
        outcome = outcomes[request.rollout_id]
        if not isinstance(outcome, RolloutFinished) or _unanswered(plan, outcome):
            continue
        if outcome.resolved is not None:
            of_task.setdefault(request.task.task_id, []).append(outcome.resolved)
    shares = [fmean(solved) for solved in of_task.values()]
    graded = sum(map(len, of_task.values()))
    low, high = interval(shares) if shares else (None, None)
    return PolicyEvaluated(
        run=plan.name,
        version=version,
        evaluation=plan.eval_campaign(version),
        tasks=len(shares),
        graded=graded,
        resolved=sum(map(sum, of_task.values())),
        ungraded=len(requests) - graded,
        score=fmean(shares) if shares else None,
        low=low,
        high=high,
    )


def _unanswered(plan: RunPlan, outcome: Outcome | None) -> bool:
    """Whether the time ran out while the model owed an answer, and the plan does not hold that against it."""
    ended = isinstance(outcome, RolloutFinished) and outcome.exit_status is ExitStatus.UNANSWERED
    return ended and not plan.unanswered


class Evaluator:
    """Has the newest policy evaluated where the plan says so."""

    def __init__(
        self,
        connection: Connection,
        blobs: BlobStore,
        progress: RunProgress,
        offer: Callable[[list[QueueEntry]], Awaitable[None]],
    ) -> None:
        """`offer` puts those of some requests on the queue that are on none."""
        self._connection, self._blobs, self._progress, self._offer = connection, blobs, progress, offer
        self._publisher = Publisher(connection)
        self._asked: int | None = None
        """Newest version whose rollouts are in the log."""
        self._outcomes: dict[str, Outcome] = {}
        self._reopened: Counter[str] = Counter()
        """Times that each rollout was reopened, by the log."""

    def apply(self, event: Event) -> None:
        """Note the outcome of an evaluation's rollout; any other event changes nothing."""
        if self._progress.plan.is_evaluation(event.campaign or ""):
            match payload(event):
                case RolloutFinished() | RolloutAborted() as outcome:
                    self._outcomes[event.rollout_id or ""] = outcome
                case RolloutReopened():
                    self._outcomes.pop(event.rollout_id or "", None)
                    self._reopened[event.rollout_id or ""] += 1

    async def act(self, served: Callable[[int], Awaitable[None]] | None) -> None:
        """Ask for the rollouts of the newest version, or tell how it did once all of them have ended.
        `served` waits until the engine serves a version."""
        plan, version = self._progress.plan, self._progress.version
        if not self._progress.evaluation_due:
            return
        if self._asked != version:
            if served is not None:
                await served(version)
            await self._ask(version)
            self._asked = version
        await self._ask_again(version)
        if (made := evaluated(plan, version, self._outcomes)) is None:
            return
        log.info("version %d resolves %d of %d held-out rollouts", version, made.resolved, made.graded)
        event = make_event(made, id=f"{plan.name}.evaluated.{version}", source=SOURCE, campaign=plan.name)
        self._progress.apply(event, await self._publisher.event(event))
        self._outcomes.clear()
        self._reopened.clear()

    async def _ask(self, version: int) -> None:
        """Request all rollouts of a version: first in the log, then in the queue. Its `evaluation.planned` is
        last in the log, so where it is there, all requests are."""
        plan = self._progress.plan
        requests, campaign = plan.eval_requests(version), plan.eval_campaign(version)
        begun = [
            await next_message(self._connection, names.EVENTS, 1, subject)
            for subject in type_subjects(campaign, "evaluation.planned")
        ]
        if not any(begun):
            await self._publisher.events([requested_event(request) for request in requests])
            await self._publisher.event(await self._planned(campaign))
        entries = []
        for request in requests:
            if (fence := open_at(await self._publisher.outcome(request.rollout_id))) is not None:
                again = msgspec.structs.replace(request, fence=fence)
                entries.append(rollout_entry(again, f"restart-{uuid4().hex}"))
        await self._offer(entries)

    async def _ask_again(self, version: int) -> None:
        """Reopen rollouts that nobody answered, each as often as an attempt may fail: first in the log."""
        plan = self._progress.plan
        ended = [
            (request, await self._publisher.outcome(request.rollout_id))
            for request in plan.eval_requests(version)
            if _unanswered(plan, self._outcomes.get(request.rollout_id))
            and self._reopened[request.rollout_id] < plan.max_tries - 1
        ]
        if not ended:
            return
        again = await opened(
            self._publisher,
            ended,
            reason="the model owed an answer",
            source=SOURCE,
            ended=(ExitStatus.UNANSWERED,),
        )
        for request, _ in ended:  # of one that somebody else reopened the log will tell
            self._outcomes.pop(request.rollout_id, None)
        await self._offer([rollout_entry(request, FIRST) for request in again])

    async def _planned(self, campaign: str) -> Event:
        """What makes a version's campaign an evaluation, whose tasks no dataset takes."""
        plan = self._progress.plan
        sources = dict.fromkeys(task.source for task in plan.held_out)
        suite = Suite(
            name=campaign,
            task_sets=tuple(TaskSet(source=source) for source in sources),
            harnesses=(plan.harness,),
            models=(plan.model,),
            samples=plan.eval_samples,
            domain=plan.domain,
        )
        blob = await asyncio.to_thread(self._blobs.put, msgspec.json.encode(suite), "application/json")
        data = EvaluationPlanned(
            suite=blob, task_sets={source: source for source in sources}, k=suite.reported
        )
        return make_event(data, id=f"{campaign}.evaluation.planned", source=SOURCE, campaign=campaign)
