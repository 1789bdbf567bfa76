"""Which trajectories a dataset takes by source, teacher, pass rate and outcome."""

from collections import Counter
from fractions import Fraction
from itertools import product
from pathlib import Path

import msgspec
import pytest

from orchard.pipelines.datasets.build import build
from orchard.pipelines.datasets.candidates import _of_other_rate
from orchard.pipelines.datasets.errors import DatasetError
from orchard.pipelines.datasets.examples import Candidate
from orchard.pipelines.datasets.mixing import fits, mixed, quotas
from orchard.pipelines.datasets.rows import read_rows
from orchard.pipelines.datasets.settings import (
    DatasetSettings,
    Filters,
    MixturePart,
    PassRateCondition,
    Selection,
    Values,
    config_hash,
    read_settings,
)
from tests.trajectory_log import Author

ANY = MixturePart(weight=1.0)


def settings(tokenizer: str, **changes: object) -> DatasetSettings:
    made = DatasetSettings(name="d", tokenizer=tokenizer)
    return msgspec.structs.replace(made, **changes)


def brute(available: tuple[int, ...], weights: tuple[float, ...], budget: int | None) -> int:
    """The largest size in which every part's share is available."""
    total = sum(map(Fraction, weights))
    fitting = [
        size
        for size in range(sum(available) + 1)
        if all(
            size * Fraction(weight) <= number * total
            for number, weight in zip(available, weights, strict=True)
        )
    ]
    return min(max(fitting), sum(available) if budget is None else budget)


def test_quotas_are_the_largest_in_the_proportion_of_the_weights() -> None:
    for available, weights, budget in product(
        [(5, 5), (1, 30), (7, 3), (40, 10)], [(1.0, 1.0), (3.0, 1.0), (0.5, 2.0)], [None, 4, 9]
    ):
        found = quotas(available, weights, budget)
        size = brute(available, weights, budget)
        assert sum(found) == size
        for number, there, weight in zip(found, available, weights, strict=True):
            assert number <= there
            assert abs(number - size * weight / sum(weights)) < 1
    assert quotas([], [], 5) == []
    assert quotas([10, 10, 10], [0.1, 0.1, 0.1], 10) == [4, 3, 3]


def candidate(**changes: object) -> Candidate:
    fields: dict[str, object] = {
        "rollout_id": "r", "attempt": 1, "campaign": "c", "task_id": "t", "task_source": "s", "repo": "o/r",
        "harness": "h", "model": "m", "model_kind": "model", "sample": 0, "status": "completed",
        "exit_status": "submitted", "reward": 1.0, "resolved": True, "done_sequence": 1, "leaf": None,
        "start_sequence": 1,
    }  # fmt: skip
    return msgspec.convert(fields | changes, Candidate)


@pytest.mark.parametrize("field", ["campaigns", "harnesses", "models", "task_sources"])
def test_a_part_is_by_campaign_harness_teacher_and_source(field: str) -> None:
    has = {"campaigns": "c", "harnesses": "h", "models": "m", "task_sources": "s"}[field]
    assert fits(ANY, candidate())
    assert fits(msgspec.structs.replace(ANY, **{field: ("x", has)}), candidate())
    assert not fits(msgspec.structs.replace(ANY, **{field: ("x",)}), candidate())


@pytest.mark.long
async def test_a_mixture_holds_its_proportion_and_says_what_it_took(
    keep, tokenizer: str, tmp_path: Path
) -> None:
    events = []
    for campaign, number in (("easy", 8), ("hard", 3), ("other", 2)):
        author = Author(campaign)
        for sample in range(number):
            events += author.rollout(sample, ["ls", "submit"], resolved=True)
    store = await keep(events)
    parts = (
        MixturePart(campaigns=("easy",), weight=3.0),
        MixturePart(campaigns=("hard",), weight=2.0),
    )
    made = build(store, settings(tokenizer, mixture=parts), tmp_path / "all")
    taken = Counter(row.campaign for row in read_rows(tmp_path / "all"))
    assert taken == {"easy": 4, "hard": 3}, "the scarcest part decides: 7 of 3 to 2"
    counts = ("mixture_1", "mixture_2", "dropped_outside_mixture", "not_selected", "selected")
    assert [made.counts[name] for name in counts] == [4, 3, 2, 4, 7]
    again = build(store, settings(tokenizer, mixture=parts), tmp_path / "again")
    assert again.sha256 == made.sha256
    few = settings(tokenizer, mixture=parts, selection=Selection(resolved=5))
    build(store, few, tmp_path / "few")
    assert Counter(row.campaign for row in read_rows(tmp_path / "few")) == {"easy": 3, "hard": 2}
    absent = (*parts, MixturePart(models=("nobody",), weight=1.0))
    with pytest.raises(DatasetError, match="part 3 of the mixture has no trajectory"):
        build(store, settings(tokenizer, mixture=(*parts, parts[0])), tmp_path / "same")
    with pytest.raises(
        DatasetError, match=r"mixture\[3\].models: nothing in the store has the model 'nobody'"
    ):
        build(store, settings(tokenizer, mixture=absent), tmp_path / "none")


@pytest.mark.long
async def test_a_cap_counts_what_a_mixture_takes(keep, tokenizer: str, tmp_path: Path) -> None:
    """Each task has a success and a failure with a rise, and a success of another campaign."""
    events = []
    main, beside = Author("main"), Author("beside")
    for number in range(8):
        task = f"t{number}"
        for author, resolved in ((main, True), (main, False), (beside, True)):
            rollout = author.rollout(
                0 if resolved else 1, ["ls", "pwd", "submit"], resolved=resolved, task=task
            )
            events += rollout
            if not resolved:
                events.append(author.annotated(rollout, {0: 0.4, 1: 0.7, 2: 0.1}, 3))
    store = await keep(events)
    few = Selection(per_task=1, resolved=3, unresolved=4)
    parts = (MixturePart(campaigns=("main",), weight=1.0),)
    wanted = settings(tokenizer, mixture=parts, selection=few, values=Values(annotator="teacher"))
    made = build(store, wanted, tmp_path / "out")
    rows = list(read_rows(tmp_path / "out"))
    assert Counter(row.resolved for row in rows) == {True: 3, False: 4}
    assert len({row.task_id for row in rows}) == 7, "one of a task"
    names = ("selected", "dropped_outside_mixture", "dropped_task_cap", "not_selected")
    assert [made.counts[name] for name in names] == [7, 8, 3, 6]


@pytest.mark.long
async def test_a_part_whose_examples_all_fall_to_the_filters_makes_no_mixture(
    keep, tokenizer: str, tmp_path: Path
) -> None:
    events = []
    for campaign, steps in (("short", 1), ("long", 40)):
        author = Author(campaign)
        for sample in range(3):
            events += author.rollout(sample, ["ls"] * steps + ["submit"], resolved=True)
    store = await keep(events)
    parts = tuple(MixturePart(campaigns=(campaign,), weight=1.0) for campaign in ("short", "long"))
    made = build(store, settings(tokenizer, mixture=parts), tmp_path / "both")
    assert [made.counts[f"mixture_{at}_rows"] for at in (1, 2)] == [3, 3]
    most = max(row.tokens for row in read_rows(tmp_path / "both") if row.campaign == "short")
    few = settings(tokenizer, mixture=parts, filters=Filters(max_tokens=most))
    with pytest.raises(DatasetError, match="part 2 of the mixture has no example left of 3 trajectories"):
        build(store, few, tmp_path / "one")
    assert not [*(tmp_path / "one").iterdir()]


def test_a_part_without_any_leaves_the_proportion_of_the_others() -> None:
    counts: Counter[str] = Counter()
    pool = [candidate(rollout_id=f"r{at}", campaign="abc"[at % 2]) for at in range(8)]
    parts = tuple(
        MixturePart(campaigns=(name,), weight=weight) for name, weight in (("a", 3), ("b", 1), ("c", 9))
    )
    chosen = mixed(pool, parts, None, lambda of, number: [one.rollout_id for one in of][:number], counts)
    assert len(chosen) == 5 and (counts["mixture_1"], counts["mixture_2"], counts["mixture_3"]) == (4, 1, 0)


@pytest.mark.long
async def test_tasks_are_chosen_by_their_pass_rate_over_so_many_rollouts(
    keep, author: Author, tokenizer: str, tmp_path: Path
) -> None:
    events = []
    for task, solved, tried in (
        ("never", 0, 8),
        ("hard", 2, 8),
        ("half", 4, 8),
        ("easy", 7, 8),
        ("rare", 1, 3),
    ):
        for sample in range(tried):
            events += author.rollout(sample, ["ls", "submit"], resolved=sample < solved, task=task)
    store = await keep(events)
    paper = PassRateCondition(rollouts=8, above=0.0, at_most=0.5)
    made = build(store, settings(tokenizer, pass_rate=paper), tmp_path / "out")
    assert Counter(row.task_id for row in read_rows(tmp_path / "out")) == {"hard": 2, "half": 4}
    assert (made.counts["dropped_pass_rate"], made.counts["dropped_measured_too_rarely"]) == (16, 3)
    all_ = build(store, settings(tokenizer), tmp_path / "all")
    assert all_.rows == 14 and all_.config_hash != made.config_hash


def test_the_pass_rate_is_that_of_the_trajectorys_own_teacher() -> None:
    rates = {("t", "m"): (0.25, 8), ("t", "strong"): (1.0, 8), ("t", ""): (0.6, 16)}
    own = PassRateCondition(rollouts=8, at_most=0.5)
    assert _of_other_rate(candidate(), own, rates) is None
    assert _of_other_rate(candidate(model="strong"), own, rates) == "pass_rate"
    assert _of_other_rate(candidate(model="weak"), own, rates) == "measured_too_rarely"
    named = msgspec.structs.replace(own, models=("m", "strong"))
    assert _of_other_rate(candidate(), named, rates) == "pass_rate"


@pytest.mark.long
async def test_preferences_are_as_many_successes_as_failures_of_a_task(
    keep, author: Author, tokenizer: str, tmp_path: Path
) -> None:
    events = []
    for task, solved, tried in (("a", 1, 3), ("b", 3, 5), ("never", 0, 2), ("always", 2, 2)):
        for sample in range(tried):
            events += author.rollout(sample, ["ls", "pwd", "submit"], resolved=sample < solved, task=task)
    store = await keep(events)
    wanted = settings(tokenizer, selection=Selection(preferences=2))
    made = build(store, wanted, tmp_path / "out")
    rows = list(read_rows(tmp_path / "out"))
    assert Counter((row.task_id, row.resolved) for row in rows) == {
        ("a", True): 1, ("a", False): 1, ("b", True): 2, ("b", False): 2,
    }  # fmt: skip
    assert all(row.trained_turns == (0, 1, 2) for row in rows), "of failures too, all turns"
    assert (made.counts["preference_pairs"], made.counts["selected"]) == (3, 6)


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ("[[mixture]]\nweight = 0.0\n", "weight"),
        ("[[mixture]]\nweight = inf\n", r"mixture\[0\].weight: this number is not finite"),
        ("[[mixture]]\nmodels = ['m']\n", "weight"),
        ("[pass_rate]\nabove = 0.6\nat_most = 0.5\n", "no pass rate is above 0.6 and at most 0.5"),
        ("[pass_rate]\nrollouts = 0\n", "rollouts"),
        ("[selection]\npreferences = 2\nresolved = 5\n", "leave resolved out"),
        ("pairs = true\n[selection]\npreferences = 2\n", "leave `pairs` and `mixture` out"),
    ],
)
def test_mistakes_are_told(tmp_path: Path, said: str, fault: str) -> None:
    file = tmp_path / "d.toml"
    file.write_text(f'name = "d"\ntokenizer = "t"\n{said}')
    with pytest.raises(DatasetError, match=fault):
        read_settings(file)


def test_datasets_without_these_keys_keep_their_hash() -> None:
    """By the hash of before there were such keys."""
    assert (
        config_hash(DatasetSettings(name="d", tokenizer="t"), "0" * 64) == "5e9c5327af771ed3fd20ffc2b4332495"
    )
