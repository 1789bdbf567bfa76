"""Datasets in the log: builds, and imported trajectories."""

import msgspec

from orchard.schemas.blobs import BlobRef


class DatasetBuilt(msgspec.Struct, frozen=True, kw_only=True):
    """A build of a dataset finished. Equal `range`, `code_version` and `config_hash` give an equal
    `sha256`."""

    name: str
    """Name of the dataset in its configuration."""
    sha256: str
    """SHA-256 of the canonical rows, in their order."""
    first_sequence: int
    last_sequence: int
    """Last sequence of the range of the event log that was read; both ends are inclusive. With several event
    streams that of stream 0."""
    code_version: str
    config_hash: str
    rows: int
    tokens: int
    trained_tokens: int
    resolved: int
    """Rows from resolved trajectories; the others are rise segments of unresolved ones."""
    tokenizer: str
    """Directory or name of the tokenizer."""
    tokenizer_sha256: str
    """SHA-256 that identifies the tokenizer."""
    counts: dict[str, int] = {}
    """Number of trajectories and examples, by decision of the filters and the selection."""
    manifest: BlobRef | None = None
    seconds: float = 0.0
    last_sequences: tuple[int, ...] = ()
    """Last sequence of each event stream that was read; empty if there is one."""


class TrajectoryImported(msgspec.Struct, frozen=True, kw_only=True):
    """A published row became a rollout: its messages and outcome are events of the same rollout."""

    dataset: str
    """Name of the published dataset."""
    row: int
    """Number of the row, from 0."""
    layout: str
    """Layout of the row; `orchard-swe` is that of the released trajectories."""
    tools: str
    """JSON text of the row's tools, as it was."""
    metadata: str
    """JSON text of the row's metadata, as it was."""
    flags: tuple[str, ...] = ()
    """Known flaws that were found: `leaked_infrastructure_error`, `unanswered_last_call`, `no_reasoning`."""
