"""Makes one shard of a build, in a process of its own: candidates in, a Parquet file and its report out."""

import atexit
import gc
import os
import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import msgspec

from orchard.pipelines.datasets.examples import Candidate, ExampleDraft, ExampleDrop, draft, finished
from orchard.pipelines.datasets.mixing import part_of
from orchard.pipelines.datasets.own_process import end_with_parent
from orchard.pipelines.datasets.pictured import (
    Tokens,
    has_pictures,
    of_turns,
    picture_tokens,
    read_shown,
)
from orchard.pipelines.datasets.rows import Row, row_digest, write_rows
from orchard.pipelines.datasets.settings import DatasetSettings
from orchard.pipelines.datasets.tokenization import ChatTokenizer
from orchard.pipelines.datasets.tools import harness_tools, has_tools_in_log, is_known, is_program, tool_names
from orchard.pipelines.domain import offered
from orchard.pipelines.trajectories.forests import Made, branches, read_calls, read_offered, tools_of
from orchard.pipelines.trajectories.reading import AttemptSpan, path, read_authors, read_cut, read_trees
from orchard.schemas.messages import MessageNode
from orchard.schemas.positions import PlainPosition, Position
from orchard.storage.blobs import BlobStore
from orchard.storage.reader import open_tables

MEMORY_LIMIT = "700MB"
"""Memory limit of DuckDB in each process."""


class ShardWork(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a process needs to make any shard of a build."""

    store: str
    as_of: PlainPosition
    out: Path
    settings: DatasetSettings


class ShardReport(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    rows: int
    tokens: int
    trained_tokens: int
    resolved: int
    counts: dict[str, int]
    digests: list[bytes]
    """Digests of the shard's rows, in order."""


class ShardMaker:
    """Makes shards; opens the store and the tokenizer once."""

    def __init__(self, work: ShardWork) -> None:
        self._work = work
        self._tables: duckdb.DuckDBPyConnection = open_tables(work.store, as_of=Position.of(work.as_of))
        spill = work.out / f".spill-{os.getpid()}"
        self._tables.execute(f"set memory_limit = '{MEMORY_LIMIT}'")
        self._tables.execute("set threads = 1")
        self._tables.execute("set parquet_metadata_cache = true")  # else all footers are read for each shard
        self._tables.execute("set enable_progress_bar = false")  # it takes a process like this for a notebook
        self._tables.execute(f"set temp_directory = '{str(spill).replace(chr(39), chr(39) * 2)}'")
        self._blobs = BlobStore(work.store)
        self._tokenizer = ChatTokenizer.load(work.settings.tokenizer)
        self._picture_tokens: Tokens | None = None
        layouts = offered(lambda domain: domain.released_layouts)
        self._calls_in_texts = {name for name, layout in layouts.items() if layout.calls_in_texts}

    def make(self, index: int, candidates: list[Candidate]) -> ShardReport:
        """Write shard `index`. Raises DatasetError, MaskError and the store's errors."""
        counts: Counter[str] = Counter()
        rows = self._rows(candidates, counts)
        for row in rows:
            if (part := part_of(self._work.settings.mixture, row)) is not None:
                counts[f"mixture_{part + 1}_rows"] += 1
        write_rows(shard_path(self._work.out, index), rows)
        return ShardReport(
            index=index,
            rows=len(rows),
            tokens=sum(row.tokens for row in rows),
            trained_tokens=sum(row.trained_tokens for row in rows),
            resolved=sum(row.resolved for row in rows),
            counts=dict(counts),
            digests=[row_digest(row) for row in rows],
        )

    def _rows(self, candidates: list[Candidate], counts: Counter[str]) -> list[Row]:
        settings = self._work.settings
        candidates = self._with_tools(candidates)
        places = [
            AttemptSpan(one.rollout_id, one.attempt, one.leaf, one.start_sequence, one.done_sequence)
            for one in candidates
        ]
        trees = read_trees(self._tables, self._blobs, places)
        programs = {
            one.rollout_id: one.attempt
            for one in candidates
            if not one.tools and is_program(one.harness, one.harness_version)
        }
        calls = read_calls(self._tables, programs) if programs else {}
        cut = read_cut(self._tables, places)
        said = self._said(candidates)
        pictured = [name for name, tree in trees.items() if has_pictures(tree.values())]
        shown = read_shown(self._tables, pictured)
        drafts: list[tuple[ExampleDraft, str]] = []
        for one in candidates:
            tree = trees.pop(one.rollout_id)
            if one.rollout_id in calls:
                found = self._of_program(one, tree, calls[one.rollout_id], cut, said)
            else:
                found = [self._whole(one, tree, cut, said)]
            for each, way, tools_json in found:
                made = self._of_turns(each, way, shown, cut)
                if isinstance(made, ExampleDrop):
                    counts[made] += 1
                elif isinstance(each, ExampleDraft):
                    counts["masked_turns"] += each.masked
                    drafts += [(one, tools_json) for one in made]
        rows = []
        encoded = self._tokenizer.encode_each([drafted.conversation for drafted, _ in drafts])
        for (drafted, tools_json), tokens in zip(drafts, encoded, strict=True):
            for row in finished(drafted, tokens, tools_json, settings):
                if isinstance(row, ExampleDrop):
                    counts[row] += 1
                else:
                    counts["stored_turns"] += row.stored_turns
                    rows.append(row)
        return rows

    def _said(self, candidates: Sequence[Candidate]) -> dict[str, set[str]]:
        """Nodes whose authors train, by rollout: those that all turns train of have none."""
        authors = self._work.settings.authors
        shared = [one for one in candidates if one.teacher]
        others = [one for one in candidates if authors and not one.teacher and one.model not in authors]
        found: dict[str, set[str]] = {one.rollout_id: set() for one in (*shared, *others)}
        wanted = {one.rollout_id: authors or (one.teacher,) for one in shared}
        for rollout, node, model in read_authors(self._tables, wanted):
            if model in wanted[rollout]:
                found[rollout].add(node)
        return found

    def _of_turns(
        self,
        one: ExampleDraft | ExampleDrop,
        way: Sequence[MessageNode],
        shown: Mapping[str, int],
        cut: Collection[tuple[str, str]],
    ) -> list[ExampleDraft] | ExampleDrop:
        """Split a draft with pictures into one for each turn; others stay one."""
        settings = self._work.settings
        if isinstance(one, ExampleDrop):
            return one
        if not has_pictures(way):
            return [one]
        if settings.pictures == "none":
            return ExampleDrop.PICTURES
        if self._picture_tokens is None:
            self._picture_tokens, _ = picture_tokens(settings.tokenizer)
        return of_turns(one, way, settings, shown, self._picture_tokens, cut)

    def _with_tools(self, candidates: list[Candidate]) -> list[Candidate]:
        """The candidates with the tools that the log has of them, for harnesses whose tools are those of
        each task."""
        told = [
            one.rollout_id
            for one in candidates
            if not one.tools and has_tools_in_log(one.harness, one.harness_version)
        ]
        offered = read_offered(self._tables, told) if told else {}
        return [
            msgspec.structs.replace(one, tools=self._blobs.get(offered[one.rollout_id]).decode())
            if one.rollout_id in offered
            else one
            for one in candidates
        ]

    def _whole(
        self,
        one: Candidate,
        tree: dict[str, MessageNode],
        cut: Collection[tuple[str, str]],
        said: Mapping[str, set[str]],
    ) -> tuple[ExampleDraft | ExampleDrop, Sequence[MessageNode], str]:
        """The one conversation of a built-in harness, or of an imported trajectory."""
        written = one.tools and msgspec.json.decode(one.tools)
        tools: tuple[dict[str, Any], ...] = tuple(written or ())
        named = not one.layout or is_known(one.harness)
        if not written and named and one.layout not in self._calls_in_texts:
            tools = harness_tools(one.harness, one.harness_version)
        way = path(tree, one.leaf)
        trains = said.get(one.rollout_id)
        found = draft(one, way, tools, tool_names(tools), self._work.settings, cut=cut, said=trains)
        return found, way, one.tools or msgspec.json.encode(tools).decode()

    def _of_program(
        self,
        one: Candidate,
        tree: dict[str, MessageNode],
        made: dict[str, Made],
        cut: Collection[tuple[str, str]],
        said: Mapping[str, set[str]],
    ) -> list[tuple[ExampleDraft | ExampleDrop, Sequence[MessageNode], str]]:
        """The branches of a program's rollout; only that of its leaf where it is unresolved, since that has
        values, and for preferences, since there a rollout is one example."""
        found: list[tuple[ExampleDraft | ExampleDrop, Sequence[MessageNode], str]] = []
        ways = branches(tree, one.leaf, made)
        whole = one.resolved and not self._work.settings.selection.preferences
        for number, way in enumerate(ways if whole else ways[:1]):
            tools = tools_of(self._blobs, way.tools)
            names = tool_names(tools)
            found.append(
                (
                    draft(
                        *(one, way.nodes, tools, names, self._work.settings, way.trained, number, cut),
                        said.get(one.rollout_id),
                    ),
                    way.nodes,
                    msgspec.json.encode(tools).decode(),
                )
            )
        return found or [(ExampleDrop.NO_MESSAGES, (), "[]")]


_maker: ShardMaker | None = None


def start_process(work: ShardWork) -> None:
    global _maker
    threading.Thread(target=end_with_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are what runs in parallel
    gc.disable()  # it would walk through all remembered texts again and again: a quarter of the time
    _maker = ShardMaker(work)
    gc.freeze()  # the modules need not be walked through after each shard
    atexit.register(gc.unfreeze)


def make_shard(index: int, candidates: list[Candidate]) -> ShardReport:
    """Make a shard in a process that `start_process` has prepared."""
    assert _maker is not None
    report = _maker.make(index, candidates)
    gc.collect()
    return report


def shard_path(out: Path, index: int) -> Path:
    return out / f"rows-{index:05}.parquet"
