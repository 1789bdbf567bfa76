"""The wire of Anthropic's messages: system blocks, content blocks, tools as blocks of both roles."""

from collections.abc import Iterator
from typing import Any

from orchard.schemas.identity import digest
from orchard.schemas.messages import Role, ToolCall
from orchard.workers.episode.pictures import picture_of_url
from orchard.workers.gateway.wire_types import (
    BadProgramRequest,
    CallError,
    ProgramMessage,
    ProgramReply,
    ProgramRequest,
    Wire,
    as_json,
    as_object,
    child,
    content_of,
    merge_system_messages,
    named,
    objects,
    pieces,
    read_object,
    sampling,
    sse,
    word,
)

BILLING = "x-anthropic-billing-header:"
"""Prefix of the system block that Claude Code changes with each call; it is not part of the prompt."""
_STOPS = {"length": "max_tokens", "content_filter": "refusal"}
_EMPTY: dict[str, dict[str, Any]] = {
    "text": {"text": ""},
    "thinking": {"thinking": "", "signature": ""},
    "tool_use": {"input": {}},
}
_TOKEN_BYTES = 4
_TOKEN_PIXELS = 750
"""The factors from Anthropic's documentation."""


def read(raw: bytes) -> ProgramRequest:
    body = read_object(raw)
    if not (messages := objects(body.get("messages"), "messages")):
        raise BadProgramRequest("messages must not be empty")
    said = _system(body.get("system"))
    for message in messages:
        said += _said(message)
    if not (opened := merge_system_messages(said)):
        raise BadProgramRequest("messages must say something")
    choice = child(body.get("tool_choice"))
    fields: dict[str, Any] = {}
    tools = tuple(
        _tool(tool) for tool in objects(body.get("tools"), "tools") if "input_schema" in tool
    )  # the others are run by Anthropic's own servers
    if stops := body.get("stop_sequences"):
        fields["stop"] = stops
    if tools and choice.get("type") in ("any", "none"):
        fields["tool_choice"] = {"any": "required", "none": "none"}[choice["type"]]
    elif tools and choice.get("type") == "tool":
        chosen = named(choice.get("name"), "the name of tool_choice")
        fields["tool_choice"] = {"type": "function", "function": {"name": chosen}}
    if tools and choice.get("disable_parallel_tool_use") is True:
        fields["parallel_tool_calls"] = False
    form = child(child(body.get("output_config")).get("format") or body.get("output_format"))
    if form.get("type") == "json_schema":
        schema = {"name": "answer", "schema": form.get("schema"), "strict": True}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    return ProgramRequest(
        messages=tuple(opened),
        tools=tools,
        thinking=child(body.get("thinking")).get("type") in ("enabled", "adaptive"),
        fields=fields,
        **sampling(body, "max_tokens"),
    )


def _system(value: Any) -> list[ProgramMessage]:
    blocks = [{"text": value}] if isinstance(value, str) else objects(value, "system")
    texts = [word(block.get("text")) for block in blocks]
    kept = [text for text in texts if text and not text.startswith(BILLING)]
    return [ProgramMessage(role=Role.SYSTEM, text=text) for text in kept]


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    function = {
        "name": named(tool.get("name"), "the name of a tool"),
        "description": word(tool.get("description")),
        "parameters": tool["input_schema"],
    }
    return {"type": "function", "function": function}


def _said(message: dict[str, Any]) -> list[ProgramMessage]:
    """Converts one message to its tool results, in order, followed by its other content."""
    role, content = message.get("role"), message.get("content")
    if role == "system":
        return _system(content)
    if role not in ("user", "assistant"):
        raise BadProgramRequest(f"a message has the role {str(role)[:40]!r}: use user, assistant or system")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else objects(content, "content")
    if role == "assistant":
        calls = [block for block in blocks if block.get("type") == "tool_use"]
        text, images = content_of([each for each in blocks if each not in calls], "content")
        return [
            ProgramMessage(
                role=Role.ASSISTANT,
                text=text,
                images=images,
                reasoning="".join(
                    word(block.get("thinking")) for block in blocks if block.get("type") == "thinking"
                ),
                tool_calls=tuple(
                    ToolCall(
                        id=named(block.get("id"), "the id of a tool_use block"),
                        name=word(block.get("name")),
                        arguments=as_json(block.get("input") or {}),
                    )
                    for block in calls
                ),
            )
        ]
    said, rest = list[ProgramMessage](), list[dict[str, Any]]()
    for block in blocks:
        if block.get("type") != "tool_result":
            rest.append(block)
            continue
        text, images = content_of(block.get("content"), "the content of a tool_result", "\n")
        answered = named(block.get("tool_use_id"), "tool_use_id")
        said.append(ProgramMessage(role=Role.TOOL, text=text, images=images, tool_call_id=answered))
    if rest or not said:
        text, images = content_of(rest, "content", "\n")
        said.append(ProgramMessage(role=Role.USER, text=text, images=images))
    return said


def whole(ask: ProgramRequest, reply: ProgramReply) -> dict[str, Any]:
    return {
        **_head(ask, reply),
        "content": _blocks(ask, reply),
        "stop_reason": _stop_reason(reply),
        "usage": _usage(reply),
    }


def stream(ask: ProgramRequest, reply: ProgramReply) -> Iterator[bytes]:
    usage = _usage(reply)
    yield _event("message_start", message=_head(ask, reply) | {"usage": usage | {"output_tokens": 0}})
    for index, block in enumerate(_blocks(ask, reply)):
        empty = _EMPTY[block["type"]]
        yield _event("content_block_start", index=index, content_block=block | empty)
        for delta in _deltas(block):
            yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    ended = {"stop_reason": _stop_reason(reply), "stop_sequence": None}
    yield _event("message_delta", delta=ended, usage=usage)
    yield _event("message_stop")


def _deltas(block: dict[str, Any]) -> list[dict[str, Any]]:
    if block["type"] == "tool_use":
        text = as_json(block["input"])
        return [{"type": "input_json_delta", "partial_json": piece} for piece in pieces(text)]
    if block["type"] == "thinking":
        thought = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"])]
        return [*thought, {"type": "signature_delta", "signature": block["signature"]}]
    return [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]


def _event(kind: str, **fields: Any) -> bytes:
    return sse({"type": kind, **fields}, kind)


def _blocks(ask: ProgramRequest, reply: ProgramReply) -> list[dict[str, Any]]:
    said, blocks = reply.completion, list[dict[str, Any]]()
    if said.reasoning and ask.thinking:
        signature = digest(said.reasoning)
        blocks.append({"type": "thinking", "thinking": said.reasoning, "signature": signature})
    if said.text:
        blocks.append({"type": "text", "text": said.text})
    for call in said.tool_calls:
        blocks.append(
            {"type": "tool_use", "id": call.id, "name": call.name, "input": as_object(call.arguments)}
        )
    return blocks


def _stop_reason(reply: ProgramReply) -> str:
    said = reply.completion
    return _STOPS.get(said.finish_reason) or ("tool_use" if said.tool_calls else "end_turn")


def _usage(reply: ProgramReply) -> dict[str, Any]:
    used = reply.completion.usage
    cached = used.cached_tokens or 0  # no wire has a word for unknown
    return {
        "input_tokens": max(0, (used.prompt_tokens or 0) - cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": used.completion_tokens or 0,
    }


def _head(ask: ProgramRequest, reply: ProgramReply) -> dict[str, Any]:
    return {
        "id": f"msg_{reply.id}",
        "type": "message",
        "role": "assistant",
        "model": ask.model or reply.completion.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def counted(raw: bytes) -> dict[str, int]:
    """Answers `count_tokens` with an estimate, because only the upstream has the tokenizer. Raises
    BadProgramRequest."""
    ask = read(raw)
    texts = [each.text + as_json(each.tool_calls) for each in ask.messages]
    size = sum(len(text.encode()) for text in [*texts, as_json(ask.tools)])
    pictures = (picture_of_url(url) for each in ask.messages for url in each.images)
    pixels = sum(picture.width * picture.height for picture in pictures if picture)
    return {"input_tokens": -(-size // _TOKEN_BYTES) + -(-pixels // _TOKEN_PIXELS)}


def error(failure: CallError, message: str) -> tuple[int, dict[str, Any]]:
    status, kind = {
        CallError.INVALID: (400, "invalid_request_error"),
        CallError.NOT_FOUND: (404, "not_found_error"),
        CallError.TOO_LARGE: (413, "request_too_large"),
        CallError.CONTEXT: (400, "invalid_request_error"),
        CallError.BUDGET: (402, "billing_error"),
        CallError.UNAVAILABLE: (529, "overloaded_error"),
    }[failure]
    if failure is CallError.CONTEXT:
        message = f"prompt is too long: {message}"
    return status, {"type": "error", "error": {"type": kind, "message": message}}


def broken(failure: CallError, message: str) -> bytes:
    return sse(error(failure, message)[1], "error")


ANTHROPIC = Wire("anthropic", read, whole, stream, error, broken)
