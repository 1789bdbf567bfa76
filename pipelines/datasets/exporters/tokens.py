"""Layouts of tokens: `input_ids` with `labels`, and prime-rl's full-length arrays."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from orchard.pipelines.datasets.exporters.interface import Exporter, Record, nothing
from orchard.pipelines.datasets.rows import Row

IGNORED = -100
"""Label of a token that does not train."""


def _labelled(row: Row) -> Iterator[Record]:
    labels = np.where(row.loss_mask == 1, row.input_ids, IGNORED)
    yield {
        "input_ids": row.input_ids,
        "labels": labels,
        "attention_mask": np.ones(row.tokens, np.int8),
        "example_id": row.example_id,
    }


def _prime(row: Row) -> Iterator[Record]:
    """A sample that trains by cross-entropy alone, on the tokens of the mask."""
    nothing_yet = np.zeros(row.tokens, np.float32)
    yield {
        "token_ids": row.input_ids,
        "mask": row.loss_mask.astype(bool),
        "logprobs": nothing_yet,
        "temperatures": np.ones(row.tokens, np.float32),
        "env_name": row.task_source,
        "advantages": nothing_yet,
        "rl_weights": nothing_yet,
        "ce_weights": row.loss_mask.astype(np.float32),
        "example_id": row.example_id,
    }


_IDS, _MASK, _REALS = pa.list_(pa.int32()), pa.list_(pa.int8()), pa.list_(pa.float32())

TOKENS = Exporter(
    name="tokens",
    consumer="anything that takes input_ids and labels: transformers.Trainer, TRL, verl",
    schema=pa.schema(
        [("input_ids", _IDS), ("labels", _IDS), ("attention_mask", _MASK), ("example_id", pa.string())]
    ),
    project=_labelled,
    losses=nothing,
    always=("texts: only the tokenizer of the manifest reads them back",),
)
PRIME_TOKENS = Exporter(
    name="prime-rl-tokens",
    consumer="prime-rl TrainingSample",
    schema=pa.schema(
        [
            ("token_ids", _IDS),
            ("mask", pa.list_(pa.bool_())),
            ("logprobs", _REALS),
            ("temperatures", _REALS),
            ("env_name", pa.string()),
            ("advantages", _REALS),
            ("rl_weights", _REALS),
            ("ce_weights", _REALS),
            ("example_id", pa.string()),
        ]
    ),
    project=_prime,
    losses=nothing,
    always=("log-probabilities of sampled tokens: they are 0, a dataset for SFT has none",),
)
