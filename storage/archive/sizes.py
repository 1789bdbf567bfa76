"""How many events and bytes of the stream each campaign has, from the tables, without reading payloads."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from orchard.schemas.events import EVENTS_PREFIX
from orchard.storage.delta import snapshot
from orchard.storage.errors import store_errors
from orchard.storage.location import Location
from orchard.storage.pins import pinned
from orchard.storage.tables import EVENTS


class Size(NamedTuple):
    """Events, and the bytes of their payloads as far as columns tell."""

    events: int = 0
    bytes: float = 0.0


def sizes(store_url: str, archived: Mapping[str, int]) -> dict[str, Size]:
    """The size of each campaign, or kind of fence, by the third token of its subjects.

    Events up to a campaign's sequence in `archived` have left the stream and do not count. Bytes are exact
    for a row group of a file as a whole, and shared out in it by number of events.
    """
    location = Location.parse(store_url)
    files, pin = pinned(
        location,
        lambda: snapshot(location, EVENTS),
        lambda found: [f"tables/{EVENTS}/{file.path}" for file in found],
    )
    found: dict[str, Size] = defaultdict(Size)
    try:
        for file in files:
            key = location.key("tables", EVENTS, file.path)
            with store_errors(location.url), location.filesystem.open_input_file(key) as source:
                for campaign, size in _in_file(pq.ParquetFile(source), archived):
                    before = found[campaign]
                    found[campaign] = Size(before.events + size.events, before.bytes + size.bytes)
    finally:
        pin.release()
    return dict(found)


def _in_file(file: pq.ParquetFile, archived: Mapping[str, int]) -> Iterator[tuple[str, Size]]:
    payload = file.schema_arrow.names.index("payload")
    for number in range(file.num_row_groups):
        group = file.metadata.row_group(number)
        size = group.column(payload).total_uncompressed_size
        rows = file.read_row_group(number, columns=["sequence", "subject"])
        for campaign, events in _counted(rows, archived).items():
            yield campaign, Size(events, size * events / group.num_rows)


def _counted(rows: pa.Table, archived: Mapping[str, int]) -> dict[str, int]:
    """Events by campaign that are still in the stream."""
    subjects = rows.column("subject").combine_chunks().dictionary_encode()
    campaigns: dict[str, int] = {}
    code_of_subject = np.array(
        [
            campaigns.setdefault(_campaign(subject), len(campaigns))
            for subject in subjects.dictionary.to_pylist()
        ]
    )
    codes = code_of_subject[subjects.indices.to_numpy()]
    through = np.array([archived.get(campaign, 0) for campaign in campaigns])
    kept = codes[rows.column("sequence").to_numpy() > through[codes]]
    counts = np.bincount(kept, minlength=len(campaigns)).tolist()
    return {campaign: count for campaign, count in zip(campaigns, counts, strict=True) if count}


def _campaign(subject: str) -> str:
    return subject.removeprefix(f"{EVENTS_PREFIX}.").partition(".")[0]
