"""ATIF out and in: rollouts of the log as files of Harbor's format, and the files of others as rollouts."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchard.pipelines.datasets.errors import DatasetError
from orchard.pipelines.datasets.importing import events_of, import_trajectories
from orchard.pipelines.interchange.export import trajectory_of, write_trajectories
from orchard.pipelines.interchange.reading import read_trajectories, trajectory_files
from orchard.schemas import events as e
from orchard.schemas.messages import MessageNode, Role, TokenRecord, ToolCall, node_id
from orchard.storage.blobs import BlobStore
from orchard.storage.reader import open_tables
from orchard.streams.connection import Connection
from orchard.streams.publisher import Publisher
from tests.gui_log import GuiAuthor, screen
from tests.trajectory_log import Author

ROW: dict[str, Any] = {
    "rollout_id": "r1",
    "campaign": "c",
    "task_id": "t",
    "task_source": "s",
    "repo": "a/b",
    "sample": 0,
    "harness": "codex",
    "model": "m",
    "attempt": 1,
    "status": "completed",
    "exit_status": "submitted",
    "cause": None,
    "reward": 1.0,
    "resolved": True,
    "prompt_tokens": 9,
    "completion_tokens": 3,
    "cost_usd": None,
    "turns": 2,
}


def tree(*said: tuple[str, str, Role, str, dict[str, Any]]) -> dict[str, MessageNode]:
    """Messages by name, each: name, name of the parent, role, text, further fields; by node id."""
    names: dict[str, str | None] = {"": None}
    found = {}
    for name, parent, role, text, more in said:
        calls, answers = more.get("tool_calls", ()), more.get("tool_call_id", "")
        names[name] = node_id(names[parent], role, text, calls, answers)
        node = MessageNode(node_id=names[name], parent=names[parent], role=role, turn=1, content=text, **more)
        found[node.node_id] = node
    return found


CALL = ToolCall(id="c1", name="bash", arguments='{"command": "ls"}')
BROKEN = ToolCall(id="c2", name="bash", arguments='{"command": ')
FOREST = tree(
    ("task", "", Role.USER, "Repair it.", {}),
    ("first", "task", Role.ASSISTANT, "Look.", {"tool_calls": (CALL, BROKEN), "reasoning": "Hm."}),
    ("seen", "first", Role.TOOL, "a.py", {"tool_call_id": "c1"}),
    ("wrong", "seen", Role.TOOL, "no JSON", {"tool_call_id": "c2"}),
    ("other", "wrong", Role.ASSISTANT, "A branch.", {}),
    ("done", "wrong", Role.ASSISTANT, "Done.", {"tokens": TokenRecord(ids=(1, 2), logprobs=(-0.5, -1.0))}),
    ("title", "", Role.USER, "Name this conversation.", {}),
    ("named", "title", Role.ASSISTANT, "Repairs", {}),
)
DONE = next(node.node_id for node in FOREST.values() if node.content == "Done.")


def follows_the_rules(found: dict[str, Any]) -> None:
    """What harbor 0.25 checks beside the fields' types."""
    assert [step["step_id"] for step in found["steps"]] == [*range(1, len(found["steps"]) + 1)]
    for step in found["steps"]:
        if step["source"] != "agent":
            assert not step.keys() & {"model_name", "reasoning_content", "tool_calls", "metrics"}
        calls = {call["tool_call_id"] for call in step.get("tool_calls", [])}
        results = step.get("observation", {}).get("results", [])
        assert {each["source_call_id"] for each in results if "source_call_id" in each} <= calls
    inside = found.get("subagent_trajectories", [])
    assert len({each["trajectory_id"] for each in inside}) == len(inside)
    for each in inside:
        follows_the_rules(each)


def test_a_forest_becomes_one_trajectory_with_its_branches(tmp_path: Path) -> None:
    found = json.loads(msgspec.json.encode(trajectory_of({**ROW, "leaf": DONE}, FOREST, {})))
    follows_the_rules(found)
    assert [step["message"] for step in found["steps"]] == ["Repair it.", "Look.", "Done."]
    look, done = found["steps"][1:]
    assert look["reasoning_content"] == "Hm."
    assert look["tool_calls"][0]["arguments"] == {"command": "ls"}
    assert [each["content"] for each in look["observation"]["results"]] == ["a.py", "no JSON"]
    assert done["metrics"] == {"completion_token_ids": [1, 2], "logprobs": [-0.5, -1.0]}
    branch, title = found["subagent_trajectories"]
    assert [(s["message"], s.get("is_copied_context")) for s in branch["steps"]] == [
        ("Repair it.", True),
        ("Look.", True),
        ("A branch.", None),
    ]
    assert [step["message"] for step in title["steps"]] == ["Name this conversation.", "Repairs"]
    file = tmp_path / "r1.json"
    file.write_text(json.dumps(found))
    (back,) = read_trajectories([file])
    assert {node.node_id for node in back.nodes} == set(FOREST)
    assert {n.node_id: (n.tool_calls, n.reasoning, n.tokens) for n in back.nodes} == {
        n.node_id: (n.tool_calls, n.reasoning, n.tokens) for n in FOREST.values()
    }
    assert (back.leaf, back.resolved, back.task_id, back.harness) == (DONE, True, "t", "codex")


async def test_what_was_written_comes_back_as_the_same_conversations(
    connection: Connection, committed, tmp_path: Path
) -> None:
    author, publisher = Author(), Publisher(connection)
    await publisher.events(
        [
            *author.rollout(0, ["ls", "cat a"], resolved=True),
            *author.rollout(1, ["ls"], resolved=False),
        ]
    )
    store = await committed()
    blobs, out = BlobStore(store), tmp_path / "out"
    with open_tables(store) as tables:
        files = list(write_trajectories(tables, blobs, "demo", out))
        assert list(write_trajectories(tables, blobs, "demo", out)) == []
    for file in files:
        follows_the_rules(json.loads(file.read_text()))
    for expected in ((2, 0), (0, 2)):
        done = await import_trajectories(
            publisher, blobs, read_trajectories(trajectory_files([out])), campaign="again", dataset="d"
        )
        assert (done.rollouts, done.there_already) == expected
    with open_tables(await committed()) as tables:
        (ours, theirs) = (
            tables.execute(
                "select r.resolved, r.turns, list(m.node_id order by m.node_id) "
                "from rollouts r join messages m using (rollout_id) "
                "where r.campaign = ? group by all order by all",
                [campaign],
            ).fetchall()
            for campaign in ("demo", "again")
        )
        assert ours == theirs
        assert tables.execute("select holds from conservation where campaign = 'again'").fetchall() == [
            (True,)
        ]


def test_a_trial_of_harbor_keeps_its_grade_and_its_task(tmp_path: Path) -> None:
    step = {
        "step_id": 1,
        "source": "agent",
        "message": [{"type": "image", "source": {"path": "a"}}],
        "extra": {},
    }
    written = {"schema_version": "ATIF-v1.8", "agent": {"name": "x", "version": "1"}, "steps": [step]}
    for trial, result in {
        "won": {"task_name": "org/t", "verifier_result": {"rewards": {"reward": 1}}},
        "lost": {"task_name": "org/t", "verifier_result": {"rewards": {"reward": 0.5}}, "source": "set"},
        "broken": {"task_name": "org/t", "verifier_result": None, "exception_info": {}},
    }.items():
        (tmp_path / trial / "agent").mkdir(parents=True)
        (tmp_path / trial / "agent" / "trajectory.json").write_text(json.dumps(written | {"notes": trial}))
        (tmp_path / trial / "result.json").write_text(json.dumps(result))
    read = list(read_trajectories(trajectory_files([tmp_path])))
    assert [one.row for one in read] == [0, 1, 2]
    found = {json.loads(one.metadata)["notes"]: one for one in read}
    assert {name: one.resolved for name, one in found.items()} == {"won": True, "lost": False, "broken": None}
    assert found["lost"].source == "set"
    assert found["broken"].flags == ("not_graded", "pictures_left_out")
    assert found["won"].nodes[0].content == "[image: not shown]"
    blobs = BlobStore(str(tmp_path / "store"))
    kinds = [event.type for event in events_of(blobs, found["broken"], campaign="c", dataset="d")]
    assert "reward.assigned" not in kinds
    last = e.payload(events_of(blobs, found["broken"], campaign="c", dataset="d")[-1])
    assert (last.reward, last.resolved) == (None, None)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema_version": "2.0"}, "schema_version '2.0' is not known"),
        ({"steps": []}, "no step of the agent"),
        ({"steps": [{"step_id": 2, "source": "agent", "message": ""}]}, "step 1 is numbered 2"),
        ({"steps": [{"step_id": 1, "source": "human", "message": ""}]}, "human"),
        ({"steps": "none"}, r"Expected `array`"),
        ({"extra": {"orchard": [1]}}, r"Expected `object`"),
        ({"extra": {"orchard": {"resolved": "yes"}}}, r"Expected `bool"),
        ({"extra": {"orchard": {"exit_status": "won"}}}, "won"),
        (
            {
                "steps": [
                    {
                        "step_id": 1,
                        "source": "agent",
                        "message": "",
                        "metrics": {"completion_token_ids": [-1]},
                    }
                ]
            },
            "int",
        ),
        (
            {
                "steps": [
                    {
                        "step_id": 1,
                        "source": "agent",
                        "message": "",
                        "tool_calls": [
                            {
                                "tool_call_id": "c",
                                "function_name": "f",
                                "arguments": {},
                                "extra": {"orchard": 5},
                            }
                        ],
                    }
                ]
            },
            r"Expected `object`",
        ),
    ],
)
def test_what_is_no_trajectory_is_named(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    file = tmp_path / "bad.json"
    step = {"step_id": 1, "source": "agent", "message": "Done."}
    good = {"schema_version": "ATIF-v1.7", "agent": {"name": "x", "version": "1"}, "steps": [step]}
    file.write_text(json.dumps(good | change))
    with pytest.raises(DatasetError, match=rf"bad\.json is no trajectory in ATIF: .*{says}"):
        list(read_trajectories([file]))
    with pytest.raises(DatasetError, match="cannot be read"):
        list(read_trajectories([tmp_path / "none.json"]))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetError, match=r"has no trajectory\.json"):
        trajectory_files([tmp_path / "empty"])


async def test_pictures_go_out_as_files_and_come_back_as_blobs(
    connection: Connection, committed, tmp_path: Path
) -> None:
    """What is no picture beside the file is left out, and nothing of this machine is read."""
    blobs = BlobStore(tmp_path / "store")
    await Publisher(connection).events(GuiAuthor(blobs).played("g1", 3, role=Role.TOOL))
    store = await committed()
    with open_tables(store) as tables:
        (file,) = write_trajectories(tables, blobs, "gui", tmp_path / "out")
        asked = "select list_transform(images, lambda i: [i.sha256, i.caption, i.at::text]) from messages"
        before = tables.execute(f"{asked} where images is not null order by sequence").fetchall()
    found = json.loads(file.read_text())
    follows_the_rules(found)
    parts = found["steps"][1]["message"]
    assert [part["type"] for part in parts] == ["text", "image", "text"]
    assert (file.parent / parts[1]["source"]["path"]).read_bytes() == blobs.read(before[0][0][0][0])
    other = BlobStore(tmp_path / "other")
    (back,) = read_trajectories([file], other)
    shown = [
        ([[image.blob.sha256, image.caption, str(image.at)] for image in node.images],)
        for node in back.nodes
        if node.images
    ]
    assert shown == before and back.flags == ()
    assert all(other.has(image.blob) for node in back.nodes for image in node.images)

    for path in (
        "../secret.png",
        str(tmp_path / "secret.png"),
        "https://example.org/a.png",
        "images/none.png",
    ):
        (tmp_path / "secret.png").write_bytes(screen(9))
        parts[1]["source"]["path"] = path
        file.write_text(json.dumps(found))
        (left,) = read_trajectories([file], other)
        assert left.flags == ("pictures_left_out",) and "[image: not shown]" in left.nodes[1].content
