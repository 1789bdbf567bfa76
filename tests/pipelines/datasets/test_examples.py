"""Which turns train, where an example ends, and why a trajectory gives none: rules by example."""

from typing import Any

import msgspec
import pytest

from orchard.pipelines.datasets.examples import Candidate, ExampleDraft, ExampleDrop, draft, leaked_steps
from orchard.pipelines.datasets.settings import DatasetSettings, Filters, Values
from orchard.schemas.messages import MessageNode, Role, ToolCall, node_id
from orchard.workers.harnesses.bash_prompts import BASH_TOOL

SETTINGS = DatasetSettings(name="x", tokenizer="t", values=Values(annotator="teacher"))
MASK = msgspec.structs.replace(SETTINGS, filters=Filters(bad_turns="mask"))


def a_path(*turns: tuple[str, str] | None, observation: str = "ok") -> list[MessageNode]:
    """A path whose turns call a tool with arguments; None is a turn without a call."""
    path: list[MessageNode] = []

    def say(role: Role, turn: int, text: str, **more: Any) -> None:
        parent = path[-1].node_id if path else None
        name = node_id(parent, role, text, more.get("tool_calls", ()), more.get("tool_call_id", ""))
        path.append(MessageNode(node_id=name, parent=parent, role=role, turn=turn, content=text, **more))

    say(Role.USER, 0, "Repair it.")
    for step, turn in enumerate(turns):
        if turn is None:
            say(Role.ASSISTANT, step + 1, f"words {step}")
            say(Role.USER, step + 1, "Call the tool.")
            continue
        call = ToolCall(id=f"c{step}", name=turn[0], arguments=turn[1])
        say(Role.ASSISTANT, step + 1, f"step {step}", tool_calls=(call,))
        say(Role.TOOL, step + 1, observation, tool_call_id=call.id)
    return path


LS = ("bash", '{"command": "ls"}')


def a_candidate(**changes: Any) -> Candidate:
    made = Candidate(
        rollout_id="r",
        attempt=1,
        campaign="c",
        task_id="t",
        task_source="s",
        repo="a/b",
        harness="mini-swe-agent",
        model="m",
        model_kind="model",
        sample=0,
        status="completed",
        exit_status="submitted",
        reward=1.0,
        resolved=True,
        leaf=None,
        start_sequence=1,
        done_sequence=2,
    )
    return msgspec.structs.replace(made, **changes)


def drafted(
    path: list[MessageNode], settings: DatasetSettings = SETTINGS, **changes: Any
) -> ExampleDraft | ExampleDrop:
    return draft(a_candidate(**changes), path, (BASH_TOOL,), {"bash"}, settings)


def test_every_turn_of_a_resolved_trajectory_trains_and_its_last_result_is_cut_off() -> None:
    made = drafted(a_path(LS, LS, LS))
    assert isinstance(made, ExampleDraft)
    assert made.trained == (0, 1, 2)
    assert made.conversation.messages[-1]["role"] == "assistant"
    assert made.conversation.messages[-1]["tool_calls"][0]["function"]["name"] == "bash"


def test_without_tools_the_text_is_the_action_and_the_user_says_its_result() -> None:
    path = a_path(None, None)
    made = draft(a_candidate(harness="mini-swe-agent-text"), path, (), frozenset(), SETTINGS)
    assert isinstance(made, ExampleDraft)
    assert made.trained == (0, 1)
    assert [one["role"] for one in made.conversation.messages] == ["user", "assistant", "user", "assistant"]
    assert draft(a_candidate(), path[:-1], (), frozenset(), SETTINGS) is ExampleDrop.UNPARSED_ACTION


def test_calls_in_a_text_were_executed_where_the_user_says_what_tools_answered() -> None:
    """As the harness `browser` has it for models whose endpoint does not read their calls."""
    path = a_path(None, None)
    said = [
        msgspec.structs.replace(node, content="<tool_response>\nSucceed: `click`.\n</tool_response>")
        if node.role is Role.USER and node.turn
        else node
        for node in path
    ]
    made = draft(a_candidate(), said, (BASH_TOOL,), {"bash"}, SETTINGS)
    assert isinstance(made, ExampleDraft) and made.trained == (0, 1)
    assert draft(a_candidate(), path, (BASH_TOOL,), {"bash"}, SETTINGS) is ExampleDrop.UNPARSED_ACTION


def test_an_unresolved_trajectory_ends_with_its_last_rising_turn() -> None:
    made = drafted(a_path(*[LS] * 5), resolved=False, base=0.4, curve=(0.4, 0.6, 0.3, 0.5, 0.1))
    assert isinstance(made, ExampleDraft)
    assert made.trained == (1, 3)
    assert [
        message["content"] for message in made.conversation.messages if message["role"] == "assistant"
    ] == [f"step {step}" for step in range(4)]


@pytest.mark.parametrize(
    ("curve", "exit_status", "dropped"),
    [
        ((0.4, 0.3, 0.1), "submitted", ExampleDrop.NO_SEGMENT),
        ((0.3, 0.1, 0.19), "submitted", ExampleDrop.NO_SEGMENT),
        ((0.5, 0.1), "submitted", ExampleDrop.OTHER_STEPS),
    ],
)
def test_no_segment_no_example(curve: tuple[float, ...], exit_status: str, dropped: ExampleDrop) -> None:
    """A rise at the submission itself earns nothing."""
    found = drafted(a_path(LS, LS, LS), resolved=False, base=0.4, curve=curve, exit_status=exit_status)
    assert found is dropped


def test_a_step_limit_has_no_submission_so_its_last_step_may_earn() -> None:
    made = drafted(
        a_path(LS, LS, LS), resolved=False, base=0.4, curve=(0.3, 0.1, 0.19), exit_status="step_limit"
    )
    assert isinstance(made, ExampleDraft) and made.trained == (2,)


def test_steps_that_failed_for_infrastructure_reasons_never_earn() -> None:
    path = a_path(LS, LS, observation="Agent connection error: gone")
    assert leaked_steps(path) == {0, 1}
    assert (
        drafted(path, resolved=False, base=0.4, curve=(0.6, 0.8), exit_status="step_limit")
        is ExampleDrop.NO_SEGMENT
    )


@pytest.mark.parametrize(
    ("bad", "dropped"),
    [
        (("python", '{"command": "1"}'), ExampleDrop.UNDEFINED_TOOL),
        (("bash", '{"command": "ls'), ExampleDrop.UNPARSED_ACTION),
        (("bash", "[]"), ExampleDrop.UNPARSED_ACTION),
        (None, ExampleDrop.UNPARSED_ACTION),
    ],
)
def test_a_bad_turn_drops_its_trajectory_or_stays_as_context(
    bad: tuple[str, str] | None, dropped: ExampleDrop
) -> None:
    path = a_path(LS, bad, LS)
    assert drafted(path) is dropped
    made = drafted(path, MASK)
    assert isinstance(made, ExampleDraft)
    assert (made.trained, made.masked) == ((0, 2), 1)
    ending = drafted(a_path(LS, LS, bad), MASK)
    assert isinstance(ending, ExampleDraft)
    assert len([m for m in ending.conversation.messages if m["role"] == "assistant"]) == 2
    assert drafted(a_path(bad), MASK) is ExampleDrop.FULLY_MASKED


def test_a_bad_turn_after_the_last_rise_does_no_harm() -> None:
    made = drafted(a_path(LS, LS, None, LS), resolved=False, base=0.4, curve=(0.6, 0.5, 0.2, 0.1))
    assert isinstance(made, ExampleDraft) and made.trained == (0,)


def test_a_rollout_may_end_without_a_call() -> None:
    farewell = drafted(a_path(LS, None)[:-1], exit_status="finished")
    assert isinstance(farewell, ExampleDraft) and farewell.trained == (0, 1)
    assert drafted(a_path(LS, None)[:-1]) is ExampleDrop.UNPARSED_ACTION
    assert drafted([]) is ExampleDrop.NO_MESSAGES
