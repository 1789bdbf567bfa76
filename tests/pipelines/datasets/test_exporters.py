"""Exports as their consumers read them: Hugging Face datasets and TRL; documented forms where these end."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets as hf
import numpy as np
import pandas
import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM
from trl import SFTConfig, SFTTrainer

from orchard.pipelines.datasets.build import build
from orchard.pipelines.datasets.errors import DatasetError
from orchard.pipelines.datasets.exporters import write
from orchard.pipelines.datasets.exporters.write import built_in, export
from orchard.pipelines.datasets.foreign import parquet_rows
from orchard.pipelines.datasets.importing import events_of, import_trajectories
from orchard.pipelines.datasets.rows import Row, read_rows
from orchard.pipelines.datasets.settings import DatasetSettings, Values
from orchard.pipelines.domains.swe.released_rows import COLUMNS, read_swe_rows, released
from orchard.pipelines.tasks.left_out import LeftOut
from orchard.schemas.blobs import INLINE_LIMIT
from orchard.schemas.events import encode_event, payload
from orchard.storage.blobs import BlobStore
from orchard.storage.reader import open_tables
from orchard.streams.publisher import Publisher
from orchard.workers.episode.large_messages import whole

COMMANDS = ["ls", "cat a.py", "sed -i s/a/b/ a.py", "submit"]


@pytest.fixture
async def built(keep, author, tokenizer: str, tmp_path: Path) -> Path:
    """Two resolved rollouts, and one that trains steps 1 alone."""
    failed = author.rollout(2, COMMANDS, resolved=False)
    store = await keep(
        [
            *author.rollout(0, COMMANDS, resolved=True),
            *author.rollout(1, COMMANDS[:2], resolved=True),
            *failed,
            author.annotated(failed, {0: 0.4, 1: 0.7, 2: 0.1, 3: 0.1}, 4),
        ]
    )
    settings = DatasetSettings(name="test", tokenizer=tokenizer, values=Values(annotator="teacher"))
    build(store, settings, tmp_path / "dataset")
    return tmp_path / "dataset"


def loaded(built: Path, layout: str, out: Path) -> tuple[list[Row], hf.Dataset, Any]:
    done = export(built, layout, out)
    kind = "parquet" if done.file.suffix == ".parquet" else "json"
    found = hf.load_dataset(kind, data_files=str(done.file), split="train", cache_dir=str(out / "cache"))
    return list(read_rows(built)), found, done


@pytest.mark.long
@pytest.mark.parametrize("layout", built_in())
async def test_every_layout_loads_with_its_columns(built: Path, tmp_path: Path, layout: str) -> None:
    rows, found, done = loaded(built, layout, tmp_path / "out")
    assert len(found) == len(rows) == done.records == 3
    tools = ["tools"] if built_in()[layout].typed_tools else []
    assert found.column_names == [*built_in()[layout].schema.names, *tools]
    assert all(found.features[name] is not None for name in found.column_names)


def trainer_batches(found: hf.Dataset, tokenizer: str, out: Path, **more: Any) -> list[dict[str, Any]]:
    """What TRL's trainer makes of a dataset, one example a batch."""
    chat = AutoTokenizer.from_pretrained(tokenizer)
    shape = Qwen3Config(
        vocab_size=len(chat), hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, head_dim=8,
    )  # fmt: skip
    arguments = SFTConfig(
        output_dir=str(out), per_device_train_batch_size=1, report_to=[], use_cpu=True, bf16=False,
        max_length=None, shuffle_dataset=False, dataloader_num_workers=0, **more,
    )  # fmt: skip
    trainer = SFTTrainer(
        model=Qwen3ForCausalLM(shape), args=arguments, train_dataset=found, processing_class=chat
    )
    return [trainer.data_collator([example]) for example in trainer.train_dataset]


@pytest.mark.long
async def test_trl_trains_exactly_the_masked_tokens_of_the_tokens_layout(
    built: Path, tmp_path: Path, tokenizer: str
) -> None:
    rows, found, done = loaded(built, "tokens", tmp_path / "out")
    for row, batch in zip(rows, trainer_batches(found, tokenizer, tmp_path / "trl"), strict=True):
        assert batch["input_ids"][0].tolist() == row.input_ids.tolist()
        labels = batch["labels"][0].tolist()
        assert [label for label in labels if label != -100] == row.input_ids[row.loss_mask == 1].tolist()
    assert list(done.lost) == ["texts: only the tokenizer of the manifest reads them back"]


@pytest.mark.long
async def test_trl_renders_the_messages_layout_to_our_tokens(
    built: Path, tmp_path: Path, tokenizer: str
) -> None:
    rows, found, done = loaded(built, "messages", tmp_path / "out")
    batches = trainer_batches(found, tokenizer, tmp_path / "trl", assistant_only_loss=True)
    for row, batch in list(zip(rows, batches, strict=True))[:2]:
        assert batch["input_ids"][0].tolist()[: row.tokens] == row.input_ids.tolist()
        labels = batch["labels"][0].tolist()
        assert [label for label in labels if label != -100] == row.input_ids[row.loss_mask == 1].tolist()
    (lost,) = [number for what, number in done.lost.items() if "rise segments" in what]
    assert lost == 1


@pytest.mark.long
async def test_the_released_layout_is_as_published(built: Path, tmp_path: Path) -> None:
    rows, found, _ = loaded(built, "orchard-swe", tmp_path / "out")
    call = {"id": hf.Value("string"), "type": hf.Value("string")}
    function = {"name": hf.Value("string"), "arguments": hf.Value("string")}
    message = {"role": hf.Value("string"), "content": hf.Value("string"), "tool_call_id": hf.Value("string")}
    assert found.features["messages"] == hf.List(
        {**message, "tool_calls": hf.List({**call, "function": function})}
    )
    assert found.features["tools"] == found.features["metadata"] == hf.Value("string")
    metadata = json.loads(found[2]["metadata"])
    assert metadata["verify_status"] == "unresolved" and metadata["instance_id"] == "t1"
    assert metadata["orchard"]["trained_turns"] == list(rows[2].trained_turns) == [1]
    assert all(value is not None for one in found[0]["messages"] for value in one.values())


@pytest.mark.long
async def test_slime_masks_each_message_and_has_no_row_without_a_trained_one(
    built: Path, tmp_path: Path
) -> None:
    _, found, _ = loaded(built, "slime", tmp_path / "out")
    masks = [
        [(m["role"], m["step_loss_mask"]) for m in row["messages"] if m["step_loss_mask"]] for row in found
    ]
    assert masks == [[("assistant", 1)] * 4, [("assistant", 1)] * 2, [("assistant", 1)]]
    assert found[2]["messages"][-1]["step_loss_mask"] == 1


@pytest.mark.long
async def test_slime_reads_the_rows_as_its_dataset_does(built: Path, tmp_path: Path) -> None:
    """As `slime/utils/data.py` does (commit 00de6b0): tools into the metadata, which must be an object."""
    file = export(built, "slime", tmp_path / "out").file
    for data in pandas.read_json(file, lines=True, dtype={"label": str}).to_dict("records"):
        metadata = data.get("metadata") or {}
        tools = json.loads(data["tools"])
        assert isinstance(tools, list)
        metadata["tools"] = tools
        assert metadata["rollout_id"] and metadata["trained_turns"]


@pytest.mark.long
async def test_verl_reads_the_tools_that_the_model_was_told_of(
    built: Path, tmp_path: Path, tokenizer: str
) -> None:
    """As `MultiTurnSFTDataset` of verl 0.9.1 does: pandas on Arrow, arrays to lists, then the template."""
    file = export(built, "verl-sft", tmp_path / "out").file
    frame = pandas.read_parquet(file, dtype_backend="pyarrow")
    chat = AutoTokenizer.from_pretrained(tokenizer)
    for row, tools, messages in zip(read_rows(built), frame["tools"], frame["messages"], strict=True):
        told, said = listed(tools), listed(messages)
        assert told == json.loads(row.tools)
        text = chat.apply_chat_template(said, tools=told, tokenize=False)
        assert text.startswith(chat.decode(row.input_ids.tolist()))


def listed(value: Any) -> Any:
    """Nested arrays as lists."""
    if isinstance(value, dict):
        return {key: listed(each) for key, each in value.items()}
    return [listed(each) for each in value] if isinstance(value, list | np.ndarray) else value


def tool(name: str, *properties: dict[str, Any]) -> dict[str, Any]:
    """One with arguments `a`, `b` and so on."""
    parameters = {"type": "object", "properties": dict(zip("abc", properties, strict=False))}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TEXT = {"type": "string"}


def nested(levels: int) -> dict[str, Any]:
    """A list of lists of texts."""
    return {"type": "array", "items": nested(levels - 1)} if levels else TEXT


@pytest.mark.parametrize(
    ("tools", "fit"),
    [
        pytest.param([tool("bash", TEXT)], True, id="one"),
        pytest.param([tool("bash", TEXT), tool("python", TEXT)], True, id="two with equal keys"),
        pytest.param([tool("bash", TEXT), tool("find", TEXT, TEXT)], False, id="other arguments"),
        pytest.param([tool("submit")], False, id="no arguments"),
        pytest.param([tool("a", {"default": 1}), tool("b", {"default": "x"})], False, id="defaults"),
        pytest.param([tool("a", {"default": 1}), tool("b", {"default": 1.5})], False, id="numbers"),
        pytest.param([tool("a", {"default": 2**70})], False, id="a large number"),
        pytest.param([tool("a", {"default": "\ud800"})], False, id="half a character"),
        pytest.param([tool("a", nested(40))], True, id="nested"),
        pytest.param([tool("a", nested(120))], False, id="nested too deep"),
        pytest.param([tool("a", TEXT), tool("b", {"type": ["string", "null"]})], False, id="types"),
        pytest.param([tool("a", {"enum": [1, "two", None]})], False, id="enum"),
        pytest.param(
            [tool("a", {"additionalProperties": False}), tool("b", {"additionalProperties": TEXT})],
            False,
            id="additionalProperties",
        ),
        pytest.param([tool("a", TEXT | {"title": "x"}), tool("b", {"title": "x"} | TEXT)], False, id="order"),
    ],
)
def test_tools_that_parquet_would_change_are_left_out_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tools: list[dict[str, Any]], fit: bool
) -> None:
    rows = [SimpleNamespace(tools=json.dumps(tools))]
    monkeypatch.setattr(write, "read_rows", lambda _: rows)
    found = write._with_tools(built_in()["verl-sft"], tmp_path)
    assert ("tools" in found.schema.names, write.MIXED_TOOLS in found.always) == (fit, not fit)


def test_tools_that_differ_between_rows_are_left_out_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [SimpleNamespace(tools=json.dumps([tool("a", *said)])) for said in ((TEXT,), (TEXT, TEXT))]
    monkeypatch.setattr(write, "read_rows", lambda _: rows)
    assert write.MIXED_TOOLS in write._with_tools(built_in()["verl-sft"], tmp_path).always


@pytest.mark.long
async def test_stepwise_labels_are_the_steps_that_rise(built: Path, tmp_path: Path) -> None:
    _, found, done = loaded(built, "trl-stepwise", tmp_path / "out")
    assert [row["labels"] for row in found] == [[True] * 4, [True] * 2, [False, True]]
    assert all(len(row["labels"]) == len(row["completions"]) for row in found)
    assert done.lost["how much a step rises: a label is only whether it does"] == 1


@pytest.mark.long
async def test_prime_rl_gets_full_length_arrays(built: Path, tmp_path: Path) -> None:
    rows, found, _ = loaded(built, "prime-rl-tokens", tmp_path / "out")
    for row, sample in zip(rows, found, strict=True):
        arrays = ("token_ids", "mask", "logprobs", "temperatures", "advantages", "rl_weights", "ce_weights")
        assert {len(sample[name]) for name in arrays} == {row.tokens}
        assert [int(one) for one in sample["mask"]] == row.loss_mask.tolist() == sample["ce_weights"]


@pytest.mark.long
async def test_an_export_that_is_there_is_not_overwritten(built: Path, tmp_path: Path) -> None:
    export(built, "tokens", tmp_path / "out")
    with pytest.raises(DatasetError, match="exists"):
        export(built, "tokens", tmp_path / "out")
    with pytest.raises(DatasetError, match="there is no layout 'other'"):
        export(built, "other", tmp_path / "elsewhere")


@pytest.mark.long
async def test_exported_rows_come_back_as_rollouts_that_build_to_the_same_tokens(
    built: Path, keep, connection, tokenizer: str, tmp_path: Path
) -> None:
    """The two resolved rows, out in the released layout and in again; the third lost its end to the cut."""
    done = export(built, "orchard-swe", tmp_path / "out")
    blobs = BlobStore(str(tmp_path / "store"))
    publisher = Publisher(connection)
    arguments = {"campaign": "published", "dataset": "ours"}
    rows = [*read_swe_rows([done.file], blobs, "mini-swe-agent")]
    first = await import_trajectories(publisher, blobs, rows, **arguments)
    assert (first.rollouts, first.flags) == (3, {"unanswered_last_call": 3})
    again = await import_trajectories(publisher, blobs, rows, **arguments)
    assert (again.rollouts, again.there_already) == (0, 3)
    store = await keep()
    with open_tables(store) as tables:
        found = tables.execute(
            "select resolved, turns, exit_status from rollouts where campaign = 'published' order by sequence"
        ).fetchall()
        holds = tables.execute("select holds from conservation where campaign = 'published'").fetchall()
    assert found == [(True, 4, "submitted"), (True, 2, "submitted"), (False, 2, "submitted")]
    assert holds == [(True,)]
    config = DatasetSettings(name="again", tokenizer=tokenizer)
    build(store, config, tmp_path / "again")
    ours = [row for row in read_rows(built) if row.resolved]
    back = [row for row in read_rows(tmp_path / "again") if row.campaign == "published"]
    assert [row.input_ids.tolist() for row in back] == [row.input_ids.tolist() for row in ours]
    assert [row.tools for row in back] == [row.tools for row in ours]


def test_large_parts_of_imported_messages_are_blobs(tmp_path: Path) -> None:
    """Thoughts and calls as well as texts, and they come back whole."""
    large = "x" * (INLINE_LIMIT + 1)
    call = {"id": "1", "function": {"name": "bash", "arguments": json.dumps({"command": large})}}
    row = {
        "messages": [
            {"role": "user", "content": "Fix it."},
            {"role": "assistant", "content": f"<think>\n{large}\n</think>\nYes.", "tool_calls": [call]},
        ],
        "tools": "[]",
        "metadata": json.dumps({"instance_id": "a", "verify_status": "resolved"}),
    }
    blobs = BlobStore(str(tmp_path))
    events = events_of(
        blobs, next(released([(0, row)], "mini-swe-agent")), campaign="published", dataset="ours"
    )
    assert max(len(encode_event(event)) for event in events) < INLINE_LIMIT
    found = [payload(event) for event in events if event.type == "message.appended"]
    said = whole(found[1], blobs)
    assert (said.reasoning, said.content) == (large, "Yes.")
    assert said.tool_calls[0].arguments == call["function"]["arguments"]


@pytest.mark.long
async def test_files_in_another_layout_cost_themselves(built: Path, tmp_path: Path) -> None:
    good = export(built, "orchard-swe", tmp_path / "good").file
    other = export(built, "tokens", tmp_path / "out").file
    (tmp_path / "text.parquet").write_text("no")
    whole = pq.read_table(good)
    pq.write_table(whole, tmp_path / "torn.parquet", row_group_size=1)
    raw = bytearray((tmp_path / "torn.parquet").read_bytes())
    raw[8:40] = b"\xff" * 32
    (tmp_path / "torn.parquet").write_bytes(raw)
    files = [other, tmp_path / "text.parquet", tmp_path / "torn.parquet", good]
    read = [row for _, row in parquet_rows(files, COLUMNS)]
    left_out = [row for row in read if isinstance(row, LeftOut)]
    assert [each.name for each in left_out] == [str(file) for file in files[:3]]
    assert "no column messages" in left_out[0].why and "as Parquet" in left_out[1].why
    assert [row for row in read if not isinstance(row, LeftOut)][-whole.num_rows :] == whole.select(
        ["messages", "tools", "metadata"]
    ).to_pylist()
