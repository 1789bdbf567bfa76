"""The page of the distillation experiment: pairs by seed, and what was equal."""

from orchard.pipelines.campaigns.scores import Score
from tests.benchmarks.distillation import SeedResult, page


def seed_result(seed: int, **rates: float) -> SeedResult:
    scores = {arm: Score(value=rate, low=0.0, high=1.0, tasks=40) for arm, rate in rates.items()}
    return SeedResult(
        seed=seed,
        settings={},
        teacher=Score(value=0.9, low=0.8, high=1.0, tasks=40),
        scores=scores,
        tokens={"imitated": 10_000, "distilled": 9_000, "taken_over": 10_000},
        read_tokens=80_000,
        seconds={
            "1. tasks and their image": 900.0,
            "5. the student": 60.0,
            "6. on-policy distillation": 120.0,
        },
        measured="2026-11-27",
    )


def test_differences_are_paired_by_seed() -> None:
    results = [
        seed_result(0, before=0.1, imitated=0.3, distilled=0.4, taken_over=0.2),
        seed_result(1, before=0.3, imitated=0.5, distilled=0.6, taken_over=0.6),
    ]
    text = page(results)
    assert "| 50.0 [-77.1, 177.1] | +30.0 [+30.0, +30.0] | +10.0 [+10.0, +10.0] | 9,000 |" in text
    assert "The teacher solves 90.0 %" in text and "A seed took 3.0 minutes beside what all share" in text


def test_a_page_without_a_seed_says_so() -> None:
    assert "No seed has been run yet" in page([])
