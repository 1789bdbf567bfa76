"""Configuration of a reinforcement-learning run; importable without torch."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import msgspec

from orchard.pipelines.domain import presets
from orchard.pipelines.rl.bar import BarSettings
from orchard.pipelines.rl.baselines import Overlong
from orchard.pipelines.rl.distillation import Distillation, RunObjective
from orchard.pipelines.rl.frugal import FrugalSettings
from orchard.pipelines.rl.loss_settings import LossSettings, told_loss, with_recipe
from orchard.pipelines.rl.plan import StepCurriculum
from orchard.pipelines.rl.turn_rewards import ProcessReward
from orchard.pipelines.sft.settings import (
    Count,
    Fraction,
    NonEmpty,
    Optimization,
    Positive,
    Tokens,
    TrainingError,
    converted,
    of_file,
    over_preset,
    told_lora,
)
from orchard.pipelines.tasks.errors import TaskError
from orchard.pipelines.tasks.held_out import HeldOut, listed
from orchard.pipelines.tasks.task_set import TaskSet
from orchard.schemas.campaigns import DEFAULT_DOMAIN, Budget, Timeouts
from orchard.schemas.identity import digest
from orchard.schemas.outcomes import ExitStatus
from orchard.schemas.protection import Protected
from orchard.schemas.quantities import Unit


class TaskPool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which tasks are prompts; an empty list means all."""

    sources: tuple[str, ...] = ()
    """Sources of the tasks that are prompts."""
    ids: tuple[str, ...] = ()
    """Patterns over task ids, for example `repair-train-*`."""
    measured_in: str | None = None
    """Campaign whose graded rollouts say how hard a task is; tasks that it did not try are left out."""
    above: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    """Keep tasks with a pass rate above this."""
    at_most: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.5
    """Keep tasks with a pass rate of at most this."""
    measured_rollouts: Annotated[Count, Unit("rollouts")] = 1
    """Keep tasks with at least this many graded rollouts there; the paper takes eight."""
    measured_models: tuple[str, ...] = ()
    """Models whose rollouts there count; an empty list means all."""
    exclude: tuple[str, ...] = ()
    """Patterns over task ids and repositories that are never prompts; `@FILE` reads patterns from a file
    beside the settings."""
    held_out: HeldOut = HeldOut()
    """Evaluation tasks, which are no prompts, nor are those that are nearly the same."""
    unproven: bool = False
    """Take tasks that `orchard tasks validate` has not proven, too; rejected ones never."""
    min_protected: Protected | None = None
    """Take tasks with at least this label: `value`, `echo`, `bit` or `inside`, as which a task without a
    label counts; None: all."""
    allow_forgeable: bool = False
    """Begin a run on tasks with the label `forgeable`, too: a forger got a +1 when they were validated."""
    per_repo: Count | None = None
    """Maximum tasks per repository; None: all."""
    limit: Count | None = None
    """Maximum tasks; None: all."""
    seed: int = 0
    """Seed of the draw that `per_repo` and `limit` make."""


BY_PASS_RATE = ("above", "at_most", "measured_rollouts", "measured_models")
"""Settings of the pool that act only with `measured_in`."""


class EngineKind(StrEnum):
    """The program that serves the policy."""

    ORCHARD = "orchard"
    """`orchard serve-policy`, which `orchard rl` starts where the endpoint is on this machine."""
    SGLANG = "sglang"
    VLLM = "vllm"


class RouterReplay(StrEnum):
    """Where the experts come from that the routers of a mixture choose in training."""

    UPDATES = "updates"
    """From the weights before the step, in all of its updates. `true` means the same."""
    ROLLOUT = "rollout"
    """From the engine, which chose them at the rollout."""


class RlSettings(Optimization, frozen=True, kw_only=True, forbid_unknown_fields=True):
    run: str
    """Name of the run, and of the campaign of its rollouts."""
    model: str
    """Hugging Face directory to start from: what `orchard sft` wrote."""
    out: NonEmpty
    """Directory of checkpoints, policies and metrics."""
    tasks: TaskPool = TaskPool()
    impossible: Annotated[float, msgspec.Meta(ge=0, le=0.9)] = 0.0
    """Share of prompts that are impossible tasks, which `orchard tasks impossible` makes: they measure how
    often each policy cheats, and none is trained on."""
    hack_limit: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.05
    """The run warns of a policy that passes significantly more than this share of them."""
    eval_every: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Interval, in policy versions, of evaluations on `eval_tasks`, from version 0 on; the last version is
    evaluated too. 0: none. The trainer waits meanwhile."""
    eval_tasks: tuple[TaskSet, ...] = ()
    """Held-out tasks of these evaluations; neither they nor nearly equal tasks are prompts."""
    eval_samples: Annotated[Count, Unit("rollouts")] = 1
    """Rollouts of each held-out task."""
    harness: str = "orchard-bash"
    """Name of the harness of the rollouts."""
    endpoint: str = "policy"
    """Endpoint of the configuration at which the workers find the policy server."""
    served_as: str = "policy"
    """Model name at that endpoint."""
    engine: EngineKind = EngineKind.ORCHARD
    """The program behind the endpoint: it is given each new policy, and asked which one it serves before
    rollouts."""
    bar: BarSettings = BarSettings()
    frugal: FrugalSettings | None = None
    """Frugal sampling, in place of `bar`; `method = "frugal"` sets it."""
    keep_degenerate: bool = False
    """Train on groups of one class too, with advantages of zero: GRPO with fixed N."""
    unanswered: bool = False
    """Train on rollouts whose time ran out while an answer of the policy's server was outstanding. Otherwise
    they count as aborted, since a busy server is not the policy's fault."""
    untrained: tuple[ExitStatus, ...] = ()
    """Exit statuses that do not train: such rollouts are taken into a group last, and are left out of its
    batch."""
    objective: RunObjective = RunObjective.REWARD
    """What the policy learns from: `reward`, or `distill`, which needs a teacher in `distill`."""
    distill: Distillation | None = None
    """Teacher of `objective = "distill"`, as in `{ teacher = "NAME" }`."""
    process: ProcessReward | None = None
    """Rewards of turns by rubrics, as in `{ teacher = "teacher", model = "judge" }`; None: none."""
    overlong: Overlong | None = None
    """Penalty of long answers, as in `{ limit = 32768, buffer = 8192 }`; None: none."""
    loss: LossSettings = LossSettings()
    prompts_per_step: Annotated[Count, Unit("groups")] = 16
    """Groups in one optimizer step."""
    steps: Count = 150
    """Optimizer steps of the run."""
    updates: Count = 1
    """Optimizer updates from the rollouts of one step."""
    router_replay: RouterReplay | None = None
    """Experts of a mixture of experts in training: `updates`, as the weights before the step choose them;
    `rollout`, as the engine chose them at the rollout; None: as the trained weights choose them."""
    ahead: Annotated[int, msgspec.Meta(ge=0)] = 1
    """Number of later steps whose rollouts may run while one trains."""
    oversample: Annotated[float, msgspec.Meta(ge=1)] = 1.25
    """Requested groups, as a multiple of those that a step needs."""
    max_in_flight: Count = 512
    """Maximum rollouts requested at once."""
    patience: Annotated[Count, Unit("rollouts")] | None = None
    """Rollouts without a group to learn from after which `orchard rl` stops, for example because the policy
    never succeeds; None: the maximum that ten steps request."""
    staleness: Annotated[int, msgspec.Meta(ge=0)] = 2
    """Maximum number of policy versions that a group's oldest token may be behind."""

    lr: Positive = 1e-6
    """Peak learning rate."""
    beta2: Fraction = 0.98
    """Decay of the mean of the squared gradient in AdamW."""

    activation_checkpointing: bool = False
    """Compute activations again in the backward pass, to save memory."""

    max_tokens: Tokens = 4096
    """Maximum tokens of one answer."""
    temperature: Positive = 1.0
    """Sampling temperature of the policy; the probabilities at this temperature train."""
    budget: Budget = Budget()
    curriculum: StepCurriculum | None = None
    """Steps of a rollout once the pass rate stops rising under `budget.steps`, as in `{ steps = 30 }`."""
    timeouts: Timeouts = Timeouts()
    max_tries: Count = 3
    """Maximum attempts of a rollout after infrastructure failures."""
    domain: str = DEFAULT_DOMAIN
    """Kind of work, a part of the name of the queue."""
    priority: str = "normal"
    """Priority of the requests in the queue."""
    team: str = ""
    """Team whose share of the slots the rollouts have, of `[teams]`; empty: that of the user who begins the
    run."""
    keep_policies: Count = 1
    """Number of newest policies that are kept on disk; policies that may still sample rollouts are always
    kept."""

    @property
    def outcome_weight(self) -> float:
        """Weight of the outcome's advantage: 0 where a teacher alone decides."""
        return 1.0 if self.distill is None else self.distill.reward


METHODS: dict[str, bool] = {"fixed": True, "dynamic": False, "frugal": False}
"""Methods without an interval of positive shares, which TOML cannot express, and whether they keep groups
of one class: GRPO with fixed N, dynamic sampling, and frugal sampling."""


def settings_from(tree: dict[str, Any]) -> RlSettings:
    """Settings from decoded TOML, over the preset it names; `method = "fixed"`, `"dynamic"` or `"frugal"`
    makes other groups than balanced ones. Raises TrainingError."""
    known = presets(lambda domain: domain.rl_preset)
    known = {"paper": known[DEFAULT_DOMAIN], **known}
    given, preset = over_preset(tree, known), known.get(tree.get("preset", ""), {})
    distills = given.get("objective") == RunObjective.DISTILL
    method, methods = given.pop("method", "fixed" if distills else "bar"), ("bar", *METHODS)
    if method not in methods:
        raise TrainingError(f"no method is named {method!r}: choose one of {', '.join(methods)}")
    if method in METHODS:
        keeps = METHODS[method]
        if tree.get("keep_degenerate", keeps) is not keeps:
            raise TrainingError(
                f"the method {method!r} {'keeps' if keeps else 'drops'} groups of one class: leave "
                "`keep_degenerate` out, or set another `method`"
            )
        given["keep_degenerate"] = keeps
    if method == "frugal":
        given["frugal"] = given.get("frugal", {})
    given["bar"] = _groups(tree, preset.get("bar", {}), method)
    if given["bar"].get("interval", ()) is not None and "keep_degenerate" not in tree:
        given["keep_degenerate"] = False  # a preset's, of groups of N as they come
    if given.get("engine") == EngineKind.SGLANG and given.get("lora") is not None:
        raise TrainingError("SGLang takes whole policies: leave `lora` out, or serve with vLLM")
    given["router_replay"] = _replay(given.get("router_replay"))
    given["loss"] = with_recipe(tree.get("loss", {}), preset.get("loss", {}))
    settings = converted(given, RlSettings)
    _check_objective(settings)
    _check_overlong(settings)
    by_rate = [name for name in BY_PASS_RATE if name in tree.get("tasks", {})]
    if by_rate and settings.tasks.measured_in is None:
        raise TrainingError(
            f"`tasks.{by_rate[0]}` chooses by pass rate, and no campaign says what that is: name one in "
            f"`tasks.measured_in`, or leave `tasks.{by_rate[0]}` out"
        )
    if (settings.frugal is not None) != (method == "frugal"):
        raise TrainingError(
            'the table `frugal` belongs to `method = "frugal"`: set it, or leave the table out'
        )
    if settings.router_replay is RouterReplay.UPDATES and settings.updates == 1:
        raise TrainingError(
            '`router_replay = "updates"` acts in a step\'s later updates, and `updates` is 1: raise it, or '
            "set another `router_replay`"
        )
    if bool(settings.eval_every) != bool(settings.eval_tasks):
        raise TrainingError("`eval_every` and `eval_tasks` belong together: set both, or neither")
    if settings.frugal is not None and settings.frugal.reuse > settings.staleness:
        raise TrainingError(
            f"frugal.reuse is {settings.frugal.reuse} policy versions, and groups more than `staleness`, "
            f"{settings.staleness}, old are dropped: lower it"
        )
    return settings


def _replay(given: Any) -> Any:
    """The name of what `router_replay` was when it was true or false."""
    if isinstance(given, bool):
        return RouterReplay.UPDATES if given else None
    return given


def _check_overlong(settings: RlSettings) -> None:
    """Raises TrainingError for a penalty that no rollout can get."""
    overlong = settings.overlong
    steps = settings.budget.steps if settings.curriculum is None else settings.curriculum.steps
    if overlong is None or not steps:
        return
    start, most = overlong.limit - overlong.buffer, steps * settings.max_tokens
    if start >= most:
        raise TrainingError(
            f"`overlong` acts from {start:,} tokens on, and the policy says at most {most:,} in a rollout "
            f"({steps} answers of `max_tokens`): lower `overlong.limit`, or leave `overlong` out"
        )


def _check_objective(settings: RlSettings) -> None:
    """Raises TrainingError for a teacher without its objective, an objective without its teacher, and keys
    that do not go with it."""
    distills, distill = settings.objective is RunObjective.DISTILL, settings.distill
    if distills and distill is None:
        raise TrainingError('objective = "distill" needs a teacher: add distill = { teacher = "NAME" }')
    if distill is None:
        return
    if not distills:
        raise TrainingError('`distill` belongs to objective = "distill": set it, or leave the table out')
    if settings.temperature != 1.0:
        raise TrainingError(
            f"teachers score at temperature 1, and `temperature` is {settings.temperature:g}: set it to 1.0 "
            'with objective = "distill"'
        )
    unused = [name for name in ("process", "overlong") if getattr(settings, name) is not None]
    if unused and not distill.reward:
        raise TrainingError(
            f"`{unused[0]}` changes the outcome's advantage, and `distill.reward` is 0: leave it out, or "
            "give `distill.reward` a weight"
        )


def _groups(tree: dict[str, Any], preset: dict[str, Any], method: str) -> dict[str, Any]:
    """The table `bar` of a file over that of its preset, as the method has it. Raises TrainingError."""
    own = tree.get("bar", {})
    if not isinstance(own, dict):
        raise TrainingError(f"`bar` is {own!r}: write a table, such as {{ size = 8 }}")
    if method == "frugal" and own:
        raise TrainingError(
            "the method 'frugal' does not use the table `bar`: leave it out, the sizes are in `frugal`"
        )
    if method in METHODS and own.get("interval") is not None:
        raise TrainingError(f'the method {method!r} has no `bar.interval`: leave it out, or set "bar"')
    bar = preset | own
    if method in ("fixed", "dynamic"):
        bar["interval"] = None
    elif method == "bar" and preset.get("interval", ()) is None and ("method" in tree or "interval" in own):
        bar = {"size": preset["size"]} | own  # the preset's budget is that of N as they come
    if bar.get("interval", ()) is None:  # the first N rollouts are the group
        budget = own.get("budget", bar.get("size", BarSettings().size))
        bar |= {"budget": budget, "stride": own.get("stride")}
    return bar


def read_settings(file: Path) -> RlSettings:
    """The settings of a TOML file. Raises TrainingError."""
    made = of_file(file, settings_from)
    try:
        exclude = listed(made.tasks.exclude, file.parent)
    except TaskError as error:
        raise TrainingError(f"{file}: tasks.exclude: {error}") from error
    return msgspec.structs.replace(made, tasks=msgspec.structs.replace(made.tasks, exclude=exclude))


_YOUNGER = (
    "measured_rollouts",
    "measured_models",
    "exclude",
    "held_out",
    "unproven",
    "min_protected",
    "allow_forgeable",
    "per_repo",
    "seed",
)
"""Settings of the pool that are younger than stored runs, whose hash they leave as it is."""


def settings_hash(settings: RlSettings) -> str:
    """32 hexadecimal digits over the settings that the result depends on: not over paths, threads, what
    is kept and when a run stops."""
    told = msgspec.to_builtins(
        msgspec.structs.replace(settings, out="", threads=0, keep_checkpoints=1, keep_policies=1)
    )
    for name in ("hack_limit", "patience", "eval_every", "eval_tasks", "eval_samples"):
        del told[name]  # what only measures
    # What holds counts, not whether it was written out: runs of before keep their hash.
    told["loss"], told["lora"] = told_loss(settings.loss), told_lora(settings.lora)
    if settings.bar.max_aborts is None:
        told["bar"]["max_aborts"] = 4
    if not settings.impossible:
        del told["impossible"]  # runs of before there was such a share keep their hash
    if settings.harness == "orchard-bash":
        told["harness"] = "mini-swe-agent"  # its name in runs of before; the plan tells the two apart
    for name, default in msgspec.to_builtins(TaskPool()).items():
        if name in _YOUNGER and told["tasks"][name] == default:
            del told["tasks"][name]
    # Settings that are younger than stored runs count only where they are not the default.
    for name in ("lora", "pack_tokens", "unanswered", "untrained", "overlong", "router_replay"):
        if not told[name]:
            del told[name]
    if settings.router_replay is RouterReplay.UPDATES:
        told["router_replay"] = True  # as in runs of before it had names
    if settings.compile is None:
        del told["compile"]
    del told["engine"], told["team"]  # who samples, in whose slots, does not change what is made of it
    if not settings.activation_checkpointing:
        del told["activation_checkpointing"]
    if settings.frugal is None:
        del told["frugal"]
    if settings.process is None:
        del told["process"]
    if settings.distill is None:
        del told["objective"], told["distill"]
    else:
        for name in ("endpoint", "wire", "batch_tokens"):  # how the teacher is asked
            del told["distill"][name]
    return digest(told, 32)
