"""Rows from the rollouts of programs: each path is a sequence, each answer trains once."""

from pathlib import Path

import msgspec
import pytest

from orchard.pipelines.datasets.build import build
from orchard.pipelines.datasets.rows import read_rows
from orchard.pipelines.datasets.settings import DatasetSettings, Selection
from orchard.pipelines.trajectories.forests import training
from orchard.schemas import events as e
from orchard.schemas.llm_calls import CallKind
from orchard.schemas.messages import MessageNode, Role, ToolCall, node_id
from orchard.schemas.outcomes import ExitStatus
from orchard.storage.blobs import BlobStore
from orchard.workers.harnesses.programs.catalog import PROGRAMS
from tests.trajectory_log import Author, llm_call

MAIN, TITLE, SUBAGENT, COMPACTION = (
    CallKind.MAIN,
    CallKind.TITLE,
    CallKind.SUBAGENT,
    CallKind.COMPACTION,
)
BASH = {"type": "function", "function": {"name": "bash", "description": "", "parameters": {}}}
READ = {"type": "function", "function": {"name": "read", "description": "", "parameters": {}}}


@pytest.mark.parametrize(
    ("parents", "kinds", "expected"),
    [
        ({"t": None, "a": "t", "b": "a"}, {"a": MAIN, "b": MAIN}, {"a", "b"}),
        ({"t": None, "a": "t", "b": "t", "c": "b"}, {"a": MAIN, "b": MAIN, "c": MAIN}, {"b", "c"}),
        ({"t": None, "a": "t", "b": "t"}, {"a": MAIN, "b": MAIN}, {"b"}),
        ({"t": None, "a": "t", "x": None, "y": "x"}, {"a": MAIN, "y": TITLE}, {"a"}),
        ({"t": None, "a": "t", "b": "a"}, {"b": MAIN}, {"b"}),
        ({"t": None, "a": "t", "x": None, "y": "x"}, {"a": SUBAGENT, "y": COMPACTION}, {"a", "y"}),
    ],
    ids=["a path", "asked again and went on", "asked again", "a title", "written by itself", "all work"],
)
def test_answers_train_that_were_read_and_are_work(parents, kinds, expected) -> None:
    assert training(parents, kinds) == expected


class Program:
    """Writes what a program says into the log."""

    def __init__(self, author: Author, blobs: BlobStore, finished: e.RolloutFinished, rollout: str) -> None:
        self.events: list[e.Event] = []
        self._author, self._blobs, self._finished, self._rollout = author, blobs, finished, rollout

    def say(self, parent: str | None, role: Role, text: str, turn: int, **more: object) -> str:
        calls, answers = more.get("tool_calls", ()), more.get("tool_call_id", "")
        name = node_id(parent, role, text, calls, answers)
        node = MessageNode(node_id=name, parent=parent, role=role, turn=turn, content=text, **more)
        self.events.append(self._author.event(node, self._rollout))
        return name

    def answer(self, parent: str, kind: CallKind, text: str, tool: str, turn: int) -> tuple[str, str]:
        """An answer with a call, and its result; node ids of both."""
        call = ToolCall(id=f"c{turn}", name=tool, arguments='{"command": "ls"}')
        name = self.say(parent, Role.ASSISTANT, text, turn, tool_calls=(call,))
        self.called(parent, name, kind, turn, tool)
        return name, self.say(name, Role.TOOL, f"{text} seen", turn, tool_call_id=call.id)

    def called(self, parent: str, name: str, kind: CallKind, turn: int, tool: str) -> None:
        offered = [READ if tool == "read" else BASH]
        tools = self._blobs.put(msgspec.json.encode(offered), "application/json")
        facts = {"parent": parent, "node": name, "call_kind": kind, "tools": tools}
        self.events.append(self._author.event(llm_call(turn, **facts), self._rollout))

    def ended(self, leaf: str, harness: str = PROGRAMS[0].name) -> list[e.Event]:
        finished = msgspec.structs.replace(
            self._finished, leaf=leaf, harness=harness, exit_status=ExitStatus.FINISHED
        )
        return [*self.events, self._author.event(finished, self._rollout)]


@pytest.mark.long
async def test_rows_of_a_program(keep, author, tokenizer: str, tmp_path: Path) -> None:
    """A title; two turns; then a history that was rewritten, whose summary it wrote itself; a sub-agent."""
    blobs = BlobStore(str(tmp_path / "store"))
    whole = author.rollout(0, ["ls"], resolved=True)
    program = Program(author, blobs, e.payload(whole[-1]), whole[0].rollout_id)
    title = program.say(None, Role.USER, "Name it.", 0)
    program.called(title, program.say(title, Role.ASSISTANT, "A name", 1), TITLE, 1, "bash")
    task = program.say(None, Role.USER, "Repair it.", 0)
    _, seen = program.answer(task, MAIN, "First.", "bash", 1)
    program.answer(seen, MAIN, "Second, before.", "bash", 2)
    summary = program.say(seen, Role.ASSISTANT, "All is read.", 2)
    asked = program.say(summary, Role.USER, "Go on.", 2)
    _, last = program.answer(asked, COMPACTION, "Second, after.", "bash", 3)
    leaf = program.say(last, Role.ASSISTANT, "Done.", 4)
    program.called(last, leaf, MAIN, 4, "bash")
    other = program.say(None, Role.USER, "Look into a.py.", 0)
    program.answer(other, SUBAGENT, "Reads.", "read", 1)
    store = await keep([*whole[:2], *program.ended(leaf)])
    manifest = build(store, DatasetSettings(name="programs", tokenizer=tokenizer), tmp_path / "out")
    rows = list(read_rows(tmp_path / "out"))
    said = [
        [
            message["content"]
            for step, message in enumerate(
                m for m in msgspec.json.decode(row.messages) if m["role"] == "assistant"
            )
            if step in row.trained_turns
        ]
        for row in rows
    ]
    assert said == [["First.", "Second, after.", "Done."], ["Second, before."], ["Reads."]]
    assert [row.example_id.rpartition(".")[2] for row in rows] == ["0", "1", "2"]
    assert [[tool["function"]["name"] for tool in msgspec.json.decode(row.tools)] for row in rows] == [
        ["bash"],
        ["bash"],
        ["read"],
    ]
    assert manifest.counts["stored_turns"] == 0


@pytest.mark.long
async def test_a_rollout_of_preferences_is_the_branch_of_its_last_message(
    keep, author, tokenizer: str, tmp_path: Path
) -> None:
    """Each rollout gives work to another agent; two of them are resolved."""
    blobs, events = BlobStore(str(tmp_path / "store")), []
    for sample in range(4):
        whole = author.rollout(sample, ["ls"], resolved=sample % 2 == 0)
        program = Program(author, blobs, e.payload(whole[-1]), whole[0].rollout_id)
        other = program.say(None, Role.USER, "Look into a.py.", 0)
        program.answer(other, SUBAGENT, "Reads.", "read", 1)
        task = program.say(None, Role.USER, "Repair it.", 0)
        _, seen = program.answer(task, MAIN, "First.", "bash", 1)
        leaf = program.say(seen, Role.ASSISTANT, "Done.", 2)
        program.called(seen, leaf, MAIN, 2, "bash")
        events += [*whole[:2], *program.ended(leaf)]
    store = await keep(events)
    wanted = DatasetSettings(name="pairs", tokenizer=tokenizer, selection=Selection(preferences=2))
    build(store, wanted, tmp_path / "out")
    rows = list(read_rows(tmp_path / "out"))
    assert sorted((row.sample, row.resolved) for row in rows) == [
        (0, True),
        (1, False),
        (2, True),
        (3, False),
    ]
    assert all("Reads." not in row.messages and row.trained_turns == (0, 1) for row in rows)


@pytest.mark.long
async def test_a_row_of_claw_react_has_the_tools_of_its_task(keep, author, tokenizer: str, tmp_path) -> None:
    """One conversation, as of each harness in the worker; its tools are not the harness's but the log's."""
    blobs = BlobStore(str(tmp_path / "store"))
    whole = author.rollout(0, ["ls"], resolved=True)
    program = Program(author, blobs, e.payload(whole[-1]), whole[0].rollout_id)
    task = program.say(program.say(None, Role.SYSTEM, "You have tools.", 0), Role.USER, "Read it.", 0)
    _, seen = program.answer(task, MAIN, "First.", "read", 1)
    leaf = program.say(seen, Role.ASSISTANT, "Done.", 2)
    program.called(seen, leaf, MAIN, 2, "read")
    store = await keep([*whole[:2], *program.ended(leaf, "claw-react")])
    build(store, DatasetSettings(name="desk", tokenizer=tokenizer), tmp_path / "out")
    (row,) = read_rows(tmp_path / "out")
    assert [tool["function"]["name"] for tool in msgspec.json.decode(row.tools)] == ["read"]
    said = [m["content"] for m in msgspec.json.decode(row.messages) if m["role"] == "assistant"]
    assert (said, row.trained_turns) == (["First.", "Done."], (0, 1))
