"""ATIF out and in: rollouts of the log as files of Harbor's format, and the files of others as rollouts."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchard.pipelines.datasets.foreign import Foreign
from orchard.pipelines.datasets.importing import events_of, import_trajectories
from orchard.pipelines.interchange.export import trajectory_of, write_trajectories
from orchard.pipelines.interchange.reading import read_trajectories, trajectory_files
from orchard.schemas import events as e
from orchard.schemas.messages import MessageNode, Role, TokenRecord, ToolCall, node_id
from orchard.schemas.outcomes import ExitStatus
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
    found = json.loads(msgspec.json.encode(trajectory_of({**ROW, "leaf": DONE}, FOREST, {}, {})))
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


@pytest.mark.long
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
    assert found["broken"].flags == ("not_graded", "pictures_left_out", "trial_failed")
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
        ({"steps": []}, "it has no step"),
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
    whole = tmp_path / "good.json"
    whole.write_text(json.dumps(good))
    (tmp_path / "empty").mkdir()
    places = [file, tmp_path / "none.json", tmp_path / "empty", whole]
    *left_out, one = read_trajectories(trajectory_files(places))
    assert isinstance(one, Foreign) and one.task_id == "good"
    assert [each.name for each in left_out] == list(map(str, places[:3]))
    assert re.match(f"it is no trajectory in ATIF or ADP: .*{says}", left_out[0].why)
    assert left_out[1].why.startswith("it cannot be read") and "no trajectory.json" in left_out[2].why


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


def written(place: Path, *steps: dict[str, Any], **more: Any) -> Path:
    """An ATIF file whose steps are numbered here."""
    place.parent.mkdir(parents=True, exist_ok=True)
    numbered = [{"step_id": number, **step} for number, step in enumerate(steps, 1)]
    agent = {"name": "x", "version": "1", "model_name": "m"}
    place.write_text(json.dumps({"schema_version": "ATIF-v1.7", "agent": agent, "steps": numbered, **more}))
    return place


def said(text: str, at: int, **metrics: Any) -> dict[str, Any]:
    step = {"source": "agent", "message": text, "timestamp": f"2026-01-02T03:04:{at:02}Z"}
    return step | ({"metrics": metrics} if metrics else {})


ASKED = {"source": "user", "message": "Do it.", "timestamp": "2026-01-02T03:04:00Z"}
FIRST = said("a", 5, prompt_tokens=10, completion_tokens=2, cached_tokens=4, cost_usd=0.5)
SECOND = said("b", 9, prompt_tokens=20, completion_tokens=3, cost_usd=0.25)
TRIAL = {
    "task_name": "t",
    "started_at": "2026-01-02T03:00:00.000000Z",
    "finished_at": "2026-01-02T03:10:00.500000Z",
    "environment_setup": {"started_at": "2026-01-02T03:00:00Z", "finished_at": "2026-01-02T03:00:20Z"},
    "agent_setup": {"started_at": "2026-01-02T03:00:20Z", "finished_at": "2026-01-02T03:00:25Z"},
    "verifier": {"started_at": "2026-01-02T03:10:00Z", "finished_at": None},
    "agent_result": {"n_input_tokens": 7, "n_cache_tokens": 1, "n_output_tokens": 8, "cost_usd": 1.5},
}


@pytest.mark.parametrize(
    ("steps", "more", "trial", "figures"),
    [
        ((ASKED, FIRST, SECOND), {}, None, (9.0, None, 2, 30, 5, 0.75)),
        ((ASKED, FIRST, said("b", 9)), {}, None, (9.0, None, 2, None, None, None)),
        ((ASKED, said("a", 5)), {}, None, (5.0, None, None, None, None, None)),
        (({"source": "agent", "message": "a"},), {}, None, (None,) * 6),
        ((ASKED, FIRST), {"final_metrics": {"total_prompt_tokens": 99}}, None, (5.0, None, 1, 99, 2, 0.5)),
        ((ASKED, said("a", 5, prompt_tokens=-1, cost_usd=0.0)), {}, None, (5.0, None, 1, None, None, 0.0)),
        ((ASKED, said("a", 5, prompt_tokens=10**30)), {}, None, (5.0, None, 1, None, None, None)),
        ((ASKED, said("a", 5) | {"llm_call_count": 10**30}), {}, None, (5.0, None, None, None, None, None)),
        ((ASKED, said("a", 5) | {"llm_call_count": 3}), {}, None, (5.0, None, 3, None, None, None)),
        ((ASKED, FIRST | {"timestamp": "soon"}), {}, None, (None, None, 1, 10, 2, 0.5)),
        ((FIRST, SECOND | {"timestamp": "2025-01-01T00:00:00"}), {}, None, (None, None, 2, 30, 5, 0.75)),
        ((ASKED, said("a", 5)), {}, TRIAL, (600.5, 25.0, None, 7, 8, 1.5)),
        ((ASKED, FIRST), {}, TRIAL, (600.5, 25.0, 1, 10, 2, 0.5)),
        ((ASKED, FIRST), {}, {"task_name": "t", "agent_result": None}, (5.0, None, 1, 10, 2, 0.5)),
    ],
)
def test_what_a_file_says_of_tokens_times_calls_and_costs_is_taken_and_the_rest_is_not_known(
    tmp_path: Path,
    steps: tuple[dict[str, Any], ...],
    more: dict[str, Any],
    trial: dict[str, Any] | None,
    figures: tuple[float | None, ...],
) -> None:
    file = written(tmp_path / "one" / "agent" / "trajectory.json", *steps, **more)
    if trial:
        (tmp_path / "one" / "result.json").write_text(json.dumps(trial))
    (one,) = read_trajectories([file])
    assert isinstance(one, Foreign)
    took = one.took
    assert figures == (
        *(took.seconds, took.seconds_creating, took.llm_calls),
        *(took.prompt_tokens, took.completion_tokens, took.cost_usd),
    )
    assert took.seconds_grading is None


async def test_imported_figures_are_in_the_tables_and_unknown_ones_are_null(
    connection: Connection, committed, tmp_path: Path
) -> None:
    copied = ASKED, FIRST | {"is_copied_context": True}, said("c", 7, prompt_tokens=5, completion_tokens=1)
    inside = written(tmp_path / "inside.json", *copied)
    known = written(
        tmp_path / "known.json", ASKED, FIRST, SECOND, subagent_trajectories=[json.loads(inside.read_text())]
    )
    unknown = written(tmp_path / "unknown.json", {"source": "agent", "message": "a"})
    store = await committed()
    done = await import_trajectories(
        Publisher(connection),
        BlobStore(store),
        read_trajectories([known, unknown]),
        campaign="theirs",
        dataset="d",
    )
    assert (done.rollouts, done.left_out) == (2, [])
    with open_tables(await committed()) as tables:
        rows = tables.execute(
            "select task_id, seconds, llm_calls, prompt_tokens, completion_tokens, cost_usd, seconds_llm, "
            "started_at < now() - interval 1 day from rollouts order by task_id"
        ).fetchall()
        calls = tables.execute(
            "select turn, model, prompt_tokens, completion_tokens, cached_tokens, cost_usd, seconds, "
            "call_kind from llm_calls order by sequence"
        ).fetchall()
    assert rows == [
        ("known", 9.0, 3, 35, 6, None, None, True),
        ("unknown", None, None, None, None, None, None, False),
    ]
    assert calls == [
        (1, "m", 10, 2, 4, 0.5, None, None),
        (2, "m", 20, 3, None, 0.25, None, None),
        (2, "m", 5, 1, None, None, None, "subagent"),
    ]


@pytest.mark.parametrize(
    ("exception", "reward", "resolved", "ended", "flags"),
    [
        ("AgentTimeoutError", None, None, ExitStatus.TIME_LIMIT, ("not_graded",)),
        ("AgentTimeoutError", 0, False, ExitStatus.TIME_LIMIT, ()),
        ("DaytonaError", None, None, ExitStatus.FINISHED, ("not_graded", "trial_failed")),
        ("NonZeroAgentExitCodeError", 0, None, ExitStatus.FINISHED, ("not_graded", "trial_failed")),
        ("NonZeroAgentExitCodeError", 1, True, ExitStatus.FINISHED, ("trial_failed",)),
    ],
)
def test_how_a_trial_ended_is_known(
    tmp_path: Path,
    exception: str,
    reward: int | None,
    resolved: bool | None,
    ended: ExitStatus,
    flags: tuple[str, ...],
) -> None:
    """An agent's program that failed may have had no model to ask: nothing solved is then no grade."""
    file = tmp_path / "agent" / "trajectory.json"
    file.parent.mkdir()
    steps = [{"step_id": 1, "source": "agent", "message": "y"}]
    file.write_text(json.dumps({"agent": {"name": "a", "version": "1"}, "session_id": "s", "steps": steps}))
    trial = {"task_name": "t", "exception_info": {"exception_type": exception}}
    if reward is not None:
        trial["verifier_result"] = {"rewards": {"reward": reward}}
    (tmp_path / "result.json").write_text(json.dumps(trial))
    [found] = read_trajectories([file])
    assert isinstance(found, Foreign)
    assert (found.resolved, found.exit_status, found.flags) == (resolved, ended, flags)
