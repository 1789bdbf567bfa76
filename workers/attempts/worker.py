"""The worker: carries out rollout requests. An attempt runs, its outcome is published, the request is done.

Killed at any instant it loses nothing: the request is delivered again when its lease ends, the sandbox is
removed by its time-to-live, and the terminal event's compare-and-set accepts one attempt's outcome alone.
"""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from orchard.schemas.campaigns import CampaignState, RolloutRequest
from orchard.schemas.events import AttemptReleased, AttemptSuperseded, RolloutAborted, RolloutFinished
from orchard.schemas.outcomes import AbortCause
from orchard.schemas.plugins import PluginError
from orchard.schemas.requests import InvalidRequest, NewerRequest, read_rollout_request
from orchard.streams.campaigns import CampaignBook
from orchard.streams.claims import Claim, Claims
from orchard.streams.consumer import (
    ClaimedRequest,
    Consumer,
    Handler,
    Interrupted,
    PutOff,
    WorkerLifetime,
    share_of,
)
from orchard.streams.entries import QueueEntry, after_attempt, rollout_entry, successor
from orchard.streams.errors import OutcomeRefused, StreamsError
from orchard.streams.tasks import end
from orchard.streams.team_holds import TeamHolds
from orchard.workers.attempts.deadletters import DeadLetters
from orchard.workers.attempts.dependencies import AttemptDependencies
from orchard.workers.attempts.refusal_counts import RefusalCounts
from orchard.workers.attempts.reopen import cancelled
from orchard.workers.attempts.retries import ROLLOUTS, Abort, after_failure
from orchard.workers.attempts.rollout import Attempt
from orchard.workers.attempts.task_reading import NewerTask
from orchard.workers.episode.settings import WorkerSettings as WorkerSettings
from orchard.workers.failures import EndpointRests, InfrastructureError
from orchard.workers.harnesses import UnknownHarness, planned_harness

log = logging.getLogger("orchard.worker")

CANCELLATION_SECONDS = 2.0
"""Pause between two looks at the campaigns whose rollouts run here."""
CANCELLED = "cancelled"


class Worker:
    """Handles rollout requests, with one consumer for them and for the kinds in `others`."""

    retries = ROLLOUTS

    def __init__(
        self,
        dependencies: AttemptDependencies,
        claims: Claims,
        campaigns: CampaignBook,
        settings: WorkerSettings,
        *,
        shutdown_seconds: float,
        others: Mapping[str, Handler[Any]] | None = None,
    ) -> None:
        self._dependencies = dependencies
        self._campaigns = campaigns
        self._refusals = RefusalCounts(claims.connection)
        self._holds = TeamHolds(claims.connection)
        self.consumer = Consumer(
            claims,
            DeadLetters(claims.connection),
            {"rollout": self, **(others or {})},
            slots=settings.slots,
            lifetime=WorkerLifetime(idle=settings.idle_exit_seconds, age=share_of(settings.max_age_seconds)),
            shutdown_seconds=shutdown_seconds,
        )

    async def run(self) -> None:
        """Returns when drained, or idle or old as the settings allow; what runs by then is finished."""
        async with asyncio.TaskGroup() as group:
            watcher = group.create_task(self._watch_cancellations())
            await self.consumer.run()
            await end(watcher)

    def read(self, body: bytes) -> RolloutRequest:
        request = read_rollout_request(body)
        try:
            planned_harness(request.harness, request.harness_version)
        except UnknownHarness as error:
            raise NewerRequest(str(error)) from error
        except PluginError as error:
            raise InvalidRequest(str(error)) from error
        return request

    def entry(self, request: RolloutRequest, occasion: str) -> QueueEntry:
        return rollout_entry(request, occasion)

    async def handle(self, delivery: ClaimedRequest[RolloutRequest]) -> PutOff | None:
        """Runs an attempt, unless the request is stale: its rollout has an outcome, or was reopened since."""
        request, publisher = delivery.request, self._dependencies.publisher
        outcome, started, known = await asyncio.gather(
            publisher.outcome(request.rollout_id),
            publisher.started(request.rollout_id),
            self._campaigns.get(request.campaign),
        )
        if outcome is not None and outcome.sequence != request.fence:
            return None
        match known[0].state if known else CampaignState.RUNNING:
            case CampaignState.CANCELLED | CampaignState.ARCHIVED:
                event = cancelled(request, started, f"orchard/worker/{self._dependencies.worker}")
                with suppress(OutcomeRefused):
                    await publisher.terminal(event, fence=request.fence)
                return None
            case CampaignState.PAUSED:
                await self._park(delivery.claim, request)
                return None
        if request.team and (held := await self._holds.of(request.team)):
            raise held
        endpoints = [request.model.endpoint]
        if request.takeover is not None:
            endpoints.append(request.takeover.teacher_endpoint)
        for endpoint in endpoints:
            if rest := await self._dependencies.models.resting(endpoint):
                raise rest
        attempt = await Attempt.begin(
            self._dependencies,
            request,
            sequence=delivery.claim.sequence,
            deliveries=delivery.claim.deliveries,
            before=started,
        )
        return await self._attempt(delivery, attempt)

    async def _attempt(self, delivery: ClaimedRequest[RolloutRequest], attempt: Attempt) -> PutOff | None:
        request = attempt.request
        outcome: RolloutFinished | RolloutAborted
        try:
            outcome = await delivery.run(attempt.run())
        except Interrupted as interrupted:
            if interrupted.why != CANCELLED:
                return await self._again(attempt, request, interrupted.why, 0.0)
            outcome = attempt.aborted(AbortCause.CANCELLED, "campaign cancelled", request.failures)
        except EndpointRests as rest:
            return await self._again(attempt, request, "resting", rest.seconds, rest, awaits=rest.key)
        except InfrastructureError as error:
            return await self._failed(attempt, error)
        except NewerTask as error:
            await attempt.publish(AttemptReleased(reason="newer", detail=str(error)))
            raise NewerRequest(str(error)) from error
        except Exception as error:
            log.exception("attempt %s.%d", request.rollout_id, attempt.number)
            ours = InfrastructureError(AbortCause.INTERNAL_ERROR, f"{type(error).__name__}: {error}")
            return await self._failed(attempt, ours)
        await self._end(attempt, outcome)
        return None

    async def _end(self, attempt: Attempt, data: RolloutFinished | RolloutAborted) -> None:
        """Publishes the terminal event under its fence. The request is always acknowledged after it."""
        event = attempt.event(data, "done")
        try:
            await self._dependencies.publisher.terminal(event, fence=attempt.request.fence)
        except OutcomeRefused as refused:
            await attempt.publish(
                AttemptSuperseded(
                    accepted_attempt=refused.event.attempt if refused.event else None,
                    accepted_sequence=refused.sequence,
                    refused_type=event.type,
                )
            )
        if isinstance(data, RolloutFinished):
            await self._refusals.served(attempt.request)
            await self._dependencies.publisher.replay_pointers.forget(attempt.request.rollout_id)
        elif data.cause is AbortCause.LLM_REFUSED:
            await self._refusals.refused(attempt.request, data.detail)

    async def _failed(self, attempt: Attempt, error: InfrastructureError) -> PutOff | None:
        request = attempt.request
        failures = request.failures + 1
        step = after_failure(
            error,
            failures=failures,
            max_tries=request.max_tries,
            memory=attempt.memory or "1Gi",
            override=request.memory,
            max_memory=self._dependencies.sandbox_settings.max_memory,
        )
        if isinstance(step, Abort):
            await self._end(attempt, attempt.aborted(step.cause, error.detail, failures))
            return None
        request = msgspec.structs.replace(request, failures=failures, memory=step.memory)
        return await self._again(attempt, request, "infrastructure", step.delay, error)

    async def _again(
        self,
        attempt: Attempt,
        request: RolloutRequest,
        reason: str,
        seconds: float,
        error: InfrastructureError | None = None,
        awaits: str = "",
    ) -> PutOff:
        """Offers the request again under new attempt numbers, so that what was paid for is replayed."""
        await attempt.publish(
            AttemptReleased(
                reason=reason,
                cause=error.cause if error else None,
                detail=error.detail if error else "",
                retry_in_seconds=seconds,
                next_attempt_base=attempt.number,
            )
        )
        request = msgspec.structs.replace(request, attempt_base=attempt.number)
        entry = rollout_entry(request, after_attempt(attempt.number))
        return PutOff(entry, seconds, error.detail if error else reason, awaits)

    async def _park(self, claim: Claim, request: RolloutRequest) -> None:
        """Lets a paused campaign's request go: `orchard resume` offers what is on no queue (decision 0002).

        A resume that looked while this claim was open has left it alone, so the campaign is read again after
        the claim is completed.
        """
        await claim.complete()
        known = await self._campaigns.get(request.campaign)
        if known is not None and known[0].state is CampaignState.RUNNING:
            entry = rollout_entry(request, successor(claim.message_id))
            await self._dependencies.publisher.offer(entry, delay=ROLLOUTS.first)

    async def _watch_cancellations(self) -> None:
        """Interrupts what runs for a campaign soon after it is cancelled. Reading the few records that matter
        costs no consumer: a thousand workers that follow the bucket would be a thousand consumers of it."""
        while True:
            await asyncio.sleep(CANCELLATION_SECONDS)
            requests = [delivery.request for delivery in self.consumer.open]
            for campaign in {one.campaign for one in requests if isinstance(one, RolloutRequest)}:
                try:
                    known = await self._campaigns.get(campaign)
                except StreamsError as error:
                    log.warning(
                        "the state of campaign %s cannot be read, so a cancel is not seen: %s",
                        campaign,
                        error,
                    )
                    continue
                if known is not None and known[0].state is CampaignState.CANCELLED:
                    self.consumer.interrupt(CANCELLED, partial(_is_of, campaign))


def _is_of(campaign: str, request: object) -> bool:
    return isinstance(request, RolloutRequest) and request.campaign == campaign
