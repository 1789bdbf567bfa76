"""Drills: whatever an assistant says in one was there before, and they are read as trajectories of others."""

import json
import re

import pytest

from orchard.pipelines.domains.claw.drills import drills
from orchard.pipelines.domains.claw.errands import TOOLS
from orchard.pipelines.domains.swe.released_rows import released
from orchard.schemas.messages import Role

COUNT = 200
LONG = pytest.mark.parametrize("long", [False, True])


@LONG
def test_all_that_is_said_can_be_copied(long: bool) -> None:
    for _, row in drills(0, COUNT, long=long):
        seen = "The"
        for message in row["messages"]:
            said = message["content"] + "".join(
                f" {call['function']['name']} {values(call['function']['arguments'])}"
                for call in message.get("tool_calls", ())
            )
            if message["role"] == "assistant" and said != "Done.":
                assert {*re.findall(r"\w+", said)} <= {*re.findall(r"\w+", seen)}
            seen += f" {said}"


def values(arguments: str) -> str:
    """What the arguments of a call say, without their names."""
    return " ".join(str(value) for value in json.loads(arguments).values())


def test_long_drills_look_up_a_value_and_use_it() -> None:
    looked = 0
    for _, row in drills(0, COUNT, long=True):
        calls = [call["function"] for each in row["messages"] for call in each.get("tool_calls", ())]
        if len(calls) == 2:
            found = json.loads(row["messages"][2]["content"])["items"][0]
            used = json.loads(calls[1]["arguments"])
            assert {"email": "to", "id": "item", "place": "item"}.keys() & found.keys()
            assert any(value in (used.get("item"), *used.get("to", ())) for value in found.values() if value)
            looked += 1
    assert 0.3 * COUNT < looked < 0.5 * COUNT


@LONG
def test_drills_are_of_their_seed_and_have_no_tool_of_an_errand(long: bool) -> None:
    rows = list(drills(0, COUNT, long=long))
    assert rows == list(drills(0, COUNT, long=long)) and rows[:20] != list(drills(1, 20, long=long))
    assert len({json.dumps(row["messages"]) for _, row in rows}) > 0.9 * COUNT
    assert not any(name in json.dumps(row) for _, row in rows for name in TOOLS)


@LONG
def test_a_drill_is_a_trajectory_with_its_tools(long: bool) -> None:
    for foreign in released(drills(0, COUNT, long=long), "claw-react"):
        assert foreign.resolved and not set(foreign.flags) - {"no_reasoning"}
        named = {tool["function"]["name"] for tool in json.loads(foreign.tools)}
        assert named == {call.name for node in foreign.nodes for call in node.tool_calls}
        assert foreign.nodes[-1].role is Role.ASSISTANT
