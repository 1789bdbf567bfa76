"""Rollouts of browser agents judged again from the log alone: nothing is run, and old rewards stay.

A verdict is a `judge.ruled` event, as during a campaign. Its id says rollout, protocol, prompts and model,
so a verdict that was given twice counts once; what has one is not asked about again.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import uuid4

import duckdb
import msgspec

from orchard.schemas.blobs import BlobRef
from orchard.schemas.decoding import Unreadable, decode
from orchard.schemas.events import make_event
from orchard.schemas.identity import digest
from orchard.schemas.judging import JudgeCalled, JudgeRuled
from orchard.schemas.tasks import Task
from orchard.storage.blobs import BlobStore
from orchard.storage.errors import StorageError
from orchard.streams.publisher import Publisher
from orchard.workers.domains.gui.judging import OUTCOME, NoOutcome, read_outcome, rule_outcome
from orchard.workers.episode.settings import JudgeSettings
from orchard.workers.failures import InfrastructureError
from orchard.workers.judges import get_protocol
from orchard.workers.judges.ruling import Judges, prompt_hash
from orchard.workers.llm.client import ModelClient

SOURCE = "orchard/judge"
MOST_FAILURES = 10
"""Judgements without a verdict, one after the other, after which the judge is taken to be down."""
_TASKS = msgspec.json.Decoder(Task)

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


class Episode(NamedTuple):
    """A rollout with an outcome."""

    rollout_id: str
    attempt: int
    task_sha256: str
    submission: str
    submission_sha256: str | None


class Episodes(NamedTuple):
    """The rollouts of a campaign."""

    open: list[Episode]
    """Without a verdict of this judge."""
    judged: int


def read_episodes(tables: duckdb.DuckDBPyConnection, campaign: str, judge: JudgeSettings) -> Episodes:
    """The rollouts of a campaign that have an outcome. Raises PluginError for an unknown protocol."""
    protocol = get_protocol(judge.protocol)
    asked = {
        "campaign": campaign,
        "name": OUTCOME,
        "protocol": protocol.version,
        "hash": prompt_hash(protocol),
        "model": judge.model,
        "endpoint": judge.endpoint,
    }
    rows = tables.execute(_EPISODES, asked).fetchall()
    found = [Episode._make(row[:-1]) for row in rows if not row[-1]]
    return Episodes(found, len(rows) - len(found))


@dataclass
class Judging:
    """Judges episodes, each verdict an event as soon as it is there; what it did is in the counters."""

    models: ModelClient
    judge: JudgeSettings
    blobs: BlobStore
    publisher: Publisher
    campaign: str
    max_cost_usd: float | None = None
    """Nothing more is begun when the calls have cost so much; None: no cap."""
    told: Callable[[], None] = lambda: None
    """Called when an episode is done with."""
    verdicts: Counter[bool] = field(default_factory=Counter)
    failed: int = 0
    """Judgements without a verdict."""
    foreign: int = 0
    """Submissions that no browser agent handed in."""
    cost_usd: float | None = 0.0
    """None where a call has no known price."""
    stopped: str = ""
    """Why not all episodes were begun, as a clause."""
    _in_a_row: int = 0
    _mark: str = ""
    """Of protocol, prompts and model, in event ids."""

    def __post_init__(self) -> None:
        protocol = get_protocol(self.judge.protocol)
        who = [protocol.version, prompt_hash(protocol), self.judge.model, self.judge.endpoint]
        self._mark = digest(who, 12)

    async def run(self, episodes: Sequence[Episode], slots: int) -> None:
        """Judge them, `slots` at once. Raises StreamsError."""
        left = iter(episodes)

        async def work() -> None:
            for episode in left:
                if self._over():
                    return
                await self._one(episode)
                self.told()

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(slots):
                    group.create_task(work())
        except ExceptionGroup as several:
            raise several.exceptions[0] from several

    def _over(self) -> bool:
        cap = self.max_cost_usd
        if cap is not None and self.cost_usd is not None and self.cost_usd >= cap:
            self.stopped = f"its calls have cost {self.cost_usd:.4f} USD and the cap is {cap:g} USD"
        return bool(self.stopped)

    async def _one(self, episode: Episode) -> None:
        run = uuid4().hex[:8]
        verdict_id = f"{episode.rollout_id}.{episode.attempt}.judged.{self._mark}"

        async def publish(data: msgspec.Struct) -> None:
            name = verdict_id
            if isinstance(data, JudgeCalled):
                name = f"{name}.{run}.{data.number}"
                known = self.cost_usd is not None and data.cost_usd is not None
                self.cost_usd = (self.cost_usd or 0.0) + (data.cost_usd or 0.0) if known else None
            elif isinstance(data, JudgeRuled) and data.score is None:
                name = f"{name}.{run}"
            await self.publisher.event(
                make_event(
                    data,
                    id=name,
                    source=SOURCE,
                    campaign=self.campaign,
                    rollout_id=episode.rollout_id,
                    attempt=episode.attempt,
                )
            )

        try:
            submission, statement = await asyncio.to_thread(self._read, episode)
            outcome = read_outcome(submission)
            judges = Judges(self.models, self.judge, publish)
            verdict = await rule_outcome(judges, statement, outcome, self.blobs, self.judge.protocol)
        except NoOutcome:
            self.foreign += 1
        except (InfrastructureError, StorageError, Unreadable) as error:
            self.failed += 1
            self._in_a_row += 1
            if self._in_a_row >= MOST_FAILURES and not self.stopped:
                self.stopped = (
                    f"{self._in_a_row} judgements in a row gave no verdict, the last because {error}"
                )
        else:
            self._in_a_row = 0
            self.verdicts[verdict.passed] += 1

    def _read(self, episode: Episode) -> tuple[bytes, str]:
        """What was handed in, and what was asked."""
        task = decode(_TASKS, self.blobs.get(BlobRef(sha256=episode.task_sha256, size=0)))
        if episode.submission_sha256 is None:
            return episode.submission.encode(), task.statement
        return self.blobs.get(BlobRef(sha256=episode.submission_sha256, size=0)), task.statement
