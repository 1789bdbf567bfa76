"""Judges rollouts of browser agents again from the log alone: nothing is run, and old rewards stay.

A verdict is a `judge.ruled` event, as during a campaign, and the answer to a request on a queue: any
number of workers judge, and each request has one accepted verdict, or one fault. A rollout with a
verdict is not judged again.
"""

import asyncio
import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import uuid4

import duckdb
import msgspec

from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import ModelSpec
from orchard.schemas.decoding import Unreadable, decode
from orchard.schemas.events import make_event
from orchard.schemas.identity import digest
from orchard.schemas.judging import JudgeCalled, JudgeRuled
from orchard.schemas.plugins import PluginError
from orchard.schemas.queues import Queue
from orchard.schemas.requests import InvalidRequest, JudgeRequest, NewerRequest, read_judge_request
from orchard.schemas.subjects import answering
from orchard.schemas.tasks import Task
from orchard.storage.blobs import BlobStore
from orchard.storage.errors import StorageError
from orchard.streams.consumer import ClaimedRequest, PutOff, RetryPolicy
from orchard.streams.entries import EntryAddress, QueueEntry, entry, successor
from orchard.streams.errors import OutcomeRefused
from orchard.streams.publisher import Publisher
from orchard.workers.attempts.dependencies import AttemptDependencies
from orchard.workers.domains.gui.judging import OUTCOME, NoOutcome, read_outcome, rule_outcome
from orchard.workers.episode.settings import JudgeSettings
from orchard.workers.failures import EndpointRests, InfrastructureError
from orchard.workers.judges import get_protocol
from orchard.workers.judges.ruling import Judges, prompt_hash
from orchard.workers.llm.client import ModelClient

SOURCE = "orchard/judge"
QUEUE = Queue(kind="judge", domain="rollouts")
ELSEWHERE_SECONDS = 2.0
"""Delay before a request that was claimed where its endpoint is not configured can be claimed again."""
MOST_FAILURES = 10
"""Judgements in a row without a verdict after which the judge counts as down."""
_TASKS = msgspec.json.Decoder(Task)

log = logging.getLogger("orchard.judge")

_EPISODES = """
select r.rollout_id, r.attempt, q.task_sha256, r.submission, r.submission_sha256,
       j.rollout_id is not null as judged
from rollouts r
join requests q on q.rollout_id = r.rollout_id
left join (
    select distinct rollout_id from judgements
    where name = $name and protocol = $protocol and prompt_hash = $hash and model = $model
    and endpoint = $endpoint and score is not null
) j on j.rollout_id = r.rollout_id
where r.campaign = $campaign and r.status <> 'aborted'
order by r.sequence
"""


class Episodes(NamedTuple):
    """The rollouts of a campaign."""

    open: list[JudgeRequest]
    """Requests for rollouts without a verdict of this judge."""
    judged: int


def read_episodes(tables: duckdb.DuckDBPyConnection, campaign: str, judge: JudgeSettings) -> Episodes:
    """The rollouts of a campaign that have an outcome. Raises PluginError for an unknown protocol."""
    protocol = get_protocol(judge.protocol)
    model = ModelSpec(
        name=judge.model or "",
        endpoint=judge.endpoint,
        temperature=judge.temperature,
        max_tokens=judge.max_tokens,
    )
    asked = {
        "campaign": campaign,
        "name": OUTCOME,
        "protocol": protocol.version,
        "hash": prompt_hash(protocol),
        "model": model.name,
        "endpoint": model.endpoint,
    }
    rows = tables.execute(_EPISODES, asked).fetchall()
    found = [
        JudgeRequest(
            campaign=campaign,
            rollout_id=rollout,
            attempt=attempt,
            task=BlobRef(sha256=task, size=0),
            submission="" if blob else submission,
            submission_blob=BlobRef(sha256=blob, size=0) if blob else None,
            protocol=protocol.version,
            prompt_hash=prompt_hash(protocol),
            model=model,
            timeout_seconds=judge.timeout_seconds,
        )
        for rollout, attempt, task, submission, blob, judged in rows
        if not judged
    ]
    return Episodes(found, len(rows) - len(found))


def verdict_key(request: JudgeRequest) -> str:
    """Key of a rollout and its judge, on the queue and among the answers."""
    return digest([request.rollout_id, request.attempt, _judge_mark(request)])


def _judge_mark(request: JudgeRequest) -> str:
    """Digest of protocol, prompts and model, in event ids."""
    return digest([request.protocol, request.prompt_hash, request.model.name, request.model.endpoint], 12)


def is_foreign(request: JudgeRequest, blobs: BlobStore) -> bool:
    """Whether no browser agent submitted it. A submission that is unreadable just now may be one's."""
    try:
        read_outcome(_submission(request, blobs))
    except NoOutcome:
        return True
    except StorageError:
        return False
    return False


@dataclass
class JudgingTally:
    """Totals over the answers to a command's requests."""

    max_cost_usd: float | None
    """Cost of the judgements after which no more are begun; None: no cap."""
    verdicts: Counter[bool] = field(default_factory=Counter)
    cost_usd: float | None = 0.0
    """None where a call has no known price."""
    stopped: str = ""
    """Why no more are begun, as a clause."""
    _in_a_row: int = 0

    def take(self, ruled: JudgeRuled | None, why: str) -> None:
        """Count an answer; None: there will be none, and `why`."""
        if ruled is not None:
            known = self.cost_usd is not None and ruled.cost_usd is not None
            self.cost_usd = (self.cost_usd or 0.0) + (ruled.cost_usd or 0.0) if known else None
        if ruled is not None and ruled.passed is not None:
            self.verdicts[ruled.passed] += 1
            self._in_a_row = 0
        else:
            self._in_a_row += 1
        cap = self.max_cost_usd
        if cap is not None and self.cost_usd is not None and self.cost_usd >= cap:
            self.stopped = f"its calls have cost {self.cost_usd:.4f} USD and the cap is {cap:g} USD"
        elif self._in_a_row >= MOST_FAILURES and not self.stopped:
            last = ruled.fault if ruled is not None else why
            self.stopped = f"{self._in_a_row} judgements in a row gave no verdict, the last because {last}"


class OutcomeJudge:
    """Handles requests to judge a rollout."""

    retries = RetryPolicy(on=(InfrastructureError, StorageError), first=20.0, longest=300.0, most=3)

    def __init__(self, publisher: Publisher, blobs: BlobStore, models: ModelClient) -> None:
        self._publisher = publisher
        self._blobs = blobs
        self._models = models

    def read(self, body: bytes) -> JudgeRequest:
        request = read_judge_request(body)
        try:
            own = prompt_hash(get_protocol(request.protocol))
        except PluginError as error:
            raise InvalidRequest(str(error)) from error
        if own != request.prompt_hash:
            raise NewerRequest(f"{request.protocol} has other prompts here: {own}, not {request.prompt_hash}")
        return request

    def entry(self, request: JudgeRequest, occasion: str) -> QueueEntry:
        place = EntryAddress(request.campaign, verdict_key(request), request.fence)
        return entry(QUEUE, place, occasion, msgspec.json.encode(request))

    async def handle(self, delivery: ClaimedRequest[JudgeRequest]) -> PutOff | None:
        """Publish the verdict, or why the judge gave none, unless the request is answered."""
        request = delivery.request
        known = await self._publisher.answer(QUEUE.kind, verdict_key(request))
        if known is not None and known.sequence != request.fence:
            return None
        if not self._models.has(request.model.endpoint):
            again = self.entry(request, successor(delivery.claim.message_id))
            return PutOff(again, ELSEWHERE_SECONDS, f"no endpoint {request.model.endpoint!r} here")
        if rest := await self._models.resting(request.model.endpoint):
            raise rest
        run = uuid4().hex[:8]
        ruled: list[JudgeRuled] = []

        async def publish(data: msgspec.Struct) -> None:
            if isinstance(data, JudgeCalled):
                await self._publish(request, data, f".{run}.{data.number}")
            elif isinstance(data, JudgeRuled):
                ruled.append(data)

        try:
            await delivery.run(self._rule(request, Judges(self._models, _settings(request), publish)))
        except EndpointRests:
            raise
        except (NoOutcome, Unreadable) as error:
            raise InvalidRequest(str(error)) from error
        except InfrastructureError:
            if not ruled:
                raise
        [answer] = ruled
        try:
            await self._publish(request, answer, "" if answer.score is not None else f".{run}")
        except OutcomeRefused as refused:
            log.info("the judgement of %s comes too late: %s", request.rollout_id, refused)
        return None

    async def _rule(self, request: JudgeRequest, judges: Judges) -> None:
        submission, statement = await asyncio.to_thread(self._read, request)
        await rule_outcome(judges, statement, read_outcome(submission), self._blobs, request.protocol)

    def _read(self, request: JudgeRequest) -> tuple[bytes, str]:
        """The submission, and the task's request."""
        task = decode(_TASKS, self._blobs.get(request.task))
        return _submission(request, self._blobs), task.statement

    async def _publish(self, request: JudgeRequest, data: msgspec.Struct, name: str) -> None:
        event = make_event(
            data,
            id=f"{request.rollout_id}.{request.attempt}.judged.{_judge_mark(request)}{name}",
            source=SOURCE,
            campaign=request.campaign,
            rollout_id=request.rollout_id,
            attempt=request.attempt,
        )
        if isinstance(data, JudgeRuled):
            cause = answering(QUEUE.kind, verdict_key(request))
            event = msgspec.structs.replace(event, causation_id=cause)
            await self._publisher.terminal(event, request.fence)
        else:
            await self._publisher.event(event)


def _submission(request: JudgeRequest, blobs: BlobStore) -> bytes:
    return blobs.get(request.submission_blob) if request.submission_blob else request.submission.encode()


def _settings(request: JudgeRequest) -> JudgeSettings:
    return JudgeSettings(
        model=request.model.name,
        endpoint=request.model.endpoint,
        protocol=request.protocol,
        temperature=request.model.temperature,
        max_tokens=request.model.max_tokens,
        timeout_seconds=request.timeout_seconds,
    )


def outcome_judge(dependencies: AttemptDependencies) -> OutcomeJudge:
    return OutcomeJudge(dependencies.publisher, dependencies.blobs, dependencies.models)
