"""The wire of OpenAI's Responses: each request has the whole conversation as items, because no response is
stored."""

from collections.abc import Iterator
from typing import Any

import msgspec

from orchard.schemas.messages import Role, ToolCall
from orchard.workers.gateway.client_tools import (
    CHOICE,
    INPUT,
    NATIVE_CALLS,
    RESULTS,
    check_names,
    choose,
    custom_function,
    custom_text,
    function,
    is_native_call,
    native_arguments,
    native_call,
    native_function,
    native_result,
)
from orchard.workers.gateway.wire_types import (
    SUMMARIZE,
    BadProgramRequest,
    CallError,
    ProgramMessage,
    ProgramReply,
    ProgramRequest,
    Wire,
    as_json,
    child,
    content_of,
    flag,
    kind_of_part,
    mapping,
    merge_system_messages,
    named,
    objects,
    openai_error,
    pieces,
    read_object,
    refuse,
    sampling,
    sse,
    text_of,
    unread,
    unseen_mark,
    word,
)

_ROLES = {"system": Role.SYSTEM, "developer": Role.SYSTEM, "user": Role.USER, "assistant": Role.ASSISTANT}
_SPACE = "namespace"
"""Type of a tool that is a set of functions, as Codex represents an MCP server; each call names it again."""
_SERVER = {
    "previous_response_id": "no response is kept; send the whole input",
    "conversation": "no conversation is kept; send the whole input",
    "prompt": "no prompt is stored; send its text as instructions",
    "background": "no response is kept; ask without it and wait",
    "context_management": "nothing is compacted by itself; ask responses/compact",
}
_KNOWN = frozenset(
    {"input", "instructions", "model", "stream", "stream_options", "text"}
    | {"max_output_tokens", "temperature", "top_p", "tools", "tool_choice", "parallel_tool_calls"}
    | _SERVER.keys()
)
_SUMMARY = "orchard-summary:"
"""Begins the content of compaction items that were made here; others are encrypted."""
_TRIGGER = "compaction_trigger"
_TOOLS = "additional_tools"
_HOLD = frozenset({"function_call_output", "custom_tool_call_output", *RESULTS})
_FORMS = ("text", "json_schema", "json_object")
_SCHEMA = ("name", "description", "schema", "strict")
_ITEMS: tuple[tuple[frozenset[str], frozenset[str]], ...] = (
    (frozenset({"message"}), frozenset({"role", "content"})),
    (frozenset({"reasoning"}), frozenset({"content", "summary", "encrypted_content"})),
    (frozenset({"function_call"}), frozenset({"call_id", "name", "arguments", _SPACE})),
    (frozenset({"custom_tool_call"}), frozenset({"call_id", "name", INPUT, _SPACE})),
    (NATIVE_CALLS, frozenset({"call_id", "action", "operation"})),
    (_HOLD, frozenset({"call_id", "output"})),
    (frozenset({_TOOLS}), frozenset({"role", "tools"})),
    (frozenset({"compaction"}), frozenset({"encrypted_content"})),
)
"""Types of items, and their fields that are read."""


def read(raw: bytes) -> ProgramRequest:
    return _read(read_object(raw))


def read_to_compact(raw: bytes) -> ProgramRequest:
    """Reads a request of `responses/compact`: the reply is the user's messages and a summary."""
    body = read_object(raw)
    items = _items_of(body)
    kept = tuple(_kept(number, item) for number, item in enumerate(items) if item.get("role") == "user")
    ask = _read(body | {"input": [*items, {"type": _TRIGGER}], "stream": False})
    return msgspec.structs.replace(ask, kept=kept)


def _items_of(body: dict[str, Any]) -> list[dict[str, Any]]:
    asked = body.get("input")
    return [{"role": "user", "content": asked}] if isinstance(asked, str) else objects(asked, "input")


def _kept(number: int, item: dict[str, Any]) -> dict[str, Any]:
    content = item.get("content")
    parts = [{"type": "input_text", "text": content}] if isinstance(content, str) else content
    return {"id": f"msg_{number}", "type": "message", "status": "completed", **item, "content": parts}


def _read(body: dict[str, Any]) -> ProgramRequest:
    refuse(body, _SERVER)
    items = _items_of(body)
    compacts = bool(items) and items[-1].get("type") == _TRIGGER
    if compacts:
        if len(items) == 1:
            raise BadProgramRequest("input must not be empty")
        items = [*items[:-1], {"role": "user", "content": SUMMARIZE}]
    added = [item.get("tools") for item in items if item.get("type") == _TOOLS]
    given = [tool for each in (body.get("tools"), *added) for tool in objects(each, "tools")]
    spaced = [tool for tool in given if tool.get("type") == _SPACE]
    tools, spaces = _flat(given)
    listed = [(tool, _function(tool)) for tool in tools]
    told = tuple(made for _, made in listed if made is not None)
    native = frozenset(word(tool.get("type")) for tool in tools if native_function(tool))
    check_names(told, native)
    said = [ProgramMessage(role=Role.SYSTEM, text=text_of(body.get("instructions"), "instructions"))]
    ids = {item["id"]: item["call_id"] for item in items if _has_ids(item)}
    for item in items:
        _take(said, item, ids)
    messages = merge_system_messages(said)
    if not messages:
        raise BadProgramRequest("input must not be empty")
    told, fields = choose("none" if compacts else body.get("tool_choice"), told)
    if flag(body, "parallel_tool_calls") is False and told:
        fields["parallel_tool_calls"] = False
    asked = mapping(body.get("text"), "text")
    form = mapping(asked.get("format"), "text.format")
    if (kind := form.get("type", "text")) not in _FORMS:
        raise BadProgramRequest(f"text.format: use one of {', '.join(_FORMS)}")
    if kind == "json_schema":
        schema = {name: form[name] for name in _SCHEMA if name in form}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif kind == "json_object":
        fields["response_format"] = {"type": "json_object"}
    return ProgramRequest(
        messages=tuple(messages),
        tools=told,
        custom=frozenset(word(tool.get("name")) for tool in tools if tool.get("type") == "custom"),
        native=native,
        spaces=spaces,
        left_out=(
            *(name for tool, made in listed for name in _left_out(tool, made)),
            *unread(body, _KNOWN),
            *unread(
                mapping(body.get("stream_options"), "stream_options"), frozenset({"include_obfuscation"})
            ),
            *unread(asked, frozenset({"format"})),
            *unread(child(body.get("tool_choice")), CHOICE),
            *unread(form, frozenset({"type", *_SCHEMA} if kind == "json_schema" else {"type"})),
            *(name for item in items for name in unread(item, _known(item))),
            *(name for space in spaced for name in unread(space, frozenset({"type", "name", "tools"}))),
            *(_SPACE for space in spaced if not space.get("tools")),
        ),
        compacts=compacts,
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


def _function(tool: dict[str, Any]) -> dict[str, Any] | None:
    """Returns a tool in the format of chat completions; None for one that OpenAI's servers run."""
    if tool.get("type") == "function":
        parameters = tool.get("parameters") or {"type": "object", "properties": {}}
        return function(tool.get("name"), tool.get("description"), parameters)
    return custom_function(tool) if tool.get("type") == "custom" else native_function(tool)


def _left_out(tool: dict[str, Any], made: dict[str, Any] | None) -> tuple[str, ...]:
    """Returns the type of a tool that is not offered; else the names of its fields without effect."""
    if made is None:
        return (kind_of_part(tool),)
    known = {"function": {"name", "description", "parameters"}, "custom": {"name", "description"}}
    inner = unread(child(tool.get("environment")), frozenset({"type"}))
    return *unread(tool, frozenset({"type", *known.get(word(tool["type"]), {"environment"})})), *inner


def _known(item: dict[str, Any]) -> frozenset[str]:
    """Returns the fields of an item that are read, or say no more than its place; all of one with a mark."""
    kind = word(item.get("type", "message"))
    fields = next((known for kinds, known in _ITEMS if kind in kinds), None)
    return frozenset(item) if fields is None else fields | {"type", "id", "status"}


def _has_ids(item: dict[str, Any]) -> bool:
    return is_native_call(item) and isinstance(item.get("id"), str) and isinstance(item.get("call_id"), str)


def _take(said: list[ProgramMessage], item: dict[str, Any], ids: dict[str, str]) -> None:
    """Appends an item. Consecutive reasoning, text and calls become one assistant message. `ids` maps the ids
    of native calls to their call ids, because the result of a `local_shell_call` has only the first."""
    kind = word(item.get("type", "message"))
    if kind == "message":
        name = item.get("role")
        role = _ROLES.get(name) if isinstance(name, str) else None
        if role is None:
            raise BadProgramRequest(
                f"an item has the role {str(name)[:40]!r}: use one of {', '.join(_ROLES)}"
            )
        between = "" if role is Role.ASSISTANT else "\n"
        content = content_of(item.get("content"), "content", between)
        _join(said, ProgramMessage(role=role, **content._asdict()))
    elif kind == "reasoning":
        content, summary = (content_of(item.get(field), field, "\n") for field in ("content", "summary"))
        thought, other = (content, summary) if content.text else (summary, content)
        unseen = (*content.not_shown, *summary.not_shown, *("image" for _ in content.images + summary.images))
        unseen += ("encrypted_reasoning",) if item.get("encrypted_content") else ()
        unseen += ("summary",) if other.text not in ("", thought.text) else ()
        _join(said, ProgramMessage(role=Role.ASSISTANT, reasoning=thought.text, not_shown=unseen))
    elif kind in ("function_call", "custom_tool_call") or is_native_call(item):
        _join(said, ProgramMessage(role=Role.ASSISTANT, tool_calls=(_call(kind, item),)))
    elif kind in _HOLD:
        call_id = item.get("call_id") or ids.get(word(item.get("id")), item.get("id"))
        answered = named(call_id, "call_id")
        output = native_result(item) if kind in RESULTS else item.get("output")
        content = content_of(output, "output", "\n")
        said.append(ProgramMessage(role=Role.TOOL, **content._asdict(), tool_call_id=answered))
    elif kind == "item_reference":
        raise BadProgramRequest("item_reference: no item is kept; send the item itself")
    elif kind == "compaction" and word(item.get("encrypted_content")).startswith(_SUMMARY):
        summary = item["encrypted_content"].removeprefix(_SUMMARY)
        said.append(ProgramMessage(role=Role.USER, text=summary))
    elif kind != _TOOLS:
        name = kind_of_part(item)
        said.append(ProgramMessage(role=Role.USER, text=unseen_mark(name), not_shown=(name,)))


def _call(kind: str, item: dict[str, Any]) -> ToolCall:
    name, space = text_of(item.get("name"), "the name of a call"), text_of(item.get(_SPACE), _SPACE)
    if kind == "function_call":
        written = text_of(item.get("arguments"), "the arguments of a call")
    elif kind == "custom_tool_call":
        written = as_json({INPUT: text_of(item.get(INPUT), "the input of a call")})
    else:
        name, written = native_arguments(item)
    call_id = named(item.get("call_id"), "call_id")
    return ToolCall(id=call_id, name=_full(space, name) if space else name, arguments=written)


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
        not_shown=last.not_shown + more.not_shown,
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
    elif kind not in ("function_call", "custom_tool_call"):
        yield "response.output_item.added", {"item": item | {"status": "in_progress"}}
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
    if ask.compacts:
        return [
            {"id": f"cmp_{reply.id}", "type": "compaction", "encrypted_content": f"{_SUMMARY}{said.text}"}
        ]
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
        text = custom_text(call.arguments) if call.name in ask.custom else None
        native = native_call(call.name, call.arguments) if call.name in ask.native else None
        if text is not None:
            items.append({"type": "custom_tool_call", **head, INPUT: text})
        elif native is not None:
            items.append({**native, **{name: head[name] for name in ("id", "call_id", "status")}})
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


def compacted(ask: ProgramRequest, reply: ProgramReply) -> dict[str, Any]:
    """Returns the answer of `responses/compact`."""
    done = whole(ask, reply)
    output = [*ask.kept, *done["output"]]
    head = {name: done[name] for name in ("id", "created_at", "usage")}
    return {**head, "object": "response.compaction", "output": output}


def error(failure: CallError, message: str) -> tuple[int, dict[str, Any]]:
    """Codex stops after a 429, and retries after other errors."""
    return openai_error(failure, message, budget=429)


def broken(failure: CallError, message: str) -> bytes:
    said = error(failure, message)[1]["error"]
    failed: dict[str, Any] = {"object": "response", "status": "failed", "output": [], "id": "resp_failed"}
    failed["error"] = {"code": said["code"] or said["type"], "message": message}
    return sse({"type": "response.failed", "sequence_number": 0, "response": failed}, "response.failed")


RESPONSES = Wire("responses", read, whole, stream, error, broken)
COMPACT = Wire("compact", read_to_compact, compacted, stream, error, broken)
