"""The wire of Gemini's `generateContent`, which Gemini CLI speaks: contents of parts, functions by name.

Names of fields may be in camel or in snake case, as in the JSON of protocol buffers.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from orchard.schemas.identity import digest
from orchard.schemas.messages import Role, ToolCall
from orchard.workers.gateway.client_tools import function, name_of
from orchard.workers.gateway.wire_types import (
    BadProgramRequest,
    CallError,
    Content,
    ProgramMessage,
    ProgramReply,
    ProgramRequest,
    Wire,
    as_json,
    as_object,
    child,
    content_of,
    count,
    merge_system_messages,
    named,
    number,
    objects,
    pieces,
    read_object,
    refuse,
    sse,
    unnamed,
    unread,
    word,
)

_ROLES = {"user": Role.USER, "function": Role.USER, "model": Role.ASSISTANT, "": Role.USER}
_SERVER = {"cachedContent": "nothing is cached by name; send the contents"}
_KNOWN = frozenset(
    {"contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "model"} | _SERVER.keys()
)
_KNOWN_CONFIG = frozenset(
    {"candidateCount", "responseModalities", "stopSequences", "maxOutputTokens", "temperature", "topP"}
    | {"responseJsonSchema", "responseSchema", "responseMimeType", "thinkingConfig"}
)
_STOPS = {"length": "MAX_TOKENS", "content_filter": "SAFETY"}
_MODES = {"ANY": "required", "NONE": "none"}
_COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
"""Numbers of a schema that protocol buffers write as texts."""
_SNAKE = re.compile(r"_([a-z])")
_FREE = frozenset(
    {"args", "response", "default", "example", "parametersJsonSchema", "responseJsonSchema"}
    | {"parameters_json_schema", "response_json_schema"}
)
"""Fields whose value has names of its own."""


def read(raw: bytes) -> ProgramRequest:
    body = _camel(read_object(raw))
    body = child(body.get("generateContentRequest")) or body
    refuse(body, _SERVER)
    config = child(body.get("generationConfig"))
    if config.get("candidateCount") not in (None, 1):
        raise BadProgramRequest("candidateCount must be 1: one call records one answer")
    if [each for each in _list(config.get("responseModalities")) if each != "TEXT"]:
        raise BadProgramRequest("responseModalities: the model answers with text alone")
    said = _system(body.get("systemInstruction"))
    contents = objects(body.get("contents"), "contents")
    if not contents:
        raise BadProgramRequest("contents must not be empty")
    calls = _Calls()
    for content in contents:
        said += _said(content, calls)
    tools, left_out = _tools(objects(body.get("tools"), "tools"))
    tools, fields = _chosen(child(child(body.get("toolConfig")).get("functionCallingConfig")), tools)
    if stops := config.get("stopSequences"):
        fields["stop"] = stops
    if (schema := config.get("responseJsonSchema")) is None and "responseSchema" in config:
        schema = _schema(config["responseSchema"])
    if schema is not None:
        described = {"name": "answer", "schema": schema}
        fields["response_format"] = {"type": "json_schema", "json_schema": described}
    elif config.get("responseMimeType") == "application/json":
        fields["response_format"] = {"type": "json_object"}
    return ProgramRequest(
        messages=tuple(merge_system_messages(said)),
        tools=tools,
        left_out=(
            *left_out,
            *unread(body, _KNOWN),
            *unread(config, _KNOWN_CONFIG),
            *unread(child(body.get("toolConfig")), frozenset({"functionCallingConfig"})),
        ),
        thinking=child(config.get("thinkingConfig")).get("includeThoughts") is True,
        max_tokens=count(config, "maxOutputTokens"),
        temperature=number(config, "temperature"),
        top_p=number(config, "topP"),
        fields=fields,
    )


def _camel(value: Any) -> Any:
    """Returns the value with names in camel case, except names that programs chose."""
    if isinstance(value, list):
        return [_camel(each) for each in value]
    if not isinstance(value, dict):
        return value
    made: dict[str, Any] = {}
    for name, each in value.items():
        if name == "properties":
            each = {key: _camel(schema) for key, schema in child(each).items()}
        elif name not in _FREE:
            each = _camel(each)
        made[_SNAKE.sub(lambda found: found[1].upper(), name)] = each
    return made


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _system(value: Any) -> list[ProgramMessage]:
    parts = [{"text": value}] if isinstance(value, str) else objects(child(value).get("parts"), "parts")
    content = _content(parts)
    return [ProgramMessage(role=Role.SYSTEM, **content._asdict())] if content.text else []


class _Calls:
    """The calls of a conversation, which programs may leave without ids."""

    def __init__(self) -> None:
        self.made = 0
        self._open: list[tuple[str, str]] = []
        """Name and id of the calls without a result."""

    def named(self, call: dict[str, Any]) -> ToolCall:
        name = named(call.get("name"), "the name of a functionCall")
        call_id = word(call.get("id")) or unnamed(self.made)
        self.made += 1
        self._open.append((name, call_id))
        return ToolCall(
            id=named(call_id, "the id of a functionCall"), name=name, arguments=as_json(_args(call))
        )

    def answered(self, result: dict[str, Any]) -> str:
        """Returns the id of the call of a result: its own, or that of the first open call of its name."""
        name, given = word(result.get("name")), word(result.get("id"))
        fits = (each for each in self._open if given in ("", each[1]) and (given or name == each[0]))
        found = next(fits, None)
        if found is not None:
            self._open.remove(found)
        elif not given:
            raise BadProgramRequest(f"functionResponse: no call of {name!r} is without a result")
        return found[1] if found else named(given, "the id of a functionResponse")


def _args(call: dict[str, Any]) -> dict[str, Any]:
    return child(call.get("args"))


def _said(content: dict[str, Any], calls: _Calls) -> list[ProgramMessage]:
    """Converts one content to its results of functions, in order, followed by its other parts."""
    role = _ROLES.get(word(content.get("role", "")))
    if role is None:
        raise BadProgramRequest(
            f"a content has the role {word(content.get('role'))[:40]!r}: use user or model"
        )
    parts = objects(content.get("parts"), "parts")
    results = [child(part["functionResponse"]) for part in parts if "functionResponse" in part]
    made = [child(part["functionCall"]) for part in parts if "functionCall" in part]
    thoughts = [part for part in parts if part.get("thought") is True]
    others = [
        part
        for part in parts
        if "functionResponse" not in part and "functionCall" not in part and part.get("thought") is not True
    ]
    said = [_result(result, calls) for result in results]
    if role is Role.ASSISTANT and (made or thoughts or others or not said):
        said.append(
            ProgramMessage(
                role=role,
                **_content(others)._asdict(),
                reasoning="".join(word(part.get("text")) for part in thoughts),
                tool_calls=tuple(calls.named(call) for call in made),
            )
        )
    elif made:
        raise BadProgramRequest("functionCall: only the model calls functions; use the role model")
    elif others or not said:
        said.append(ProgramMessage(role=role, **_content(others, "\n")._asdict()))
    return said


def _result(result: dict[str, Any], calls: _Calls) -> ProgramMessage:
    response = result.get("response")
    output = child(response).get("output")
    text = output if isinstance(output, str) and len(child(response)) == 1 else as_json(response)
    shown = _content(objects(result.get("parts"), "the parts of a functionResponse"), "\n")
    content = shown._replace(text="\n".join(filter(None, (text, shown.text))))
    return ProgramMessage(role=Role.TOOL, **content._asdict(), tool_call_id=calls.answered(result))


def _content(parts: list[dict[str, Any]], between: str = "") -> Content:
    return content_of([_part(part) for part in parts], "parts", between)


def _part(part: dict[str, Any]) -> dict[str, Any]:
    """Returns a part as those of the other wires: a text, an image, or one with its field as type."""
    if isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    for field, name in (("inlineData", "data"), ("fileData", "fileUri")):
        data = child(part.get(field))
        kind, held = word(data.get("mimeType")), word(data.get(name))
        if held and kind.startswith("image/"):
            return {"image_url": held if name == "fileUri" else f"data:{kind};base64,{held}"}
    return {"type": next((name for name in part if name not in ("thoughtSignature", "thought")), "part")}


def _tools(listed: list[dict[str, Any]]) -> tuple[tuple[dict[str, Any], ...], tuple[str, ...]]:
    """Returns the functions, and the names of the tools that Google's servers run."""
    functions, left_out = list[dict[str, Any]](), list[str]()
    for tool in listed:
        left_out += [
            name for name, value in tool.items() if name != "functionDeclarations" and value is not None
        ]
        for each in objects(tool.get("functionDeclarations"), "functionDeclarations"):
            parameters = each.get("parametersJsonSchema")
            if parameters is None:
                parameters = _schema(each.get("parameters") or {"type": "OBJECT", "properties": {}})
            functions.append(function(each.get("name"), word(each.get("description")), parameters))
    return tuple(functions), tuple(left_out)


def _schema(value: Any) -> Any:
    """Converts a schema of OpenAPI 3.0, with types in capitals, to JSON Schema."""
    if isinstance(value, list):
        return [_schema(each) for each in value]
    if not isinstance(value, dict):
        return value
    made: dict[str, Any] = {}
    for name, each in value.items():
        if name == "properties":
            made[name] = {key: _schema(inner) for key, inner in child(each).items()}
        elif name in ("items", "anyOf"):
            made[name] = _schema(each)
        elif name in _COUNTS and word(each).isdecimal():
            made[name] = int(each)
        elif name not in ("nullable", "propertyOrdering", "type"):
            made[name] = each
    kind = word(value.get("type")).lower()
    if kind:
        made["type"] = [kind, "null"] if value.get("nullable") is True else kind
    return made


def _chosen(
    config: dict[str, Any], tools: tuple[dict[str, Any], ...]
) -> tuple[tuple[dict[str, Any], ...], dict[str, Any]]:
    if names := _list(config.get("allowedFunctionNames")):
        offered = [name_of(tool) for tool in tools]
        if missing := [name for name in names if name not in offered]:
            raise BadProgramRequest(f"allowedFunctionNames: no function is called {str(missing[0])[:60]!r}")
        tools = tuple(tool for tool in tools if name_of(tool) in names)
    mode = _MODES.get(word(config.get("mode")))
    return tools, {"tool_choice": mode} if tools and mode else {}


def whole(ask: ProgramRequest, reply: ProgramReply) -> dict[str, Any]:
    return _chunk(ask, reply, _parts(ask, reply) or [{"text": ""}], ended=True)


def listed(ask: ProgramRequest, reply: ProgramReply) -> list[dict[str, Any]]:
    """Returns a stream that is not asked for as server-sent events: the array of its chunks."""
    return [whole(ask, reply)]


def stream(ask: ProgramRequest, reply: ProgramReply) -> Iterator[bytes]:
    parts = _parts(ask, reply)
    for part in parts:
        for piece in pieces(part.get("text", "")):
            yield sse(_chunk(ask, reply, [part | {"text": piece}], ended=False))
    calls = [part for part in parts if "functionCall" in part]
    yield sse(_chunk(ask, reply, calls or [{"text": ""}], ended=True))


def _parts(ask: ProgramRequest, reply: ProgramReply) -> list[dict[str, Any]]:
    said, parts = reply.completion, list[dict[str, Any]]()
    if said.reasoning and ask.thinking:
        parts.append({"text": said.reasoning, "thought": True, "thoughtSignature": digest(said.reasoning)})
    if said.text:
        parts.append({"text": said.text})
    for call in said.tool_calls:
        made = {"id": call.id, "name": call.name, "args": as_object(call.arguments)}
        parts.append({"functionCall": made})
    return parts


def _chunk(
    ask: ProgramRequest, reply: ProgramReply, parts: list[dict[str, Any]], *, ended: bool
) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
    chunk = {
        "candidates": [candidate],
        "modelVersion": ask.model or reply.completion.model,
        "responseId": reply.id,
    }
    if not ended:
        return chunk
    candidate["finishReason"] = _STOPS.get(reply.completion.finish_reason, "STOP")
    used = reply.completion.usage
    prompt, written = used.prompt_tokens or 0, used.completion_tokens or 0  # no wire has a word for unknown
    thoughts = min(used.reasoning_tokens or 0, written)
    usage = {"promptTokenCount": prompt, "candidatesTokenCount": written - thoughts}
    usage |= {"thoughtsTokenCount": thoughts, "cachedContentTokenCount": used.cached_tokens or 0}
    return {**chunk, "usageMetadata": usage | {"totalTokenCount": prompt + written}}


def error(failure: CallError, message: str) -> tuple[int, dict[str, Any]]:
    """A budget is 403: Gemini CLI repeats a call after 429 and after 5xx."""
    status, kind = {
        CallError.INVALID: (400, "INVALID_ARGUMENT"),
        CallError.NOT_FOUND: (404, "NOT_FOUND"),
        CallError.TOO_LARGE: (413, "INVALID_ARGUMENT"),
        CallError.CONTEXT: (400, "INVALID_ARGUMENT"),
        CallError.BUDGET: (403, "PERMISSION_DENIED"),
        CallError.UNAVAILABLE: (503, "UNAVAILABLE"),
    }[failure]
    if failure is CallError.CONTEXT:
        message = f"The input token count exceeds the maximum number of tokens allowed: {message}"
    return status, {"error": {"code": status, "message": message, "status": kind}}


def broken(failure: CallError, message: str) -> bytes:
    return sse(error(failure, message)[1])


def model_response(name: str) -> dict[str, Any]:
    methods = ["generateContent", "countTokens"]
    return {"name": f"models/{name}", "displayName": name, "supportedGenerationMethods": methods}


GEMINI = Wire("gemini", read, whole, stream, error, broken, waiting=b"\n")  # its clients read no comments
GEMINI_LIST = replace(GEMINI, whole=listed)
