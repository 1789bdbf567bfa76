"""One example for each answer of a trajectory: the paper's pairs of Orchard-Claw."""

from pathlib import Path

import msgspec
import numpy as np
import pytest

from orchard.pipelines.datasets.errors import DatasetError
from orchard.pipelines.datasets.examples import ExampleDraft, ExampleDrop, finished
from orchard.pipelines.datasets.rows import Row
from orchard.pipelines.datasets.settings import DatasetSettings, Filters, config_hash, read_settings
from orchard.pipelines.datasets.tokenization import Encoded
from tests.pipelines.datasets.test_examples import LS, a_path, drafted

SETTINGS = DatasetSettings(name="x", tokenizer="t", pairs=True)
TOKENS = Encoded(
    input_ids=np.arange(100, 130, dtype=np.int32),
    spans=((5, 8), (12, 16), (20, 27)),
    stored=frozenset({1}),
)


def pairs(most: int = 65_536) -> list[Row | ExampleDrop]:
    settings = msgspec.structs.replace(SETTINGS, filters=Filters(max_tokens=most))
    draft = drafted(a_path(LS, LS, LS), settings)
    assert isinstance(draft, ExampleDraft)
    return finished(draft, TOKENS, "[]", settings)


def test_each_answer_is_an_example_with_all_before_it_as_context() -> None:
    rows = pairs()
    assert all(isinstance(row, Row) for row in rows) and len(rows) == 3
    for step, row in enumerate(rows):
        assert isinstance(row, Row)
        first, stop = TOKENS.spans[step]
        assert list(row.input_ids) == list(range(100, 100 + stop))
        assert [place for place, trains in enumerate(row.loss_mask) if trains] == list(range(first, stop))
        assert (row.turns, row.trained_turns, row.stored_turns) == (step + 1, (step,), int(step == 1))
        assert msgspec.json.decode(row.messages)[-1]["content"] == f"step {step}"


def test_pairs_keep_their_trajectory_and_have_ids_of_their_own() -> None:
    rows = [row for row in pairs() if isinstance(row, Row)]
    assert {row.rollout_id for row in rows} == {"r"}
    assert [row.example_id for row in rows] == ["r.1.0.0", "r.1.0.1", "r.1.0.2"]


def test_a_context_that_is_too_long_loses_its_begin_and_the_answer_stays_whole() -> None:
    short, long, longest = pairs(most=6)
    assert isinstance(short, Row) and isinstance(long, Row)
    assert list(short.input_ids) == [102, 103, 104, 105, 106, 107] and list(short.loss_mask) == [
        0,
        0,
        0,
        1,
        1,
        1,
    ]
    assert list(long.input_ids) == [110, 111, 112, 113, 114, 115] and list(long.loss_mask) == [
        0,
        0,
        1,
        1,
        1,
        1,
    ]
    assert longest is ExampleDrop.TOO_LONG


def test_the_preset_makes_pairs_and_other_keys_win(tmp_path: Path) -> None:
    file = tmp_path / "d.toml"
    file.write_text('preset = "claw"\nname = "d"\ntokenizer = "t"\n[filters]\nbad_turns = "mask"\n')
    made = read_settings(file)
    assert (made.pairs, made.filters.max_tokens, made.filters.bad_turns) == (True, 65_536, "mask")
    file.write_text('preset = "nothing"\nname = "d"\ntokenizer = "t"\n')
    with pytest.raises(DatasetError, match="choose one of claw"):
        read_settings(file)


def test_a_dataset_of_before_there_were_pairs_keeps_its_hash() -> None:
    settings = msgspec.structs.replace(SETTINGS, pairs=False)
    assert config_hash(settings, "0") == "b6ff5aaace174abafa93f617544962c8" != config_hash(SETTINGS, "0")
