"""Six strategies for a budget: each does what its name says, the same every time, in any order of input."""

import random
from collections import Counter
from typing import get_args

import pytest

from orchard.pipelines.datasets.selection import Caps, Choice, select
from orchard.pipelines.datasets.settings import Strategy

POOL = [
    Choice(
        f"r{number:03}",
        f"repo{number % 20 if number < 100 else 0}",
        f"t{number % 50}",
        number % 5,
        (number * 37) % 211,
    )
    for number in range(200)
]
BY_ID = {one.rollout_id: one for one in POOL}


@pytest.mark.parametrize("strategy", get_args(Strategy))
def test_a_strategy_fills_its_budget_the_same_way_in_any_order(strategy: Strategy) -> None:
    shuffled = random.Random(1).sample(POOL, len(POOL))
    chosen = select(POOL, 40, strategy)
    assert len(chosen) == 40
    assert select(shuffled, 40, strategy) == chosen
    assert select(POOL, None, strategy) == set(BY_ID)
    assert select(POOL, 500, strategy) == set(BY_ID)
    assert select(POOL, 0, strategy) == set()


def repos(chosen: set[str]) -> Counter[str]:
    return Counter(BY_ID[name].repo for name in chosen)


def test_random_depends_on_the_seed_alone() -> None:
    assert select(POOL, 40, "random", seed=1) != select(POOL, 40, "random", seed=2)


def test_diverse_caps_every_repository() -> None:
    assert max(repos(select(POOL, 40, "diverse-repo")).values()) == 2
    capped = select(POOL, 200, "diverse-repo", caps=Caps(per_repo=3))
    assert len(capped) == 60 and set(repos(capped).values()) == {3}


def test_concentrated_takes_the_largest_repositories() -> None:
    assert set(repos(select(POOL, 100, "concentrated-repo"))) == {"repo0"}


def test_multi_file_and_large_diff_take_the_top() -> None:
    for strategy, key in (("multi-file", "gold_files"), ("large-diff", "gold_lines")):
        chosen = select(POOL, 40, strategy)  # type: ignore[arg-type]
        lowest = min(getattr(BY_ID[name], key) for name in chosen)
        assert all(getattr(one, key) <= lowest for one in POOL if one.rollout_id not in chosen)


def test_composite_prefers_what_is_large_in_all() -> None:
    large = Choice("large", "x", "t", 5, 500)
    small = Choice("small", "x", "t", 1, 1)
    assert select([*POOL, large, small], 1, "composite") == {"large"}
    assert "small" not in select([*POOL, large, small], 100, "composite")
