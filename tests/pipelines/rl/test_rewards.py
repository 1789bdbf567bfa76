"""Rewards of browsing and of tool use, from records made by hand."""

import pytest

from orchard.pipelines.rl.rewards import ClawEpisode, Excluded, GuiEpisode, claw_rewards, gui_reward
from orchard.schemas.outcomes import ExitStatus

DONE, LIMIT, FORMAT = ExitStatus.FINISHED, ExitStatus.STEP_LIMIT, ExitStatus.FORMAT_FAILURE


@pytest.mark.parametrize(
    ("exit_status", "parsed", "success", "captcha", "expected"),
    [
        (DONE, (True, True), True, False, 1.0),
        (DONE, (True, True), False, False, 0.0),
        (DONE, (True, False), True, False, 0.0),
        (DONE, (), True, False, 0.0),
        (LIMIT, (True,), True, False, 1.0),
        (LIMIT, (True,), False, False, 0.0),
        (FORMAT, (True, False, False), False, False, -1.0),
        (FORMAT, (True, False, False), None, False, -1.0),
        (DONE, (True,), None, False, Excluded.JUDGE_FAILED),
        (DONE, (True,), False, True, Excluded.CAPTCHA),
        (FORMAT, (False,), None, True, Excluded.CAPTCHA),
    ],
    ids=str,
)
def test_browsing(exit_status, parsed, success, captcha, expected):
    episode = GuiEpisode(exit_status=exit_status, parsed=parsed, success=success, captcha=captcha)
    assert gui_reward(episode) == expected


@pytest.mark.parametrize(
    ("parts", "seconds", "expected"),
    [
        ((1.0, 1.0, 1.0), 30.0, (1.0, 1.0, 1.0)),
        ((1.0, 0.75, 0.75), 600.0, (1.0, 1.0, 1.0)),
        ((1.0, 0.6875, 1.0), 30.0, (1.0, 1.0, 1.0)),
        ((1.0, 0.6, 1.0), 30.0, (-1.0, -1.0, -1.0)),
        ((0.5, 1.0, 1.0), 30.0, (-1.0, -1.0, -1.0)),
        ((0.0, 1.0, 1.0), 30.0, (-1.0, -1.0, -1.0)),
        ((1.0, 1.0, 1.0), 600.1, Excluded.WALL_CLOCK),
    ],
    ids=str,
)
def test_tool_use(parts, seconds, expected):
    safety, completion, robustness = parts
    episode = ClawEpisode(
        safety=safety, completion=completion, robustness=robustness, seconds=seconds, pairs=3
    )
    assert claw_rewards(episode) == expected


def test_what_is_excluded_is_no_number():
    assert not any(isinstance(why.value, int | float) for why in Excluded)
