"""Choosing one of several attempts at each task: at random, by majority, by a value model, and the best that
any choice could reach."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import duckdb
import msgspec

from orchard.pipelines.campaigns.scores import Score, interval, paired_difference
from orchard.pipelines.evaluation.suite import EvaluationError
from orchard.pipelines.reranking.attempts import GradedAttempt, graded_attempts, whole_submission
from orchard.storage.blobs import BlobStore

_Key = tuple[str, str, str]
"""Task set, harness and model of a cell."""
ScoreAll = Callable[[Sequence[GradedAttempt]], Mapping[str, float]]
"""Scores attempts by rollout id; the higher, the better."""


class AttemptChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One way to choose, over the tasks of a cell."""

    by: str
    """`random`, `majority`, `rerank` or `oracle`."""
    resolved: Score
    """Share of tasks whose chosen attempt resolved them."""
    over_random: Score | None
    """Difference to the choice at random, paired by task; None for that itself."""


class BestOf(msgspec.Struct, frozen=True, kw_only=True):
    """The choices of one of `k` attempts in one cell of an evaluation."""

    task_set: str
    harness: str
    model: str
    k: int
    tasks: int
    short: int
    """Tasks with fewer than `k` graded rollouts: in no figure."""
    trained_on: int
    """Tasks that the value model was trained on: in no figure."""
    choices: tuple[AttemptChoice, ...]


@dataclass(frozen=True)
class Rival:
    """One attempt among those to choose from."""

    resolved: bool
    patch: str
    score: float | None = None
    """The value model's; None without one."""


def chosen(rivals: Sequence[Rival]) -> dict[str, float]:
    """Chance that the attempt chosen in each way resolved the task. Attempts that a way prefers alike are
    drawn among."""
    patches = Counter(one.patch for one in rivals)
    most = max(patches.values())
    found = {
        "random": _share(rivals),
        "majority": _share([one for one in rivals if patches[one.patch] == most]),
    }
    scores = [one.score for one in rivals if one.score is not None]
    if scores:
        found["rerank"] = _share([one for one in rivals if one.score == max(scores)])
    return {**found, "oracle": float(any(one.resolved for one in rivals))}


def _share(rivals: Sequence[Rival]) -> float:
    return sum(one.resolved for one in rivals) / len(rivals)


def normalized(patch: str) -> str:
    """A patch without what does not change its effect: git's lines about blobs, and blanks at line ends."""
    lines = (line.rstrip() for line in patch.strip().splitlines())
    return "\n".join(line for line in lines if not line.startswith("index "))


def best_of(
    tables: duckdb.DuckDBPyConnection,
    blobs: BlobStore,
    campaign: str,
    k: int,
    score: ScoreAll | None = None,
    trained_on: Collection[str] = (),
) -> list[BestOf]:
    """The choices among the first `k` graded rollouts of each task, for each cell of an evaluation.

    Raises EvaluationError where no task has as many, or the value model was trained on all that have.
    """
    titles = tables.execute("select task_sets from evaluations where campaign = ?", [campaign]).fetchone()
    names = dict(titles[0]) if titles else {}
    cells: dict[_Key, dict[str, list[GradedAttempt]]] = defaultdict(lambda: defaultdict(list))
    for one in graded_attempts(tables, [campaign]):
        cells[names.get(one.task_set, one.task_set), one.harness, one.model][one.task_id].append(one)
    found = [_cell(key, cells[key], blobs, k, score, trained_on) for key in sorted(cells)]
    kept = [one for one in found if one.choices]
    if not kept:
        trained = sum(one.trained_on for one in found)
        raise EvaluationError(
            f"no task of {campaign!r} has {k} graded rollouts"
            + (f" and was kept from the training of the value model, which saw {trained}" if trained else "")
            + ": raise `samples`, ask for a smaller --best-of, or train with --without"
        )
    return found


def _cell(
    key: _Key,
    tasks: Mapping[str, Sequence[GradedAttempt]],
    blobs: BlobStore,
    k: int,
    score: ScoreAll | None,
    trained_on: Collection[str],
) -> BestOf:
    fair = {task: attempts for task, attempts in tasks.items() if task not in trained_on}
    drawn = {
        task: sorted(attempts, key=lambda one: one.sample)[:k]
        for task, attempts in sorted(fair.items())
        if len(attempts) >= k
    }
    scores = score([one for attempts in drawn.values() for one in attempts]) if score and drawn else {}
    each = [
        chosen(
            [
                Rival(one.resolved, normalized(whole_submission(one, blobs)), scores.get(one.rollout_id))
                for one in attempts
            ]
        )
        for attempts in drawn.values()
    ]
    return BestOf(
        task_set=key[0],
        harness=key[1],
        model=key[2],
        k=k,
        tasks=len(each),
        short=len(fair) - len(drawn),
        trained_on=len(tasks) - len(fair),
        choices=_choices(each),
    )


def _choices(each: Sequence[Mapping[str, float]]) -> tuple[AttemptChoice, ...]:
    found = []
    for by in each[0] if each else ():
        values = [one[by] for one in each]
        low, high = interval(values)
        resolved = Score(value=sum(values) / len(values), low=low, high=high, tasks=len(values))
        over = None if by == "random" else paired_difference([one["random"] for one in each], values)
        found.append(AttemptChoice(by=by, resolved=resolved, over_random=over))
    return tuple(found)
