"""Builds a dataset: cuts candidates into shards, has processes make them, writes the manifest last.

A build that was stopped resumes with the missing shards; its range stays the one it began with. The
hash is over the digests of rows in the order of the log, so shards and processes leave no trace in it.
"""

import multiprocessing
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path

import msgspec

from orchard.pipelines.datasets.candidates import candidates
from orchard.pipelines.datasets.errors import DatasetError
from orchard.pipelines.datasets.examples import Candidate
from orchard.pipelines.datasets.known_names import check_names
from orchard.pipelines.datasets.manifest import (
    MANIFEST,
    Manifest,
    Range,
    Shard,
    read_manifest,
    write_manifest,
)
from orchard.pipelines.datasets.mixing import check_rows_of_parts
from orchard.pipelines.datasets.pictured import copy_pictures, encoder_sha256
from orchard.pipelines.datasets.rows import rows_sha256
from orchard.pipelines.datasets.settings import DatasetSettings, config_hash
from orchard.pipelines.datasets.shards import (
    ShardMaker,
    ShardReport,
    ShardWork,
    make_shard,
    shard_path,
    start_process,
)
from orchard.pipelines.datasets.tokenization import ChatTokenizer
from orchard.pipelines.datasets.version import code_version
from orchard.pipelines.tasks.errors import TaskError
from orchard.schemas.positions import PlainPosition, Position
from orchard.storage.blobs import BlobStore
from orchard.storage.durable import write_whole
from orchard.storage.reader import open_tables, position
from orchard.storage.tables import DERIVED

SHARD_TRAJECTORIES = 500
_STATE = ".build.json"

Shards = Callable[[ShardWork, list[list[Candidate]], list[int]], Iterator[ShardReport]]
"""Makes the shards of these indices in the build's directory; yields the report of each as it is finished."""

Progress = Callable[[int, int], None]
"""Called with the number of finished trajectories and of all."""
Warn = Callable[[str], None]
"""Called with a sentence on names in the configuration that nothing in the store has."""


class _State(msgspec.Struct, frozen=True, kw_only=True):
    config_hash: str
    code_version: str
    as_of: PlainPosition
    shard_trajectories: int


def build(
    store: str,
    settings: DatasetSettings,
    out: Path,
    *,
    as_of: PlainPosition | None = None,
    processes: int = 1,
    shard_trajectories: int = SHARD_TRAJECTORIES,
    progress: Progress | None = None,
    warn: Warn | None = None,
    shards_by: Shards | None = None,
) -> Manifest:
    """Build into the directory `out`, or resume a build there; returns its manifest.

    `processes` of this machine make the shards, or `shards_by` does. `as_of` is the last sequence of
    the log that counts, or those of all event streams; None: the newest that every table has. Raises
    DatasetError, MaskError where a mask does not hold, and StorageError; nothing that was made is lost then.
    """
    tokenizer = ChatTokenizer.load(settings.tokenizer)
    tokenizer_sha256 = encoder_sha256(tokenizer, settings)
    state = _enter(store, settings, out, tokenizer_sha256, as_of, shard_trajectories)
    if isinstance(state, Manifest):
        _clean(out)
        return state
    counts: Counter[str] = Counter()
    try:
        with open_tables(store, as_of=Position.of(state.as_of), verify=DERIVED) as tables:
            unknown = check_names(tables, settings)
            taken, contaminated = candidates(tables, BlobStore(store), settings, counts)
    except (DatasetError, TaskError):
        _clean(out)  # or the corrected settings would meet a build of something else
        raise
    if warn is not None:
        for sentence in unknown:
            warn(sentence)
    work = ShardWork(store=store, as_of=state.as_of, out=out, settings=settings)
    size = state.shard_trajectories
    shards = [taken[start : start + size] for start in range(0, len(taken), size)]
    reports: list[ShardReport] = []
    done = 0
    for report in _reports(work, shards, shards_by or locally(processes)):
        reports.append(report)
        done += len(shards[report.index])
        if progress is not None:
            progress(done, len(taken))
    reports.sort(key=lambda report: report.index)
    manifest = _manifest(settings, state, reports, counts, tokenizer_sha256)
    manifest = msgspec.structs.replace(manifest, contaminated=contaminated)
    if not manifest.rows:
        _clean(out)
        raise DatasetError(_nothing_left(manifest.counts))
    try:
        check_rows_of_parts(settings.mixture, manifest.counts)
    except DatasetError:
        for report in reports:
            shard_path(out, report.index).unlink(missing_ok=True)
        _clean(out)
        raise
    for report in reports:
        if not report.rows:
            shard_path(out, report.index).unlink(missing_ok=True)
    if settings.pictures != "none":
        copy_pictures((out / shard.file for shard in manifest.shards), BlobStore(store), out)
    write_manifest(out, manifest)
    _clean(out)
    return manifest


def _nothing_left(counts: Mapping[str, int]) -> str:
    """Says in words what became of the graded rollouts of a dataset without rows."""
    graded = counts.get("graded", 0)
    if not graded:
        return "no example is left: no graded rollout matches: change [source]"
    said = [
        f"{number:,} {name.removeprefix('dropped_').replace('_', ' ')}"
        for name, number in counts.items()
        if number and name != "graded"
    ]
    return (
        f"no example is left of {graded:,} graded rollouts ({', '.join(said)}): change the settings of "
        "[source], [selection] or [filters] that left them out"
    )


def _clean(out: Path) -> None:
    for left in (*out.glob(".report-*.json"), out / _STATE):
        left.unlink(missing_ok=True)
    for spill in out.glob(".spill-*"):
        shutil.rmtree(spill, ignore_errors=True)


def _enter(
    store: str,
    settings: DatasetSettings,
    out: Path,
    tokenizer_sha256: str,
    as_of: PlainPosition | None,
    shard_trajectories: int,
) -> _State | Manifest:
    """The state of the build in `out`: new or to be resumed; the manifest where the dataset is finished."""
    hashed, version = config_hash(settings, tokenizer_sha256), code_version()
    if (out / MANIFEST).exists():
        there = read_manifest(out)
        if (there.config_hash, there.code_version) == (hashed, version) and as_of in (None, there.range.last):
            return there
        raise DatasetError(f"{out} holds another dataset ({there.name}): choose another --out, or delete it")
    path = out / _STATE
    if path.exists():
        state = msgspec.json.decode(path.read_bytes(), type=_State)
        if (state.config_hash, state.code_version) != (hashed, version) or as_of not in (None, state.as_of):
            raise DatasetError(
                f"{out} holds an unfinished build of something else: delete it, or choose another"
            )
        return state
    state = _State(
        config_hash=hashed,
        code_version=version,
        as_of=position(store).plain if as_of is None else as_of,
        shard_trajectories=shard_trajectories,
    )
    write_whole(out, _STATE, msgspec.json.encode(state))
    return state


def _reports(work: ShardWork, shards: list[list[Candidate]], shards_by: Shards) -> Iterator[ShardReport]:
    """Reports of all shards as they come, first of those that were finished before."""
    todo = []
    for index in range(len(shards)):
        path = _report_path(work.out, index)
        if path.exists():
            yield msgspec.json.decode(path.read_bytes(), type=ShardReport)
        else:
            todo.append(index)
    for report in shards_by(work, shards, todo):
        write_whole(work.out, _report_path(work.out, report.index).name, msgspec.json.encode(report))
        yield report


def locally(processes: int) -> Shards:
    """Makes shards in processes of this machine; in this one where one process or one shard is asked for."""

    def reports(work: ShardWork, shards: list[list[Candidate]], todo: list[int]) -> Iterator[ShardReport]:
        if processes == 1 or len(todo) <= 1:
            maker = ShardMaker(work) if todo else None
            for index in todo:
                assert maker is not None
                yield maker.make(index, shards[index])
            return
        with ProcessPoolExecutor(
            min(processes, len(todo)),
            mp_context=multiprocessing.get_context("spawn"),
            initializer=start_process,
            initargs=(work,),
        ) as pool:
            pending: list[Future[ShardReport]] = [
                pool.submit(make_shard, index, shards[index]) for index in todo
            ]
            try:
                for future in as_completed(pending):
                    yield future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    return reports


def _report_path(out: Path, index: int) -> Path:
    return out / f".report-{index:05}.json"


def _manifest(
    settings: DatasetSettings,
    state: _State,
    reports: list[ShardReport],
    counts: Counter[str],
    tokenizer_sha256: str,
) -> Manifest:
    for report in reports:
        counts.update(report.counts)
    rows = sum(report.rows for report in reports)
    tokenizer = Path(settings.tokenizer).name if Path(settings.tokenizer).is_dir() else settings.tokenizer
    named = msgspec.structs.replace(settings, tokenizer=tokenizer)  # a machine's own paths stay on it
    return Manifest(
        name=settings.name,
        sha256=rows_sha256(one for report in reports for one in report.digests),
        range=Range(first=1, last=state.as_of),
        code_version=state.code_version,
        config_hash=state.config_hash,
        config=msgspec.json.encode(named, order="deterministic").decode(),
        tokenizer=tokenizer,
        tokenizer_sha256=tokenizer_sha256,
        rows=rows,
        tokens=sum(report.tokens for report in reports),
        trained_tokens=sum(report.trained_tokens for report in reports),
        resolved=sum(report.resolved for report in reports),
        counts=dict(sorted(counts.items())),
        shards=tuple(
            Shard(
                file=shard_path(Path(), report.index).name,
                rows=report.rows,
                tokens=report.tokens,
                sha256=rows_sha256(report.digests),
            )
            for report in reports
            if report.rows
        ),
    )
