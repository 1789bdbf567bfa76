"""Corpora in ADP and ATIF come in as campaigns, bad rows cost themselves, and datasets are built of them."""

import json
from pathlib import Path
from typing import Any

from orchard.pipelines.datasets.foreign import Foreign
from orchard.pipelines.datasets.importing import import_trajectories
from orchard.pipelines.interchange.reading import read_trajectories
from orchard.pipelines.tasks.left_out import LeftOut
from orchard.schemas.messages import Role
from orchard.storage.blobs import BlobStore
from orchard.storage.reader import open_tables
from orchard.streams.connection import Connection
from orchard.streams.publisher import Publisher


def adp(name: str, *content: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": name, "content": list(content), "schema_version": "1.5.0", **more}


ASKED = {"class_": "text_observation", "content": "Repair it.", "source": "user", "name": None}
LISTED = {
    "class_": "code_action",
    "language": "bash",
    "content": "ls",
    "description": "Look.",
    "reasoning_content": "Hm.",
    "tool_call_id": "c1",
}
SEEN = {"class_": "text_observation", "content": "a.py", "source": "environment", "tool_call_id": "c1"}
EDITED = {"class_": "api_action", "function": "edit", "kwargs": {"path": "a.py"}, "reward": 0.5}
PAGE = {"class_": "web_observation", "html": "<p>", "axtree": "[1] p", "url": "u", "viewport_size": [1, 2]}
DONE = {"class_": "message_action", "content": "Done.", "description": None}


def test_actions_are_turns_and_observations_their_results(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    whole = adp("t1", ASKED, LISTED, SEEN, EDITED, PAGE, DONE, details={"k": "v"})
    file.write_text(json.dumps([whole]))
    (one,) = read_trajectories([file])
    assert isinstance(one, Foreign)
    assert (one.task_id, one.harness, one.layout, one.resolved) == ("t1", "adp", "adp", None)
    assert [(node.role, node.content, node.reasoning) for node in one.nodes] == [
        (Role.USER, "Repair it.", ""),
        (Role.ASSISTANT, "Look.", "Hm."),
        (Role.TOOL, "a.py", ""),
        (Role.ASSISTANT, "", ""),
        (Role.TOOL, "[1] p", ""),
        (Role.ASSISTANT, "Done.", ""),
    ]
    calls = [(call.id, call.name, call.arguments) for node in one.nodes for call in node.tool_calls]
    assert calls == [("c1", "execute_bash", '{"command":"ls"}'), ("call_000003", "edit", '{"path":"a.py"}')]
    assert [node.tool_call_id for node in one.nodes if node.role is Role.TOOL] == ["c1", "call_000003"]
    for kept in ('"reward":0.5', '"html":"<p>"', '"url":"u"', '"viewport_size":[1,2]', '"details":{"k":"v"}'):
        assert kept in one.metadata


async def test_a_corpus_is_a_campaign_without_its_bad_rows_and_again_adds_nothing(
    connection: Connection, committed: Any, tmp_path: Path
) -> None:
    atif = {
        "schema_version": "ATIF-v1.2",
        "agent": {"name": "x", "version": "1"},
        "steps": [{"step_id": 1, "source": "agent", "message": "Done."}],
    }
    rows = [
        adp("t1", ASKED, DONE),
        adp("t2", ASKED, {"class_": "dance"}),
        adp("t3", ASKED, DONE | {"mood": "good"}),
        atif,
        adp("t1", ASKED, DONE),
        adp("t4", ASKED),
        adp("t5", ASKED, DONE, schema_version="2.0"),
        atif | {"session_id": "\ud800"},
        atif | {"session_id": "s", "mood": 1},
    ]
    file = tmp_path / "corpus.jsonl"
    file.write_text("{\n" + "".join(f"{json.dumps(row)}\n" for row in rows))
    store = await committed()
    blobs = BlobStore(store)
    for expected in ((2, 1), (0, 3)):
        done = await import_trajectories(
            Publisher(connection),
            blobs,
            read_trajectories([file], blobs, ungraded=True),
            campaign="corpus",
            dataset="d",
        )
        assert (done.rollouts, done.there_already) == expected
        assert [each.name.rpartition("line ")[2] for each in done.left_out[:6]] == [
            "1",
            "3",
            "4",
            "7",
            "8",
            "9",
        ]
        reasons = [each.why for each in done.left_out]
        said = ("truncated", "dance", "mood", "no step of the agent", "schema_version '2.0'", "", "mood")
        assert all(word in why for word, why in zip(said, reasons, strict=True))
    with open_tables(await committed()) as tables:
        found = tables.execute("select task_id, resolved, reward from rollouts order by 1").fetchall()
        assert found == [("corpus", True, 1.0), ("t1", True, 1.0)]
        assert tables.execute("select distinct flags from imports").fetchall() == [(["grade_assumed"],)]


def test_files_that_cannot_be_read_to_their_end_cost_themselves(tmp_path: Path) -> None:
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(b"\x1f\x8b\x08\x00\x00")
    none = tmp_path / "none.jsonl.gz"
    none.write_bytes(b"no gzip")
    found = list(read_trajectories([cut, none]))
    assert all(isinstance(one, LeftOut) and one.why.startswith("it cannot be read") for one in found)
    assert len(found) == 2
