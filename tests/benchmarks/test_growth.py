"""Growth: what costs more for ten times the rollouts is marked, and a tiny run writes its page."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.benchmarks.growth import PARTS, Measured, Run, render, rises, write
from tests.benchmarks.run import PAGES, ROOT

MEASURES = {
    "log": {"writer, stream to all tables", "submit", "claim and completion, here", "check of every byte"},
    "page": {"view: campaigns, after a commit", "search for words"},
    "dataset": {"dataset build"},
}


def measured(measure: str, *costs: tuple[int, float]) -> list[Measured]:
    return [
        Measured(measure, "rollout", rollouts, (Run(cost, 1.0),), "2026-11-27", "2 cores")
        for rollouts, cost in costs
    ]


def repeated(measure: str, rollouts: int, *costs: float) -> Measured:
    return Measured(
        measure, "rollout", rollouts, tuple(Run(cost, 1.0) for cost in costs), "2026-11-27", "2 cores"
    )


def test_a_rise_is_counted_for_ten_times_the_rollouts() -> None:
    found = [
        *measured("steady", (1_000, 1.0), (10_000, 1.2), (100_000, 1.0)),
        *measured("rising", (1_000, 1.0), (100_000, 4.0)),
    ]
    [rise] = rises(found)
    assert (rise.larger.measure, rise.smaller.rollouts, rise.larger.rollouts) == ("rising", 1_000, 100_000)
    assert rise.share == pytest.approx(1.0), "twice for each of two decades"


def test_of_several_runs_the_median_counts_and_the_page_says_whether_they_overlap() -> None:
    apart = [repeated("rising", 1_000, 1.0, 9.0, 2.0), repeated("rising", 10_000, 30.0, 10.0, 20.0)]
    [rise] = rises(apart)
    assert rise.share == pytest.approx(9.0) and rise.apart
    page = render([*apart, repeated("noisy", 1_000, 1.0, 9.0), repeated("noisy", 10_000, 4.0, 20.0)])
    assert "| rising | rollout | 2 | **20** |" in page
    assert "from 2 (1 to 9) at 1,000 to 20 (10 to 30) at 10,000.\n" in page
    assert "from 5 (1 to 9) at 1,000 to 12 (4 to 20) at 10,000. The runs overlap." in page
    assert "- rising. Not explained yet." in page and "- noisy. The runs overlap" in page
    assert "runs of each cost: 2 to 3" in page


def test_what_has_no_figure_at_a_size_is_listed() -> None:
    page = render(
        [*measured("submit", (1_000, 1.0), (10_000, 1.0)), *measured("dataset build", (1_000, 39.0))]
    )
    assert "- dataset build, at 10,000: at 39 ms each" in page and "- submit, at" not in page


def test_a_figure_replaces_the_older_one_and_the_page_marks_rises(tmp_path: Path) -> None:
    for new in [*measured("submit", (1_000, 9.0)), *measured("submit", (1_000, 1.0), (10_000, 2.0))]:
        write(tmp_path, new)
    page = (tmp_path / "growth.md").read_text()
    assert "| submit | rollout | 1 | **2** |" in page
    assert "submit: +100% for ten times the rollouts" in page
    found = msgspec.json.decode((tmp_path / "growth.json").read_bytes(), type=list[Measured])
    assert [each.milliseconds for each in found] == [1.0, 2.0] and page == render(found)


def test_the_page_is_made_of_the_figures() -> None:
    found = msgspec.json.decode((PAGES / "growth.json").read_bytes(), type=list[Measured])
    assert (PAGES / "growth.md").read_text() == render(found)


@pytest.mark.long
@pytest.mark.parametrize(
    "part", ["log", *(pytest.param(part, marks=pytest.mark.slow) for part in PARTS if part != "log")]
)
@pytest.mark.timeout(600)
def test_a_tiny_run_writes_its_page(part: str, tmp_path: Path) -> None:
    words = [
        sys.executable,
        "-m",
        "tests.benchmarks.growth",
        "--sizes",
        "30",
        "--repeats",
        "1",
        "--parts",
        part,
    ]
    subprocess.run([*words, "--pages", str(tmp_path)], cwd=ROOT, check=True)
    found = msgspec.json.decode((tmp_path / "growth.json").read_bytes(), type=list[Measured])
    assert {each.measure for each in found} >= MEASURES[part]
    assert "| 30 rollouts |" in (tmp_path / "growth.md").read_text()
