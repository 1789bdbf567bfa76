"""Builds shards in workers that claim them from a queue, on any machine that sees the store.

The shared files lie in the store below `builds/<id>`: the candidates of each shard, then its rows and
its report. A shard's bytes depend on nothing else, so one that is made twice is the same shard, and a
process that dies costs only time: its claim is delivered again, and a restarted coordinator asks for
what is missing.
"""

import asyncio
import hashlib
import logging
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from orchard.pipelines.datasets.build import Shards
from orchard.pipelines.datasets.errors import DatasetError
from orchard.pipelines.datasets.examples import Candidate
from orchard.pipelines.datasets.pictured import encoder_sha256
from orchard.pipelines.datasets.settings import DatasetSettings
from orchard.pipelines.datasets.shards import ShardMaker, ShardReport, ShardWork, shard_path
from orchard.pipelines.datasets.tokenization import ChatTokenizer
from orchard.pipelines.datasets.version import code_version
from orchard.schemas.identity import digest
from orchard.schemas.positions import PlainPosition
from orchard.schemas.queues import Queue
from orchard.schemas.requests import read_known
from orchard.storage.durable import write_whole
from orchard.storage.errors import StorageError, store_errors
from orchard.storage.location import Location
from orchard.streams.claims import Claims
from orchard.streams.consumer import ClaimedRequest, Consumer, RetryPolicy, WorkerLifetime
from orchard.streams.entries import FIRST, EntryAddress, QueueEntry, entry
from orchard.workers.attempts.deadletters import DeadLetters
from orchard.workers.masking import masked

QUEUE = Queue(kind="dataset", domain="shards")
POLL_SECONDS = 0.5
OFFER_SECONDS = 15.0
"""Seconds without a finished shard after which the missing ones are offered again; the server refuses one
that is queued or claimed."""
_FAULT = 300
"""Maximum characters of an unexpected error in a report to the coordinator."""

log = logging.getLogger("orchard.dataset")

Offer = Callable[[Sequence[QueueEntry]], None]
"""Enqueues the entries that are not queued; called from a thread."""


class ShardRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The request for one shard, as it travels on the queue."""

    build: str
    index: int
    as_of: PlainPosition
    code_version: str
    tokenizer_sha256: str
    settings: DatasetSettings
    failures: int = 0


class _Made(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's answer: a report and the SHA-256 of the shard's file, or why it cannot be made."""

    report: ShardReport | None = None
    sha256: str = ""
    fault: str = ""


class _Files:
    """The files that coordinator and workers of one build share. Raises StorageError."""

    def __init__(self, store: str, build: str) -> None:
        self._location = Location.parse(store)
        self._build = build

    def read(self, name: str) -> bytes | None:
        with store_errors(self._location.url):
            return self._location.read("builds", self._build, name)

    def write(self, name: str, data: bytes) -> None:
        with store_errors(self._location.url):
            self._location.write(data, "builds", self._build, name)

    def made(self, index: int) -> _Made | None:
        raw = self.read(f"made-{index:05}.json")
        return None if raw is None else msgspec.json.decode(raw, type=_Made | None)

    def forget(self, index: int) -> None:
        """Delete a shard's report, so that it can be requested again."""
        self.write(f"made-{index:05}.json", b"null")

    def clear(self) -> None:
        with store_errors(self._location.url), suppress(FileNotFoundError):
            self._location.filesystem.delete_dir(self._location.key("builds", self._build))


def _candidates_file(index: int) -> str:
    return f"candidates-{index:05}.msgpack"


def through_queue(offer: Offer) -> Shards:
    """Makes shards by workers (`ShardWorker`), for `build`; waits for them without a limit.

    Raises DatasetError with the worker's reason for a shard that cannot be made.
    """

    def reports(work: ShardWork, shards: list[list[Candidate]], todo: list[int]) -> Iterator[ShardReport]:
        if not shards:
            return
        tokenizer = encoder_sha256(ChatTokenizer.load(work.settings.tokenizer), work.settings)
        request = ShardRequest(
            build=digest([work.settings, work.as_of, len(shards[0]), code_version(), tokenizer], 32),
            index=0,
            as_of=work.as_of,
            code_version=code_version(),
            tokenizer_sha256=tokenizer,
            settings=work.settings,
        )
        files = _Files(work.store, request.build)
        # A fault that ended an earlier command: whether it is mended, a worker says.
        for index in todo:
            if (made := files.made(index)) is not None and made.report is None:
                files.forget(index)
        missing = dict.fromkeys(todo)
        offered = float("-inf")
        while missing:
            if time.monotonic() > offered + OFFER_SECONDS:
                for index in missing:
                    files.write(_candidates_file(index), msgspec.msgpack.encode(shards[index]))
                occasion = f"{FIRST}.{secrets.token_hex(8)}"
                offer([_entry(msgspec.structs.replace(request, index=index), occasion) for index in missing])
                offered = time.monotonic()
            for index in list(missing):
                if (made := files.made(index)) is not None:
                    yield _brought(files, work.out, index, made)
                    del missing[index]
                    offered = time.monotonic()
            if missing:
                time.sleep(POLL_SECONDS)
        files.clear()

    return reports


def _brought(files: _Files, out: Path, index: int, made: _Made) -> ShardReport:
    """Copy a finished shard into the directory of the build."""
    if made.report is None:
        raise DatasetError(f"shard {index} cannot be made: {made.fault}")
    rows = files.read(f"rows-{index:05}.parquet") or b""
    if hashlib.sha256(rows).hexdigest() != made.sha256:
        files.forget(index)
        raise DatasetError(f"shard {index} is damaged in the store: run the command again")
    write_whole(out, shard_path(out, index).name, rows)
    return made.report


def _entry(request: ShardRequest, occasion: str) -> QueueEntry:
    key = digest([request.build, request.index])
    return entry(QUEUE, EntryAddress("datasets", key), occasion, msgspec.json.encode(request))


class OtherCode(Exception):
    """The build needs another version of this code: a worker of that version makes the shard."""


class ShardWorker:
    retries = RetryPolicy(on=(StorageError, OtherCode), first=20.0, longest=20.0)

    def __init__(self, store: str, scratch: Path) -> None:
        self._store = store
        self._scratch = scratch
        self._makers: dict[str, ShardMaker] = {}
        """Maker of the newest build: tables and tokenizer are opened once."""

    def read(self, body: bytes) -> ShardRequest:
        return read_known(body, ShardRequest, "a shard request")

    def entry(self, request: ShardRequest, occasion: str) -> QueueEntry:
        return _entry(request, occasion)

    async def handle(self, delivery: ClaimedRequest[ShardRequest]) -> None:
        """Make a shard, or write why it cannot be made."""
        if delivery.request.code_version != code_version():
            raise OtherCode(
                f"it wants the code {delivery.request.code_version}, and this worker has {code_version()}"
            )
        await delivery.run(asyncio.to_thread(self._make, delivery.request, self._scratch))

    def _make(self, request: ShardRequest, scratch: Path) -> None:
        files = _Files(self._store, request.build)
        made = files.made(request.index)
        raw = files.read(_candidates_file(request.index))
        if raw is None or (made is not None and made.report is not None):
            return  # the build is over, or somebody was faster
        try:
            found = msgspec.msgpack.decode(raw, type=list[Candidate])
            report = self._maker(request, scratch).make(request.index, found)
            rows = shard_path(scratch, request.index).read_bytes()
        except StorageError:
            raise
        except DatasetError as error:
            made = _Made(fault=str(error))
        except Exception as error:  # else the shard would end one worker after the other, and nobody be told
            log.exception("shard %d of build %s cannot be made", request.index, request.build)
            self._makers.clear()  # its connection may be what is broken
            text = masked(" ".join(str(error).split())).text[:_FAULT]
            made = _Made(fault=f"{type(error).__name__}: {text} (the worker's log has the traceback)")
        else:
            files.write(f"rows-{request.index:05}.parquet", rows)
            made = _Made(report=report, sha256=hashlib.sha256(rows).hexdigest())
            shard_path(scratch, request.index).unlink()
        files.write(f"made-{request.index:05}.json", msgspec.json.encode(made))

    def _maker(self, request: ShardRequest, scratch: Path) -> ShardMaker:
        if request.build not in self._makers:
            work = ShardWork(store=self._store, as_of=request.as_of, out=scratch, settings=request.settings)
            tokenizer = ChatTokenizer.load(request.settings.tokenizer)
            if encoder_sha256(tokenizer, request.settings) != request.tokenizer_sha256:
                raise DatasetError(
                    f"the tokenizer {request.settings.tokenizer} of a worker is another: give all the same"
                )
            self._makers = {request.build: ShardMaker(work)}
        return self._makers[request.build]


@contextmanager
def shard_consumer(store: str, claims: Claims, lifetime: WorkerLifetime | None = None) -> Iterator[Consumer]:
    """A consumer that makes shards, one at a time."""
    with tempfile.TemporaryDirectory(prefix="orchard-shards-") as scratch:
        yield Consumer(
            claims,
            DeadLetters(claims.connection),
            {QUEUE.kind: ShardWorker(store, Path(scratch))},
            slots=1,
            lifetime=lifetime or WorkerLifetime(),
        )
