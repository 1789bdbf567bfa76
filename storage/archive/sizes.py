"""How many events and bytes of the stream each campaign has, from the tables, without reading payloads."""

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from orchard.schemas.events import EVENTS_PREFIX
from orchard.storage.delta import snapshot
from orchard.storage.errors import store_errors
from orchard.storage.location import Location
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
    found: dict[str, Size] = defaultdict(Size)
    for file in snapshot(location, EVENTS):
        key = location.key("tables", EVENTS, file.path)
        with store_errors(location.url), location.filesystem.open_input_file(key) as source:
            parquet = pq.ParquetFile(source, read_dictionary=["subject"])
            names = parquet.schema_arrow.names
            for group in range(parquet.num_row_groups):
                columns = parquet.metadata.row_group(group)
                payload = columns.column(names.index("payload")).total_uncompressed_size
                rows = parquet.read_row_group(group, columns=["sequence", "subject"])
                for campaign, events in _counted(rows, archived).items():
                    share = payload * events / columns.num_rows
                    before = found[campaign]
                    found[campaign] = Size(before.events + events, before.bytes + share)
    return dict(found)


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
