"""What the oracle can say: a thought and tool calls, or for a harness without tools one block of text."""

import re

import msgspec

from orchard.schemas.messages import ToolCall

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One assistant message: a thought and calls, well formed or not."""

    text: str
    calls: tuple[ToolCall, ...] = ()


def block_label(opening: str) -> str | None:
    """The label of the blocks that a harness without tools asks for, as its opening messages show it."""
    shown = re.search(r"^```([A-Za-z_]*bash[A-Za-z_]*)$", opening, re.MULTILINE)
    return shown and shown[1]


def as_text(turn: Turn, label: str) -> Turn:
    """The turn for such a harness: the commands of all calls in one block, and none where a call is bad."""
    commands = [_command(call) for call in turn.calls]
    if not commands or None in commands:
        return Turn(text=turn.text)
    block = "\n".join(filter(None, commands))
    return Turn(text=f"THOUGHT: {turn.text}\n\n```{label}\n{block}\n```")


def _command(call: ToolCall) -> str | None:
    """None for a call that is not well formed."""
    try:
        command = msgspec.json.decode(call.arguments, type=dict[str, str]).get("command")
    except msgspec.DecodeError:
        return None
    return command if call.name == "bash" else None


def bash(text: str, *commands: str) -> Turn:
    """A thought and well-formed calls of the tool `bash`."""
    calls = tuple(
        ToolCall(id="", name="bash", arguments=msgspec.json.encode({"command": command}).decode())
        for command in commands
    )
    return Turn(text=text, calls=calls)
