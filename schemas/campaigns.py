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
from orchard.schemas.positions import MOST_STREAMS
from orchard.schemas.quantities import Unit
from orchard.schemas.queues import Queue

DEFAULT_DOMAIN = "swe"
"""Domain, and so queue, of a campaign and of a worker that name none."""

_Time = Annotated[float, Unit("s")]
_Dollars = Annotated[float, Unit("USD")]


class Budget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of the agent's work on the task; 0 means no limit. A rollout that runs out of one is truncated
    and graded."""

    steps: int = 250
    """Maximum answers of the model."""
    cost_usd: _Dollars = 3.0
    """Price of all model calls, in USD."""
    tokens: int = 0
    """Prompt and completion tokens, summed over the calls."""
    wall_seconds: _Time = 3600.0
    """Seconds from the first question to the model, for tasks that publish no time-out of their own."""
    wall_for_all: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether `wall_seconds` holds in place of such time-outs, too. Left out of requests where it is false: a
    worker that does not know it yet takes them."""

    def __post_init__(self) -> None:
        if not self.wall_for_all:
            msgspec.structs.force_setattr(self, "wall_for_all", msgspec.UNSET)


class Timeouts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of the infrastructure, from inside to outside. Only running out of `command` is the model's
    doing: it sees that as the result of its command."""

    command: _Time = 60.0
    """Limit of one command of the agent."""
    model_call: _Time = 600.0
    """Limit of one model call, with its retries."""
    creation: _Time = 300.0
    """Limit of the creation of a sandbox."""
    shutdown: _Time = 60.0
    """Time to clean up after a limit ran out, before the next one holds."""
    grading: _Time = 1800.0
    """Limit of grading, with the creation of its sandbox."""
    rollout: _Time = 7200.0
    """Limit of the whole attempt."""


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model at an endpoint that the workers' configuration names; URLs and keys stay out of events."""

    name: str
    """Name by which the endpoint knows the model."""
    endpoint: str = "default"
    """Name of the endpoint in the workers' configuration."""
    kind: ModelKind = ModelKind.MODEL
    """`oracle` where known solutions are played in place of a model."""
    temperature: float | None = None
    """Sampling temperature; null, as in the fields below: the endpoint's default."""
    top_p: float | None = None
    """Probability mass that is sampled from (nucleus sampling)."""
    max_tokens: int | None = None
    """Maximum tokens of one answer."""
    logprobs: bool = False
    """Whether to ask for log-probabilities of the sampled tokens."""


class Takeover(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """From a turn on, a teacher acts in a rollout in place of its model (DAgger,
    https://arxiv.org/abs/1011.0686)."""

    teacher: str
    """Name of the model that takes over."""
    teacher_endpoint: str
    """Name of its endpoint in the workers' configuration."""
    teacher_kind: ModelKind = ModelKind.MODEL
    """Whether the teacher is a model or an oracle."""
    after_turns: int
    """Turns of the rollout's own model before it."""

    def acting(self, student: ModelSpec) -> ModelSpec:
        """The teacher, sampled as the student is; its tokens are not asked for."""
        return msgspec.structs.replace(
            student,
            name=self.teacher,
            endpoint=self.teacher_endpoint,
            kind=self.teacher_kind,
            logprobs=False,
        )


def acting(student: ModelSpec, takeover: Takeover | None, turns: int) -> ModelSpec:
    """The model that acts after so many turns of a rollout."""
    if takeover is None or turns < takeover.after_turns:
        return student
    return takeover.acting(student)


class TakeoverPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The takeovers of a campaign: after as many turns of its model as are drawn for each rollout."""

    teacher: str
    """Name of the model that takes over."""
    teacher_endpoint: str
    """Name of its endpoint in the workers' configuration."""
    teacher_kind: ModelKind = ModelKind.MODEL
    """Whether the teacher is a model or an oracle."""
    least: int
    """Fewest turns of the campaign's model."""
    most: int
    """Most turns of it; each number from `least` to this is equally likely."""
    seed: int = 0
    """Seed of the draw."""

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most:
            raise ValueError(
                f"no takeover is after {self.least} to {self.most} turns: give two rising numbers, 0 or more"
            )

    def of(self, rollout: str) -> Takeover:
        """The takeover in a rollout, by its id."""
        number = int(digest([self.seed, rollout], 8), 16)
        return Takeover(
            teacher=self.teacher,
            teacher_endpoint=self.teacher_endpoint,
            teacher_kind=self.teacher_kind,
            after_turns=self.least + number % (self.most - self.least + 1),
        )


class TaskRef(msgspec.Struct, frozen=True, kw_only=True):
    """Names a task by its id and by the blob that holds it, with what tables group by."""

    task_id: str
    source: str
    """Name of the task's source."""
    repo: str
    blob: BlobRef


class CampaignSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a campaign. Equal plans have equal hashes, so that submitting twice is recognized."""

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
    """Maximum attempts after infrastructure failures, the first included."""
    replay_attempts: bool = True
    """Whether an attempt replays what a dead one of the same rollout did, instead of asking the model
    again."""
    published_rules: bool = False
    """Grades as published benchmarks do: lenient about patches, trusting what tests print. Such rewards can
    be forged: they are for comparing figures, not for training."""
    harness_versions: dict[str, str] = {}
    """Version of each harness that has one, as of the plan."""
    max_cost_usd: _Dollars | None = None
    """Cap on the cost of all model calls, in USD, at the beginning: a campaign that reaches it is paused. The
    record has the cap that holds now. None: no cap."""
    takeover: TakeoverPlan | None = None
    """Teacher that takes over in each rollout; None: its model acts alone."""
    team: str = ""
    """Team of whoever submitted it first, whose queue has its requests; empty: no team."""
    event_streams: Annotated[int, msgspec.Meta(ge=1, le=MOST_STREAMS)] = 1
    """Event streams over which its rollouts are spread, as configured when it was submitted first."""

    def __post_init__(self) -> None:
        check_cap(self.max_cost_usd)
        check_name(self.name)
        check_name(self.domain, "domain")
        check_name(self.priority, "priority")
        if self.team:
            check_name(self.team, "team")
        if self.samples < 1:
            raise ValueError("samples must be at least 1")
        if not (self.tasks and self.harnesses and self.models):
            raise ValueError("a campaign needs at least one task, one harness and one model")

    @property
    def queue(self) -> Queue:
        """The queue of its requests."""
        return Queue(domain=self.domain, priority=self.priority, team=self.team)

    @property
    def actors(self) -> tuple[ModelSpec, ...]:
        """The models that act in its rollouts, a teacher included."""
        if self.takeover is None:
            return self.models
        return (*self.models, self.takeover.of("").acting(self.models[0]))

    @property
    def size(self) -> int:
        return len(self.tasks) * len(self.harnesses) * len(self.models) * self.samples


class EvaluationPlanned(msgspec.Struct, frozen=True, kw_only=True):
    """A campaign was submitted as an evaluation. Its outcomes are the rollouts' own events."""

    suite: BlobRef
    """The evaluation's settings, as JSON."""
    task_sets: dict[str, str]
    """Name of the task set by task source; each set has one source."""
    k: tuple[int, ...]
    """Values of k for which pass@k and pass^k are reported."""
    arms: dict[str, str] | None = None
    """Arm by model; None in older events."""


def check_cap(usd: float | None) -> None:
    """Raises ValueError for a cap that is not a positive, finite number."""
    if usd is not None and not 0.0 < usd < math.inf:
        raise ValueError(f"max_cost_usd is {usd}: it must be more than 0 USD, or be left out for no cap")


class RolloutRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One slot of a campaign: the same record on the work queue and in the log."""

    rollout_id: str
    campaign: str
    task: TaskRef
    """Reference to the task, which is a blob."""
    harness: str
    model: ModelSpec
    """The model, and how it is sampled."""
    sample: int
    domain: str = DEFAULT_DOMAIN
    """Kind of work; a part of the queue's name."""
    priority: str = "normal"
    budget: Budget = Budget()
    """Limits of the agent's work."""
    timeouts: Timeouts = Timeouts()
    """Limits of each layer of the infrastructure."""
    max_tries: int = 3
    """Maximum attempts after infrastructure failures, the first included."""
    attempt_base: int = 0
    """Attempts that earlier queue entries of this rollout may have used: the attempt's number is this plus
    the deliveries."""
    failures: int = 0
    """Infrastructure failures so far, compared with `max_tries`."""
    fence: int = 0
    """Expected last sequence of the rollout's `done` subject: 0, or that of the event that reopened it."""
    memory: str | None = None
    """Memory limit that replaces the task's, after an out-of-memory kill. Sandboxes for which the task says
    another one grow in proportion."""
    replay_attempts: bool = True
    """Whether an attempt replays what an earlier one recorded."""
    published_rules: bool = False
    """Whether grading follows published benchmarks: see CampaignSpec."""
    harness_version: str | None = None
    """Version of the harness in the plan; None: it has none, or the plan is older than such versions."""
    takeover: Takeover | None = None
    """Teacher that acts from a turn on; None: the model acts alone."""
    team: str = ""
    """Team of the campaign: a part of the queue's name; empty: no team."""

    @property
    def queue(self) -> Queue:
        return Queue(domain=self.domain, priority=self.priority, team=self.team)


class CampaignState(StrEnum):
    """State that was asked for last."""

    RUNNING = "running"
    """Its requests are on the queue, or have an outcome."""
    PAUSED = "paused"
    """No new attempt starts; running ones end."""
    CANCELLED = "cancelled"
    """Rollouts that were open are aborted."""
    ARCHIVED = "archived"
    """It is closed and its events are in the archive: see `orchard.pipelines.campaigns.archiving`."""


CAMPAIGN_MOVES: dict[CampaignState, frozenset[CampaignState]] = {
    CampaignState.RUNNING: frozenset({CampaignState.PAUSED, CampaignState.CANCELLED, CampaignState.ARCHIVED}),
    CampaignState.PAUSED: frozenset({CampaignState.RUNNING, CampaignState.CANCELLED, CampaignState.ARCHIVED}),
    CampaignState.CANCELLED: frozenset({CampaignState.RUNNING, CampaignState.ARCHIVED}),
    CampaignState.ARCHIVED: frozenset({CampaignState.PAUSED}),
}
"""Permitted changes of state; any other is refused with both states named."""


class CampaignRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A campaign's key in the state bucket, written by compare-and-set on its revision."""

    spec: BlobRef
    spec_hash: str
    size: int
    state: CampaignState = CampaignState.RUNNING
    offered: int = 0
    """Requests that the queue has confirmed, in the order of `rollout_requests`: a killed submit resumes
    here."""
    queue: str = ""
    """Consumer that its requests are claimed from; empty in records of older versions."""
    rounds: int = 0
    """Times that the campaign was resumed; part of the message ids of the requests that resuming offers."""
    resumed: int | None = None
    """Rollouts that the running resume has looked at, in the same order: a killed one resumes here. None: no
    resume is running."""
    max_cost_usd: _Dollars | None = None
    """Cap on the cost of its model calls, from the plan or the last resume; None: no cap."""
    reason: str | None = None
    """Why the campaign was paused, if nobody asked for that."""
    unpriced: int | None = None
    """Model calls of unknown cost that the last resume accepted; None: none. With more of them a cap cannot
    be kept."""
    submitter: str = ""
    """User who submitted it first; empty in records of older versions."""
    team: str = ""
    """Team of its plan; empty: none."""
    planned: int | None = None
    """Rollouts that it will have when its submitter has added all tasks, so that it is not over before; None:
    `size`."""

    @property
    def whole(self) -> int:
        """Rollouts that it will have: `size`, or more while its submitter adds tasks."""
        return max(self.size, self.planned or 0)

    @property
    def reached(self) -> int:
        """Rollouts, counted in the order of the plan, that must have a request: not those that a submit or a
        resume has yet to offer."""
        return self.offered if self.resumed is None else min(self.offered, self.resumed)


def rollout_ids(spec: CampaignSpec, start: int = 0) -> Iterator[str]:
    """The ids of a campaign's rollouts in the order of `rollout_requests`, from index `start` on."""
    for slot in islice(slots(spec), start, None):
        yield _identity(spec, slot)


Slot = tuple[int, TaskRef, str, ModelSpec]
"""Sample, task, harness and model of a rollout."""


def _identity(spec: CampaignSpec, slot: Slot) -> str:
    sample, task, harness, model = slot
    return rollout_id(spec.name, task.task_id, harness, model.name, sample, spec.event_streams)


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
    sample, task, harness, model = slot
    identity = _identity(spec, slot)
    return RolloutRequest(
        rollout_id=identity,
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
        takeover=None if spec.takeover is None else spec.takeover.of(identity),
        team=spec.team,
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
    if spec.takeover is None:
        del plan["takeover"]
    if not spec.team:
        del plan["team"]
    if spec.event_streams == 1:
        del plan["event_streams"]
    return digest(msgspec.Raw(msgspec.json.encode(plan)), 32)
