"""Drills: whatever an assistant says in one was there before, and they are read as trajectories of others."""

import json
import re

from orchard.pipelines.datasets.importing import released
from orchard.pipelines.synthesis.drills import drills
from orchard.pipelines.synthesis.errands import TOOLS
from orchard.schemas.messages import Role

COUNT = 200


def test_all_that_is_said_can_be_copied() -> None:
    for _, row in drills(0, COUNT):
        seen = ""
        for message in row["messages"]:
            said = message["content"] + "".join(
                f" {call['function']['name']} {' '.join(json.loads(call['function']['arguments']).values())}"
                for call in message.get("tool_calls", ())
            )
            if message["role"] == "assistant" and said != "Done.":
                assert {*re.findall(r"\w+", said)} <= {*re.findall(r"\w+", seen)}
            seen += f" {said}"


def test_drills_are_of_their_seed_and_have_no_tool_of_an_errand() -> None:
    rows = list(drills(0, COUNT))
    assert rows == list(drills(0, COUNT)) and rows[:20] != list(drills(1, 20))
    assert len({json.dumps(row["messages"]) for _, row in rows}) > 0.9 * COUNT
    assert not any(name in json.dumps(row) for _, row in rows for name in TOOLS)


def test_a_drill_is_a_trajectory_with_its_tools() -> None:
    for foreign in released(drills(0, COUNT), "claw-react"):
        assert foreign.resolved and not set(foreign.flags) - {"no_reasoning"}
        named = {tool["function"]["name"] for tool in json.loads(foreign.tools)}
        assert named == {call.name for node in foreign.nodes for call in node.tool_calls}
        assert foreign.nodes[-1].role is Role.ASSISTANT
