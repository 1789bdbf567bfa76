"""The worker process: claim a request, run an attempt, publish its outcome, acknowledge. Stateless.

Killed at any instant it loses nothing: the request is delivered again when its lease ends, the sandbox is
removed by its time-to-live, and the terminal event's compare-and-set lets only one attempt speak last.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

import msgspec

from orchard.schemas.campaigns import CampaignState, RolloutRequest
from orchard.schemas.events import AttemptReleased, AttemptSuperseded, RolloutAborted, RolloutFinished
from orchard.schemas.outcomes import AbortCause
from orchard.schemas.plugins import PluginError
from orchard.schemas.requests import InvalidRequest, NewerRequest, read_rollout_request
from orchard.streams.campaigns import CampaignBook
from orchard.streams.claims import Claim, Claims
from orchard.streams.entries import after_attempt, rollout_entry, successor
from orchard.streams.errors import FAULTS, OutcomeRefused, StreamsError
from orchard.streams.shifts import Shift, share_of
from orchard.streams.tasks import end, waited
from orchard.workers.attempts.deadletters import DeadLetters
from orchard.workers.attempts.dependencies import AttemptDependencies
from orchard.workers.attempts.openings import cancelled
from orchard.workers.attempts.refused import Refusals
from orchard.workers.attempts.retries import FIRST_DELAY, Abort, Retry, after_failure
from orchard.workers.attempts.rollout import Attempt
from orchard.workers.attempts.task_reading import NewerTask
from orchard.workers.episode.settings import WorkerSettings as WorkerSettings
from orchard.workers.failures import EndpointRests, InfrastructureError
from orchard.workers.harnesses import UnknownHarness, planned_harness

log = logging.getLogger("orchard.worker")

Interruption = Literal["draining", "cancelled"]

CLAIM_WAIT_SECONDS = 5.0
CANCELLATION_SECONDS = 2.0
"""Between two looks at the campaigns of which something runs."""


class Worker:
    """Runs `slots` claim loops until told to drain."""

    def __init__(
        self,
        dependencies: AttemptDependencies,
        claims: Claims,
        campaigns: CampaignBook,
        settings: WorkerSettings,
        *,
        shutdown_seconds: float,
    ) -> None:
        self._dependencies = dependencies
        self._claims = claims
        self._campaigns = campaigns
        self._settings = settings
        self._shutdown_seconds = shutdown_seconds
        self._shift = Shift(idle=settings.idle_exit_seconds, age=share_of(settings.max_age_seconds))
        self._draining = asyncio.Event()
        self._hurry = asyncio.Event()
        self.faults = 0
        """Deliveries that ended in an exception that nobody expected."""
        self._dead = DeadLetters(claims.connection)
        self._refusals = Refusals(claims.connection)
        self._running: dict[asyncio.Future[Interruption], str] = {}
        """What interrupts each request that was claimed, with the campaign it is of."""

    @property
    def slots(self) -> int:
        """Attempts that may run at the same time."""
        return self._settings.slots

    @property
    def running(self) -> int:
        """Requests that are claimed now."""
        return len(self._running)

    def drain(self) -> None:
        """Claim nothing more; what runs may finish within the shutdown timeout, then goes back.

        Told again, what runs goes back at once.
        """
        if self._draining.is_set():
            self._hurry.set()
        self._shift.end()
        self._draining.set()

    async def run(self) -> None:
        """Until drained, or idle or old as the settings allow; what runs by then is finished."""
        async with asyncio.TaskGroup() as group:
            watcher = group.create_task(self._watch_cancellations())
            slots = [group.create_task(self._slot()) for _ in range(self._settings.slots)]
            drainer = group.create_task(self._drain_when_told())
            await asyncio.wait(slots)
            await end(watcher)
            await end(drainer)

    async def _slot(self) -> None:
        while self._shift.go_on():
            claim = await self._claim()
            if claim is not None:
                await self._guarded(claim)

    async def _claim(self) -> Claim | None:
        """The next request, or None: after CLAIM_WAIT_SECONDS without one, at once when the shift is over."""
        claiming = asyncio.create_task(self._claims.next(timeout=CLAIM_WAIT_SECONDS))
        told = asyncio.create_task(self._shift.over.wait())
        try:
            await asyncio.wait({claiming, told}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            claiming.cancel()
            told.cancel()
            await asyncio.wait({claiming, told})
        return None if claiming.cancelled() else claiming.result()

    async def _guarded(self, claim: Claim) -> None:
        """One delivery. A fault of this program that it meets costs its own request a delivery, and the
        other slots nothing."""
        try:
            await self._handle(claim)
        except FAULTS:
            raise
        except Exception as error:
            self.faults += 1
            log.exception("fault %d: request %d of the queue", self.faults, claim.sequence)
            await self._dead.give_back(claim, f"{type(error).__name__}: {error}")

    async def _handle(self, claim: Claim) -> None:
        """One delivery, from claim to acknowledgement."""
        try:
            request = read_rollout_request(claim.body)
            planned_harness(request.harness, request.harness_version)
        except (NewerRequest, UnknownHarness) as error:
            await self._dead.leave(claim, str(error))
            return
        except (InvalidRequest, PluginError) as error:
            await self._dead.reject(claim, str(error))
            return
        interrupted: asyncio.Future[Interruption] = asyncio.get_running_loop().create_future()
        self._running[interrupted] = request.campaign
        try:
            await self._carry_out(claim, request, interrupted)
        finally:
            del self._running[interrupted]

    async def _carry_out(
        self, claim: Claim, request: RolloutRequest, interrupted: asyncio.Future[Interruption]
    ) -> None:
        """What this delivery asks for, where it is not a leftover: its rollout has an outcome, or was
        reopened since. Only an attempt is work: a worker that finds none may end, while an endpoint rests
        too."""
        publisher = self._dependencies.publisher
        outcome, started, known = await asyncio.gather(
            publisher.outcome(request.rollout_id),
            publisher.started(request.rollout_id),
            self._campaigns.get(request.campaign),
        )
        if outcome is not None and outcome.sequence != request.fence:
            await claim.complete()
            return
        match known[0].state if known else CampaignState.RUNNING:
            case CampaignState.CANCELLED | CampaignState.ARCHIVED:
                event = cancelled(request, started, f"orchard/worker/{self._dependencies.worker}")
                with suppress(OutcomeRefused):
                    await publisher.terminal(event, fence=request.fence)
                await claim.complete()
            case CampaignState.PAUSED:
                await self._park(claim, request)
            case _ if rest := await self._dependencies.models.resting(request.model.endpoint):
                entry = rollout_entry(request, successor(claim.message_id))
                await claim.await_rest(entry, rest.key, rest.seconds, rest.detail)
            case _:
                with self._shift.at_work():
                    attempt = await Attempt.begin(
                        self._dependencies,
                        request,
                        sequence=claim.sequence,
                        deliveries=claim.deliveries,
                        before=started,
                    )
                    await self._attempt(claim, attempt, interrupted)

    async def _attempt(
        self, claim: Claim, attempt: Attempt, interrupted: asyncio.Future[Interruption]
    ) -> None:
        body = asyncio.create_task(attempt.run())
        try:
            waiting: set[asyncio.Future[Any]] = {body, interrupted}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if not body.done():
                body.cancel()
                await asyncio.wait({body})
            error = asyncio.CancelledError() if body.cancelled() else body.exception()
            if interrupted.done() and body.cancelled():
                await self._interrupt(claim, attempt, interrupted.result())
            elif error is None:
                await self._end(claim, attempt, body.result())
            elif isinstance(error, EndpointRests):
                await self._rested(claim, attempt, error)
            elif isinstance(error, InfrastructureError):
                await self._failed(claim, attempt, error)
            elif isinstance(error, NewerTask):
                await attempt.publish(AttemptReleased(reason="newer", detail=str(error)))
                await self._dead.leave(claim, str(error))
            else:
                log.error("attempt %s.%d", attempt.request.rollout_id, attempt.number, exc_info=error)
                ours = InfrastructureError(AbortCause.INTERNAL_ERROR, f"{type(error).__name__}: {error}")
                await self._failed(claim, attempt, ours)
        finally:
            body.cancel()

    async def _end(self, claim: Claim, attempt: Attempt, data: msgspec.Struct) -> None:
        """Publish the terminal event under its fence, then acknowledge: in this order, always."""
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
            await self._dependencies.publisher.trails.forget(attempt.request.rollout_id)
        elif isinstance(data, RolloutAborted) and data.cause is AbortCause.LLM_REFUSED:
            await self._refusals.refused(attempt.request, data.detail)
        await claim.complete()

    async def _failed(self, claim: Claim, attempt: Attempt, error: InfrastructureError) -> None:
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
            await self._end(claim, attempt, attempt.aborted(step.cause, error.detail, failures))
        else:
            await self._again(claim, attempt, step, failures=failures, error=error)

    async def _rested(self, claim: Claim, attempt: Attempt, rest: EndpointRests) -> None:
        """Put the request off until the endpoint answers again: no try is used up, and what was paid for is
        replayed then."""
        request = msgspec.structs.replace(attempt.request, attempt_base=attempt.number)
        await attempt.publish(
            AttemptReleased(
                reason="resting",
                cause=rest.cause,
                detail=rest.detail,
                retry_in_seconds=rest.seconds,
                next_attempt_base=request.attempt_base,
            )
        )
        entry = rollout_entry(request, after_attempt(attempt.number))
        await claim.await_rest(entry, rest.key, rest.seconds, rest.detail)

    async def _interrupt(self, claim: Claim, attempt: Attempt, why: Interruption) -> None:
        if why == "cancelled":
            await self._end(
                claim,
                attempt,
                attempt.aborted(AbortCause.CANCELLED, "campaign cancelled", attempt.request.failures),
            )
        else:
            back = Retry(0.0, attempt.request.memory)
            await self._again(claim, attempt, back, failures=attempt.request.failures, error=None)

    async def _again(
        self, claim: Claim, attempt: Attempt, step: Retry, *, failures: int, error: InfrastructureError | None
    ) -> None:
        """Put the request back under new attempt numbers."""
        request = msgspec.structs.replace(
            attempt.request, attempt_base=attempt.number, failures=failures, memory=step.memory
        )
        await attempt.publish(
            AttemptReleased(
                reason="infrastructure" if error else "draining",
                cause=error.cause if error else None,
                detail=error.detail if error else "",
                retry_in_seconds=step.delay,
                next_attempt_base=request.attempt_base,
            )
        )
        entry = rollout_entry(request, after_attempt(attempt.number))
        await claim.retry_later(entry, step.delay, "another attempt")

    async def _park(self, claim: Claim, request: RolloutRequest) -> None:
        """Let a paused campaign's request go: `orchard resume` offers what is on no queue (decision 0002).

        A resume that looked while this claim was open has left it alone, so the key is read again after it
        is gone.
        """
        await claim.complete()
        known = await self._campaigns.get(request.campaign)
        if known is not None and known[0].state is CampaignState.RUNNING:
            entry = rollout_entry(request, successor(claim.message_id))
            await self._dependencies.publisher.offer(entry, delay=FIRST_DELAY)

    async def _drain_when_told(self) -> None:
        await self._draining.wait()
        log.info("draining: %d attempts may finish in %g s", len(self._running), self._shutdown_seconds)
        with suppress(TimeoutError):
            await waited(self._hurry.wait(), self._shutdown_seconds)
        self._interrupt_all("draining", lambda _: True)

    async def _watch_cancellations(self) -> None:
        """Interrupt what runs for a campaign soon after it is cancelled. Reading the few records that matter
        costs no consumer: a thousand workers that follow the bucket would be a thousand consumers of it."""
        while True:
            await asyncio.sleep(CANCELLATION_SECONDS)
            for campaign in set(self._running.values()):
                try:
                    known = await self._campaigns.get(campaign)
                except StreamsError as error:
                    log.warning("whether campaign %s was cancelled is not known: %s", campaign, error)
                    continue
                if known is not None and known[0].state is CampaignState.CANCELLED:
                    self._interrupt_all("cancelled", campaign.__eq__)

    def _interrupt_all(self, why: Interruption, concerns: Callable[[str], bool]) -> None:
        for interrupted, campaign in self._running.items():
            if concerns(campaign) and not interrupted.done():
                interrupted.set_result(why)
