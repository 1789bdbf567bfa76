"""Writes an export: rows streamed through a projection, losses counted and reported."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from orchard.pipelines.datasets.errors import DatasetError
from orchard.pipelines.datasets.exporters.chat import MESSAGES, PRIME, SLIME, STEPWISE, VERL_RL, VERL_SFT
from orchard.pipelines.datasets.exporters.interface import MARK, PICTURE, Exporter, Record
from orchard.pipelines.datasets.exporters.tokens import PRIME_TOKENS, TOKENS
from orchard.pipelines.datasets.manifest import read_manifest
from orchard.pipelines.datasets.rows import Row, read_rows
from orchard.pipelines.domain import offered
from orchard.schemas.plugins import Kind
from orchard.storage.blobs import BlobStore
from orchard.workers.discovery import load
from orchard.workers.episode.pictures import data_url, read_picture
from orchard.workers.plugins import find, names, need

_OF_NO_DOMAIN: dict[str, Exporter] = {
    exporter.name: exporter
    for exporter in (MESSAGES, TOKENS, SLIME, VERL_SFT, VERL_RL, PRIME, PRIME_TOKENS, STEPWISE)
}
SPELLED = f"rows with a text that spells {MARK}, which nobody could tell from a picture: left out"
MIXED_TOOLS = "tools: no column of Parquet holds these as they are; use the layout `tokens`"
_BATCH = 256


def built_in() -> dict[str, Exporter]:
    of_domains = offered(lambda domain: domain.exporters)
    return _OF_NO_DOMAIN | {name: load(reference) for name, reference in of_domains.items()}


def layouts() -> Iterator[Exporter]:
    """Yields all layouts, plug-ins last. Raises PluginError for one that cannot be loaded."""
    yield from built_in().values()
    for name in names(Kind.EXPORTER):
        yield need(Kind.EXPORTER, name)


@dataclass(frozen=True)
class Exported:
    """The account of an export."""

    file: Path
    records: int
    left_out: int
    lost: dict[str, int]
    """Each loss with the number of rows that it concerns."""


def export(dataset: Path, layout: str, out: Path) -> Exported:
    """Write a dataset in a layout into the directory `out`. Raises DatasetError for an unknown layout or a
    file that is there already."""
    of_domains = offered(lambda domain: domain.exporters)
    if layout in of_domains:
        exporter = load(of_domains[layout])
    else:
        exporter = _OF_NO_DOMAIN.get(layout) or find(Kind.EXPORTER, layout)
    if exporter is None:
        known = ", ".join([*_OF_NO_DOMAIN, *of_domains, *names(Kind.EXPORTER)])
        raise DatasetError(f"there is no layout {layout!r}: choose one of {known}")
    rows = read_manifest(dataset).rows
    file = out / f"train.{exporter.format}"
    if file.exists():
        raise DatasetError(f"{file} exists: choose another --out, or delete it")
    if exporter.typed_tools:
        exporter = _with_tools(exporter, dataset)
    if any(row.images for row in read_rows(dataset)):
        exporter = _with_pictures(exporter)
    out.mkdir(parents=True, exist_ok=True)
    lost: Counter[str] = Counter(dict.fromkeys(exporter.always, rows))
    numbers: Counter[str] = Counter()
    temporary = out / f".{file.name}"
    records = _records(dataset, exporter, lost, numbers)
    (_write_parquet if exporter.format == "parquet" else _write_lines)(temporary, exporter.schema, records)
    temporary.replace(file)
    return Exported(file, numbers["records"], numbers["left_out"], dict(lost))


def _with_tools(exporter: Exporter, dataset: Path) -> Exporter:
    """The layout with the dataset's tools as a typed column, where they come out of one as they went in."""
    known = {row.tools for row in read_rows(dataset)}
    tools = {text: json.loads(text) for text in known}
    kind = _column_type(list(tools.values()))
    if kind is None:
        return replace(exporter, always=(*exporter.always, MIXED_TOOLS))
    return replace(
        exporter,
        schema=exporter.schema.append(pa.field("tools", kind)),
        project=lambda row: ({**record, "tools": tools[row.tools]} for record in exporter.project(row)),
    )


def _column_type(values: list[Any]) -> pa.DataType | None:
    """What Arrow infers for these values; None where Parquet does not give back the same JSON: it fills in
    keys of one in another, or orders them, and takes no empty object, no key with values of two types and
    none that is nested too deep."""
    file = pa.BufferOutputStream()
    try:
        column = pa.array(values)
        pq.write_table(pa.table({"tools": column}), file)
        found = pq.read_table(pa.BufferReader(file.getvalue()))["tools"].to_pylist()
    # the others: large integers, half characters, deep nesting
    except (pa.ArrowException, OverflowError, UnicodeError, OSError):
        return None
    return column.type if json.dumps(found) == json.dumps(values) else None


def _with_pictures(exporter: Exporter) -> Exporter:
    """The layout with a column of pictures. Raises DatasetError for one that has no place for them."""
    name = exporter.pictures
    if not name:
        known = ", ".join(each.name for each in layouts() if each.pictures)
        raise DatasetError(
            f"the dataset has pictures, and the layout {exporter.name!r} has no place for them: choose one "
            f"of {known}"
        )
    if name in exporter.schema.names:
        return exporter

    def project(row: Row) -> Iterator[Record]:
        for record in exporter.project(row):
            texts = [message["content"] for message in record.get("messages") or record["prompt"]]
            shown = sum(map(_pictures_of, json.loads(row.messages)[: len(texts)]))
            if sum(text.count(MARK) for text in texts) == shown:
                yield {**record, name: list(row.images[:shown])}

    def losses(row: Row) -> Iterator[str]:
        yield from exporter.losses(row)
        if row.images and not any(project(row)):
            yield SPELLED

    schema = exporter.schema.append(pa.field(name, pa.list_(PICTURE)))
    return replace(exporter, schema=schema, project=project, losses=losses)


def _pictures_of(message: dict[str, Any]) -> int:
    content = message.get("content")
    return sum(part["type"] != "text" for part in content) if isinstance(content, list) else 0


def _records(
    dataset: Path, exporter: Exporter, lost: Counter[str], numbers: Counter[str]
) -> Iterator[Record]:
    blobs = BlobStore(dataset)
    picture = _picture if exporter.format == "parquet" else _url
    for row in read_rows(dataset):
        lost.update(set(exporter.losses(row)))
        made = list(exporter.project(row))
        if (name := exporter.pictures) in exporter.schema.names:
            made = [{**one, name: [picture(blobs, sha256) for sha256 in one[name]]} for one in made]
        numbers["records"] += len(made)
        numbers["left_out"] += not made
        yield from made


def _picture(blobs: BlobStore, sha256: str) -> Record:
    """The picture in the type PICTURE. Raises BlobMissing, BlobCorrupt."""
    data = blobs.read(sha256)
    return {"bytes": data, "path": f"{sha256}.{read_picture(data).media_type.rpartition('/')[2]}"}


def _url(blobs: BlobStore, sha256: str) -> str:
    """The picture as a data URL, for JSON. Raises BlobMissing, BlobCorrupt."""
    data = blobs.read(sha256)
    return data_url(data, read_picture(data).media_type)


def _write_parquet(file: Path, schema: pa.Schema, records: Iterator[Record]) -> None:
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        waiting: list[Record] = []
        for record in records:
            waiting.append(record)
            if len(waiting) == _BATCH:
                writer.write_table(pa.Table.from_pylist(waiting, schema=schema))
                waiting = []
        if waiting:
            writer.write_table(pa.Table.from_pylist(waiting, schema=schema))


def _write_lines(file: Path, _: pa.Schema, records: Iterator[Record]) -> None:
    with file.open("w", encoding="utf-8") as lines:
        for record in records:
            lines.write(json.dumps(record, ensure_ascii=False, default=_listed) + "\n")


def _listed(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} has no form in JSON")
