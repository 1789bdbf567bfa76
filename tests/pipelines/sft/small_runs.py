"""Small datasets, tokenizers and models for the trainer's tests."""

import json
from pathlib import Path

import msgspec
import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from orchard.pipelines.datasets.manifest import Manifest, Range, Shard, write_manifest
from orchard.pipelines.datasets.rows import Row, TokenRow, row_digest, rows_sha256, write_rows
from orchard.pipelines.models.tiny import ModelShape
from orchard.pipelines.sft.settings import SftSettings

VOCABULARY = 61

SHAPE = ModelShape(
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
)


def token_rows(count: int, *, longest: int = 40, seed: int = 1) -> list[TokenRow]:
    """Rows of random tokens; about a third of them train, at least one in each row."""
    random = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        length = int(random.integers(4, longest + 1))
        mask = (random.random(length) < 0.35).astype(np.int8)
        mask[-1] = 1
        rows.append(
            TokenRow(
                example_id=f"r{number}.1.0",
                rollout_id=f"r{number}",
                resolved=True,
                input_ids=random.integers(0, VOCABULARY, length).astype(np.int32),
                loss_mask=mask,
            )
        )
    return rows


def whole_row(row: TokenRow) -> Row:
    return Row(
        example_id=row.example_id,
        rollout_id=row.rollout_id,
        attempt=1,
        campaign="c",
        task_id=row.task_id or "t",
        task_source="s",
        repo="r",
        harness="mini-swe-agent",
        model="oracle",
        model_kind="oracle",
        sample=0,
        status="completed",
        exit_status="submitted",
        reward=1.0,
        resolved=row.resolved,
        annotator="",
        turns=1,
        trained_turns=(0,),
        segments=(),
        stored_turns=0,
        done_sequence=1,
        value_sequence=0,
        messages="[]",
        tools="[]",
        input_ids=row.input_ids,
        loss_mask=row.loss_mask,
        images=row.images,
    )


def write_dataset(directory: Path, rows: list[TokenRow]) -> Path:
    """A finished dataset directory with these rows."""
    directory.mkdir(parents=True, exist_ok=True)
    whole = [whole_row(row) for row in rows]
    write_rows(directory / "rows-0.parquet", whole)
    digest = rows_sha256(row_digest(row) for row in whole)
    tokens = sum(len(row.input_ids) for row in rows)
    write_manifest(
        directory,
        Manifest(
            name="test",
            sha256=digest,
            range=Range(first=1, last=1),
            code_version="test",
            config_hash="",
            config="{}",
            tokenizer="test",
            tokenizer_sha256="",
            rows=len(rows),
            tokens=tokens,
            trained_tokens=sum(int(row.loss_mask.sum()) for row in rows),
            resolved=len(rows),
            counts={},
            shards=(Shard(file="rows-0.parquet", rows=len(rows), tokens=tokens, sha256=digest),),
        ),
    )
    return directory


def write_tokenizer(directory: Path) -> Path:
    """A tokenizer of VOCABULARY words."""
    words = {f"w{number}": number for number in range(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="w1", pad_token="w2").save_pretrained(
        directory
    )
    return directory


def to_toml(settings: SftSettings) -> str:
    """Settings as the file that `orchard sft` reads."""
    fields = {name: value for name, value in msgspec.to_builtins(settings).items() if value is not None}
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in fields.items())
