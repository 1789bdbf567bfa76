"""What a measurement is made of: a record by steps, comparing a replay with it, figures of agreement."""

import itertools
import random
from math import comb, sqrt
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchard.pipelines.values.calibration import (
    AnnotatorAndPolicy,
    CalibrationPoint,
    agreement,
    calibration,
    compared,
    plot,
    ranks,
    spearman,
    spearman_interval,
    wilson,
)
from orchard.pipelines.values.measure import Replay
from orchard.pipelines.values.recorded import BEFORE, Recorded
from orchard.schemas.campaigns import ModelSpec, RolloutRequest, TaskRef
from orchard.schemas.events import Event, RolloutFinished, payload
from orchard.schemas.identity import InvalidName, check_name
from orchard.schemas.llm_calls import ModelKind
from orchard.schemas.messages import MessageNode, Role, ToolCall, ToolResult, node_id
from orchard.schemas.outcomes import ExitStatus
from orchard.schemas.values import MEASURED_CAMPAIGN, ValueMeasured
from orchard.storage.reader import open_tables
from orchard.workers.episode.divergence import Divergence, Executed, compare, output_sha256, timeless
from orchard.workers.episode.machine import CommandOutcome
from orchard.workers.episode.totals import Totals
from orchard.workers.harnesses.bash_loop import format_errors_at_end
from tests.tiny_tasks import tiny_task
from tests.trajectory_log import Author, llm_call

TASK = tiny_task(0)


def node(parent: MessageNode | None, role: Role, text: str, turn: int, **more: Any) -> MessageNode:
    above = parent.node_id if parent else None
    return MessageNode(
        node_id=node_id(above, role, text), parent=above, role=role, turn=turn, content=text, **more
    )


def calls(*names: str) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(id="same", name="bash", arguments=f'{{"command": "{name}"}}') for name in names)


@pytest.fixture
def recorded() -> Recorded:
    """Step 0 runs two commands, step 1 is malformed, step 2 has two calls and the first one submits."""
    done = ToolResult(returncode=0, seconds=0.5, output_sha256=output_sha256("out"))
    path = [node(None, Role.SYSTEM, "system", 0)]
    for role, turn, more in (
        (Role.USER, 0, {}),
        (Role.ASSISTANT, 1, {"tool_calls": calls("a", "b")}),
        (Role.TOOL, 1, {"result": done}),
        (Role.TOOL, 1, {"result": done}),
        (Role.ASSISTANT, 2, {}),
        (Role.USER, 2, {}),
        (Role.ASSISTANT, 3, {"tool_calls": calls("submit", "never")}),
        (Role.TOOL, 3, {"result": done}),
    ):
        path.append(node(path[-1], role, f"{role} {len(path)}", turn, **more))
    asked = {
        one.node_id: llm_call(one.turn, parent=one.parent or "", node=one.node_id, seconds=2.0)
        for one in path
        if one.role is Role.ASSISTANT
    }
    ref = TaskRef(task_id="t", source="tiny", repo="r", blob={"sha256": "0" * 64, "size": 1})  # type: ignore[arg-type]
    request = RolloutRequest(
        rollout_id="0" * 24,
        campaign="demo",
        task=ref,
        harness="mini-swe-agent",
        model=ModelSpec(name="m"),
        sample=0,
    )
    return Recorded(request, 1, TASK, "1Gi", ExitStatus.SUBMITTED, tuple(path), asked)


def test_step_t_is_the_state_after_the_last_result_of_its_message(recorded: Recorded) -> None:
    assert recorded.steps == 3
    assert [len(recorded.until(step)) for step in (BEFORE, 0, 1, 2)] == [2, 5, 7, 9]
    commands = [[one.call.arguments[13] for one in recorded.executed(step)] for step in (BEFORE, 0, 1, 2)]
    assert commands == [[], ["a", "b"], ["a", "b"], ["a", "b", "s"]]
    assert [one.step for one in recorded.executed(2)] == [0, 0, 2]
    assert recorded.submitted == 2


def test_the_budget_of_the_path_is_what_its_calls_and_commands_used(recorded: Recorded) -> None:
    assert recorded.spent(BEFORE) == Totals()
    assert recorded.spent(1) == Totals(
        turns=2,
        calls=2,
        prompt=200,
        completion=20,
        usd=0.5,
        seconds_llm=4.0,
        seconds_commands=1.0,
        model_kind=ModelKind.MODEL,
    )
    recorded.calls.clear()
    assert recorded.spent(1).cost_usd is None


def test_patience_with_bad_messages_counts_on(recorded: Recorded) -> None:
    counts = [format_errors_at_end(recorded.path[:length], Role.ASSISTANT) for length in range(10)]
    assert counts == [0, 0, 0, 1, 0, 0, 1, 1, 2, 0]


def executed(output: str, shown: str, returncode: int = 0, *, timed_out: bool = False) -> Executed:
    result = ToolResult(
        returncode=returncode, seconds=1.0, timed_out=timed_out, output_sha256=output_sha256(output)
    )
    return Executed(4, calls("c")[0], node(None, Role.TOOL, shown, 5, result=result))


@pytest.mark.parametrize(
    ("output", "returncode", "timed_out", "timing", "words"),
    [
        ("ran 2 tests in 0.001s", 0, False, None, ""),
        ("ran 2 tests in 0.732s", 0, False, True, "other times than are recorded, and nothing else"),
        ("ran 3 tests in 0.001s", 0, False, False, "printed other things"),
        ("ran 2 tests in 0.001s", 1, False, False, "returned 1 where 0 is recorded"),
        ("ran 2 tests in 0.001s", -1, True, False, "returned no code in time where 0"),
    ],
)
def test_a_replay_is_compared_with_the_record(
    output: str, returncode: int, timed_out: bool, timing: bool | None, words: str
) -> None:
    record = executed("ran 2 tests in 0.001s", "ran 2 tests in 0.001s")
    outcome = CommandOutcome(output=output, returncode=returncode, seconds=1.0, timed_out=timed_out)
    found = compare(record, outcome, output)
    if timing is None:
        assert found is None
    else:
        assert found is not None and (found.step, found.timing) == (4, timing)
        assert words in found.what


def test_a_difference_in_the_part_that_is_not_shown_is_told() -> None:
    """The hash is over all of the output: here the shown text is equal, and what is cut out differs."""
    found = compare(
        executed("abc", "a...c"), CommandOutcome(output="aXc", returncode=0, seconds=0.1), "a...c"
    )
    assert found is not None and not found.timing


@pytest.mark.parametrize(
    ("first", "second", "equal"),
    [
        ("1 passed in 0.12s", "1 passed in 3.4s", True),
        ("real\t0m0.012s", "real\t1m2.5s", True),
        ("took 12 ms", "took 7 ms", True),
        ("-rw-r--r-- 1 root root 12 Nov 21 04:45 a", "-rw-r--r-- 1 root root 12 Jan  1  2024 a", True),
        ("-rw-r--r-- 1 root root 12 Nov 21 04:45 a", "-rw-r--r-- 1 root root 13 Nov 21 04:45 a", False),
        ("Sat Nov 21 04:45:35 UTC 2026", "Sat Nov 21 04:45:36 UTC 2026", False),
        ("1732164335", "1732164336", False),
        ("2 failed", "3 failed", False),
        ("x = 5", "x = 6", False),
    ],
)
def test_only_durations_and_times_of_listed_files_are_no_difference(
    first: str, second: str, equal: bool
) -> None:
    assert (timeless(first) == timeless(second)) is equal


def test_the_first_divergence_beyond_timing_is_the_obstacle() -> None:
    timing, real = Divergence(1, "slow", timing=True), Divergence(3, "other", timing=False)
    assert Replay(5, (timing, timing)).obstacle is None
    assert Replay(5, (timing, real, timing)).obstacle is real
    assert Replay(5, (real, timing, timing)).diverged == (1, 3)


def test_users_cannot_name_a_campaign_like_that_of_the_continuations() -> None:
    with pytest.raises(InvalidName, match="reserved"):
        check_name(MEASURED_CAMPAIGN)


# The figures, against definitions written out at length.


def points(pairs: list[tuple[float, int, int]]) -> list[CalibrationPoint]:
    return [
        CalibrationPoint("r", step, annotated, resolved / samples, *wilson(resolved, samples), samples)
        for step, (annotated, resolved, samples) in enumerate(pairs)
    ]


@pytest.mark.parametrize("trials", [1, 2, 5, 12])
def test_the_wilson_interval_holds_the_means_whose_score_test_accepts(trials: int) -> None:
    for successes in range(trials + 1):
        low, high = wilson(successes, trials)
        grid = [step / 2000 for step in range(1, 2000)]
        inside = [
            p for p in grid if abs(successes / trials - p) <= 1.959963984540054 * sqrt(p * (1 - p) / trials)
        ]
        assert low == pytest.approx(min(inside), abs=1e-3)
        assert high == pytest.approx(max(inside), abs=1e-3)
    for bad in ((1, 0), (3, 2), (-1, 2)):
        with pytest.raises(ValueError, match="no proportion"):
            wilson(*bad)


def test_ranks_are_the_mean_over_all_orders_of_equal_values() -> None:
    dice = random.Random(1)
    for _ in range(40):
        values = [dice.randrange(3) / 2 for _ in range(dice.randrange(1, 7))]
        orders = [
            order
            for order in itertools.permutations(range(len(values)))
            if all(values[a] <= values[b] for a, b in itertools.pairwise(order))
        ]
        brute = [sum(order.index(i) + 1 for order in orders) / len(orders) for i in range(len(values))]
        assert ranks(values) == pytest.approx(brute)


def test_spearman_is_pearson_of_the_ranks_and_for_distinct_values_the_textbook_formula() -> None:
    dice = random.Random(2)
    for size in range(3, 30):
        first, second = dice.sample(range(100), size), dice.sample(range(100), size)
        squares = sum((a - b) ** 2 for a, b in zip(ranks(first), ranks(second), strict=True))
        assert spearman(first, second) == pytest.approx(1 - 6 * squares / (size**3 - size))
    assert spearman([1, 2, 3], [10, 20, 30]) == pytest.approx(1.0)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1.0)
    assert spearman([1, 1, 2, 3], [1, 2, 2, 3]) == pytest.approx(5 / 6)
    assert spearman([1, 2], [1, 2]) is None
    assert spearman([1, 1, 1], [1, 2, 3]) is None
    with pytest.raises(ValueError, match="pairs"):
        spearman([1], [1, 2])


def test_agreement_is_what_its_definition_says() -> None:
    found = agreement(points([(0.5, 2, 4), (0.9, 4, 4), (0.2, 3, 4), (0.1, 0, 1)]))
    assert found.points == 4
    assert found.brier == pytest.approx((0 + 0.01 + 0.55**2 + 0.01) / 4)
    assert found.bias == pytest.approx((0 - 0.1 - 0.55 + 0.1) / 4)
    assert found.noise == pytest.approx((0.25 / 3 + 0 + 0.1875 / 3) / 3)
    assert found.covered == pytest.approx(3 / 4)
    assert agreement(points([(0.5, 1, 1)])).noise is None
    with pytest.raises(ValueError, match="no step"):
        agreement([])


@pytest.mark.parametrize(("p", "samples"), [(0.3, 2), (0.5, 4), (0.9, 3)])
def test_the_noise_is_the_expected_brier_score_of_a_perfect_annotator(p: float, samples: int) -> None:
    chances = [comb(samples, n) * p**n * (1 - p) ** (samples - n) for n in range(samples + 1)]
    each = [agreement(points([(p, n, samples)])) for n in range(samples + 1)]
    brier = sum(chance * one.brier for chance, one in zip(chances, each, strict=True))
    noise = sum(chance * (one.noise or 0.0) for chance, one in zip(chances, each, strict=True))
    assert brier == pytest.approx(p * (1 - p) / samples) == pytest.approx(noise)


def test_bins_hold_each_point_once(tmp_path: Path) -> None:
    dice = random.Random(3)
    found = points([(dice.random(), dice.randrange(5), 4) for _ in range(50)] + [(1.0, 4, 4), (0.0, 0, 4)])
    bins = calibration(found, 4)
    assert sum(one.points for one in bins) == 52
    for number, one in enumerate(bins):
        edge = 1.1 if number == 3 else (number + 1) / 4
        inside = [p for p in found if number / 4 <= p.annotated < edge]
        assert one.points == len(inside)
        assert one.measured == pytest.approx(sum(p.measured for p in inside) / len(inside))
    plot(found, "title", tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def measurement(author: Author, events: list[Event], step: int, samples: int, resolved: int) -> Event:
    low, high = wilson(resolved, samples)
    data = ValueMeasured(
        step=step,
        model="m",
        model_kind=ModelKind.MODEL,
        samples=samples,
        resolved=resolved,
        value=resolved / samples,
        low=low,
        high=high,
    )
    assert isinstance(payload(events[-1]), RolloutFinished)
    return author.event(data, events[-1].rollout_id or "")


async def test_the_measurement_with_most_samples_meets_the_newest_annotation(pipeline: Any) -> None:
    author = Author()
    blob = pipeline.blobs.put(msgspec.json.encode(TASK))
    events = author.rollout(0, ["a", "b", "c"], resolved=False, blob=blob)
    await pipeline.keep(
        *events,
        author.annotated(events, {0: 0.1, 2: 0.1}, 3, "judge"),
        author.annotated(events, {0: 0.6, 2: 0.2}, 3, "judge", base=0.3),
        author.annotated(events, {0: 0.9, 2: 0.2}, 3, "other"),
        measurement(author, events, -1, 2, 1),
        measurement(author, events, 0, 8, 6),
        measurement(author, events, 0, 4, 0),
        measurement(author, events, 2, 4, 1),
        measurement(author, events, 3, 4, 1),
    )
    with open_tables(pipeline.store) as tables:
        found = compared(tables, "judge")
        both = compared(tables)
    assert list(found) == [AnnotatorAndPolicy("judge", "m")] and set(both) == {
        AnnotatorAndPolicy("judge", "m"),
        AnnotatorAndPolicy("other", "m"),
    }
    seen = [(p.step, p.annotated, p.measured, p.samples) for p in found[AnnotatorAndPolicy("judge", "m")]]
    assert seen == [(-1, 0.3, 0.5, 2), (0, 0.6, 0.75, 8), (2, 0.2, 0.25, 4)]


def test_the_interval_of_a_rank_correlation_is_over_rollouts() -> None:
    """Steps of one rollout are alike: ten of each rollout narrow it no more than one."""
    dice = random.Random(2)

    def drawn(rollouts: int, steps: int) -> list[CalibrationPoint]:
        found = []
        for number in range(rollouts):
            told, true = dice.random(), dice.random()
            found += [CalibrationPoint(f"r{number}", step, told, true, 0, 1, 8) for step in range(steps)]
        return found

    many = drawn(60, 1)
    low, high = spearman_interval(many) or (0.0, 0.0)
    assert low < 0 < high < low + 0.7
    alike = spearman_interval([point for point in many[:6] for _ in range(10)])
    assert alike == pytest.approx(spearman_interval(many[:6]))
    assert spearman_interval(many) == (low, high), "the same on each call"
    assert spearman_interval(drawn(4, 10)) is None
    perfect = [CalibrationPoint(f"r{n}", 0, n / 10, n / 10, 0, 1, 8) for n in range(10)]
    assert spearman_interval(perfect) == (pytest.approx(1.0), pytest.approx(1.0))
