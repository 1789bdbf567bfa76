"""Datasets of browser agents: a turn an example, with the pictures that the model was shown."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from orchard.pipelines.datasets.build import build
from orchard.pipelines.datasets.errors import DatasetError
from orchard.pipelines.datasets.manifest import read_manifest
from orchard.pipelines.datasets.rows import read_rows, read_tokens
from orchard.pipelines.datasets.selection import Caps, Choice, select
from orchard.pipelines.datasets.settings import CandidateSource, DatasetSettings, config_hash, read_settings
from orchard.pipelines.datasets.tokenization import ChatTokenizer
from orchard.schemas.messages import Role
from orchard.storage.blobs import BlobStore
from tests.gui_log import CAPTION, SCREEN, GuiAuthor
from tests.trajectory_log import Author

FIRST, NEXT = 11, 12  # the screens of the rollout that is read word by word


def settings(
    seeing: str, tmp_path: Path, more: str = "", campaigns: Sequence[str] = ("gui", "demo")
) -> DatasetSettings:
    file = tmp_path / "gui.toml"
    file.write_text(
        f'preset = "gui"\nname = "gui"\ntokenizer = "{seeing}"\n{more}[source]\nunproven = true\n'
        f"campaigns = {json.dumps(campaigns)}\n"
    )
    return read_settings(file)


@pytest.mark.long
@pytest.mark.parametrize("role", [Role.USER, Role.TOOL])
async def test_a_turn_is_an_example_with_what_the_model_was_shown(
    keep, tmp_path: Path, seeing: str, role: Role
) -> None:
    blobs = BlobStore(tmp_path / "store")
    store = await keep(GuiAuthor(blobs).played("t1", 4, last=2, role=role))
    done = build(store, settings(seeing, tmp_path), tmp_path / "dataset")
    rows = list(read_rows(tmp_path / "dataset"))
    assert done.rows == 4 and [row.trained_turns for row in rows] == [(0,), (1,), (2,), (3,)]
    assert [row.example_id[-2:] for row in rows] == [".0", ".1", ".2", ".3"]
    assert [len(row.images) for row in rows] == [1, 2, 2, 2]
    assert rows[2].images == (rows[1].images[1], rows[3].images[0])

    kept, tokenizer = BlobStore(tmp_path / "dataset"), ChatTokenizer.load(seeing)
    begin, picture, end = (
        tokenizer.tokenizer.convert_tokens_to_ids(name)
        for name in ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
    )
    each = (SCREEN[0] // 8) * ((SCREEN[1] + 4) // 8)
    for row in rows:
        assert all(kept.read(sha256) == blobs.read(sha256) for sha256 in row.images)
        assert (row.input_ids == picture).sum() == each * len(row.images)
        text = tokenizer.decode(row.input_ids.tolist())
        frame = "<|vision_start|>" + "<|image_pad|>" * each + "<|vision_end|>"
        assert text.count(frame) == len(row.images)
        trained = tokenizer.decode(row.input_ids[row.loss_mask == 1].tolist())
        assert trained.count("I think") == 1 and f"I think {row.turns}." in trained
        assert np.flatnonzero(row.loss_mask)[-1] == row.tokens - 1
    first, last = json.loads(rows[0].messages), json.loads(rows[3].messages)
    assert first[1]["content"][0]["text"].endswith(f"64 x 50{CAPTION}")
    assert first[1]["content"][1] == {
        "type": "image_url",
        "image_url": {"url": f"sha256:{rows[0].images[0]}"},
    }
    assert isinstance(last[1]["content"], str) and CAPTION not in last[1]["content"]
    assert last[-1]["role"] == "assistant" and last[-1]["tool_calls"]
    assert begin != end and next(read_tokens(tmp_path / "dataset")).images == rows[0].images


@pytest.mark.long
async def test_the_preset_takes_the_shortest_success_of_each_task_and_twenty_of_a_site(
    keep, tmp_path: Path, seeing: str
) -> None:
    author = GuiAuthor(BlobStore(tmp_path / "store"))
    events = [
        *author.played("t1", 4),
        *author.played("t1", 2, sample=1, words="more words"),
        *author.played("t1", 2, sample=2),
        *author.played("t1", 1, sample=3, resolved=False),
        *author.played("t2", 3, resolved=False),
    ]
    for number in range(22):
        events += author.played(f"m{number}", 1, site="map")
    store = await keep(events)
    done = build(store, settings(seeing, tmp_path), tmp_path / "dataset")
    rows = list(read_rows(tmp_path / "dataset"))
    assert {row.sample for row in rows if row.repo == "shop"} == {2}
    assert sum(row.repo == "map" for row in rows) == 20
    assert done.counts["dropped_repo_cap"] == 2 and done.counts["dropped_task_cap"] == 2
    assert done.rows == 2 + 20


@pytest.mark.long
async def test_a_window_that_is_named_wins_and_texts_alone_leave_pictures_out(
    keep, tmp_path: Path, seeing: str
) -> None:
    author = GuiAuthor(BlobStore(tmp_path / "store"))
    store = await keep([*author.played("g1", 3, last=1), *Author().rollout(0, ["ls"], resolved=True)])
    build(store, settings(seeing, tmp_path, "pictures = 3\n"), tmp_path / "three")
    rows = list(read_rows(tmp_path / "three"))
    assert sorted(len(row.images) for row in rows) == [0, 1, 2, 3]
    plain = DatasetSettings(name="plain", tokenizer=seeing, source=CandidateSource(unproven=True))
    done = build(store, plain, tmp_path / "plain")
    assert (done.rows, done.counts["dropped_pictures"]) == (1, 1)
    with pytest.raises(DatasetError, match="pictures need `pairs = true`"):
        settings(seeing, tmp_path, "pairs = false\n")


@pytest.mark.long
async def test_the_image_processor_is_part_of_what_a_dataset_is(
    keep, tmp_path: Path, seeing: str, tokenizer: str
) -> None:
    store = await keep(GuiAuthor(BlobStore(tmp_path / "store")).played("t1", 2))
    build(store, settings(seeing, tmp_path), tmp_path / "dataset")
    there = read_manifest(tmp_path / "dataset")
    assert there.tokenizer_sha256 != ChatTokenizer.load(seeing).sha256
    with pytest.raises(DatasetError, match="image processor"):
        build(store, settings(tokenizer, tmp_path), tmp_path / "other")
    old = DatasetSettings(name="x", tokenizer="t")
    assert config_hash(old, "0") == "b6ff5aaace174abafa93f617544962c8"


def test_the_shortest_of_each_task_comes_before_a_second_of_any() -> None:
    pool = [
        Choice(f"{task}{turns}{length}", "r", task, turns=turns, length=length)
        for task in "abc"
        for turns, length in ((3, 1), (2, 9), (2, 5))
    ]
    assert select(pool, 3, "shortest") == {"a25", "b25", "c25"}
    assert select(pool, 6, "shortest") == {f"{task}2{length}" for task in "abc" for length in (5, 9)}
    assert len(select(pool, None, "shortest", caps=Caps(per_task=1, per_repo=2))) == 2
    chosen = [select(pool, 1, "shortest", seed=seed) for seed in range(30)]
    assert {next(iter(one)) for one in chosen} == {"a25", "b25", "c25"}
