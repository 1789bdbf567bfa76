"""The location of a store: a directory or an `s3://` prefix, and how each engine connects to it.

Credentials and endpoints of S3 come from the usual environment variables (`AWS_ACCESS_KEY_ID`,
`AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, `AWS_REGION`, `AWS_ENDPOINT_URL`), never from events or files.
"""

import atexit
import gc
import os
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import pyarrow.fs as pafs

from orchard.storage.durable import sync, sync_file_system, write_whole
from orchard.storage.errors import StorageError, store_errors

_S3_VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_REGION",
    "AWS_ENDPOINT_URL",
)
_CONNECT_SECONDS = 5
_TRIES = 6
_DELTA_RETRIES = {
    "connect_timeout": f"{_CONNECT_SECONDS}s",
    "timeout": "30s",
    "max_retries": str(_TRIES - 1),
    "retry_timeout": "60s",
    "backoff_config.max_backoff": "5s",
}
"""Retries of a request to S3.

Both engines ride out what a service calls "slow down", and both give up within about a minute (Delta's
default is three): then the command reports it in one sentence, and `orchard up` restarts a writer.
"""


@cache
def _s3(
    access_key: str | None,
    secret_key: str | None,
    session_token: str | None,
    region: str | None,
    endpoint: str | None,
) -> pafs.S3FileSystem:
    """Return the process's only instance, which must be gone before Arrow's own shutdown.

    That waits for ever for one whose credentials were exchanged for a workload's identity
    (https://github.com/apache/arrow/issues/50188).
    """
    return pafs.S3FileSystem(
        access_key=access_key,
        secret_key=secret_key,
        session_token=session_token,
        region=region,
        endpoint_override=endpoint,
        scheme="http" if endpoint and endpoint.startswith("http://") else "https",
        connect_timeout=_CONNECT_SECONDS,
        retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=_TRIES),
        allow_delayed_open=True,  # a small object is one request instead of three
    )


def _forget() -> None:
    _s3.cache_clear()
    gc.collect()


atexit.register(_forget)  # after Arrow's, so it is called before


@dataclass(frozen=True)
class Location:
    """A store's root: an absolute path without a trailing slash, or `s3://bucket[/prefix]`."""

    url: str

    @classmethod
    def parse(cls, url: str | os.PathLike[str]) -> "Location":
        """Parse a path, `file://` or `s3://`. Raises StorageError for any other scheme."""
        text = os.fspath(url)
        if text.startswith("s3://"):
            return cls(text.rstrip("/"))
        text = text.removeprefix("file://")
        if "://" in text:
            raise StorageError(f"store {text!r} is neither a directory nor an s3:// URL: give one of these")
        return cls(str(Path(text).expanduser().absolute()))

    @property
    def is_s3(self) -> bool:
        return self.url.startswith("s3://")

    @property
    def path(self) -> Path:
        """The directory; valid only if `is_s3` is false."""
        return Path(self.url)

    def table_url(self, table: str) -> str:
        return f"{self.url}/tables/{table}"

    def key(self, *parts: str) -> str:
        """Path below the root for `filesystem`."""
        return "/".join((self.url.removeprefix("s3://"), *parts))

    def read(self, *parts: str) -> bytes | None:
        """Read a file below the root; None if there is none. Raises OSError, and what Arrow raises."""
        try:
            if not self.is_s3:
                return self.path.joinpath(*parts).read_bytes()
            with self.filesystem.open_input_stream(self.key(*parts)) as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None

    def write(self, data: bytes, *parts: str, durable: bool = True) -> None:
        """Write a file below the root atomically; in a directory, one that is not durable is so after `sync`.
        Raises OSError."""
        if self.is_s3:
            with self.filesystem.open_output_stream(self.key(*parts)) as stream:
                stream.write(data)
        else:
            write_whole(self.path.joinpath(*parts[:-1]), parts[-1], data, durable=durable)

    def sync_file(self, *parts: str) -> None:
        """Make a file that another process may have written durable. Raises OSError."""
        if not self.is_s3:
            file = self.path.joinpath(*parts)
            sync(file)
            sync(file.parent)

    def sync(self) -> None:
        """Make all files that were written durable. Raises OSError."""
        if not self.is_s3 and self.path.exists():
            sync_file_system(self.path)

    @property
    def filesystem(self) -> pafs.FileSystem:
        """Arrow's file system; do not keep it longer than needed (`_s3`)."""
        if not self.is_s3:
            return pafs.LocalFileSystem()
        with store_errors(self.url):
            return _s3(*(os.environ.get(name) for name in _S3_VARIABLES))

    @cached_property
    def storage_options(self) -> dict[str, str] | None:
        """Delta's options in addition to the URL. Commits on S3 are conditional puts: no lock table is
        needed."""
        if not self.is_s3:
            return None
        options = {name: os.environ[name] for name in _S3_VARIABLES if os.environ.get(name)}
        options |= _DELTA_RETRIES
        options["conditional_put"] = "etag"
        if options.get("AWS_ENDPOINT_URL", "").startswith("http://"):
            options["AWS_ALLOW_HTTP"] = "true"
        return options
