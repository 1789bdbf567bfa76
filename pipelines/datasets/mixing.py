"""Selections by source and teacher: shares of a mixture, and pairs of a success and a failure. Pure."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from fractions import Fraction
from itertools import groupby
from math import floor

from orchard.pipelines.datasets.errors import DatasetError
from orchard.pipelines.datasets.examples import Candidate
from orchard.pipelines.datasets.rows import Origin
from orchard.pipelines.datasets.settings import MixturePart

Take = Callable[[Sequence[Candidate], int], Collection[str]]
"""Chooses at most so many of some trajectories, by the strategy of the selection; returns their ids."""


def mixed(
    pool: Sequence[Candidate],
    parts: Sequence[MixturePart],
    budget: int | None,
    take: Take,
    counts: Counter[str],
) -> set[str]:
    """Rollout ids of at most `budget` of the pool, in the proportions of the parts, which hold to one
    trajectory. A trajectory is of the first part that it fits; one of no part is left out, and so is a part
    without any from the proportions. Counts those of each part, from 1."""
    of_part: dict[int, list[Candidate]] = {}
    for one in pool:
        if (place := part_of(parts, one)) is None:
            counts["dropped_outside_mixture"] += 1
        else:
            of_part.setdefault(place, []).append(one)
    places = sorted(of_part)
    shares = quotas([len(of_part[at]) for at in places], [parts[at].weight for at in places], budget)
    chosen: set[str] = set()
    for at, share in zip(places, shares, strict=True):
        chosen |= set(take(of_part[at], share))
        counts[f"mixture_{at + 1}"] += share
    return chosen


def part_of(parts: Sequence[MixturePart], one: Origin) -> int | None:
    """Index of the first part that a trajectory fits; None without any."""
    return next((at for at, part in enumerate(parts) if fits(part, one)), None)


def fits(part: MixturePart, one: Origin) -> bool:
    wanted = (part.campaigns, part.harnesses, part.models, part.task_sources)
    return all(
        not names or has in names
        for names, has in zip(wanted, (one.campaign, one.harness, one.model, one.task_source), strict=True)
    )


def quotas(available: Sequence[int], weights: Sequence[float], budget: int | None) -> list[int]:
    """The largest whole numbers in the proportion of the weights, of at most what is available and the
    budget in sum; halves go to the largest remainders, then to the first."""
    if not available:
        return []
    total = sum(Fraction(str(weight)) for weight in weights)
    shares = [Fraction(str(weight)) / total for weight in weights]
    scarcest = min(number / share for number, share in zip(available, shares, strict=True))
    size = min(floor(scarcest), sum(available) if budget is None else budget)
    found = [floor(size * share) for share in shares]
    by_remainder = sorted(range(len(shares)), key=lambda at: found[at] - size * shares[at])
    for at in by_remainder[: size - sum(found)]:
        found[at] += 1
    return found


def check_parts(parts: Sequence[MixturePart], counts: Mapping[str, int]) -> None:
    """Raise DatasetError for a part of which nothing was chosen."""
    for at in range(1, len(parts) + 1):
        if not counts.get(f"mixture_{at}"):
            raise DatasetError(
                f"part {at} of the mixture has no trajectory: change its names, its weight, or the source"
            )


def check_rows_of_parts(parts: Sequence[MixturePart], counts: Mapping[str, int]) -> None:
    """Raise DatasetError for a part whose trajectories all fell to the filters: the others would be the whole
    dataset."""
    for at in range(1, len(parts) + 1):
        if not counts.get(f"mixture_{at}_rows"):
            raise DatasetError(
                f"part {at} of the mixture has no example left of {counts[f'mixture_{at}']:,} trajectories: "
                "change its names, or the settings of [filters] that left them out"
            )


def paired(
    resolved: Sequence[Candidate],
    unresolved: Sequence[Candidate],
    most: int,
    take: Take,
    counts: Counter[str],
) -> set[str]:
    """Rollout ids of as many successes as failures of each task, at most `most` of either."""
    failed = {task: list(group) for task, group in groupby(sorted(unresolved, key=_task), _task)}
    chosen: set[str] = set()
    for task, group in groupby(sorted(resolved, key=_task), _task):
        good, bad = list(group), failed.get(task, [])
        number = min(len(good), len(bad), most)
        chosen |= {*take(good, number), *take(bad, number)} if number else set()
        counts["preference_pairs"] += number
    return chosen


def _task(one: Candidate) -> str:
    return one.task_id
