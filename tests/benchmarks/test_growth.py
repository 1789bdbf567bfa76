"""Growth: what costs more for ten times the rollouts is marked, and a tiny run writes its page."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.benchmarks.growth import PARTS, Measured, Rise, render, rises, write
from tests.benchmarks.run import PAGES, ROOT

MEASURES = {
    "log": {"writer, stream to all tables", "submit", "claim and completion, here", "check of every byte"},
    "page": {"view: campaigns, after a commit", "search for words"},
    "dataset": {"dataset build"},
}


def measured(measure: str, *costs: tuple[int, float]) -> list[Measured]:
    return [
        Measured(measure, "rollout", rollouts, cost, "2026-11-27", 1.0, "2 cores") for rollouts, cost in costs
    ]


def test_a_rise_is_counted_for_ten_times_the_rollouts() -> None:
    found = [
        *measured("steady", (1_000, 1.0), (10_000, 1.2), (100_000, 1.0)),
        *measured("rising", (1_000, 1.0), (100_000, 4.0)),
    ]
    [rise] = rises(found)
    assert rise[:3] == Rise("rising", 1_000, 100_000, 0.0)[:3]
    assert rise.share == pytest.approx(1.0), "twice for each of two decades"


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
    words = [sys.executable, "-m", "tests.benchmarks.growth", "--sizes", "30", "--parts", part]
    subprocess.run([*words, "--pages", str(tmp_path)], cwd=ROOT, check=True)
    found = msgspec.json.decode((tmp_path / "growth.json").read_bytes(), type=list[Measured])
    assert {each.measure for each in found} >= MEASURES[part]
    assert "| 30 rollouts |" in (tmp_path / "growth.md").read_text()
