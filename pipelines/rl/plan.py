"""The plan of a reinforcement-learning run: which prompts, in which order, how far ahead of the trainer."""

import random
from collections.abc import Sequence
from functools import lru_cache
from math import ceil, floor
from statistics import fmean
from typing import Annotated

import msgspec

from orchard.pipelines.rl.bar import BarSettings
from orchard.pipelines.rl.baselines import Overlong
from orchard.pipelines.rl.frugal import FrugalSettings
from orchard.pipelines.rl.loss_settings import Baseline
from orchard.schemas.campaigns import DEFAULT_DOMAIN, Budget, ModelSpec, RolloutRequest, TaskRef, Timeouts
from orchard.schemas.identity import check_name, digest, rollout_id
from orchard.schemas.outcomes import ExitStatus

Count = Annotated[int, msgspec.Meta(ge=1)]


class StepCurriculum(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When rollouts may take more steps than the run's `budget.steps`, with which it begins."""

    steps: Count
    """Maximum steps of a rollout from then on."""
    window: Count = 10
    """Optimizer steps over which the score is averaged."""
    rise: Annotated[float, msgspec.Meta(ge=0)] = 0.01
    """The score rises while one window's mean is more than this above that of the window before."""


def stopped_rising(scores: Sequence[float], settings: StepCurriculum) -> bool:
    """Whether the newest window of scores is no better than the one before; False while there are too few."""
    if len(scores) < 2 * settings.window:
        return False
    newest, before = scores[-settings.window :], scores[-2 * settings.window : -settings.window]
    return fmean(newest) <= fmean(before) + settings.rise


class RunPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that decides which rollouts a run requests. Its rollouts are those of the campaign
    `name`."""

    name: str
    tasks: tuple[TaskRef, ...]
    impossible: Annotated[float, msgspec.Meta(ge=0, le=0.9)] = 0.0
    """Share of prompts that are impossible tasks: they measure cheating, and none is trained on."""
    traps: tuple[TaskRef, ...] = ()
    harness: str
    model: ModelSpec
    bar: BarSettings = BarSettings()
    keep_degenerate: bool = False
    """Hand groups of one class to the trainer too: GRPO with fixed N. False drops and replaces them."""
    prompts_per_step: Count = 16
    steps: Count = 150
    ahead: Annotated[int, msgspec.Meta(ge=0)] = 1
    """Steps whose groups may be made while one trains; 0 waits for the trainer."""
    oversample: Annotated[float, msgspec.Meta(ge=1)] = 1.25
    """Prompts open for each missing group: some groups will be dropped."""
    max_in_flight: Count = 512
    """Rollouts requested and not finished, at most."""
    seed: int = 0
    domain: str = DEFAULT_DOMAIN
    priority: str = "normal"
    team: str = ""
    budget: Budget = Budget()
    curriculum: StepCurriculum | None = None
    timeouts: Timeouts = Timeouts()
    max_tries: int = 3
    harness_version: str | None = None
    """Version of the harness, None for one without versions."""
    frugal: FrugalSettings | None = None
    """Frugal sampling, in place of `bar`."""
    unanswered: bool = False
    """Train on rollouts whose time ran out while the model owed an answer. Otherwise they count as
    aborted."""
    untrained: tuple[ExitStatus, ...] = ()
    """Endings whose rollouts come last into a group, and are left out of its batch."""
    baseline: Baseline | None = None
    """The trainer's baseline, for exports; None in plans that are older than this field."""
    overlong: Overlong | None = None
    """The trainer's penalty of long answers, for exports."""
    held_out: tuple[TaskRef, ...] = ()
    """Tasks on which policy versions are evaluated."""
    eval_every: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Each so many-th policy version is evaluated, from version 0 on, and the last one; 0: none."""
    eval_samples: Count = 1
    """Rollouts of each held-out task."""

    def __post_init__(self) -> None:
        check_name(self.name)
        check_name(self.domain, "domain")
        check_name(self.priority, "priority")
        if self.team:
            check_name(self.team, "team")
        if not self.tasks:
            raise ValueError("a run needs at least one task")
        if (self.impossible > 0) != bool(self.traps):
            raise ValueError(
                "`impossible`, a share, and `traps`, the impossible tasks, must be given together"
            )
        if (self.eval_every > 0) != bool(self.held_out):
            raise ValueError("`eval_every` and `eval_tasks`, the held-out tasks, must be given together")
        if self.eval_every:
            check_name(self.eval_campaign(self.steps), "evaluation")
        if self.max_in_flight < self.first:
            raise ValueError(
                f"max_in_flight is {self.max_in_flight}: a stride is {self.first} rollouts, and all of "
                "one must fit"
            )
        if self.frugal is not None and self.keep_degenerate:
            raise ValueError("frugal sampling has no groups of one class to keep")
        if self.curriculum is not None and not 0 < self.budget.steps < self.curriculum.steps:
            raise ValueError(
                f"a curriculum raises the budget of {self.budget.steps} steps: to more than that, and not "
                "from 0, which is no limit"
            )

    @property
    def groups(self) -> int:
        """Number of groups that the whole run trains on."""
        return self.prompts_per_step * self.steps

    @property
    def method(self) -> str:
        """Name of the method: `frugal`, `bar`, `fixed` (GRPO) or `dynamic` sampling (DAPO)."""
        if self.frugal is not None:
            return "frugal"
        if self.bar.interval is not None:
            return "bar"
        return "fixed" if self.keep_degenerate else "dynamic"

    @property
    def first(self) -> int:
        """Rollouts of a prompt's first stride."""
        return self.frugal.least if self.frugal is not None else self.bar.step

    @property
    def slots(self) -> int:
        """Maximum rollouts of a prompt."""
        return self.frugal.most if self.frugal is not None else self.bar.budget

    @property
    def least_members(self) -> int:
        """Minimum members of a group."""
        return self.frugal.least if self.frugal is not None else self.bar.size

    def begun(self, slots: int) -> int:
        """Slots of all strides that were begun when `slots` slots were requested."""
        later = self.frugal.stride if self.frugal is not None else self.first
        return self.first + max(0, -(-(slots - self.first) // later)) * later if slots else 0

    def task_of(self, prompt: int) -> TaskRef:
        """The task of a prompt: every pass goes through all tasks in an order of its own. So do the
        prompts of impossible tasks, which come at even distances."""
        traps = self._traps_before(prompt)
        tasks, number = (self.traps, traps) if self.is_trap(prompt) else (self.tasks, prompt - traps)
        turn, place = divmod(number, len(tasks))
        return tasks[_order(self.seed, turn, len(tasks))[place]]

    def is_trap(self, prompt: int) -> bool:
        """Whether the prompt's task is an impossible one."""
        return self._traps_before(prompt + 1) > self._traps_before(prompt)

    def _traps_before(self, prompt: int) -> int:
        return floor(prompt * self.impossible)

    def request(self, prompt: int, slot: int, steps: int | None = None) -> RolloutRequest:
        """The rollout of one slot of a prompt; `steps` where its budget is not the one of the plan."""
        return self._request(self.name, self.task_of(prompt), self.sample_of(prompt, slot), steps)

    def _request(self, campaign: str, task: TaskRef, sample: int, steps: int | None) -> RolloutRequest:
        budget = self.budget if steps is None else msgspec.structs.replace(self.budget, steps=steps)
        return RolloutRequest(
            rollout_id=rollout_id(campaign, task.task_id, self.harness, self.model.name, sample),
            campaign=campaign,
            task=task,
            harness=self.harness,
            model=self.model,
            sample=sample,
            domain=self.domain,
            priority=self.priority,
            team=self.team,
            budget=budget,
            timeouts=self.timeouts,
            max_tries=self.max_tries,
            harness_version=self.harness_version,
        )

    def evaluates(self, version: int) -> bool:
        """Whether a policy version is evaluated."""
        return self.eval_every > 0 and (version % self.eval_every == 0 or version == self.steps)

    def eval_campaign(self, version: int) -> str:
        return f"{self.name}-v{version}"

    def is_evaluation(self, campaign: str) -> bool:
        version = campaign.removeprefix(f"{self.name}-v")
        return version != campaign and version.isdecimal() and self.evaluates(int(version))

    def eval_requests(self, version: int) -> list[RolloutRequest]:
        """The rollouts that evaluate a policy version, with the steps of the run's end where a curriculum
        raises them, so that all versions have the same."""
        campaign = self.eval_campaign(version)
        steps = self.budget.steps if self.curriculum is None else self.curriculum.steps
        return [
            self._request(campaign, task, sample, steps)
            for task in self.held_out
            for sample in range(self.eval_samples)
        ]

    def has(self, sample: int, rollout: str | None) -> bool:
        """Whether a rollout of that id is the run's sample of that index."""
        return sample >= 0 and rollout == self.request(*self.place_of(sample)).rollout_id

    def sample_of(self, prompt: int, slot: int) -> int:
        """The sample index of a slot in the campaign."""
        return prompt * self.slots + slot

    def place_of(self, sample: int) -> tuple[int, int]:
        """Prompt and slot of a sample index."""
        return divmod(sample, self.slots)

    def prompts_to_open(self, *, trained: int, ready: int, undecided: int, in_flight: int) -> int:
        """Number of prompts to open now: back-pressure from the trainer, bounded in flight.

        `trained` and `ready` are groups (used; waiting for the trainer), `undecided` prompts,
        `in_flight` rollouts.
        """
        wanted = min(self.prompts_per_step * (1 + self.ahead), self.groups - trained) - ready
        opening = ceil(max(wanted, 0) * self.oversample) - undecided
        room = (self.max_in_flight - in_flight) // self.first
        return max(0, min(opening, room))


def plan_hash(plan: RunPlan) -> str:
    """32 hexadecimal digits over what decides which rollouts a run requests. A field that is younger than
    stored plans counts only where it is not the default, so that a plan keeps its hash."""
    built = msgspec.to_builtins(plan, order="deterministic")
    del built["baseline"], built["overlong"]
    if plan.harness_version is None:
        del built["harness_version"]
    if plan.frugal is None:
        del built["frugal"]
    if not plan.eval_every:
        del built["held_out"], built["eval_every"], built["eval_samples"]
    for name in ("unanswered", "untrained", "team"):
        if not built[name]:
            del built[name]
    return digest(msgspec.Raw(msgspec.json.encode(built)), 32)


@lru_cache(maxsize=64)
def _order(seed: int, turn: int, tasks: int) -> tuple[int, ...]:
    order = list(range(tasks))
    random.Random(f"{seed}:{turn}").shuffle(order)
    return tuple(order)
