"""The wire of OpenAI's chat completions, which is closest to the upstream's."""

from collections.abc import Iterator
from typing import Any

from orchard.schemas.messages import Role, ToolCall
from orchard.workers.gateway.client_tools import CHOICE, INPUT, choose, custom_function, custom_text
from orchard.workers.gateway.wire_types import (
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
    mapping,
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
from orchard.workers.llm.answers import REASONING_FIELDS, Completion

_SERVER = {
    "functions": "this form is older than `tools`; send tools",
    "function_call": "this form is older than `tool_choice`; send tool_choice",
    "fallbacks": "one model answers every call; leave the field out",
    "thread": "no conversation is kept; send all messages",
    "conversation": "no conversation is kept; send all messages",
}
_KNOWN = frozenset(
    {"messages", "model", "stream", "stream_options", "n", "tools", "tool_choice", "parallel_tool_calls"}
    | {"max_completion_tokens", "max_tokens", "temperature", "top_p", "stop", "response_format"}
    | _SERVER.keys()
)
KNOWN_OPTIONS = frozenset({"include_usage", "include_obfuscation"})
_KNOWN_ANSWER = frozenset({"role", "content", "audio", "refusal", "tool_calls", "function_call"})
_ROLES = {role.value: role for role in Role} | {"developer": Role.SYSTEM, "function": Role.TOOL}


def read(raw: bytes) -> ProgramRequest:
    body = read_object(raw)
    if not (messages := objects(body.get("messages"), "messages")):
        raise BadProgramRequest("messages must not be empty")
    if body.get("n") not in (None, 1):
        raise BadProgramRequest("n must be 1: one call records one answer")
    refuse(body, _SERVER)
    listed = objects(body.get("tools"), "tools")
    custom = [mapping(tool.get("custom"), "custom") for tool in listed if tool.get("type") == "custom"]
    tools, chosen = choose(
        body.get("tool_choice"),
        tuple(
            custom_function(child(tool.get("custom"))) if tool.get("type") == "custom" else tool
            for tool in listed
        ),
    )
    fields = {name: value for name in ("stop", "response_format") if (value := body.get(name)) is not None}
    fields |= chosen
    if flag(body, "parallel_tool_calls") is False and tools:
        fields["parallel_tool_calls"] = False
    options = mapping(body.get("stream_options"), "stream_options")
    return ProgramRequest(
        messages=tuple(_said(message) for message in messages),
        tools=tools,
        custom=frozenset(word(tool.get("name")) for tool in custom),
        include_usage=flag(options, "include_usage") is True,
        fields=fields,
        left_out=(
            *unread(body, _KNOWN),
            *unread(options, KNOWN_OPTIONS),
            *unread(child(body.get("tool_choice")), CHOICE),
            *(name for tool in listed for name in _unread_of_tool(tool)),
        ),
        **sampling(body, "max_completion_tokens", "max_tokens"),
    )


def _said(message: dict[str, Any]) -> ProgramMessage:
    name = message.get("role")
    role = _ROLES.get(name) if isinstance(name, str) else None
    if role is None:
        raise BadProgramRequest(f"a message has the role {str(name)[:40]!r}: use one of {', '.join(_ROLES)}")
    text, images, unseen = content_of(message.get("content"), "content")
    if role is Role.ASSISTANT:
        if message.get("audio"):
            text, unseen = text + unseen_mark("audio"), (*unseen, "audio")
        thoughts = {each: text_of(message.get(each), each) for each in REASONING_FIELDS}
        reasoning = next(filter(None, thoughts.values()), "")
        same = {each for each, thought in thoughts.items() if thought == reasoning}
        calls = objects(message.get("tool_calls"), "tool_calls")
        if older := mapping(message.get("function_call"), "function_call"):
            calls = [*calls, {"id": older.get("name"), "function": older}]
        return ProgramMessage(
            role=role,
            text=text + text_of(message.get("refusal"), "refusal"),
            images=images,
            tool_calls=tuple(map(_call, calls)),
            reasoning=reasoning,
            not_shown=(
                *unseen,
                *unread(message, _KNOWN_ANSWER | same),
                *(name for call in calls for name in _unread_of_call(call)),
            ),
        )
    answered, known = "", {"role", "content"}
    if role is Role.TOOL:
        field = "name" if message.get("tool_call_id") is None else "tool_call_id"
        answered, known = text_of(message.get(field), field), {*known, field}
    unseen = (*unseen, *unread(message, frozenset(known)))
    return ProgramMessage(role=role, text=text, images=images, tool_call_id=answered, not_shown=unseen)


def _unread_of_tool(tool: dict[str, Any]) -> tuple[str, ...]:
    if tool.get("type") != "custom":
        return ()  # the endpoint reads the whole tool
    inner = unread(child(tool.get("custom")), frozenset({"name", "description"}))
    return *unread(tool, frozenset({"type", "custom"})), *inner


def _unread_of_call(call: dict[str, Any]) -> tuple[str, ...]:
    kind, field = ("custom", INPUT) if call.get("custom") else ("function", "arguments")
    inner = unread(child(call.get(kind)), frozenset({"name", field}))
    return *unread(call, frozenset({"id", "type", "index", kind})), *inner


def _call(call: dict[str, Any]) -> ToolCall:
    call_id = named(call.get("id"), "the id of a tool call")
    if text := mapping(call.get("custom"), "custom"):
        given = {INPUT: text_of(text.get("input"), "the input of a tool call")}
        call = call | {"function": {"name": text.get("name"), "arguments": given}}
    if not (function := mapping(call.get("function"), "function")):
        raise BadProgramRequest("a tool call must have a function or a custom tool")
    arguments = function.get("arguments")
    return ToolCall(
        id=call_id,
        name=text_of(function.get("name"), "the name of a tool call"),
        arguments=arguments
        if isinstance(arguments, str)
        else as_json({} if arguments is None else arguments),
    )


def usage(completion: Completion) -> dict[str, Any]:
    """Formats the usage of a completion for OpenAI's two older wires."""
    used = completion.usage
    read, written = used.prompt_tokens or 0, used.completion_tokens or 0  # no wire has a word for unknown
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
        "prompt_tokens_details": {"cached_tokens": used.cached_tokens or 0},
        "completion_tokens_details": {"reasoning_tokens": used.reasoning_tokens or 0},
    }


def finish_reason(completion: Completion) -> str:
    """Returns the finish reason, limited to OpenAI's values."""
    if completion.finish_reason in ("length", "content_filter"):
        return completion.finish_reason
    return "tool_calls" if completion.tool_calls else "stop"


def whole(ask: ProgramRequest, reply: ProgramReply) -> dict[str, Any]:
    said = reply.completion
    message: dict[str, Any] = {"role": "assistant", "content": said.text or None, "refusal": None}
    if not said.tool_calls:
        message["content"] = said.text
    if said.reasoning:
        message["reasoning_content"] = said.reasoning
    if said.tool_calls:
        message["tool_calls"] = [_written(ask, call) for call in said.tool_calls]
    choice = {"index": 0, "message": message, "finish_reason": finish_reason(said), "logprobs": None}
    return {**_head(ask, reply, "chat.completion"), "choices": [choice], "usage": usage(said)}


def stream(ask: ProgramRequest, reply: ProgramReply) -> Iterator[bytes]:
    """The last chunk has the usage; it is a separate chunk if the program asked for it."""
    said = reply.completion
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning_content": piece} for piece in pieces(said.reasoning)]
    deltas += [{"content": piece} for piece in pieces(said.text)]
    for index, call in enumerate(said.tool_calls):
        ended = _written(ask, call)
        kind, field = ("custom", INPUT) if "custom" in ended else ("function", "arguments")
        text, begun = ended[kind][field], ended | {kind: {"name": call.name, field: ""}}
        deltas.append({"tool_calls": [{"index": index, **begun}]})
        deltas += [{"tool_calls": [{"index": index, kind: {field: piece}}]} for piece in pieces(text)]
    head = _head(ask, reply, "chat.completion.chunk")
    for delta in deltas:
        choice = {"index": 0, "delta": delta, "finish_reason": None, "logprobs": None}
        yield sse({**head, "choices": [choice]})
    last = {"index": 0, "delta": {}, "finish_reason": finish_reason(said), "logprobs": None}
    if ask.include_usage:
        yield sse({**head, "choices": [last]})
        yield sse({**head, "choices": [], "usage": usage(said)})
    else:
        yield sse({**head, "choices": [last], "usage": usage(said)})
    yield b"data: [DONE]\n\n"


def _written(ask: ProgramRequest, call: ToolCall) -> dict[str, Any]:
    text = custom_text(call.arguments) if call.name in ask.custom else None
    if text is not None:
        return {"id": call.id, "type": "custom", "custom": {"name": call.name, INPUT: text}}
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def _head(ask: ProgramRequest, reply: ProgramReply, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{reply.id}",
        "object": kind,
        "created": reply.created,
        "model": ask.model or reply.completion.model,
    }


def broken(failure: CallError, message: str) -> bytes:
    return sse(openai_error(failure, message)[1])


CHAT = Wire("chat", read, whole, stream, openai_error, broken)
