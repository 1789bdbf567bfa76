"""The page of `make demo-pretrained`: seeds are kept, and are what its figures are over."""

import msgspec

from examples.steps import FineTuning
from orchard.pipelines.campaigns.scores import Tally, score
from tests.benchmarks.pretrained import Outcome, kept, page


def outcome(seed: int, tuned: int, after: int) -> Outcome:
    def of(resolved: int):
        return score([Tally(graded=1, resolved=int(n < resolved)) for n in range(40)])

    return Outcome(
        seed=seed,
        model="",
        computed="2 processors",
        rows=80,
        training=FineTuning(steps=48, tokens=100_000, seconds=500.0, loss=0.1),
        graded=60,
        updates=3,
        before=of(0),
        tuned=of(tuned),
        after=of(after),
        calls=(0.0, 1.0, 1.0),
        real="not asked for",
        seconds={"1. the model": 60.0, "2. tasks": 120.0},
        peak_bytes=3 * 2**30,
        measured="2026-11-27",
    )


def test_seeds_come_one_by_one_and_a_new_run_of_one_replaces_it() -> None:
    found = kept([outcome(1, 10, 12), outcome(0, 8, 9)], [outcome(1, 20, 22)])
    assert [(one.seed, one.tuned.value) for one in found] == [(0, 0.2), (1, 0.5)]


def test_means_and_differences_are_over_seeds() -> None:
    text = page([outcome(0, 10, 12), outcome(1, 20, 24), outcome(2, 12, 18)])
    assert "| mean | 0.0 [0.0, 0.0] | 35.0 [2.1, 67.9] | 45.0 [7.7, 82.3] | | | 3 | | |" in text
    assert "| range | 0 to 0 | 25 to 50 | 30 to 60 | | | 3 to 3 | | |" in text
    assert "| rewarded - fine-tuned | +10.0 [-2.4, +22.4] | 5 to 15 |" in text


def test_what_a_run_writes_is_read() -> None:
    one = outcome(0, 10, 12)
    assert msgspec.json.decode(msgspec.json.encode(one), type=Outcome) == one
