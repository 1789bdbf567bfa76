"""What the oracle can say: a thought and tool calls."""

import msgspec

from orchard.schemas.messages import ToolCall

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One assistant message: a thought and calls, well formed or not."""

    text: str
    calls: tuple[ToolCall, ...] = ()


def bash(text: str, *commands: str) -> Turn:
    """A thought and well-formed calls of the tool `bash`."""
    calls = tuple(
        ToolCall(id="", name="bash", arguments=msgspec.json.encode({"command": command}).decode())
        for command in commands
    )
    return Turn(text=text, calls=calls)
