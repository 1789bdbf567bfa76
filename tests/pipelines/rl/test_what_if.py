"""What-if against the loop of generating for real."""

from orchard.pipelines.rl.bar import BarSettings, Rollout
from orchard.pipelines.rl.what_if import Cell, dealt, grid, told_by_all, what_if
from orchard.schemas.groups import GroupOutcome
from orchard.schemas.outcomes import RolloutStatus


def pool(pattern: str) -> list[Rollout]:
    """`+` resolved, `-` not; each has ten tokens."""
    return [
        Rollout(status=RolloutStatus.COMPLETED, tokens=10, reward=1.0 if mark == "+" else -1.0)
        for mark in pattern
    ]


BAR = Cell(method="bar", bar=BarSettings(size=4, budget=8, stride=4, interval=(0.5, 0.5)))


def test_only_what_a_setting_would_have_generated_is_spent() -> None:
    found = what_if({"early": pool("+-+-++++"), "late": pool("++++----")}, BAR)
    assert (found.rollouts, found.tokens) == (4 + 8, 120)
    assert found.outcomes == {GroupOutcome.BALANCED: 2}
    assert found.positive_share == 0.5


def test_a_prompt_of_one_class_is_spent_and_dropped() -> None:
    found = what_if({"hopeless": pool("--------"), "fair": pool("+-+-")}, BAR)
    assert (found.informative, found.dropped, found.rollouts) == (1, 1, 12)
    assert found.per_thousand == 1000 / 12


def test_where_the_log_has_too_few_it_says_so() -> None:
    found = what_if({"short": pool("++++")}, BAR)
    assert (found.prompts, found.too_few, found.rollouts) == (0, 1, 0)
    assert found.per_thousand is None and found.positive_share is None


def test_fixed_groups_take_the_first_n_whatever_they_are() -> None:
    fixed = Cell(method="fixed", bar=BarSettings(size=4, budget=4, interval=None))
    result = dealt(pool("+++-----"), fixed.bar)
    assert result is not None
    group, used = result
    assert (group.positive, used, group.outcome) == (3, 4, GroupOutcome.FIXED)


def test_the_grid_leaves_out_what_makes_no_group() -> None:
    cells = list(grid([4, 5], [8], [4, 5, None], [(0.375, 0.625)]))
    assert [(cell.method, cell.bar.size, cell.bar.step) for cell in cells] == [
        ("bar", 4, 4),
        ("bar", 4, 4),
        ("bar", 5, 4),
        ("fixed", 4, 4),
        ("dynamic", 4, 4),
        ("fixed", 5, 5),
        ("dynamic", 5, 5),
    ]


def test_settings_are_compared_over_the_same_prompts() -> None:
    pools = {"early": pool("+-+-"), "long": pool("++++----" * 2), "short": pool("++++")}
    cells = list(grid([4], [16], [4], [(0.375, 0.625)]))
    alone = [what_if(pools, cell) for cell in cells]
    assert len({one.prompts for one in alone}) > 1, "each cell alone tells other prompts"
    assert told_by_all(pools, cells).keys() == {"early", "long"}
