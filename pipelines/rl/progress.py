"""The progress of a run, folded from its events: pure, in any number of passes, whoever published them."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from statistics import fmean

from orchard.pipelines.rl.bar import Rollout, Slot
from orchard.pipelines.rl.plan import RunPlan, stopped_rising
from orchard.schemas.campaigns import RolloutRequest
from orchard.schemas.events import Event, RolloutAborted, RolloutFinished, RolloutReopened, payload
from orchard.schemas.groups import (
    BudgetRaised,
    DropReason,
    GroupAssembled,
    GroupDropped,
    GroupMember,
    GroupOutcome,
    PolicyEvaluated,
    PolicyUpdated,
    PromptFailed,
    PromptSkipped,
)
from orchard.schemas.outcomes import ExitStatus, RolloutStatus
from orchard.schemas.protection import Protected


@dataclass
class SlotState:
    """One slot of a prompt. Outcomes are keyed by sequence, so that applying one again changes nothing."""

    rollout_id: str
    outcomes: dict[int, Rollout] = field(default_factory=dict)
    attempt: int = 0
    """Attempt of the newest outcome."""
    reopened: set[int] = field(default_factory=set)
    """Sequences of the aborted outcomes that were reopened."""
    requested: int = 0
    """Sequence of its first request."""

    @property
    def last(self) -> int:
        """Sequence of the newest outcome, 0 without one."""
        return max(self.outcomes, default=0)

    @property
    def running(self) -> bool:
        return not self.outcomes or self.last in self.reopened

    @property
    def slot(self) -> Slot:
        """The slot in the form of `bar.decide`."""
        return Slot(tried=tuple(self.outcomes[at] for at in sorted(self.outcomes)), running=self.running)


@dataclass
class RunPrompt:
    """One prompt of the run."""

    places: dict[int, SlotState] = field(default_factory=dict)
    decided: bool = False

    def pool(self, plan: RunPlan) -> list[Slot]:
        """All slots of the strides that were begun; a slot that a killed coordinator did not request is
        empty."""
        begun = plan.begun(max(self.places, default=-1) + 1)
        return [self.places[at].slot if at in self.places else Slot() for at in range(begun)]


class RunProgress:
    """The fold. `apply` accepts any event; those of other campaigns and types change nothing."""

    def __init__(self, plan: RunPlan) -> None:
        self.plan = plan
        self.prompts: dict[int, RunPrompt] = {}
        self.groups: dict[str, GroupAssembled] = {}
        """Groups to train on, by id, in the order of the log."""
        self.dropped: dict[str, GroupDropped] = {}
        self._refused: dict[str, int] = {}
        """Groups of refused steps: id to the policy version that was newest."""
        self.failed: dict[int, PromptFailed] = {}
        self.skipped: dict[int, PromptSkipped] = {}
        self.decisions: dict[int, GroupAssembled] = {}
        """Decisions by prompt, groups without members among them."""
        self.prompts_of: dict[str, list[int]] = {}
        """Prompts by task id, in the order in which they came up."""
        self.updates: dict[int, int] = {}
        """Policy version to the sequence of its event."""
        self.trained: dict[str, int] = {}
        """Group id to the policy version made from it."""
        self.version = 0
        self.scores: dict[int, float] = {}
        """Pass rate of the groups that made each policy version."""
        self.raised: BudgetRaised | None = None
        self.evaluated: dict[int, PolicyEvaluated] = {}
        """Evaluations by policy version."""

    @property
    def ready(self) -> list[GroupAssembled]:
        """Groups that wait for the trainer."""
        return [
            group
            for name, group in self.groups.items()
            if name not in self.trained and name not in self.dropped
        ]

    @property
    def undecided(self) -> list[int]:
        """Prompts that were begun and have no group yet."""
        return [number for number, prompt in self.prompts.items() if not prompt.decided]

    @property
    def in_flight(self) -> int:
        return sum(place.running for prompt in self.prompts.values() for place in prompt.places.values())

    @property
    def refused(self) -> int:
        """Groups of the steps that were refused since the newest policy."""
        return sum(version == self.version for version in self._refused.values())

    @property
    def finished(self) -> bool:
        """Whether the trainer has had all groups that the plan asks for."""
        return len(self.trained) >= self.plan.groups

    @property
    def evaluation_due(self) -> bool:
        """Whether the newest policy is to be evaluated before another one is made."""
        return self.plan.evaluates(self.version) and self.version not in self.evaluated

    @property
    def best(self) -> int | None:
        """The policy version with the highest score so far, the oldest of several; None without any."""
        scores = {one.version: one.score for one in self.evaluated.values() if one.score is not None}
        return max(sorted(scores), key=scores.__getitem__, default=None)

    def apply(self, event: Event, sequence: int) -> int | None:
        """Apply one event; returns the prompt that may have to be decided again, if any."""
        if event.campaign != self.plan.name:
            return None
        match payload(event):
            case RolloutRequest() as request if self.plan.has(request.sample, request.rollout_id):
                number, place = self._place(request.sample, request.rollout_id)
                place.requested = place.requested or sequence
                return number
            case RolloutFinished() | RolloutAborted() as outcome if self.plan.has(
                outcome.sample, event.rollout_id
            ):
                number, place = self._place(outcome.sample, event.rollout_id or "")
                place.outcomes[sequence] = as_rollout(
                    outcome, unanswered=self.plan.unanswered, untrained=self.plan.untrained
                )
                place.attempt = event.attempt or 0
                return number
            case RolloutReopened(superseded_sequence=superseded):
                return self._reopened(event.rollout_id or "", superseded)
            case GroupAssembled() as group:
                if group.outcome not in (GroupOutcome.IMPOSSIBLE, GroupOutcome.ONE_CLASS):
                    self.groups.setdefault(group.group_id, group)
                self.decisions.setdefault(group.prompt, group)
                self._prompt(group.prompt).decided = True
            case PromptFailed() as failure:
                self.failed.setdefault(failure.prompt, failure)
                self._prompt(failure.prompt).decided = True
            case PromptSkipped() as skip:
                self.skipped.setdefault(skip.prompt, skip)
                self._prompt(skip.prompt).decided = True
            case GroupDropped() as drop:
                if drop.reason is DropReason.NOT_FINITE:
                    self._refused.setdefault(drop.group_id, self.version)
                self.dropped.setdefault(drop.group_id, drop)
            case PolicyEvaluated() as evaluated:
                self.evaluated.setdefault(evaluated.version, evaluated)
            case BudgetRaised() as raised:
                self.raised = self.raised or raised
            case PolicyUpdated() as update:
                self.version = max(self.version, update.version)
                self.updates.setdefault(update.version, sequence)
                self.scores.setdefault(update.version, self.pass_rate(update.groups))
                self.trained |= dict.fromkeys(update.groups, update.version)
        return None

    def pass_rate(self, groups: Iterable[str]) -> float:
        """Pass rate over all graded rollouts of these groups' prompts, chosen or not."""
        solved = [
            rollout.resolved
            for name in groups
            if name in self.groups
            for place in self.prompts[self.groups[name].prompt].places.values()
            for rollout in place.outcomes.values()
            if rollout.reward is not None
        ]
        return sum(solved) / max(len(solved), 1)

    def resolved(self, rollouts: Collection[str]) -> set[str]:
        """Those of these graded rollouts whose grader found the task solved."""
        return {
            place.rollout_id
            for prompt in self.prompts.values()
            for place in prompt.places.values()
            if place.rollout_id in rollouts and place.outcomes and place.outcomes[place.last].resolved
        }

    def request(self, prompt: int, slot: int) -> RolloutRequest:
        """The rollout of one slot of a prompt, the same whenever it is requested."""
        raised = self.raised is not None and prompt >= self.raised.prompt
        return self.plan.request(prompt, slot, self.raised.steps if self.raised and raised else None)

    def raise_due(self) -> BudgetRaised | None:
        """The raise of the budget that is due now, if any: decided by the log alone."""
        curriculum = self.plan.curriculum
        if curriculum is None or self.raised is not None:
            return None
        scores = [self.scores[version] for version in sorted(self.scores)]
        if not stopped_rising(scores, curriculum):
            return None
        window = curriculum.window
        return BudgetRaised(
            run=self.plan.name,
            steps=curriculum.steps,
            prompt=max(self.prompts, default=-1) + 1,
            version=self.version,
            score=fmean(scores[-window:]),
            before=fmean(scores[-2 * window : -window]),
        )

    def member(self, prompt: int, slot: int) -> GroupMember:
        """A graded rollout in the form of a group's member."""
        place = self.prompts[prompt].places[slot]
        rollout = place.outcomes[place.last]
        assert rollout.reward is not None
        return GroupMember(
            rollout_id=place.rollout_id,
            attempt=place.attempt,
            reward=rollout.reward,
            status=rollout.status,
            tokens=rollout.tokens,
        )

    def labels(self, places: Iterable[tuple[int, int]]) -> dict[str, Protected]:
        """Labels of graded rollouts' rewards, by id; those without a label are missing."""
        found = {}
        for prompt, slot in places:
            place = self.prompts[prompt].places[slot]
            if label := place.outcomes[place.last].protected:
                found[place.rollout_id] = label
        return found

    def trains(self, prompt: int, slot: int) -> bool:
        """Whether a graded rollout's ending counts for training."""
        place = self.prompts[prompt].places[slot]
        return not place.outcomes[place.last].untrained

    def _place(self, sample: int, rollout_id: str) -> tuple[int, SlotState]:
        number, slot = self.plan.place_of(sample)
        return number, self._prompt(number).places.setdefault(slot, SlotState(rollout_id))

    def _prompt(self, number: int) -> RunPrompt:
        if number not in self.prompts:
            self.prompts[number] = RunPrompt()
            self.prompts_of.setdefault(self.plan.task_of(number).task_id, []).append(number)
        return self.prompts[number]

    def _reopened(self, rollout_id: str, superseded: int) -> int | None:
        for number, prompt in self.prompts.items():
            for place in prompt.places.values():
                if place.rollout_id == rollout_id:
                    place.reopened.add(superseded)
                    return number
        return None


def as_rollout(
    outcome: RolloutFinished | RolloutAborted,
    *,
    unanswered: bool = False,
    untrained: Collection[ExitStatus] = (),
) -> Rollout:
    """An outcome in the form of BAR. One that the recipe does not grade counts as aborted: it has no
    reward. So does one whose time ran out while the model owed an answer, unless `unanswered` ones
    train."""
    if isinstance(outcome, RolloutAborted):
        return Rollout(status=RolloutStatus.ABORTED, cause=outcome.cause.value)
    if outcome.exit_status is ExitStatus.UNANSWERED and not unanswered:
        return Rollout(status=RolloutStatus.ABORTED, cause=outcome.exit_status.value)
    if outcome.reward is None:
        return Rollout(status=RolloutStatus.ABORTED, cause="not_graded")
    return Rollout(
        status=outcome.status,
        tokens=outcome.completion_tokens,
        reward=outcome.reward,
        resolved=bool(outcome.resolved),
        untrained=outcome.exit_status in untrained,
        protected=outcome.protected,
    )
