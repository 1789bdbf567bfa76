"""Results of benchmarks: each is kept as it ends, and two commits are compared beyond the spread."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmarks import run
from tests.benchmarks.compare import moves
from tests.benchmarks.run import Figure, Range, Result

LINES = """\
import json, os
print("words before the figures")
print(json.dumps({"name": "rate", "value": %s, "unit": "1/s", "ceiling": 10.0, "ratio": %s / 10}))
print(json.dumps({"name": "rate", "value": 3, "unit": "ms"}))
"""


def result(**ratios: tuple[float, float, float]) -> Result:
    figures = [
        Figure(
            name=name, value=value, unit="1/s", ceiling=1.0, ratio=value,
            spread=Range(least, most) if least < most else None,
        )
        for name, (least, value, most) in ratios.items()
    ]  # fmt: skip
    return Result(
        benchmark="streams", measured="2026-11-27", commit="c", command="", machine=run.machine(), load=0.1,
        seconds=1.0, rounds=3, figures=figures,
    )  # fmt: skip


def test_figures_move_beyond_their_spread() -> None:
    before = result(same=(0.8, 0.9, 1.0), faster=(0.8, 0.9, 1.0), once=(0.5, 0.5, 0.5), near=(0.5, 0.5, 0.5))
    after = result(
        same=(0.95, 1.1, 1.2), faster=(1.05, 1.1, 1.2), once=(0.6, 0.6, 0.6), near=(0.52, 0.52, 0.52)
    )
    found = {move.figure: move.sure for move in moves({"streams": before}, {"streams": after})}
    assert found == {"faster": True, "once": False}


def test_rounds_give_medians_and_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = iter((5, 9, 6))

    def figures(_: object) -> list[Figure]:
        rate = next(rates)
        out = subprocess.run(
            [sys.executable, "-c", LINES % (rate, rate)], stdout=subprocess.PIPE, text=True, check=True
        ).stdout
        return [run.msgspec.json.decode(line, type=Figure) for line in out.splitlines() if line[0] == "{"]

    monkeypatch.setattr(run, "_figures_of", figures)
    measured = run.measure("streams", 3)
    rate, milliseconds = measured.figures
    assert (rate.value, rate.ratio, rate.spread) == (6, 0.6, Range(0.5, 0.9))
    assert (milliseconds.unit, milliseconds.value, milliseconds.spread) == ("ms", 3, Range(3, 3))
    assert measured.rounds == 3 and measured.commit


def test_each_result_is_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "PAGES", tmp_path)
    monkeypatch.setattr(run, "RESULTS", tmp_path / "results")
    run.write(result(a=(1.0, 2.0, 3.0)))
    assert json.loads((tmp_path / "results" / "streams.json").read_text())["figures"][0]["ratio"] == 2
    page = (tmp_path / "results.md").read_text()
    assert "| streams | a | 2 | 1/s | 1 | 2 [1, 3] |" in page
    assert [each.name for each in tmp_path.iterdir() if each.suffix == ".part"] == []


def test_the_page_is_made_of_the_results() -> None:
    assert (run.PAGES / "results.md").read_text() == run.render(run.read_results())
