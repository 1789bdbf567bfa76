"""Campaigns: a named plan, tasks x harnesses x models x samples, and the limits of each rollout."""

import math
from collections.abc import Iterator
from enum import StrEnum
from itertools import islice, product
from typing import Annotated

import msgspec

from orchard.schemas.blobs import BlobRef
from orchard.schemas.identity import check_name, digest, rollout_id
from orchard.schemas.llm_calls import ModelKind
from orchard.schemas.quantities import Unit

DEFAULT_DOMAIN = "swe"
"""Domain, and so queue, of a campaign and of a worker that name none."""

_Time = Annotated[float, Unit("s")]
_Dollars = Annotated[float, Unit("USD")]


class Budget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the *task* allows the agent; 0 means no limit. Running out truncates the rollout, still graded."""

    steps: int = 250
    """Answers of the model."""
    cost_usd: _Dollars = 3.0
    """Price of the model calls, in USD."""
    tokens: int = 0
    """Prompt and completion tokens, summed over the calls."""
    wall_seconds: _Time = 3600.0
    """Seconds from the first question to the model, for tasks that publish no time-out of their own."""
    wall_for_all: bool = False
    """Whether `wall_seconds` holds in place of such time-outs, too."""


class Timeouts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of the infrastructure, from inside to outside. Running out is never the model's fault, except
    for `command`: the model sees it as the result of its command."""

    command: _Time = 60.0
    """One command of the agent."""
    model_call: _Time = 600.0
    """One model call, with its retries."""
    creation: _Time = 300.0
    """The creation of a sandbox."""
    shutdown: _Time = 60.0
    """What follows a time limit before the next one holds."""
    grading: _Time = 1800.0
    """Grading, its sandbox included."""
    rollout: _Time = 7200.0
    """The whole attempt."""


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model at an endpoint that the workers' configuration names; URLs and keys stay out of events."""

    name: str
    """As the endpoint knows it."""
    endpoint: str = "default"
    """Name of the endpoint in the workers' configuration."""
    kind: ModelKind = ModelKind.MODEL
    temperature: float | None = None
    """Null: the default of the endpoint, as below."""
    top_p: float | None = None
    """Probability mass that is sampled from."""
    max_tokens: int | None = None
    """Tokens of one answer, at most."""
    logprobs: bool = False
    """Ask for log-probabilities of the sampled tokens."""


class TaskRef(msgspec.Struct, frozen=True, kw_only=True):
    """A task by id and by the blob that holds it, with what tables group by."""

    task_id: str
    source: str
    """Where the task comes from."""
    repo: str
    blob: BlobRef


class CampaignSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The whole plan. Equal specs have equal hashes, so that submitting twice is recognized."""

    name: str
    tasks: tuple[TaskRef, ...]
    harnesses: tuple[str, ...]
    models: tuple[ModelSpec, ...]
    samples: int
    domain: str = DEFAULT_DOMAIN
    priority: str = "normal"
    budget: Budget = Budget()
    timeouts: Timeouts = Timeouts()
    max_tries: int = 3
    """Attempts that infrastructure may cost a rollout before it aborts."""
    replay_attempts: bool = True
    """Let an attempt replay what a dead one of the same rollout did, instead of asking the model again."""
    published_rules: bool = False
    """Grade as published benchmarks do: lenient about patches, trusting what tests print. For figures that
    are compared with those of others; such rewards can be forged, and are not for training."""
    harness_versions: dict[str, str] = {}
    """Of harnesses that have a version, the one that the plan was made with."""
    max_cost_usd: _Dollars | None = None
    """What all model calls may cost before the campaign is paused, to begin with; None: no cap. The record
    has the cap that holds."""

    def __post_init__(self) -> None:
        check_cap(self.max_cost_usd)
        check_name(self.name)
        check_name(self.domain, "domain")
        check_name(self.priority, "priority")
        if self.samples < 1:
            raise ValueError("samples must be at least 1")
        if not (self.tasks and self.harnesses and self.models):
            raise ValueError("a campaign needs at least one task, one harness and one model")

    @property
    def size(self) -> int:
        """Number of rollouts."""
        return len(self.tasks) * len(self.harnesses) * len(self.models) * self.samples


def check_cap(usd: float | None) -> None:
    """Raise ValueError for a cap that is none."""
    if usd is not None and not 0.0 < usd < math.inf:
        raise ValueError(f"max_cost_usd is {usd}: it must be more than 0 USD, or be left out for no cap")


class RolloutRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One slot of a campaign, as it travels on the work queue and, the same, in the log."""

    rollout_id: str
    campaign: str
    task: TaskRef
    """The task."""
    harness: str
    model: ModelSpec
    """Which model, and how it is asked."""
    sample: int
    domain: str = DEFAULT_DOMAIN
    """Kind of work, a part of the name of the queue."""
    priority: str = "normal"
    budget: Budget = Budget()
    """What the agent may use."""
    timeouts: Timeouts = Timeouts()
    """Limits of each layer of the infrastructure."""
    max_tries: int = 3
    """Attempts after infrastructure failures, the first included."""
    attempt_base: int = 0
    """Attempts that earlier queue entries of this rollout may have used: attempt = base + deliveries."""
    failures: int = 0
    """Infrastructure failures so far, compared with `max_tries`."""
    fence: int = 0
    """Expected last sequence of the rollout's `done` subject: 0, or that of the event that reopened it."""
    memory: str | None = None
    """Overrides the task's memory after a sandbox was killed for it."""
    replay_attempts: bool = True
    """Whether an attempt replays what an earlier one recorded."""
    published_rules: bool = False
    """See CampaignSpec, as for `replay_attempts`."""
    harness_version: str | None = None
    """That the plan was made with; None: the harness has none, or the plan is older than such versions."""


class CampaignState(StrEnum):
    """What was asked for last."""

    RUNNING = "running"
    """Its requests are on the queue, or done."""
    PAUSED = "paused"
    """No new attempt starts; running ones end."""
    CANCELLED = "cancelled"
    """What was open aborted."""
    ARCHIVED = "archived"
    """Closed, and its events are in the archive: see `orchard.pipelines.campaigns.archiving`."""


CAMPAIGN_MOVES: dict[CampaignState, frozenset[CampaignState]] = {
    CampaignState.RUNNING: frozenset({CampaignState.PAUSED, CampaignState.CANCELLED, CampaignState.ARCHIVED}),
    CampaignState.PAUSED: frozenset({CampaignState.RUNNING, CampaignState.CANCELLED, CampaignState.ARCHIVED}),
    CampaignState.CANCELLED: frozenset({CampaignState.RUNNING, CampaignState.ARCHIVED}),
    CampaignState.ARCHIVED: frozenset({CampaignState.PAUSED}),
}
"""Permitted moves; any other is refused with both states named."""


class CampaignRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A campaign's key in the state bucket, written by compare-and-set on its revision."""

    spec: BlobRef
    spec_hash: str
    size: int
    state: CampaignState = CampaignState.RUNNING
    offered: int = 0
    """Requests the queue has confirmed, in the order of `rollout_requests`: a killed submit goes on here."""
    queue: str = ""
    """Consumer that its requests are claimed from; empty in records of older versions."""
    rounds: int = 0
    """Times the campaign was resumed; part of the message ids of what resuming offers again."""
    resumed: int | None = None
    """Rollouts that the resume under way has looked at, in the same order: a killed one goes on here. None:
    no resume is under way."""
    max_cost_usd: _Dollars | None = None
    """The cap on the cost of its model calls, as the plan or the last resume has it; None: no cap."""
    reason: str | None = None
    """Why it was paused, where nobody asked for that."""
    unpriced: int | None = None
    """Model calls without a known cost that whoever resumed it last has let pass; None: none. With more of
    them a cap cannot be kept."""

    @property
    def reached(self) -> int:
        """How many rollouts, in the order of the plan, must have a request: not those that a submit or a
        resume has yet to offer."""
        return self.offered if self.resumed is None else min(self.offered, self.resumed)


def rollout_ids(spec: CampaignSpec, start: int = 0) -> Iterator[str]:
    """The ids of a campaign's rollouts in the order of `rollout_requests`, from index `start` on."""
    for sample, task, harness, model in islice(slots(spec), start, None):
        yield rollout_id(spec.name, task.task_id, harness, model.name, sample)


Slot = tuple[int, TaskRef, str, ModelSpec]
"""Sample, task, harness and model of a rollout."""


def slots(spec: CampaignSpec) -> Iterator[Slot]:
    """Every slot of a campaign, in the order of `rollout_requests`."""
    return product(range(spec.samples), spec.tasks, spec.harnesses, spec.models)


def slot_at(spec: CampaignSpec, place: int) -> Slot:
    """The slot at an index of the order of `rollout_requests`."""
    rest, model = divmod(place, len(spec.models))
    rest, harness = divmod(rest, len(spec.harnesses))
    sample, task = divmod(rest, len(spec.tasks))
    return sample, spec.tasks[task], spec.harnesses[harness], spec.models[model]


def rollout_requests(spec: CampaignSpec, start: int = 0) -> Iterator[RolloutRequest]:
    """The requests of a campaign in a fixed order (sample, task, harness, model), from index `start` on.

    Samples vary slowest, so that every task has a first result before any has its second.
    """
    for slot in islice(slots(spec), start, None):
        yield rollout_request(spec, slot)


def rollout_request(spec: CampaignSpec, slot: Slot) -> RolloutRequest:
    """The request of one slot."""
    sample, task, harness, model = slot
    return RolloutRequest(
        rollout_id=rollout_id(spec.name, task.task_id, harness, model.name, sample),
        campaign=spec.name,
        task=task,
        harness=harness,
        model=model,
        sample=sample,
        domain=spec.domain,
        priority=spec.priority,
        budget=spec.budget,
        timeouts=spec.timeouts,
        max_tries=spec.max_tries,
        replay_attempts=spec.replay_attempts,
        published_rules=spec.published_rules,
        harness_version=spec.harness_versions.get(harness),
    )


def spec_hash(spec: CampaignSpec) -> str:
    """32 hexadecimal digits over the whole plan. A field that is younger than stored plans counts only where
    it is not the default, so that a plan keeps its hash."""
    plan = msgspec.to_builtins(spec, order="deterministic")
    if spec.replay_attempts:
        del plan["replay_attempts"]
    if not spec.published_rules:
        del plan["published_rules"]
    if not spec.harness_versions:
        del plan["harness_versions"]
    if spec.max_cost_usd is None:
        del plan["max_cost_usd"]
    if not spec.budget.wall_for_all:
        del plan["budget"]["wall_for_all"]
    return digest(msgspec.Raw(msgspec.json.encode(plan)), 32)
