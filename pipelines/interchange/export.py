"""Writes rollouts of the log as ATIF: every accepted attempt whole, with its branches and subagents."""

import gzip
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any, cast

import duckdb
import msgspec

from orchard.pipelines.interchange import atif
from orchard.pipelines.interchange.conversation import KEY, Row, conversation, place
from orchard.pipelines.interchange.documents import LINES
from orchard.pipelines.interchange.kept import said_again
from orchard.pipelines.trajectories.reading import path, stored_node
from orchard.schemas.messages import MessageNode, VersionRun
from orchard.storage.blobs import BlobStore
from orchard.storage.reader import rows

TOGETHER = 100
"""Rollouts that are read at once."""
LAYOUTS = ("atif", "adp")
"""Layouts whose imports keep what their documents say beyond the log."""
_FACTS = (
    *("rollout_id", "campaign", "task_id", "task_source", "repo", "sample", "attempt", "status"),
    *("exit_status", "cause", "reward", "resolved"),
)
_ROLLOUTS = """
select r.rollout_id, r.campaign, r.task_id, r.task_source, r.repo, r.harness, r.model, r.sample, r.attempt,
       r.status, r.exit_status, r.cause, r.reward, r.resolved, r.leaf, r.turns, r.prompt_tokens,
       r.completion_tokens, r.cost_usd, i.metadata
from rollouts r left join imports i on i.rollout_id = r.rollout_id and list_contains($layouts, i.layout)
where r.campaign = $campaign and r.leaf is not null order by r.rollout_id
"""


def write_trajectories(
    tables: duckdb.DuckDBPyConnection, blobs: BlobStore, campaign: str, out: Path
) -> Iterator[Path]:
    """Yield a file `ROLLOUT.json` for each rollout of the campaign that ended with messages, as they are
    written with their pictures. An existing file stays unchanged. Raises BlobMissing or BlobCorrupt."""
    out.mkdir(parents=True, exist_ok=True)
    for some in _batches(tables, campaign):
        left = [row for row in some if not (out / f"{row['rollout_id']}.json").exists()]
        for name, found in _documents(tables, blobs, left, out):
            file = out / f"{name}.json"
            partial = file.with_suffix(".part")
            partial.write_bytes(msgspec.json.format(found, indent=1))
            partial.rename(file)
            yield file


def is_lines(out: Path) -> bool:
    """Whether the name is that of a file with a document a line."""
    return Path(str(out).removesuffix(".gz")).suffix in LINES


def write_lines(
    tables: duckdb.DuckDBPyConnection, blobs: BlobStore, campaign: str, out: Path
) -> Iterator[str]:
    """Write the same documents to one file, a line each, compressed where its name ends in `.gz`; yield the
    id of each rollout. The file appears when it is whole; pictures are beside it."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with _whole_file(out) as stream:
        for some in _batches(tables, campaign):
            for name, found in _documents(tables, blobs, some, out.parent):
                stream.write(found + b"\n")
                yield name


@contextmanager
def _whole_file(out: Path) -> Iterator[IO[bytes]]:
    partial = out.with_name(f"{out.name}.part")
    with partial.open("wb") as plain:
        if out.suffix == ".gz":
            with cast(IO[bytes], gzip.GzipFile(filename="", mode="wb", fileobj=plain, mtime=0)) as stream:
                yield stream
        else:
            yield plain
    partial.rename(out)


def _batches(tables: duckdb.DuckDBPyConnection, campaign: str) -> Iterator[list[Row]]:
    asked = {"campaign": campaign, "layouts": list(LAYOUTS)}
    rollouts = iter(rows(tables, _ROLLOUTS, asked))
    while some := list(islice(rollouts, TOGETHER)):
        yield cast(list[Row], some)


def _documents(
    tables: duckdb.DuckDBPyConnection, blobs: BlobStore, some: Sequence[Row], pictures: Path
) -> Iterator[tuple[str, bytes]]:
    """The JSON of these rollouts by id, in their order; their pictures are written below `pictures`."""
    names = [row["rollout_id"] for row in some]
    messages = _by_rollout(tables, "select * from messages", names)
    calls = _by_rollout(tables, "select * from llm_calls", names)
    for row in some:
        name = row["rollout_id"]
        stored = messages.get(name, [])
        tree = {each["node_id"]: _whole(blobs, each) for each in stored}
        made = {call["node"]: call for call in calls.get(name, [])}
        _write_pictures(blobs, tree.values(), pictures)
        imported = said_again(row["metadata"], row, tree, made, blobs) if row["metadata"] else None
        if imported is None:
            times = {each["node_id"]: each["time"] for each in stored} if not row["metadata"] else {}
            found = trajectory_of(row, tree, made, times)
            if row["metadata"]:
                found = msgspec.structs.replace(found, extra=_facts(row, said_again=False))
            yield name, msgspec.json.encode(found)
        else:
            imported["extra"] = _facts(row) | imported.get("extra", {})  # its own facts stay, if it has any
            yield name, msgspec.json.encode(imported)


def _write_pictures(blobs: BlobStore, nodes: Iterable[MessageNode], out: Path) -> None:
    for node in nodes:
        for image in node.images:
            file = out / place(image)
            if not file.exists():
                file.parent.mkdir(exist_ok=True)
                partial = file.with_suffix(".part")
                partial.write_bytes(blobs.get(image.blob))
                partial.rename(file)


def _whole(blobs: BlobStore, row: Row) -> MessageNode:
    """The message with all its token records."""
    node = stored_node(blobs, row)
    if node.tokens is None or row["token_ids"] is None:
        return node  # none, or whole already
    tokens = msgspec.structs.replace(
        node.tokens,
        logprobs=tuple(row["logprobs"] or ()),
        prompt_ids=tuple(row["prompt_ids"] or ()),
        versions=tuple(VersionRun(**run) for run in row["versions"] or ()),
    )
    return msgspec.structs.replace(node, tokens=tokens)


def _by_rollout(
    tables: duckdb.DuckDBPyConnection, query: str, rollouts: Sequence[str]
) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows(tables, f"{query} where rollout_id in (select unnest(?)) order by sequence", [rollouts]):
        found.setdefault(row["rollout_id"], []).append(row)
    return found


def trajectory_of(
    row: Row, nodes: dict[str, MessageNode], calls: Mapping[str, Row], times: Mapping[str, Any]
) -> atif.Trajectory:
    """The trajectory of a rollout: `row` of the view `rollouts`, its messages by id, the calls and the times
    by message."""
    agent = (row["harness"], row["model"])
    branches = [leaf for leaf in _leaves(nodes) if leaf != row["leaf"]]
    begun: dict[str, list[str]] = {}
    for leaf in branches:
        origins = (calls[node.node_id]["derived_from"] for node in path(nodes, leaf) if node.node_id in calls)
        if origin := next((each for each in origins if each), None):
            begun.setdefault(origin, []).append(leaf)
    main = path(nodes, row["leaf"])
    whole = conversation(*agent, row["rollout_id"], main, calls, times=times, begun=begun)
    copied = {node.node_id for node in main}
    others = []
    for leaf in branches:
        branch = path(nodes, leaf)
        here = {node.node_id: begun[node.node_id] for node in branch if node.node_id in begun.keys() - copied}
        others.append(
            conversation(*agent, leaf, branch, calls, copied=frozenset(copied), times=times, begun=here)
        )
        copied |= {node.node_id for node in branch}
    return msgspec.structs.replace(
        whole,
        session_id=row["rollout_id"],
        subagent_trajectories=others or None,
        final_metrics=atif.FinalMetrics(
            total_prompt_tokens=row["prompt_tokens"],
            total_completion_tokens=row["completion_tokens"],
            total_cost_usd=row["cost_usd"],
            total_steps=len(whole.steps),
        ),
        extra=_facts(row),
    )


def _facts(row: Row, **more: object) -> dict[str, Any]:
    return {KEY: {name: row[name] for name in _FACTS if row[name] is not None} | more}


def _leaves(nodes: Mapping[str, MessageNode]) -> list[str]:
    parents = {node.parent for node in nodes.values()}
    return [name for name in nodes if name not in parents]
