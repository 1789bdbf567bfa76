"""The manifest: what a dataset was made from, what is in it, and the hash that proves it."""

from pathlib import Path

import msgspec

from orchard.pipelines.datasets.errors import DatasetError
from orchard.pipelines.tasks.held_out import Reason
from orchard.schemas.positions import PlainPosition
from orchard.storage.durable import write_whole

MANIFEST = "manifest.json"


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """One Parquet file of rows."""

    file: str
    rows: int
    tokens: int
    sha256: str
    """Digest over the digests of its rows, in order."""


class Range(msgspec.Struct, frozen=True, kw_only=True):
    first: int
    last: PlainPosition
    """Last sequence that was read, or those of all event streams; all are inclusive."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """`range`, `code_version` and `config` determine `sha256`; nothing here tells of time or machine."""

    name: str
    sha256: str
    """Digest over the digests of all rows, in order, however they are cut into shards."""
    range: Range
    code_version: str
    config_hash: str
    config: str
    """JSON text of the whole configuration, defaults included."""
    tokenizer: str
    tokenizer_sha256: str
    rows: int
    tokens: int
    trained_tokens: int
    resolved: int
    counts: dict[str, int]
    """Trajectories and examples by what filters and selection decided."""
    contaminated: dict[str, Reason] = {}
    """Tasks left out, each with the reason and the held-out task that it equals or resembles."""
    shards: tuple[Shard, ...]


def read_manifest(directory: Path) -> Manifest:
    """Read a dataset's manifest. Raises DatasetError where there is none: the build has not ended."""
    path = directory / MANIFEST
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        raise DatasetError(
            f"{directory} holds no finished dataset (no {MANIFEST}): build it with `orchard dataset build`"
        ) from None
    except msgspec.DecodeError as error:
        raise DatasetError(
            f"{path} is not a dataset's manifest ({error}): build the dataset again"
        ) from error


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write the manifest atomically, last: with it the dataset is complete."""
    write_whole(directory, MANIFEST, msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")
