"""The wire of OpenAI's Responses: each request has the whole conversation as items, because no response is
stored."""

from collections.abc import Iterator
from typing import Any

import msgspec

from orchard.schemas.messages import Role, ToolCall
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
    openai_error,
    pieces,
    read_object,
    sampling,
    sse,
    word,
)

_ROLES = {"system": Role.SYSTEM, "developer": Role.SYSTEM, "user": Role.USER, "assistant": Role.ASSISTANT}
_SPACE = "namespace"
"""Type of a tool that is a set of functions, as Codex represents an MCP server; each call names it again."""
_INPUT = "input"
"""The only property of a custom tool's arguments when it is sent upstream as a function."""


def read(raw: bytes) -> ProgramRequest:
    body = read_object(raw)
    if body.get("previous_response_id") is not None:
        raise BadProgramRequest("previous_response_id: no response is kept; send the whole input")
    tools, spaces = _flat(objects(body.get("tools"), "tools"))
    custom = frozenset(
        named(tool.get("name"), "the name of a tool") for tool in tools if tool.get("type") == "custom"
    )
    said = [ProgramMessage(role=Role.SYSTEM, text=word(body.get("instructions")))]
    asked = body.get("input")
    items = [{"role": "user", "content": asked}] if isinstance(asked, str) else objects(asked, "input")
    for item in items:
        _take(said, item)
    messages = merge_system_messages(said)
    if not messages:
        raise BadProgramRequest("input must not be empty")
    told = tuple(_tool(tool) for tool in tools if tool.get("type") in ("function", "custom"))
    fields: dict[str, Any] = {}
    choice = body.get("tool_choice")
    if told and choice in ("required", "none"):
        fields["tool_choice"] = choice
    elif told and isinstance(choice, dict) and isinstance(choice.get("name"), str):
        fields["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}}
    if told and body.get("parallel_tool_calls") is False:
        fields["parallel_tool_calls"] = False
    form = child(child(body.get("text")).get("format"))
    if form.get("type") == "json_schema":
        schema = {name: form[name] for name in ("name", "schema", "strict") if name in form}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif form.get("type") == "json_object":
        fields["response_format"] = {"type": "json_object"}
    return ProgramRequest(
        messages=tuple(messages),
        tools=told,
        custom=custom,
        spaces=spaces,
        fields=fields,
        **sampling(body, "max_output_tokens"),
    )


def _flat(tools: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, tuple[str, str]]]:
    """Flattens namespaces: returns the tools under full names, and maps full names to namespace and name."""
    found, spaces = list[dict[str, Any]](), dict[str, tuple[str, str]]()
    for tool in tools:
        if tool.get("type") != _SPACE:
            found.append(tool)
            continue
        space = named(tool.get("name"), "the name of a namespace")
        for each in objects(tool.get("tools"), "the tools of a namespace"):
            name = named(each.get("name"), "the name of a tool")
            spaces[_full(space, name)] = space, name
            found.append({**each, "name": _full(space, name)})
    return found, spaces


def _full(space: str, name: str) -> str:
    return f"{space.rstrip('_')}__{name}"


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    parameters = tool.get("parameters") or {"type": "object", "properties": {}}
    if tool.get("type") == "custom":
        parameters = {"type": "object", "properties": {_INPUT: {"type": "string"}}, "required": [_INPUT]}
    function = {
        "name": named(tool.get("name"), "the name of a tool"),
        "description": word(tool.get("description")),
        "parameters": parameters,
    }
    return {"type": "function", "function": function}


def _take(said: list[ProgramMessage], item: dict[str, Any]) -> None:
    """Appends an item. Consecutive reasoning, text and calls become one assistant message."""
    kind = item.get("type", "message")
    if kind == "message":
        name = item.get("role")
        role = _ROLES.get(name) if isinstance(name, str) else None
        if role is None:
            raise BadProgramRequest(
                f"an item has the role {str(name)[:40]!r}: use one of {', '.join(_ROLES)}"
            )
        between = "" if role is Role.ASSISTANT else "\n"
        text, images = content_of(item.get("content"), "content", between)
        _join(said, ProgramMessage(role=role, text=text, images=images))
    elif kind == "reasoning":
        parts = item.get("content") or item.get("summary")
        _join(said, ProgramMessage(role=Role.ASSISTANT, reasoning=content_of(parts, "reasoning", "\n")[0]))
    elif kind in ("function_call", "custom_tool_call"):
        written = word(item.get("arguments")) if kind == "function_call" else _wrapped(item)
        call_id = named(item.get("call_id"), "call_id")
        name, space = word(item.get("name")), word(item.get(_SPACE))
        call = ToolCall(id=call_id, name=_full(space, name) if space else name, arguments=written)
        _join(said, ProgramMessage(role=Role.ASSISTANT, tool_calls=(call,)))
    elif kind in ("function_call_output", "custom_tool_call_output"):
        text, images = content_of(item.get("output"), "output", "\n")
        answered = named(item.get("call_id"), "call_id")
        said.append(ProgramMessage(role=Role.TOOL, text=text, images=images, tool_call_id=answered))
    elif kind == "item_reference":
        raise BadProgramRequest("item_reference: no item is kept; send the item itself")


def _wrapped(item: dict[str, Any]) -> str:
    return as_json({_INPUT: word(item.get("input"))})


def _join(said: list[ProgramMessage], more: ProgramMessage) -> None:
    last = said[-1]
    if more.role is not Role.ASSISTANT or last.role is not Role.ASSISTANT:
        said.append(more)
        return
    said[-1] = msgspec.structs.replace(
        last,
        text=last.text + more.text,
        reasoning=last.reasoning + more.reasoning,
        tool_calls=last.tool_calls + more.tool_calls,
        images=last.images + more.images,
    )


def whole(ask: ProgramRequest, reply: ProgramReply) -> dict[str, Any]:
    cut = reply.completion.finish_reason == "length"
    used = reply.completion.usage
    read, written = used.prompt_tokens or 0, used.completion_tokens or 0  # no wire has a word for unknown
    return _head(ask, reply) | {
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": _items(ask, reply),
        "usage": {
            "input_tokens": read,
            "input_tokens_details": {"cached_tokens": used.cached_tokens or 0},
            "output_tokens": written,
            "output_tokens_details": {"reasoning_tokens": used.reasoning_tokens or 0},
            "total_tokens": read + written,
        },
    }


def stream(ask: ProgramRequest, reply: ProgramReply) -> Iterator[bytes]:
    done = whole(ask, reply)
    events: list[tuple[str, dict[str, Any]]] = [
        ("response.created", {"response": _head(ask, reply)}),
        ("response.in_progress", {"response": _head(ask, reply)}),
    ]
    for index, item in enumerate(done["output"]):
        events += [(kind, {"output_index": index} | fields) for kind, fields in _item_events(item)]
    events.append((f"response.{done['status']}", {"response": done}))
    for sequence, (kind, fields) in enumerate(events):
        yield sse({"type": kind, "sequence_number": sequence} | fields, kind)


def _item_events(item: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the events of one item; the caller adds its output_index."""
    kind, place = item["type"], {"item_id": item["id"]}
    if kind == "message":
        part = item["content"][0]
        yield "response.output_item.added", {"item": item | {"status": "in_progress", "content": []}}
        yield "response.content_part.added", {**place, "content_index": 0, "part": part | {"text": ""}}
        place["content_index"] = 0
        for piece in pieces(part["text"]):
            yield "response.output_text.delta", {**place, "delta": piece, "logprobs": []}
        yield "response.output_text.done", {**place, "text": part["text"], "logprobs": []}
        yield "response.content_part.done", {**place, "part": part}
    elif kind == "reasoning":
        part = item["summary"][0]
        place["summary_index"] = 0
        yield "response.output_item.added", {"item": item | {"summary": []}}
        yield "response.reasoning_summary_part.added", {**place, "part": part | {"text": ""}}
        for piece in pieces(part["text"]):
            yield "response.reasoning_summary_text.delta", {**place, "delta": piece}
        yield "response.reasoning_summary_text.done", {**place, "text": part["text"]}
        yield "response.reasoning_summary_part.done", {**place, "part": part}
    else:
        written = "input" if kind == "custom_tool_call" else "arguments"
        name = f"response.{kind}_{written}"
        yield "response.output_item.added", {"item": item | {"status": "in_progress", written: ""}}
        for piece in pieces(item[written]):
            yield f"{name}.delta", {**place, "delta": piece}
        yield f"{name}.done", {**place, "name": item["name"], written: item[written]}
    yield "response.output_item.done", {"item": item}


def _items(ask: ProgramRequest, reply: ProgramReply) -> list[dict[str, Any]]:
    said, items = reply.completion, list[dict[str, Any]]()
    if said.reasoning:
        summary = [{"type": "summary_text", "text": said.reasoning}]
        items.append(
            {"id": f"rs_{reply.id}", "type": "reasoning", "summary": summary, "encrypted_content": None}
        )
    if said.text or not said.tool_calls:
        part = {"type": "output_text", "text": said.text, "annotations": [], "logprobs": []}
        items.append(
            {"id": f"msg_{reply.id}", "type": "message", "role": "assistant", "status": "completed"}
            | {"content": [part]}
        )
    for number, call in enumerate(said.tool_calls):
        head = {"id": f"fc_{reply.id}_{number}", "status": "completed", "call_id": call.id, "name": call.name}
        if call.name in ask.spaces:
            head[_SPACE], head["name"] = ask.spaces[call.name]
        if call.name in ask.custom:
            text = word(as_object(call.arguments).get(_INPUT))
            items.append({"type": "custom_tool_call", **head, "input": text})
        else:
            items.append({"type": "function_call", **head, "arguments": call.arguments})
    return items


def _head(ask: ProgramRequest, reply: ProgramReply) -> dict[str, Any]:
    return {
        "id": f"resp_{reply.id}",
        "object": "response",
        "created_at": reply.created,
        "status": "in_progress",
        "model": ask.model or reply.completion.model,
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "usage": None,
    }


def error(failure: CallError, message: str) -> tuple[int, dict[str, Any]]:
    """Codex stops after a 429, and retries after other errors."""
    return openai_error(failure, message, budget=429)


def broken(failure: CallError, message: str) -> bytes:
    said = error(failure, message)[1]["error"]
    failed: dict[str, Any] = {"object": "response", "status": "failed", "output": [], "id": "resp_failed"}
    failed["error"] = {"code": said["code"] or said["type"], "message": message}
    return sse({"type": "response.failed", "sequence_number": 0, "response": failed}, "response.failed")


RESPONSES = Wire("responses", read, whole, stream, error, broken)
