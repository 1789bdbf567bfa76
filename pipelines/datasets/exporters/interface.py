"""Interface of an exporter: a schema, a projection of a row, and sentences for what is lost."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from orchard.pipelines.datasets.rows import Row

Record = dict[str, Any]
EXTRAS = "orchard"
"""The one key of a released layout's metadata that holds what is Orchard's own."""
MARK = "<image>"
"""Stands for a picture in a text."""
PICTURE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
"""Arrow type of a picture: that of the feature Image of the package `datasets`."""


@dataclass(frozen=True)
class Exporter:
    """One layout. Exporters are data: `orchard.pipelines.datasets.exporters.write` writes them all."""

    name: str
    consumer: str
    """Name of the program that reads the layout."""
    schema: pa.Schema
    project: Callable[[Row], Iterator[Record]]
    """The records of one row, none where the layout has no place for it."""
    losses: Callable[[Row], Iterator[str]]
    """Sentences for what the layout loses of one row, equal for all rows of a kind."""
    always: tuple[str, ...] = ()
    """Sentences for what the layout loses of every row."""
    format: str = "parquet"
    """File format: `parquet` or `jsonl`."""
    pictures: str = ""
    """Column of pictures, one for each `<image>` of the texts in their order. `project` names them by their
    SHA-256; where the schema lacks the column, rows with pictures get it, and `project` knows nothing of it.
    Empty for a layout without pictures."""
    typed_tools: bool = False
    """Its reader wants `tools` as a list of objects, not as text: a column that is added where Parquet
    gives back the dataset's tools as they are."""


def written(content: Any) -> str:
    """The text of a message's content, with `<image>` where a picture is."""
    if isinstance(content, list):
        return "".join(part.get("text", "") if part["type"] == "text" else MARK for part in content)
    return content or ""


def nothing(_: Row) -> Iterator[str]:
    """Losses of layouts that lose nothing that depends on the row."""
    yield from ()


def parts_of_trajectories(row: Row) -> Iterator[str]:
    """Losses of layouts that train every assistant message or none."""
    if len(row.trained_turns) < row.turns:
        yield "turns that do not train (rise segments): every assistant message trains there"


def text_only(row: Row) -> Iterator[str]:
    """Losses of layouts without tokens."""
    if row.stored_turns:
        yield "sampled token ids: the consumer tokenizes the text again"


def both(
    *losses: Callable[[Row], Iterator[str]],
) -> Callable[[Row], Iterator[str]]:

    def found(row: Row) -> Iterator[str]:
        for each in losses:
            yield from each(row)

    return found


def plain(row: Row) -> Mapping[str, Any]:
    """Metadata of a row's origin, for layouts with room for it."""
    return {
        "example_id": row.example_id,
        "rollout_id": row.rollout_id,
        "attempt": row.attempt,
        "harness": row.harness,
        "model_kind": row.model_kind,
        "status": row.status,
        "reward": row.reward,
        "annotator": row.annotator,
        "trained_turns": list(row.trained_turns),
        "segments": [[segment.first, segment.last] for segment in row.segments],
        "done_sequence": row.done_sequence,
        "value_sequence": row.value_sequence,
        **({"protected": row.protected} if row.protected else {}),
        **({"human_labels": list(row.human_labels)} if row.human_labels else {}),
        **({"human_score": row.human_score} if row.human_score is not None else {}),
    }
