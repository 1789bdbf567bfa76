"""A run's configuration as its file says it."""

from math import inf, nan

import msgspec
import pytest

from orchard.pipelines.rl.bar import BarSettings
from orchard.pipelines.rl.loss_settings import LossSettings, Ratio, Reduction
from orchard.pipelines.rl.plan import plan_hash
from orchard.pipelines.rl.runs import make_plan, planned_by
from orchard.pipelines.rl.settings import settings_from, settings_hash
from orchard.pipelines.sft.settings import TrainingError
from tests.pipelines.rl.written_log import TASKS

LEAST = {"run": "r", "model": "m", "out": "o"}


@pytest.mark.parametrize(
    ("given", "method", "size", "budget"),
    [
        ({}, "bar", 8, 16),
        ({"method": "fixed"}, "fixed", 8, 8),
        ({"method": "dynamic", "bar": {"size": 4}}, "dynamic", 4, 4),
        ({"preset": "paper"}, "bar", 8, 16),
        ({"preset": "claw"}, "fixed", 8, 8),
        ({"preset": "claw", "method": "dynamic"}, "dynamic", 8, 8),
        ({"preset": "claw", "method": "bar"}, "bar", 8, 16),
        ({"preset": "claw", "method": "frugal"}, "frugal", 8, 8),
        ({"preset": "gui"}, "dynamic", 8, 8),
        ({"method": "frugal"}, "frugal", 8, 16),
    ],
    ids=str,
)
def test_methods_are_settings_of_one_machine(given, method, size, budget):
    plan = make_plan(settings_from(LEAST | given), TASKS)
    assert (plan.method, plan.bar.size, plan.bar.budget) == (method, size, budget)


@pytest.mark.parametrize(
    ("given", "loss"),
    [
        ({"kl": 0.001}, LossSettings(reduction=Reduction.CONSTANT_SUM, constant=524_288.0, kl=0.001)),
        ({"reduction": "token_mean"}, LossSettings(reduction=Reduction.TOKEN_MEAN)),
        ({"recipe": "gspo"}, LossSettings(ratio=Ratio.SEQUENCE)),
        ("gspo", LossSettings(ratio=Ratio.SEQUENCE)),
        ({"ratio": "sequence", "reduction": "rollout_mean"}, LossSettings(ratio=Ratio.SEQUENCE)),
    ],
    ids=str,
)
def test_keys_of_a_loss_go_over_the_presets_and_a_recipe_in_its_place(given, loss):
    assert settings_from(LEAST | {"preset": "gui", "loss": given}).loss == loss


@pytest.mark.parametrize(
    ("given", "bar"),
    [
        ({"preset": "claw", "bar": {"size": 4}}, BarSettings(size=4, budget=4, interval=None)),
        ({"preset": "claw", "bar": {"max_aborts": 3}}, BarSettings(budget=8, interval=None, max_aborts=3)),
        ({"preset": "paper", "bar": {"max_aborts": 3}}, BarSettings(stride=16, max_aborts=3)),
        ({"preset": "paper", "method": "fixed"}, BarSettings(budget=8, interval=None)),
        (
            {"preset": "paper", "method": "fixed", "bar": {"size": 4}},
            BarSettings(size=4, budget=4, interval=None),
        ),
        ({"preset": "paper", "method": "fixed", "bar": {"budget": 16}}, BarSettings(interval=None)),
        (
            {"preset": "paper", "method": "dynamic", "bar": {"budget": 24}},
            BarSettings(budget=24, interval=None),
        ),
        ({"preset": "claw", "method": "bar"}, BarSettings()),
        ({"preset": "gui", "bar": {"interval": [0.25, 0.75]}}, BarSettings(interval=(0.25, 0.75))),
        (
            {"preset": "claw", "bar": {"size": 16, "interval": [0.4, 0.6]}},
            BarSettings(size=16, interval=(0.4, 0.6)),
        ),
        ({"preset": "claw", "method": "bar", "bar": {"budget": 24}}, BarSettings(budget=24)),
        (
            {"preset": "paper", "method": "bar", "bar": {"max_aborts": 3}},
            BarSettings(stride=16, max_aborts=3),
        ),
        ({"preset": "gui", "method": "frugal"}, BarSettings(budget=8, interval=None)),
    ],
    ids=str,
)
def test_keys_of_a_group_go_over_the_presets(given, bar):
    assert settings_from(LEAST | given).bar == bar


def test_assistants_have_ten_minutes_and_no_limit_of_steps():
    made = settings_from(LEAST | {"preset": "claw"})
    assert (made.budget.steps, made.budget.cost_usd, made.budget.wall_seconds) == (0, 0.0, 600.0)
    assert (made.prompts_per_step, made.bar.size, made.keep_degenerate) == (8, 8, True)
    longer = settings_from(LEAST | {"preset": "claw", "budget": {"wall_seconds": 1200.0}}).budget
    assert longer == msgspec.structs.replace(made.budget, wall_seconds=1200.0)


@pytest.mark.parametrize(
    ("preset", "untrained"),
    [
        *((name, ("time_limit", "token_limit")) for name in ("swe", "paper", "gui")),
        ("claw", ("time_limit",)),
    ],
)
def test_rollouts_over_the_wall_or_the_context_train_nobody_by_the_papers_recipes(preset, untrained):
    assert settings_from(LEAST | {"preset": preset}).untrained == untrained
    assert settings_from(LEAST | {"preset": preset, "untrained": []}).untrained == ()
    assert settings_from(LEAST).untrained == ()
    assert make_plan(settings_from(LEAST | {"preset": preset}), TASKS).untrained == untrained


def test_a_run_of_before_a_setting_existed_goes_on_with_it_left_out():
    """By the hash that 2ee9640 gave, before impossible prompts; what only warns is no other run either."""
    told = settings_hash(settings_from(LEAST))
    assert told == "3d49fa5364659bcaf28dbf7dfbe109a7"
    assert settings_hash(settings_from(LEAST | {"hack_limit": 0.5})) == told
    assert settings_hash(settings_from(LEAST | {"impossible": 0.1})) != told
    assert settings_hash(settings_from(LEAST | {"method": "frugal"})) != told
    for knob in (
        {"overlong": {"limit": 20, "buffer": 5}},
        {"loss": {"entropy": 0.01}},
        {"loss": {"importance_level": "sequence"}},
    ):
        assert settings_hash(settings_from(LEAST | knob)) != told
    measured, often = (
        settings_hash(settings_from(LEAST | {"tasks": {"measured_in": "m"} | keys}))
        for keys in ({}, {"measured_rollouts": 8})
    )
    assert len({told, measured, often}) == 3


def test_a_plan_of_before_it_named_a_baseline_is_still_the_runs():
    settings = settings_from(LEAST | {"loss": "rloo"})
    plan = make_plan(settings, TASKS)
    old = msgspec.structs.replace(plan, baseline=None)
    assert plan.baseline == "leave_one_out"
    assert planned_by(settings, plan) and planned_by(settings, old)
    assert not planned_by(settings_from(LEAST), plan)
    assert plan_hash(plan) == plan_hash(old)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"method": "ppo"}, "no method is named 'ppo'"),
        ({"preset": "x"}, "no preset is named 'x'"),
        ({"lr": 0}, r"lr: .*\(it is 0\)"),
        ({"lr": 1e-6, "min_lr": 1e-4}, "min_lr 0.0001 is above lr 1e-06"),
        ({"method": "fixed", "bar": {"interval": [0.4, 0.6]}}, "'fixed' has no `bar.interval`"),
        ({"bar": {"size": 1}}, "size 1 must be 2 or more"),
        ({"bar": 8}, "`bar` is 8: write a table"),
        ({"loss": {"clip_low": 2}}, "clip_low"),
        ({"unknown": 1}, "unknown"),
        ({"method": ["bar"]}, r"no method is named \['bar'\]"),
        ({"preset": ["gui"]}, r"no preset is named \['gui'\]"),
        ({"loss": {"recipe": ["grpo"]}}, r"no loss is named \['grpo'\]"),
        ({"method": "dynamic", "keep_degenerate": True}, "'dynamic' drops groups of one class"),
        ({"method": "frugal", "keep_degenerate": True}, "'frugal' drops groups of one class"),
        ({"method": "fixed", "keep_degenerate": False}, "'fixed' keeps groups of one class"),
        ({"method": "frugal", "bar": {"size": 16}}, "does not use the table `bar`"),
        ({"frugal": {}}, "belongs to"),
        ({"overlong": {"limit": 10, "buffer": 20}}, "overlong.buffer 20 is above overlong.limit 10"),
        ({"overlong": {"limit": 10}}, "overlong"),
        ({"loss": {"importance_level": "turn"}}, "importance_level"),
        ({"loss": {"entropy": -1}}, "entropy must be 0 or more"),
        ({"tasks": {"measured_rollouts": 0}}, "measured_rollouts"),
        ({"tasks": {"at_most": 0.3}}, "`tasks.at_most` chooses by pass rate, and no campaign says"),
        (
            {"preset": "swe", "tasks": {"measured_models": ["m"]}},
            "`tasks.measured_models` chooses by pass rate",
        ),
        ({"loss": {"entropy": nan}}, "loss.entropy: this number is not finite"),
        ({"loss": {"recipe": "cispo", "clip_high": inf}}, "loss.clip_high: this number is not finite"),
        (
            {"loss": {"importance_range": [0.5, inf]}},
            r"loss.importance_range\[1\]: this number is not finite",
        ),
        ({"lr": inf}, "lr: this number is not finite"),
        (
            {"loss": {"importance_level": "sequence", "importance_limit": 0}},
            'importance_limit 0 must be above 0; without such a weight set importance_level = "none"',
        ),
        (
            {"max_tokens": 4096, "budget": {"steps": 1}, "overlong": {"limit": 32768, "buffer": 8192}},
            r"acts from 24,576 tokens on, and the policy says at most 4,096 in a rollout \(1 answers",
        ),
        (
            {"max_tokens": 10, "budget": {"steps": 1}, "curriculum": {"steps": 2}}
            | {"overlong": {"limit": 21, "buffer": 1}},
            "at most 20 in a rollout",
        ),
        ({"method": "frugal", "frugal": {"reuse": 3}}, "frugal.reuse is 3"),
        ({"method": "frugal", "frugal": {"stride": 3}}, "do not lead from a group of 4"),
    ],
    ids=str,
)
def test_mistakes_are_named(given, says):
    with pytest.raises(TrainingError, match=says):
        settings_from(LEAST | given)


@pytest.mark.parametrize(
    "budget", [{"steps": 6}, {"steps": 0}, {}], ids=["reaches it", "no limit", "default"]
)
def test_a_penalty_above_the_longest_answer_is_one_of_several_answers(budget) -> None:
    made = settings_from(
        LEAST | {"max_tokens": 4096, "budget": budget, "overlong": {"limit": 32768, "buffer": 8193}}
    )
    assert made.overlong is not None


def test_each_ratio_has_clips_of_its_own_size() -> None:
    assert LossSettings().clips == (0.2, 0.28)
    assert LossSettings(ratio=Ratio.SEQUENCE).clips == (3e-4, 4e-4)
    assert LossSettings(ratio=Ratio.SEQUENCE, clip_low=0.1).clips == (0.1, 4e-4)
