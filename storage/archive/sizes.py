"""Estimates each campaign's events and bytes in the stream from the tables, nearly without reading
payloads."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from orchard.schemas.positions import Position, stream_of
from orchard.schemas.subjects import EVENTS_PREFIX
from orchard.storage.archive.segments import counted_subject
from orchard.storage.delta import DataFile, snapshot
from orchard.storage.errors import store_errors
from orchard.storage.location import Location
from orchard.storage.pins import pinned
from orchard.storage.tables import EVENTS

_COUNTED = ["sequence", "subject"]
_SAMPLES = 32
"""Row groups whose payloads are measured."""


class Size(NamedTuple):
    """Number of events, and estimated bytes of their payloads."""

    events: int = 0
    bytes: float = 0.0


def sizes(store_url: str, archived: Mapping[str, Position]) -> dict[str, Size]:
    """Return the size of each campaign, or kind of fence, by the third token of its subjects.

    Events up to a campaign's position in `archived` have left the stream and do not count. Events are exact,
    bytes are numbers of events times the mean payload of their subject in some row groups.
    """
    location = Location.parse(store_url)
    files, pin = pinned(
        location,
        lambda: snapshot(location, EVENTS),
        lambda found: [f"tables/{EVENTS}/{file.path}" for file in found],
    )
    try:
        counts: Counter[str] = Counter()
        for file in files:
            with _opened(location, file) as parquet:
                through = {name: reached.last(stream_of(file.last)) for name, reached in archived.items()}
                for group in range(parquet.num_row_groups):
                    counts += _counted(parquet.read_row_group(group, columns=_COUNTED), through)
        means = _means(location, files)
    finally:
        pin.release()
    everything = sum(means.values()) / max(len(means), 1)
    found: dict[str, Size] = defaultdict(Size)
    for subject, events in counts.items():
        campaign = _campaign(subject)
        before = found[campaign]
        size = events * means.get(subject, everything)
        found[campaign] = Size(before.events + events, before.bytes + size)
    return dict(found)


@contextmanager
def _opened(location: Location, file: DataFile) -> Iterator[pq.ParquetFile]:
    key = location.key("tables", EVENTS, file.path)
    with store_errors(location.url), location.filesystem.open_input_file(key) as source:
        yield pq.ParquetFile(source)


def _counted(rows: pa.Table, archived: Mapping[str, int]) -> Counter[str]:
    """Count the events that are still in the stream by subject, with `*` for shards and ids."""
    names, codes = _subjects(rows)
    through = np.array([archived.get(_campaign(subject), 0) for subject in names])
    kept = codes[rows.column("sequence").to_numpy() > through[codes]]
    counts = np.bincount(kept, minlength=len(names)).tolist()
    return Counter({subject: count for subject, count in zip(names, counts, strict=True) if count})


def _means(location: Location, files: Sequence[DataFile]) -> dict[str, float]:
    """Mean payload bytes by subject, from the first row group of some files, spread over all of them."""
    events: Counter[str] = Counter()
    size: Counter[str] = Counter()
    for file in files[:: max(1, len(files) // _SAMPLES)]:
        with _opened(location, file) as parquet:
            rows = parquet.read_row_group(0, columns=["subject", "payload"])
        names, codes = _subjects(rows)
        lengths = pc.binary_length(rows.column("payload")).to_numpy()
        totals = np.bincount(codes, weights=lengths, minlength=len(names)).tolist()
        counts = np.bincount(codes, minlength=len(names)).tolist()
        for subject, total, count in zip(names, totals, counts, strict=True):
            size[subject] += int(total)
            events[subject] += count
    return {subject: size[subject] / events[subject] for subject in events}


def _subjects(rows: pa.Table) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Return the subjects of rows, with `*` for shards and ids, and for each row its subject's index."""
    encoded = rows.column("subject").combine_chunks().dictionary_encode()
    names: dict[str, int] = {}
    of_subject = [
        names.setdefault(counted_subject(subject), len(names)) for subject in encoded.dictionary.to_pylist()
    ]
    return list(names), np.array(of_subject, dtype=np.int64)[encoded.indices.to_numpy()]


def _campaign(subject: str) -> str:
    return subject.removeprefix(f"{EVENTS_PREFIX}.").partition(".")[0]
