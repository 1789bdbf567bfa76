"""The loss settings of a reinforcement-learning run, and the published losses by name; no torch."""

from enum import StrEnum
from typing import Any

import msgspec

from orchard.pipelines.sft.settings import TrainingError


class Ratio(StrEnum):
    """What is compared between the policy that trains and the one that sampled."""

    TOKEN = "token"
    """Each token by itself: GRPO."""
    SEQUENCE = "sequence"
    """exp of the mean log-ratio over a sequence's trained tokens, the same for all of them: GSPO."""


class Objective(StrEnum):
    """What a token's advantage multiplies."""

    CLIP = "clip"
    """The ratio, clipped where that is the worse: PPO, GRPO, GSPO."""
    CISPO = "cispo"
    """The log-probability, weighted with the clipped ratio through which no gradient flows, so that no token
    loses its gradient: https://arxiv.org/abs/2506.13585, equation 4."""
    REINFORCE = "reinforce"
    """The log-probability, unweighted."""


class Baseline(StrEnum):
    NORMALIZED = "normalized"
    """(r - mean) / (std + 1e-6): GRPO."""
    MEAN = "mean"
    """r - mean: Dr. GRPO, https://arxiv.org/abs/2503.20783."""
    LEAVE_ONE_OUT = "leave_one_out"
    """r - mean of the others: RLOO, https://arxiv.org/abs/2402.14740."""


class ImportanceLevel(StrEnum):
    """Over what the mismatch between the trainer's and the server's probabilities is multiplied."""

    TOKEN = "token"
    """A weight of its own for each token."""
    SEQUENCE = "sequence"
    """One weight for a sequence, the product over its trained tokens."""
    NONE = "none"
    """No weight."""


class KlEstimator(StrEnum):
    """Estimators of the divergence from the reference policy, with d = logp - logp_ref of a sampled token."""

    K1 = "k1"
    """Estimates by d itself."""
    K2 = "k2"
    """Estimates by half the square, d^2 / 2."""
    K3 = "k3"
    """Estimates by exp(-d) - 1 + d."""


CLIPS = {Ratio.TOKEN: (0.2, 0.28), Ratio.SEQUENCE: (3e-4, 4e-4)}
"""Defaults of `clip_low` and `clip_high`."""


class Reduction(StrEnum):
    """How token losses become one number."""

    ROLLOUT_MEAN = "rollout_mean"
    """Mean over a rollout's trained tokens, then over rollouts."""
    TOKEN_MEAN = "token_mean"
    """Mean over all trained tokens of the batch: DAPO."""
    CONSTANT_SUM = "constant_sum"
    """Sum over all trained tokens, divided by a constant that knows nothing of lengths: Dr. GRPO."""
    ROLLOUT_SUM = "rollout_sum"
    """Sum over a rollout's trained tokens, which is the log-probability of the whole; mean over rollouts:
    RLOO."""


_UNUSED: dict[str, tuple[str, ...]] = {
    Objective.CISPO: ("dual_clip",),
    Objective.REINFORCE: ("ratio", "clip_low", "clip_high", "dual_clip"),
}
"""Settings that each objective ignores, which may not be set."""


class LossSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one loss. Raises ValueError for values that make none."""

    function: str | None = None
    """Plug-in that computes it instead of the built-in `policy_loss`, from the same settings: its name, or
    `package:function`."""

    objective: Objective = Objective.CLIP
    """What a token's advantage multiplies."""
    baseline: Baseline = Baseline.NORMALIZED
    """How rewards of a group become advantages: (r - mean) / (std + 1e-6) with std over N - 1, r - mean, or
    r - the mean of the others."""
    ratio: Ratio = Ratio.TOKEN
    """What is compared between the trained and the old policy."""
    clip_low: float | None = None
    """The ratio is clipped below 1 minus this; None: 0.2 by token, 0.0003 by sequence, as GSPO has it, since
    a mean over a sequence moves less."""
    clip_high: float | None = None
    """The ratio is clipped above 1 plus this; None: 0.28 by token, 0.0004 by sequence."""
    dual_clip: float | None = None
    """c > 1: where the advantage is negative, the loss of a token is at most -c A. None: no such bound."""
    reduction: Reduction = Reduction.ROLLOUT_MEAN
    """How token losses become one number."""
    constant: float | None = None
    """Divisor of `constant_sum`, in tokens: for example rollouts of a batch times the longest answer."""
    negative: float = 1.0
    """Weight of the loss where the advantage is negative; at 0 only successes are learned from."""
    importance_limit: float | None = 2.0
    """Upper bound of exp(logp_old - logp_sampled), the weight that corrects the mismatch between the
    trainer's and the server's probabilities of the same weights (TIS). None: no such weight."""
    importance_level: ImportanceLevel = ImportanceLevel.TOKEN
    """Whether a token has a weight of its own, that of its sequence (the product over its trained tokens), or
    none."""
    importance_range: tuple[float, float] | None = None
    """Range of that weight, in place of the bound: outside, the token does not train; inside, the weight
    is unchanged (IcePop, https://arxiv.org/abs/2510.18855, with [0.5, 5])."""
    divergence_limit: float | None = None
    """Limit of divergence in nats a token. A sequence with a negative advantage does not train where the
    mean of logp_sampled - logp over its trained tokens is above this: it comes from another policy
    (off-policy masking, https://arxiv.org/abs/2512.02556)."""
    kl: float = 0.0
    """Weight of the divergence from the reference, which is the policy that the run started from; 0: none."""
    kl_estimator: KlEstimator = KlEstimator.K3
    """How that divergence is estimated."""
    entropy: float = 0.0
    """Weight of an entropy bonus, in nats a trained token; 0: none."""

    @property
    def clips(self) -> tuple[float, float]:
        low, high = CLIPS[self.ratio]
        return low if self.clip_low is None else self.clip_low, (
            high if self.clip_high is None else self.clip_high
        )

    def __post_init__(self) -> None:
        low, high = self.clips
        if not 0 <= low <= 1 or high < 0:
            raise ValueError(f"clip_low {low:g} must lie in [0, 1], clip_high {high:g} be 0 or more")
        if self.dual_clip is not None and self.dual_clip <= 1:
            raise ValueError(f"dual_clip {self.dual_clip:g} must be above 1, or left out")
        if self.negative < 0:
            raise ValueError(f"negative {self.negative:g} must be 0 or more")
        if self.importance_limit is not None and self.importance_limit <= 0:
            raise ValueError(
                f"importance_limit {self.importance_limit:g} must be above 0; without such a weight set "
                'importance_level = "none"'
            )
        if self.reduction is Reduction.CONSTANT_SUM and self.constant is None:
            raise ValueError(
                "the reduction constant_sum, as of dr-grpo, divides by `constant`, in tokens: set it, for "
                "example to the rollouts of a batch times the longest answer, as in "
                '{ recipe = "dr-grpo", constant = 524288 }'
            )
        if self.reduction is not Reduction.CONSTANT_SUM and self.constant is not None:
            raise ValueError(
                f"`constant` belongs to the reduction constant_sum and this is {self.reduction}: leave it out"
            )
        names = _UNUSED.get(self.objective, ())
        unused = [name for name in names if getattr(self, name) not in (None, Ratio.TOKEN)]
        if unused and self.function is None:
            raise ValueError(f"the objective {self.objective} does not use {', '.join(unused)}: leave it out")
        if (span := self.importance_range) is not None and not 0 <= span[0] < span[1]:
            raise ValueError(f"importance_range {list(span)} must be two rising numbers of 0 or more")
        if self.importance_level is ImportanceLevel.NONE and self.importance_range is not None:
            raise ValueError("importance_range bounds a weight and importance_level is none: leave one out")
        if self.kl < 0 or (self.divergence_limit or 0) < 0 or self.entropy < 0:
            raise ValueError("kl, divergence_limit and entropy must be 0 or more")
        if self.constant is not None and self.constant <= 0:
            raise ValueError(f"constant {self.constant:g} must be above 0")


RECIPES: dict[str, dict[str, Any]] = {
    "grpo": {"clip_low": 0.2, "clip_high": 0.2},
    "dapo": {"clip_low": 0.2, "clip_high": 0.28, "reduction": "token_mean"},
    "gspo": {"ratio": "sequence"},
    "dr-grpo": {"clip_low": 0.2, "clip_high": 0.2, "baseline": "mean", "reduction": "constant_sum"},
    "rloo": {"objective": "reinforce", "baseline": "leave_one_out", "reduction": "rollout_sum"},
    "cispo": {"objective": "cispo", "clip_low": 1.0, "clip_high": 4.0, "reduction": "token_mean"},
    "icepop": {"clip_low": 0.2, "clip_high": 0.28, "importance_range": [0.5, 5.0]},
}
"""Published losses; `loss = "cispo"` or `loss = { recipe = "cispo", ... }` in the file, other keys win."""


def with_recipe(given: Any, preset: dict[str, Any] | None = None) -> Any:
    """The keys of a loss, over those of the recipe it names, as far as their objective uses these, or else
    over those of the preset. Raises TrainingError for a recipe that is unknown, or whose clips do not fit the
    keys."""
    if isinstance(given, str):
        given = {"recipe": given}
    if not isinstance(given, dict):
        return given
    keys = dict(given)
    if "recipe" not in keys:
        under = dict(preset or {})
        if "reduction" in keys:
            under.pop("constant", None)  # it belongs to the preset's reduction
        if "ratio" in keys:
            under = {key: value for key, value in under.items() if key not in ("clip_low", "clip_high")}
        return under | keys
    if (name := keys.pop("recipe")) not in [*RECIPES]:
        raise TrainingError(f"no loss is named {name!r}: choose one of {', '.join(RECIPES)}")
    unused = _UNUSED.get(str(keys.get("objective")), ())
    recipe = {key: value for key, value in RECIPES[name].items() if key not in unused}
    clips = {"clip_low", "clip_high"}
    if "clip_low" in recipe and keys.get("ratio") == Ratio.SEQUENCE and not clips <= keys.keys():
        raise TrainingError(
            f"the clips of the loss {name!r} are for ratios of single tokens: set `clip_low` and `clip_high` "
            'too, or choose "gspo"'
        )
    return recipe | keys


def told_loss(settings: LossSettings) -> dict[str, Any]:
    """The loss in a run's hash: clips as they hold, and settings younger than stored runs only where they
    are not the default."""
    told: dict[str, Any] = msgspec.to_builtins(settings)
    told["clip_low"], told["clip_high"] = settings.clips
    default = msgspec.to_builtins(LossSettings())
    young = (
        "function",
        "objective",
        "baseline",
        "importance_range",
        "divergence_limit",
        "kl",
        "kl_estimator",
        "importance_level",
        "entropy",
    )
    return {name: value for name, value in told.items() if name not in young or value != default[name]}
