"""How much a group teaches, and how much the next rollouts of a prompt are expected to.

The information of a group with k positives among n rewards is k (n - k) / n, its sum of squares of centred
rewards of 0 and 1. Read as one decision with chance p of success, a rollout's score is (r - p) times the
gradient of the log-odds, so the group's centred policy gradient is exactly k (n - k) / n times that gradient:
the measure is how far a group moves its prompt's log-odds. A group of one class has none. n rollouts of a
prompt have (n - 1) p (1 - p) on average: p (1 - p) is what the literature calls learnability, and what bounds
the expected improvement of a policy from below (Bae et al. 2025, arXiv:2504.03380, cited by the paper;
Rutherford et al. 2024, arXiv:2408.15099). It is of what GRPO starts from: dividing by the group's standard
deviation changes how groups weigh against each other.
"""

from collections.abc import Iterator
from math import exp, lgamma

import msgspec


class Posterior(msgspec.Struct, frozen=True, kw_only=True):
    """Beta(alpha, beta) over a prompt's pass rate."""

    alpha: float
    beta: float

    @property
    def mean(self) -> float:
        return self.alpha / (self.alpha + self.beta)

    @property
    def learnability(self) -> float:
        weight = self.alpha + self.beta
        return self.alpha * self.beta / (weight * (weight + 1))

    def after(self, positive: int, negative: int) -> "Posterior":
        """The posterior with this many more graded rollouts."""
        return Posterior(alpha=self.alpha + positive, beta=self.beta + negative)

    def predictive(self, rollouts: int) -> Iterator[tuple[int, float]]:
        """Yield each number of positives among the next `rollouts` with its chance: the beta-binomial."""
        for positive in range(rollouts + 1):
            yield positive, exp(beta_binomial(self, positive, rollouts))


def beta_binomial(belief: Posterior, positive: int, rollouts: int) -> float:
    """Logarithm of the chance that `positive` of `rollouts` succeed."""
    negative = rollouts - positive
    ways = lgamma(rollouts + 1) - lgamma(positive + 1) - lgamma(negative + 1)
    chosen = _log_beta(belief.alpha + positive, belief.beta + negative)
    return ways + chosen - _log_beta(belief.alpha, belief.beta)


def information(positive: int, size: int) -> float:
    """Information of a group, in units of the gradient of its prompt's log-odds; 0 for an empty one."""
    return positive * (size - positive) / size if size else 0.0


def expected_gain(posterior: Posterior, positive: int, size: int, more: int) -> float:
    """Information that `more` rollouts are expected to add to a group of `size`, for each of them.

    `posterior` knows the rewards of the group already.
    """
    later = sum(
        chance * information(positive + further, size + more)
        for further, chance in posterior.predictive(more)
    )
    return (later - information(positive, size)) / more


def _log_beta(first: float, second: float) -> float:
    return lgamma(first) + lgamma(second) - lgamma(first + second)
