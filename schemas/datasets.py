"""Datasets in the log: what was built from which range, and what was brought in from outside."""

import msgspec

from orchard.schemas.blobs import BlobRef


class DatasetBuilt(msgspec.Struct, frozen=True, kw_only=True):
    """A build finished. Equal `range`, `code_version` and `config_hash` give an equal `sha256`."""

    name: str
    """Name in the configuration."""
    sha256: str
    """Of the canonical rows, in their order."""
    first_sequence: int
    last_sequence: int
    """The range of the event log that was read, both inclusive."""
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
    """Over what the tokenizer is."""
    counts: dict[str, int] = {}
    """Trajectories and examples by what the filters and the selection decided."""
    manifest: BlobRef | None = None
    seconds: float = 0.0


class TrajectoryImported(msgspec.Struct, frozen=True, kw_only=True):
    """A published row became a rollout: its messages and outcome are events of the same rollout."""

    dataset: str
    """Name of the published dataset."""
    row: int
    """Number of the row, from 0."""
    layout: str
    """`orchard-swe`: the layout of the released trajectories."""
    tools: str
    """JSON text of the row's tools, as it was."""
    metadata: str
    """JSON text of the row's metadata, as it was."""
    flags: tuple[str, ...] = ()
    """Known flaws that were found: `leaked_infrastructure_error`, `unanswered_last_call`, `no_reasoning`."""
