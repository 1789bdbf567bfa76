"""What counts as a check's verdict is a list; everything else is told by what it is, and is no failure."""

import msgspec
import pytest

from orchard.workers.episode.machine import CommandOutcome
from orchard.workers.graders.endings import Lack, by_reward, by_status

TEXT, JSON = "/logs/verifier/reward.txt", "/logs/verifier/reward.json"


def outcome(returncode: int = 0, **changes: bool) -> CommandOutcome:
    return CommandOutcome(output="", returncode=returncode, seconds=1.0, **changes)


@pytest.mark.parametrize(
    ("ran", "solved", "lack"),
    [
        (outcome(0), True, None),
        (outcome(1), False, None),
        (outcome(3), False, None),
        (outcome(125), False, None),
        (outcome(126), False, Lack.NOT_STARTED),
        (outcome(127), False, Lack.NOT_STARTED),
        (outcome(200), False, None),
        (outcome(255), False, None),  # sys.exit(-1)
        (outcome(137), False, Lack.KILLED),
        (outcome(139), False, Lack.KILLED),
        (outcome(137, out_of_memory=True), False, Lack.MEMORY),
        (outcome(1, out_of_memory=True), False, Lack.MEMORY),
        (outcome(0, out_of_memory=True), True, None),
        (outcome(-1, timed_out=True), False, Lack.TIME),
    ],
)
def test_an_exit_status_is_a_verdict_unless_it_is_the_shells(
    ran: CommandOutcome, solved: bool, lack: Lack | None
) -> None:
    ending = by_status(ran, 5.0)
    assert (ending.solved, ending.lack) == (solved, lack)


@pytest.mark.parametrize(
    ("path", "content", "solved"),
    [
        (TEXT, b"1", True),
        (TEXT, b" 1.0\n", True),
        (TEXT, b"0\n", False),
        (TEXT, b"0.5", False),
        (TEXT, b"10", False),
        (TEXT, b"-1", False),
        (JSON, b'{"reward": 1, "style": 0.25}', True),
        (JSON, b'{"reward": 0.5, "style": 1}', False),
        (JSON, b'{"reward": true}', True),
    ],
)
def test_a_finite_number_is_a_verdict(path: str, content: bytes, solved: bool) -> None:
    ending = by_reward(outcome(), 5.0, path, content)
    assert (ending.lack, ending.solved) == (None, solved)
    assert "reward" in ending.parts


@pytest.mark.parametrize(("least", "solved"), [(None, False), (0.5, True), (0.75, True), (0.76, False)])
def test_a_threshold_says_what_is_solved_of_a_number_that_is_kept(least: float | None, solved: bool) -> None:
    ending = by_reward(outcome(), 5.0, JSON, b'{"accuracy": 0.75}', least)
    assert (ending.solved, ending.score, ending.parts) == (solved, 0.75, {"accuracy": 0.75})


@pytest.mark.parametrize(
    ("path", "content", "lack"),
    [
        (TEXT, None, Lack.NO_REWARD),
        (TEXT, b"", Lack.BAD_REWARD),
        (TEXT, b" \n", Lack.BAD_REWARD),
        (TEXT, b"passed", Lack.BAD_REWARD),
        (TEXT, b"1 1", Lack.BAD_REWARD),
        (TEXT, b"nan", Lack.BAD_REWARD),
        (TEXT, b"inf", Lack.BAD_REWARD),
        (TEXT, b"\xff\xfe1", Lack.BAD_REWARD),
        (TEXT, b"1\n0\n", Lack.BAD_REWARD),
        (TEXT, b"\xef\xbb\xbf1", Lack.BAD_REWARD),
        (TEXT, b"1\x00", Lack.BAD_REWARD),
        (TEXT, b"1,0", Lack.BAD_REWARD),
        (JSON, b'\xef\xbb\xbf{"reward": 1}', Lack.BAD_REWARD),
        (JSON, b'{"reward": 1} {"reward": 0}', Lack.BAD_REWARD),
        (JSON, b'{"reward": 1, "\\ud800": 1}', Lack.BAD_REWARD),
        (JSON, b'{"reward": {"value": 1}}', Lack.BAD_REWARD),
        (JSON, b"", Lack.BAD_REWARD),
        (JSON, b"{", Lack.BAD_REWARD),
        (JSON, b"1", Lack.BAD_REWARD),
        (JSON, b'["reward"]', Lack.BAD_REWARD),
        (JSON, b"null", Lack.BAD_REWARD),
        (JSON, b'{"reward": "1"}', Lack.BAD_REWARD),
        (JSON, b'{"reward": null}', Lack.BAD_REWARD),
        (JSON, b'{"reward": NaN}', Lack.BAD_REWARD),
        (JSON, b'{"reward": 1e999}', Lack.BAD_REWARD),
        (JSON, b'{"reward": 1, "style": "good"}', Lack.BAD_REWARD),
        (JSON, b"[" * 100_000, Lack.BAD_REWARD),
        (JSON, b'{"reward": 1' + b"0" * 400 + b"}", Lack.BAD_REWARD),
    ],
)
def test_nothing_else_in_a_file_of_rewards_is_one(path: str, content: bytes | None, lack: Lack) -> None:
    ending = by_reward(outcome(), 5.0, path, content)
    assert (ending.lack, ending.solved) == (lack, False)


@pytest.mark.parametrize("path", [TEXT, JSON])
def test_of_a_file_that_is_no_reward_little_is_told_and_no_key(path: str) -> None:
    """It may be a link to anything."""
    key = "sk-ant-api03-" + "A" * 93
    content = f"{key} and more".ljust(60_000, "x")
    said = by_reward(
        outcome(), 5.0, path, msgspec.json.encode({"reward": content}) if path == JSON else content.encode()
    ).said
    assert len(said) < 200
    assert key not in said


def test_a_reward_counts_only_after_tests_that_ran_to_their_end() -> None:
    """What an agent has left at its place says nothing where the tests could not even be brought."""
    assert by_reward(outcome(126), 5.0, TEXT, b"1").lack is Lack.NOT_STARTED
    assert by_reward(outcome(-1, timed_out=True), 5.0, TEXT, b"1").lack is Lack.TIME
    assert by_reward(outcome(137), 5.0, TEXT, b"1").lack is Lack.KILLED
    assert by_reward(outcome(2), 5.0, TEXT, b"1").lack is Lack.NOT_STARTED
    assert by_reward(outcome(0, out_of_memory=True), 5.0, TEXT, b"0").lack is Lack.MEMORY
