"""Measures how far a judge agrees with graders that know the truth: confusion, and Cohen's kappa with its
interval."""

from collections.abc import Sequence
from typing import NamedTuple

import duckdb
import msgspec
import numpy as np
import numpy.typing as npt

from orchard.workers.domains.gui.judging import OUTCOME

RESAMPLES = 2_000

_PAIRS = """
with ruled as (
    select * from judgements where name = $name and passed is not null and calls > 0
    qualify row_number() over (
        partition by rollout_id, protocol, prompt_hash, model order by sequence desc
    ) = 1
)
select j.protocol, j.prompt_hash, j.model, r.task_id, w.resolved, j.passed
from ruled j
join rollouts r on r.rollout_id = j.rollout_id
join rewards w on w.rollout_id = j.rollout_id
where r.campaign = $campaign and w.judge is null and w.grader <> 'not-graded'
order by j.protocol, j.prompt_hash, j.model, r.task_id, j.sequence
"""


class JudgeIdentity(NamedTuple):
    """A judge: its protocol and its model."""

    protocol: str
    prompt_hash: str
    model: str


class VerdictPair(NamedTuple):
    """One rollout by the world's state and by a judge."""

    task_id: str
    resolved: bool
    passed: bool


class JudgeAgreement(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of rollouts, and the agreement beyond chance."""

    both: int
    """A success for judge and grader."""
    judge_only: int
    """Successes by the judge alone: false ones."""
    grader_only: int
    """Successes by the grader alone: missed ones."""
    neither: int
    kappa: float | None
    """Cohen's kappa; None where both always say the same one thing, so that chance agrees as well."""
    low: float | None
    """Lower bound of the interval of 95 %, by a percentile bootstrap over tasks; None where too few
    resamples have a kappa."""
    high: float | None

    @property
    def rollouts(self) -> int:
        """Number of all rollouts."""
        return self.both + self.judge_only + self.grader_only + self.neither

    @property
    def agreed(self) -> float:
        """Share of rollouts on which both agree, in [0, 1]."""
        return (self.both + self.neither) / self.rollouts


def read_pairs(tables: duckdb.DuckDBPyConnection, campaign: str) -> dict[JudgeIdentity, list[VerdictPair]]:
    """The rollouts of a campaign that a judge was asked about and a grader without a judge graded."""
    found: dict[JudgeIdentity, list[VerdictPair]] = {}
    for *who, task, resolved, passed in tables.execute(
        _PAIRS, {"campaign": campaign, "name": OUTCOME}
    ).fetchall():
        found.setdefault(JudgeIdentity(*who), []).append(VerdictPair(task, resolved, passed))
    return found


def agreement(pairs: Sequence[VerdictPair], *, seed: int = 0) -> JudgeAgreement:
    """Confusion and kappa of at least one pair. Rollouts of one task are drawn together: they are alike."""
    tasks = {name: row for row, name in enumerate(dict.fromkeys(pair.task_id for pair in pairs))}
    counts = np.zeros((len(tasks), 4), dtype=np.int64)
    for pair in pairs:
        counts[tasks[pair.task_id], 2 * (not pair.resolved) + (not pair.passed)] += 1
    both, grader_only, judge_only, neither = (int(count) for count in counts.sum(axis=0))
    value = kappas(counts.sum(axis=0, keepdims=True))
    times = np.random.default_rng(seed).multinomial(
        len(tasks), np.full(len(tasks), 1 / len(tasks)), size=RESAMPLES
    )
    drawn = kappas(times @ counts)
    enough = len(drawn) > RESAMPLES // 2
    low, high = np.quantile(drawn, (0.025, 0.975)) if enough else (None, None)
    return JudgeAgreement(
        both=both,
        judge_only=judge_only,
        grader_only=grader_only,
        neither=neither,
        kappa=float(value[0]) if len(value) else None,
        low=None if low is None else float(low),
        high=None if high is None else float(high),
    )


def kappas(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Cohen's kappa of each row of counts (both, one only, the other only, neither) that has one."""
    shares = counts / counts.sum(axis=1, keepdims=True)
    observed = shares[:, 0] + shares[:, 3]
    first, second = shares[:, 0] + shares[:, 1], shares[:, 0] + shares[:, 2]
    chance = first * second + (1 - first) * (1 - second)
    known = chance < 1
    found: npt.NDArray[np.float64] = (observed[known] - chance[known]) / (1 - chance[known])
    return found
