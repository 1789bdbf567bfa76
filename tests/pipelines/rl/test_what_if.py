"""What-if: what methods make of tasks of which a log has a few rollouts each."""

import random

import pytest

from orchard.pipelines.rl.bar import BarSettings, Rollout
from orchard.pipelines.rl.frugal import FrugalSettings, information
from orchard.pipelines.rl.what_if import Group, WhatIfSetting, dealt, fitted_prior, grid, what_if
from orchard.schemas.outcomes import RolloutStatus


def pool(pattern: str) -> list[Rollout]:
    """`+` resolved, `-` not; each has ten tokens."""
    return [
        Rollout(status=RolloutStatus.COMPLETED, tokens=10, reward=1.0 if mark == "+" else -1.0)
        for mark in pattern
    ]


def pools_of(rate: float, tasks: int, rollouts: int, seed: int = 0) -> dict[str, list[Rollout]]:
    """Tasks of one pass rate."""
    dice = random.Random(seed)
    return {
        f"t{at}": pool("".join("+" if dice.random() < rate else "-" for _ in range(rollouts)))
        for at in range(tasks)
    }


BAR = WhatIfSetting(method="bar", bar=BarSettings(size=4, budget=8, stride=4, interval=(0.5, 0.5)))
FIXED = WhatIfSetting(method="fixed", bar=BarSettings(size=4, budget=4, interval=None))
DYNAMIC = WhatIfSetting(method="dynamic", bar=BarSettings(size=4, budget=4, interval=None))
FRUGAL = WhatIfSetting(method="frugal", frugal=FrugalSettings())


def test_rollouts_are_dealt_as_the_method_would_have_asked_for_them() -> None:
    assert dealt(pool("+-+-++++"), BAR.bar) == Group(2, 4, 4)
    assert dealt(pool("++++----"), BAR.bar) == Group(2, 4, 8)
    assert dealt(pool("+++-----"), FIXED.bar) == Group(3, 4, 4)
    assert dealt(pool("++++"), BAR.bar) is None


def test_no_cell_loses_the_tasks_of_which_the_log_has_few_rollouts() -> None:
    pools = pools_of(0.4, 30, 2) | {"one": pool("+"), "many": pool("-" * 40)}
    wide = WhatIfSetting(method="bar", bar=BarSettings(size=8, budget=32, stride=8))
    found = what_if(pools, [wide, FIXED, FRUGAL])
    assert {one.prompts for one in found} == {32}
    assert [one.opened for one in found[:2]] == [1.0, 1.0]
    assert found[0].rollouts > 8 * 32


def test_where_pass_rates_are_known_the_figures_are_those_of_the_binomial() -> None:
    """4 rollouts at p: both classes with chance 1 - p^4 - (1 - p)^4, information 3 p (1 - p)."""
    pools = pools_of(0.2, 40, 400)
    rate = sum(one.reward == 1.0 for each in pools.values() for one in each) / (40 * 400)
    fixed, dynamic = what_if(pools, [FIXED, DYNAMIC])
    assert fixed.rollouts == 4 * 40 and fixed.tokens == 40 * fixed.rollouts / 4
    assert fixed.informative / 40 == pytest.approx(1 - rate**4 - (1 - rate) ** 4, abs=0.03)
    assert fixed.information / 40 == pytest.approx(3 * rate * (1 - rate), abs=0.03)
    assert dynamic.information == fixed.information, "both are dealt the same rewards"
    assert fixed.low < fixed.information_per_thousand < fixed.high
    assert fixed.information_per_update(16) == pytest.approx(16 * fixed.information / 40)
    assert dynamic.information_per_update(16) == pytest.approx(16 * dynamic.information / dynamic.trained)


def test_frugal_sampling_passes_over_what_teaches_nothing_and_has_more_for_each_rollout() -> None:
    hopeless = {f"h{at}": pool("-" * 16) for at in range(40)}
    found = what_if(hopeless | pools_of(0.4, 20, 16), [FRUGAL, FIXED, BAR])
    frugal, fixed, bar = (one.information_per_thousand for one in found)
    assert found[0].opened < 0.6 and frugal > 1.5 * max(fixed, bar)


def test_the_prior_is_that_of_the_log() -> None:
    for rate in (0.1, 0.5):
        prior = fitted_prior(pools_of(rate, 200, 4, seed=3))
        assert prior.mean == pytest.approx(rate, abs=0.05) and prior.alpha + prior.beta >= 16
    split = {f"a{at}": pool("++++" if at % 2 else "----") for at in range(60)}
    assert (prior := fitted_prior(split)).alpha + prior.beta <= 0.5 and prior.mean == pytest.approx(
        0.5, abs=0.02
    )


def test_the_same_log_says_the_same() -> None:
    pools = pools_of(0.3, 10, 3)
    found = what_if(pools, [DYNAMIC])
    assert found == what_if(pools, [DYNAMIC])
    assert found[0].information <= information(2, 4) * found[0].informative


def test_the_grid_leaves_out_what_makes_no_group() -> None:
    cells = list(grid([4, 5], [8], [4, 5, None], [(0.375, 0.625)]))
    assert [cell.label for cell in cells] == [
        "bar N=4 max=8 s=4",
        "bar N=4 max=8 s=4",
        "bar N=5 max=8 s=4",
        "fixed N=4",
        "dynamic N=4",
        "frugal 4 to 4",
        "fixed N=5",
        "dynamic N=5",
    ]
