"""The wire of Anthropic's messages: system blocks, content blocks, tools as blocks of both roles."""

from collections.abc import Iterator
from typing import Any

from orchard.schemas.identity import digest
from orchard.schemas.messages import Role, ToolCall
from orchard.workers.gateway.client_tools import anthropic_function, name_of
from orchard.workers.gateway.wire_types import (
    SUMMARIZE,
    BadProgramRequest,
    CallError,
    ProgramMessage,
    ProgramReply,
    ProgramRequest,
    Wire,
    as_json,
    as_object,
    content_of,
    flag,
    kind_of_part,
    mapping,
    merge_system_messages,
    named,
    objects,
    pieces,
    read_object,
    refuse,
    sampling,
    sse,
    text_of,
    unread,
    word,
)

BILLING = "x-anthropic-billing-header:"
"""Prefix of the system block that Claude Code changes with each call; it is not part of the prompt."""
_STOPS = {"length": "max_tokens", "content_filter": "refusal"}
_EMPTY: dict[str, dict[str, Any]] = {
    "text": {"text": ""},
    "thinking": {"thinking": "", "signature": ""},
    "tool_use": {"input": {}},
    "compaction": {"content": None},
}
_SERVER = {
    "thread": "no conversation is kept; send all messages",
    "container": "no container is kept; offer a tool that the program runs",
    "mcp_servers": "no server is called from here; offer its tools as tools of the program",
}

_KNOWN_TOOL = frozenset({"name", "description", "input_schema"})
_OWN_BLOCKS = (("assistant", "tool_use"), ("assistant", "thinking"), ("user", "tool_result"))
"""Roles and types of the blocks that are read as calls, reasoning and results."""
_KNOWN_BLOCKS = {
    "tool_use": frozenset({"type", "id", "name", "input"}),
    "thinking": frozenset({"type", "thinking", "signature"}),
    "tool_result": frozenset({"type", "tool_use_id", "content", "is_error"}),
    "compaction": frozenset({"type", "content"}),
}
_KNOWN = frozenset(
    {"messages", "system", "model", "stream", "max_tokens", "temperature", "top_p", "stop_sequences"}
    | {"tools", "tool_choice", "thinking", "output_config", "output_format"}
    | {"context_management", "compaction", "fallbacks"}
    | _SERVER.keys()
)


def read(raw: bytes) -> ProgramRequest:
    body = read_object(raw)
    refuse(body, _SERVER)
    if body.get("fallbacks") not in (None, "default", []):
        raise BadProgramRequest("fallbacks: one model answers every call; leave the field out")
    if not (messages := objects(body.get("messages"), "messages")):
        raise BadProgramRequest("messages must not be empty")
    said, left_out = _system(body.get("system")), list[str]()
    for message in messages:
        said += _said(message)
        left_out += _unread_in(message)
    if not (opened := merge_system_messages(said)):
        raise BadProgramRequest("messages must say something")
    choice = mapping(body.get("tool_choice"), "tool_choice")
    if (chosen := choice.get("type", "auto")) not in ("auto", "any", "none", "tool"):
        raise BadProgramRequest("tool_choice: use auto, any, none or tool")
    fields: dict[str, Any] = {}
    listed = [(tool, anthropic_function(tool)) for tool in objects(body.get("tools"), "tools")]
    tools = tuple(made for _, made in listed if made is not None)
    for tool, made in listed:
        own = tool.get("type") == "custom" or "input_schema" not in tool
        known = _KNOWN_TOOL | ({"type"} if own else set())
        known |= {"max_characters"} if "input_schema" not in tool else set()
        left_out += unread(tool, known) if made else [kind_of_part(tool)]
    left_out += _edits(mapping(body.get("context_management"), "context_management"))
    left_out += unread(body, _KNOWN)
    output = mapping(body.get("output_config"), "output_config")
    form = mapping(output.get("format"), "output_config.format")
    older = mapping(body.get("output_format"), "output_format")
    left_out += unread(output, frozenset({"format"}))
    left_out += unread(choice, frozenset({"type", "name", "disable_parallel_tool_use"}))
    if compacts := bool(compaction := mapping(body.get("compaction"), "compaction")):
        asked = text_of(compaction.get("instructions"), "the instructions of compaction").strip() or SUMMARIZE
        opened.append(ProgramMessage(role=Role.USER, text=asked))
        left_out += unread(compaction, frozenset({"type", "instructions"}))
        chosen = "none"
    if stops := body.get("stop_sequences"):
        fields["stop"] = stops
    if chosen == "tool":
        name = named(choice.get("name"), "the name of tool_choice")
        if name not in map(name_of, tools):
            raise BadProgramRequest(f"tool_choice: the model cannot be offered {name!r}; choose another tool")
        fields["tool_choice"] = {"type": "function", "function": {"name": name}}
    elif chosen == "any" and not tools:
        raise BadProgramRequest("tool_choice: no tool is offered that the model can call; leave it out")
    elif tools and chosen != "auto":
        fields["tool_choice"] = {"any": "required", "none": "none"}[chosen]
    if flag(choice, "disable_parallel_tool_use") and tools:
        fields["parallel_tool_calls"] = False
    if form and older and form != older:
        raise BadProgramRequest("output_format: output_config.format says otherwise; send one of them")
    if form := form or older:
        if form.get("type") != "json_schema":
            raise BadProgramRequest("output_config.format: use json_schema")
        schema = {"name": "answer", "schema": form.get("schema"), "strict": True}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
        left_out += unread(form, frozenset({"type", "schema"}))
    thinking = mapping(body.get("thinking"), "thinking")
    if thinking.get("type") not in (None, "enabled", "adaptive", "disabled"):
        raise BadProgramRequest("thinking.type: use enabled, adaptive or disabled")
    left_out += unread(thinking, frozenset({"type"}))
    return ProgramRequest(
        messages=tuple(opened),
        tools=tools,
        thinking=thinking.get("type") in ("enabled", "adaptive"),
        fields=fields,
        left_out=tuple(left_out),
        compacts=compacts,
        **sampling(body, "max_tokens"),
    )


def _system(value: Any) -> list[ProgramMessage]:
    blocks = [{"type": "text", "text": value}] if isinstance(value, str) else objects(value, "system")
    said = [content_of([block], "system") for block in blocks]
    kept = [each for each in said if each.text and not each.text.startswith(BILLING)]
    return [ProgramMessage(role=Role.SYSTEM, **each._asdict()) for each in kept]


def _edits(management: dict[str, Any]) -> list[str]:
    """Returns the types of edits of the context that are not made here. Raises BadProgramRequest for one that
    compacts the conversation."""
    edits = objects(management.get("edits"), "the edits of context_management")
    for edit in edits:
        if kind_of_part(edit).startswith("compact_"):
            raise BadProgramRequest(
                f"context_management: {kind_of_part(edit)} is not done here; ask for `compaction`"
            )
    made = [kind_of_part(edit) for edit in edits if edit.get("keep") != "all"]
    return [*made, *unread(management, frozenset({"edits"}))]


def _said(message: dict[str, Any]) -> list[ProgramMessage]:
    """Converts one message to its tool results, in order, followed by its other content."""
    role, content = message.get("role"), message.get("content")
    if role == "system":
        return _system(content)
    if role not in ("user", "assistant"):
        raise BadProgramRequest(f"a message has the role {str(role)[:40]!r}: use user, assistant or system")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else objects(content, "content")
    summaries = [
        ProgramMessage(role=Role.USER, text=block["content"])
        for block in blocks
        if block.get("type") == "compaction" and isinstance(block.get("content"), str)
    ]
    blocks = [block for block in blocks if not _is_silent(block)]
    if summaries and not blocks:
        return summaries
    if role == "assistant":
        calls = [block for block in blocks if block.get("type") == "tool_use"]
        thoughts = [block for block in blocks if block.get("type") == "thinking"]
        own = ("tool_use", "thinking")
        rest = content_of([block for block in blocks if block.get("type") not in own], "content")
        return [
            *summaries,
            ProgramMessage(
                role=Role.ASSISTANT,
                **rest._asdict(),
                reasoning="".join(text_of(block.get("thinking"), "thinking") for block in thoughts),
                tool_calls=tuple(
                    ToolCall(
                        id=named(block.get("id"), "the id of a tool_use block"),
                        name=text_of(block.get("name"), "the name of a tool_use block"),
                        arguments=as_json({} if block.get("input") is None else block["input"]),
                    )
                    for block in calls
                ),
            ),
        ]
    said, others = summaries, list[dict[str, Any]]()
    for block in blocks:
        if block.get("type") != "tool_result":
            others.append(block)
            continue
        result = content_of(block.get("content"), "the content of a tool_result", "\n")
        if flag(block, "is_error") and not result.text:
            result = result._replace(text="[error]")
        answered = named(block.get("tool_use_id"), "tool_use_id")
        said.append(ProgramMessage(role=Role.TOOL, **result._asdict(), tool_call_id=answered))
    if others or not said:
        said.append(ProgramMessage(role=Role.USER, **content_of(others, "content", "\n")._asdict()))
    return said


def _unread_in(message: dict[str, Any]) -> list[str]:
    """Returns the names of the fields without effect of a message, and of its blocks that are no parts of a
    content."""
    blocks = message["content"] if isinstance(message.get("content"), list) else []
    found = [*unread(message, frozenset({"role", "content"}))]
    for block in blocks:
        kind = word(block.get("type"))
        if _is_silent(block):
            found += [kind] if kind == "fallback" else unread(block, _KNOWN_BLOCKS[kind])
        elif (message["role"], kind) in _OWN_BLOCKS:
            found += unread(block, _KNOWN_BLOCKS[kind])
            hidden = kind == "thinking" and not block.get("thinking") and block.get("signature")
            found += ["encrypted_reasoning"] if hidden else []
    return found


def _is_silent(block: dict[str, Any]) -> bool:
    """Whether a block is no part of the prompt by itself: a mark of Anthropic's servers, or a summary that is
    a message of its own or failed."""
    kind, summary = block.get("type"), block.get("content")
    readable = isinstance(summary, str) or (summary is None and not block.get("encrypted_content"))
    return kind == "fallback" or (kind == "compaction" and readable)


def whole(ask: ProgramRequest, reply: ProgramReply) -> dict[str, Any]:
    return {
        **_head(ask, reply),
        "content": _blocks(ask, reply),
        "stop_reason": _stop_reason(ask, reply),
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
    ended = {"stop_reason": _stop_reason(ask, reply), "stop_sequence": None}
    yield _event("message_delta", delta=ended, usage=usage)
    yield _event("message_stop")


def _deltas(block: dict[str, Any]) -> list[dict[str, Any]]:
    if block["type"] == "tool_use":
        text = as_json(block["input"])
        return [{"type": "input_json_delta", "partial_json": piece} for piece in pieces(text)]
    if block["type"] == "thinking":
        thought = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"])]
        return [*thought, {"type": "signature_delta", "signature": block["signature"]}]
    if block["type"] == "compaction":
        return [{"type": "compaction_delta", "content": block["content"]}]
    return [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]


def _event(kind: str, **fields: Any) -> bytes:
    return sse({"type": kind, **fields}, kind)


def _blocks(ask: ProgramRequest, reply: ProgramReply) -> list[dict[str, Any]]:
    said, blocks = reply.completion, list[dict[str, Any]]()
    if ask.compacts:
        return [{"type": "compaction", "content": said.text or None}]
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


def _stop_reason(ask: ProgramRequest, reply: ProgramReply) -> str:
    said = reply.completion
    ended = "compaction" if ask.compacts else "tool_use" if said.tool_calls else "end_turn"
    return _STOPS.get(said.finish_reason, ended)


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
