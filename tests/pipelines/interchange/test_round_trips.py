"""What an ATIF document says comes out again: through the records alone, and through the log."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from orchard.pipelines.datasets.foreign import Foreign
from orchard.pipelines.datasets.importing import import_trajectories
from orchard.pipelines.interchange import kept
from orchard.pipelines.interchange.export import write_lines, write_trajectories
from orchard.pipelines.interchange.reading import read_trajectories, trajectory_files
from orchard.storage.blobs import BlobStore
from orchard.storage.reader import open_tables
from orchard.streams.connection import Connection
from orchard.streams.publisher import Publisher
from tests.adapters.atif_log import events, verdicts
from tests.pipelines.interchange.generated import trajectory

pytestmark = pytest.mark.long


def as_written(document: dict[str, Any]) -> dict[str, Any]:
    """The document in the version that is written."""
    found = document | {"schema_version": "ATIF-v1.8"}
    if inside := document.get("subagent_trajectories"):
        found["subagent_trajectories"] = [as_written(each) for each in inside]
    return found


def lines(place: Path, documents: list[dict[str, Any]]) -> Path:
    place.write_text("".join(f"{json.dumps(each)}\n" for each in documents))
    return place


def read_all(place: Path) -> list[Foreign]:
    found = list(read_trajectories([place]))
    assert [one for one in found if not isinstance(one, Foreign)] == []
    return [one for one in found if isinstance(one, Foreign)]


def test_every_field_of_generated_documents_is_kept(tmp_path: Path) -> None:
    random = Random(1)
    documents = [trajectory(random) for _ in range(1000)]
    again = verdicts(lines(tmp_path / "a.jsonl", documents))
    assert again == [as_written(document) for document in documents]


async def through_the_log(
    connection: Connection, committed: Any, source: Path, campaign: str, out: Path
) -> dict[str, dict[str, Any]]:
    """Import a file and export the campaign; the documents by their text without order."""
    store = await committed()
    blobs = BlobStore(store)
    found = read_trajectories(trajectory_files([source]), blobs)
    done = await import_trajectories(Publisher(connection), blobs, found, campaign=campaign, dataset="d")
    assert done.left_out == []
    with open_tables(await committed()) as tables:
        names = list(write_lines(tables, blobs, campaign, out))
    assert len(names) == done.rollouts + done.there_already
    documents = [json.loads(line) for line in out.read_bytes().split(b"\n") if line]
    return {json.dumps(each, sort_keys=True): each for each in documents}


async def test_import_and_export_of_generated_documents_change_nothing(
    connection: Connection, committed: Any, tmp_path: Path
) -> None:
    random = Random(2)
    documents = [trajectory(random) for _ in range(60)]
    source = lines(tmp_path / "a.jsonl", documents)
    first = await through_the_log(connection, committed, source, "one", tmp_path / "one.jsonl")
    plain = []
    for found in first.values():
        facts = found["extra"].pop("orchard")
        assert facts["campaign"] == "one" and "resolved" not in facts
        plain.append(json.dumps(found, sort_keys=True))
    unique = {json.dumps({"extra": {}} | as_written(each), sort_keys=True) for each in documents}
    assert sorted(plain) == sorted(unique)
    again = await through_the_log(
        connection, committed, tmp_path / "one.jsonl", "two", tmp_path / "two.jsonl"
    )
    assert set(again) == set(first)


async def test_an_import_of_a_version_that_exports_otherwise_comes_out_as_the_log_has_it(
    connection: Connection, committed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = lines(tmp_path / "a.jsonl", [trajectory(Random(3))])
    with monkeypatch.context() as earlier:
        earlier.setattr(kept, "digest", lambda _: "another version's")
        first = await through_the_log(connection, committed, source, "one", tmp_path / "one.jsonl")
    with open_tables(await committed()) as tables:
        list(write_lines(tables, BlobStore(await committed()), "one", tmp_path / "two.jsonl"))
    (before,), found = first.values(), json.loads((tmp_path / "two.jsonl").read_bytes())
    assert [each["source"] for each in found["steps"]] == [each["source"] for each in before["steps"]]
    assert found["extra"]["orchard"]["said_again"] is False


async def test_what_orchard_exports_comes_out_equal_after_an_import(
    connection: Connection, committed: Any, tmp_path: Path
) -> None:
    """With token ids, usage, times, costs, branches and subagents that name where they began."""
    await Publisher(connection).events(events())
    store = await committed()
    with open_tables(store) as tables:
        files = list(write_trajectories(tables, BlobStore(store), "demo", tmp_path / "out"))
    before = {json.dumps(json.loads(file.read_text()), sort_keys=True) for file in files}
    after = await through_the_log(connection, committed, tmp_path / "out", "again", tmp_path / "a.jsonl")
    assert set(after) == before
    (won,) = (found for found in after.values() if found["extra"]["orchard"]["resolved"])
    refs = [
        ref["trajectory_id"]
        for step in won["steps"]
        for result in step.get("observation", {}).get("results", [])
        for ref in result.get("subagent_trajectory_ref", [])
    ]
    assert refs and set(refs) <= {each["trajectory_id"] for each in won["subagent_trajectories"]}
    assert all("timestamp" in step for step in won["steps"])
    made = [step["metrics"] for step in won["steps"] if step["source"] == "agent"]
    assert all(metrics["prompt_tokens"] and "cost_usd" in metrics for metrics in made)
    with open_tables(await committed()) as tables:
        (ours, theirs) = (
            tables.execute(
                "select node, prompt_tokens, completion_tokens, cached_tokens, cost_usd, seconds, "
                "finish_reason, derived_from from llm_calls where campaign = ? order by all",
                [campaign],
            ).fetchall()
            for campaign in ("demo", "again")
        )
        assert ours == theirs
        times = "select node_id, time from messages where campaign = ? order by all"
        assert tables.execute(times, ["demo"]).fetchall() == tables.execute(times, ["again"]).fetchall()


@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz"])
async def test_an_export_of_lines_that_is_there_is_written_again_whole(
    connection: Connection, committed: Any, tmp_path: Path, suffix: str
) -> None:
    await Publisher(connection).events(events())
    store = await committed()
    out = tmp_path / f"a.{suffix}"
    with open_tables(store) as tables:
        for _ in range(2):
            assert len(list(write_lines(tables, BlobStore(store), "demo", out))) == 2
    assert len(read_all(out)) == 2
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith("a.")] == [out.name]
