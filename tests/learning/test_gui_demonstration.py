"""`make demo-gui`, small: worlds, an oracle in real Chromium, drills, datasets, a model that sees.

That it then clicks on the right shape takes more examples than a test has time for: see docs/gui.md.
"""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from examples.run import example, run
from orchard.pipelines.datasets.rows import read_rows
from orchard.pipelines.models.directories import load_tokenizer
from orchard.pipelines.sft.metrics import read_steps
from orchard.storage.blobs import BlobStore
from orchard.storage.reader import open_tables

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

_NAMES = re.compile(r"\b(red|blue|green|yellow|purple|circle|square|triangle|star|cross|polygon|\d+)\b")
SMALL: dict[str, Any] = {
    "tasks": 8,
    "mistakes": 0.0,
    "held_out": 3,
    "drills": 48,
    "episodes": 8,
    "drill_epochs": 1,
    "epochs": 2,
    "rl_tasks": 1,
    "steps": 0,
    "slots": 2,
    "threads": 1,
    "answer_tokens": 40,
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gui")


@pytest.fixture(scope="module")
def taught(store: Path) -> dict[str, Any]:
    return asyncio.run(run(*example("gui", str(store), **SMALL)))


def test_the_log_of_the_oracle_becomes_rows_with_the_pictures_that_it_was_shown(
    store: Path, taught: dict[str, Any]
) -> None:
    with open_tables(str(store)) as tables:
        played = tables.execute(
            "select count(*), count(*) filter (resolved) from rollouts where campaign = 'demo-gui-oracle'"
        ).fetchone()
        shown = tables.execute(
            "select images_shown from llm_calls where campaign = 'demo-gui-oracle' order by all"
        ).fetchall()
    assert played == (SMALL["tasks"], SMALL["tasks"])
    dataset = store / "demo-gui" / "oracle-dataset"
    rows = list(read_rows(dataset))
    assert len(rows) == taught["rows"] == len(shown)
    assert sorted(row.images for row in rows) == sorted(tuple(images) for (images,) in shown)
    for row in rows:
        assert [len(BlobStore(dataset).read(image)) > 100 for image in row.images] == [True] * len(row.images)


def test_the_base_trains_on_drills_that_came_in_as_data_of_others(
    store: Path, taught: dict[str, Any]
) -> None:
    rows = list(read_rows(store / "demo-gui" / "drills-2-dataset"))
    assert len(rows) == taught["drawn"]
    assert {row.task_source for row in rows} == {"screen-drills"}
    assert all(len(row.images) == 1 for row in rows)
    screens = list(read_rows(store / "demo-gui" / "drills-1-dataset"))
    assert len(screens) == SMALL["drills"] < len(rows)
    assert {row.task_id for row in screens} < {row.task_id for row in rows}
    lines = {row.trained_tokens // 6 for row in screens}  # a name and its place, and an end
    assert lines == {1, 2, 3}  # those that a request names, or all of the screen's
    steps = read_steps(store / "demo-gui-0" / "base-1" / "metrics.jsonl")
    assert steps[-1].loss < steps[0].loss


def test_drawn_episodes_read_as_those_of_the_browser_do(store: Path, taught: dict[str, Any]) -> None:
    """But for names and numbers, each turn of the oracle in Chromium is a drawn one, token by token."""
    tokenizer = load_tokenizer(store / "demo-gui" / "reader")

    def forms(dataset: str, begin: str) -> set[str]:
        return {
            _NAMES.sub("?", tokenizer.decode(row.input_ids))
            for row in read_rows(store / "demo-gui" / dataset)
            if row.task_id.startswith(begin)
        }

    shown, drawn = forms("oracle-dataset", ""), forms("drills-2-dataset", "episode-")
    assert 0 < len(shown) <= taught["rows"] and shown <= drawn


def test_it_trains_and_is_measured_before_after_and_blind(store: Path, taught: dict[str, Any]) -> None:
    steps = read_steps(store / "demo-gui-0" / "sft" / "metrics.jsonl")
    assert steps[-1].loss < steps[0].loss
    for name in ("before", "base", "tuned", "after", "blind"):
        assert taught[name].tasks == SMALL["held_out"]
    assert taught["before"].value == 0.0
