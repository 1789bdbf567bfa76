"""The canonical row: one training example with its tokens, its texts and where it came from.

Every exporter is a projection of it. Arrays are numpy: `torch.from_numpy(row.input_ids)` copies nothing.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from orchard.pipelines.datasets.manifest import read_manifest
from orchard.schemas.identity import canonical
from orchard.schemas.protection import Protected

Ids = npt.NDArray[np.int32]
Mask = npt.NDArray[np.int8]

_READ_ROWS = 64
_GROUP_ROWS = 256


class Segment(msgspec.Struct, frozen=True):
    """Consecutive steps that train, both inclusive, counted from 0."""

    first: int
    last: int


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """The graded rollout that an example is made of, by the tables."""

    rollout_id: str
    attempt: int
    campaign: str
    task_id: str
    task_source: str
    repo: str
    harness: str
    model: str
    model_kind: str
    sample: int
    status: str
    exit_status: str
    reward: float
    resolved: bool
    done_sequence: int
    """Sequence of the rollout's terminal event in the log."""
    protected: Protected | None = None
    """Label of the reward; None where it has none."""
    human_labels: tuple[str, ...] = ()
    """Labels that people gave the rollout."""
    human_score: float | None = None
    """Mean of the newest score of each author, in [0, 1]; None without any."""


class Row(Origin, frozen=True, kw_only=True):
    """One example. `loss_mask[i]` is 1 where token `input_ids[i]` itself is predicted and trains: the shift
    by one is the trainer's."""

    example_id: str
    """`<rollout>.<attempt>.<index>`."""
    annotator: str
    """Layer whose values chose the segments; empty for resolved trajectories."""
    turns: int
    trained_turns: tuple[int, ...]
    """Steps that train, counted from 0 over the example's assistant messages."""
    segments: tuple[Segment, ...]
    """Rise segments; empty for resolved trajectories."""
    stored_turns: int
    """Trained turns whose tokens are those that were sampled, not tokenized again."""
    value_sequence: int
    """Sequence of the annotation's event; 0 for resolved trajectories."""
    messages: str
    """JSON text: OpenAI chat messages, arguments as text, reasoning as `reasoning_content`."""
    tools: str
    """JSON text: list of OpenAI tools."""
    input_ids: Ids
    loss_mask: Mask
    images: tuple[str, ...] = ()
    """SHA-256 of the pictures whose tokens are in `input_ids`, in their order."""

    @property
    def tokens(self) -> int:
        return len(self.input_ids)

    @property
    def trained_tokens(self) -> int:
        return int(self.loss_mask.sum())


class TokenRow(msgspec.Struct, frozen=True, kw_only=True):
    """The columns of a row that a trainer reads."""

    example_id: str
    rollout_id: str
    resolved: bool
    input_ids: Ids
    loss_mask: Mask
    images: tuple[str, ...] = ()
    """SHA-256 of the row's pictures; the bytes are blobs of the dataset's directory."""
    task_id: str = ""


_ARRAYS = ("input_ids", "loss_mask")
_IMAGES, _PROTECTED = "images", "protected"
_REVIEW = ("human_labels", "human_score")
_YOUNGER = (_IMAGES, _PROTECTED, *_REVIEW)
"""Columns that older datasets lack; a row's digest counts them where they have a value."""
_PLAIN = tuple(name for name in Row.__struct_fields__ if name not in (*_ARRAYS, *_YOUNGER))
_TOKEN_COLUMNS = list(TokenRow.__struct_fields__)

SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("example_id", "rollout_id")),
        ("attempt", pa.int64()),
        *((name, pa.string()) for name in ("campaign", "task_id", "task_source", "repo", "harness")),
        *((name, pa.string()) for name in ("model", "model_kind")),
        ("sample", pa.int64()),
        *((name, pa.string()) for name in ("status", "exit_status")),
        ("reward", pa.float64()),
        ("resolved", pa.bool_()),
        ("annotator", pa.string()),
        ("turns", pa.int64()),
        ("trained_turns", pa.list_(pa.int32())),
        ("segments", pa.list_(pa.struct([("first", pa.int32()), ("last", pa.int32())]))),
        *((name, pa.int64()) for name in ("stored_turns", "done_sequence", "value_sequence")),
        *((name, pa.string()) for name in ("messages", "tools")),
        ("tokens", pa.int64()),
        ("trained_tokens", pa.int64()),
        ("input_ids", pa.list_(pa.int32())),
        ("loss_mask", pa.list_(pa.int8())),
        (_IMAGES, pa.list_(pa.string())),
        (_PROTECTED, pa.string()),
        ("human_labels", pa.list_(pa.string())),
        ("human_score", pa.float64()),
    ]
)
"""Columns of a shard, in this order."""


def row_digest(row: Row) -> bytes:
    """32 bytes over the row in its canonical form: JSON of the plain fields with sorted keys, then tokens
    and mask, little endian."""
    younger = {name: value for name in _YOUNGER if (value := getattr(row, name)) not in (None, ())}
    digest = hashlib.sha256(canonical({name: getattr(row, name) for name in _PLAIN} | younger))
    digest.update(b"\n")
    digest.update(row.input_ids.astype("<i4", copy=False).tobytes())
    digest.update(row.loss_mask.astype("i1", copy=False).tobytes())
    return digest.digest()


def rows_sha256(digests: Iterable[bytes]) -> str:
    """64 hexadecimal digits over the digests of rows, in order."""
    whole = hashlib.sha256()
    for digest in digests:
        whole.update(digest)
    return whole.hexdigest()


def to_table(rows: Sequence[Row]) -> pa.Table:
    columns: dict[str, Any] = {name: [getattr(row, name) for row in rows] for name in _PLAIN}
    columns["segments"] = [[msgspec.structs.asdict(segment) for segment in row.segments] for row in rows]
    columns |= {name: [getattr(row, name) for row in rows] for name in _YOUNGER}
    columns["tokens"] = [row.tokens for row in rows]
    columns["trained_tokens"] = [row.trained_tokens for row in rows]
    columns["input_ids"] = _lists([row.input_ids for row in rows], pa.int32())
    columns["loss_mask"] = _lists([row.loss_mask for row in rows], pa.int8())
    arrays = [
        value if isinstance(value := columns[field.name], pa.Array) else pa.array(value, field.type)
        for field in SCHEMA
    ]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    temporary = path.with_name(f".{path.name}")
    pq.write_table(
        to_table(rows), temporary, compression="zstd", compression_level=1, row_group_size=_GROUP_ROWS
    )
    temporary.replace(path)


def read_rows(directory: Path) -> Iterator[Row]:
    """Read all rows of a finished dataset, in order, in batches. Raises DatasetError where there is none."""
    columns = [*_PLAIN, *_ARRAYS, *_YOUNGER]
    for batch in _batches(directory, columns):
        ids, masks, images = _arrays(batch, "input_ids"), _arrays(batch, "loss_mask"), _images(batch)
        there = [name for name in (*_PLAIN, _PROTECTED, *_REVIEW) if name in batch.schema.names]
        plains = batch.select(there).to_pylist()
        for plain, input_ids, loss_mask, shown in zip(plains, ids, masks, images, strict=True):
            plain["trained_turns"] = tuple(plain["trained_turns"])
            plain["human_labels"] = tuple(plain.get("human_labels") or ())
            plain["segments"] = tuple(Segment(**segment) for segment in plain["segments"])
            yield Row(**plain, input_ids=input_ids, loss_mask=loss_mask, images=shown)


def read_tokens(directory: Path) -> Iterator[TokenRow]:
    """Read the rows without columns that a trainer does not need: nothing else is read from the disk.
    Raises DatasetError like `read_rows`."""
    for batch in _batches(directory, _TOKEN_COLUMNS):
        plains = batch.select(["example_id", "rollout_id", "resolved", "task_id"]).to_pylist()
        arrays = zip(_arrays(batch, "input_ids"), _arrays(batch, "loss_mask"), _images(batch), strict=True)
        for plain, (input_ids, loss_mask, images) in zip(plains, arrays, strict=True):
            yield TokenRow(**plain, input_ids=input_ids, loss_mask=loss_mask, images=images)


def _batches(directory: Path, columns: list[str]) -> Iterator[pa.RecordBatch]:
    for shard in read_manifest(directory).shards:
        with pq.ParquetFile(directory / shard.file) as file:
            there = [name for name in columns if name not in _YOUNGER or name in file.schema_arrow.names]
            yield from file.iter_batches(_READ_ROWS, columns=there)


def _images(batch: pa.RecordBatch) -> list[tuple[str, ...]]:
    if _IMAGES not in batch.schema.names:
        return [()] * len(batch)
    return [tuple(row) for row in batch.column(_IMAGES).to_pylist()]


def _lists(arrays: Sequence[npt.NDArray[Any]], kind: pa.DataType) -> pa.ListArray:
    """A list column from numpy arrays, without a Python object for each number."""
    offsets = np.zeros(len(arrays) + 1, np.int32)
    np.cumsum([len(array) for array in arrays], out=offsets[1:])
    values = np.concatenate(arrays) if arrays else np.empty(0)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values, kind))


def _arrays(batch: pa.RecordBatch, name: str) -> list[npt.NDArray[Any]]:
    """The column's lists as writable numpy copies."""
    column = batch.column(name)
    offsets = column.offsets.to_numpy()
    values = column.values.to_numpy(zero_copy_only=False)
    return [values[start:end].copy() for start, end in pairwise(offsets)]
