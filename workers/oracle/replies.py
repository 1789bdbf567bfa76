"""The oracle's messages, and their form as chat completions: one JSON object, or server-sent events.

A message is a thought and tool calls, or for a harness without tools one block of text.
"""

import math
import re
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from orchard.schemas.messages import ToolCall

BYTES_PER_TOKEN = 4
"""Approximates the oracle's usage: UTF-8 bytes over four, rounded up, and four tokens a message."""
TOKENS_PER_MESSAGE = 4

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One assistant message: a thought and calls, well formed or not."""

    text: str
    calls: tuple[ToolCall, ...] = ()


def block_label(opening: str) -> str | None:
    """Returns the label of the blocks that a harness without tools asks for, as its opening messages show
    it."""
    shown = re.search(r"^```([A-Za-z_]*bash[A-Za-z_]*)$", opening, re.MULTILINE)
    return shown and shown[1]


def as_text(turn: Turn, label: str) -> Turn:
    """Returns the turn for such a harness: the commands of all calls in one block, and none if a call is
    bad."""
    commands = [_command(call) for call in turn.calls]
    if not commands or None in commands:
        return Turn(text=turn.text)
    block = "\n".join(filter(None, commands))
    return Turn(text=f"THOUGHT: {turn.text}\n\n```{label}\n{block}\n```")


def _command(call: ToolCall) -> str | None:
    try:
        command = msgspec.json.decode(call.arguments, type=dict[str, str]).get("command")
    except msgspec.DecodeError:
        return None
    return command if call.name == "bash" else None


def bash(text: str, *commands: str) -> Turn:
    calls = tuple(
        ToolCall(id="", name="bash", arguments=msgspec.json.encode({"command": command}).decode())
        for command in commands
    )
    return Turn(text=text, calls=calls)


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    model: str
    fingerprint: str
    turn: Turn
    usage: dict[str, int]

    @property
    def finish_reason(self) -> str:
        return "tool_calls" if self.turn.calls else "stop"

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The calls with ids that are unique in the conversation."""
        return [
            {
                "id": f"{self.id}-{index}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for index, call in enumerate(self.turn.calls)
        ]


def tokens(text: str) -> int:
    return math.ceil(len(text.encode(errors="replace")) / BYTES_PER_TOKEN)


def usage(messages: list[dict[str, Any]], tools: list[Any], turn: Turn) -> dict[str, int]:
    asked = sum(TOKENS_PER_MESSAGE + tokens(_spoken(message)) for message in messages)
    prompt = asked + (tokens(msgspec.json.encode(tools).decode()) if tools else 0)
    said = tokens(turn.text) + sum(tokens(call.name + call.arguments) for call in turn.calls)
    return {"prompt_tokens": prompt, "completion_tokens": said, "total_tokens": prompt + said}


def _spoken(message: dict[str, Any]) -> str:
    parts = [text_of(message)]
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        parts.append(f"{function.get('name', '')}{function.get('arguments', '')}")
    return "".join(parts)


def text_of(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def whole(reply: Reply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.turn.text}
    if reply.turn.calls:
        message["tool_calls"] = reply.calls
    choice = {"index": 0, "message": message, "finish_reason": reply.finish_reason, "logprobs": None}
    return {**_head(reply, "chat.completion"), "choices": [choice], "usage": reply.usage}


def chunks(reply: Reply, include_usage: bool) -> Iterator[bytes]:
    """Yields the answer as server-sent events, `[DONE]` last."""
    yield _event(reply, {"role": "assistant", "content": ""})
    middle = len(reply.turn.text) // 2
    for piece in (reply.turn.text[:middle], reply.turn.text[middle:]):
        if piece:
            yield _event(reply, {"content": piece})
    for index, call in enumerate(reply.calls):
        function = call["function"]
        named = {**call, "function": {"name": function["name"], "arguments": ""}}
        yield _event(reply, {"tool_calls": [{"index": index, **named}]})
        rest = {"index": index, "function": {"arguments": function["arguments"]}}
        yield _event(reply, {"tool_calls": [rest]})
    yield _event(reply, {}, reply.finish_reason)
    if include_usage:
        last = {**_head(reply, "chat.completion.chunk"), "choices": [], "usage": reply.usage}
        yield b"data: " + msgspec.json.encode(last) + b"\n\n"
    yield b"data: [DONE]\n\n"


def _event(reply: Reply, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
    body = {**_head(reply, "chat.completion.chunk"), "choices": [choice]}
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def _head(reply: Reply, kind: str) -> dict[str, Any]:
    return {
        "id": reply.id,
        "object": kind,
        "created": int(time.time()),
        "model": reply.model,
        "system_fingerprint": reply.fingerprint,
    }
