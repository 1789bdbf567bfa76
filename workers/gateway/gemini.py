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
    flag,
    mapping,
    merge_system_messages,
    named,
    number,
    objects,
    pieces,
    read_object,
    refuse,
    sse,
    text_of,
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
_MODES = {"AUTO": "", "ANY": "required", "NONE": "none", "VALIDATED": "", "MODE_UNSPECIFIED": ""}
_OF_PART = frozenset({"thought", "thoughtSignature"})
_INNER = {
    "functionResponse": frozenset({"id", "name", "response", "parts"}),
    "functionCall": frozenset({"id", "name", "args"}),
}
"""Parts that are no content, and their fields that are read."""
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
    body = mapping(body.get("generateContentRequest"), "generateContentRequest") or body
    refuse(body, _SERVER)
    config = mapping(body.get("generationConfig"), "generationConfig")
    if config.get("candidateCount") not in (None, 1):
        raise BadProgramRequest("candidateCount must be 1: one call records one answer")
    if config.get("responseModalities") not in (None, [], ["TEXT"]):
        raise BadProgramRequest("responseModalities: the model answers with text alone")
    said = _system(body.get("systemInstruction"))
    contents = objects(body.get("contents"), "contents")
    if not contents:
        raise BadProgramRequest("contents must not be empty")
    calls = _Calls()
    for content in contents:
        said += _said(content, calls)
    tools, left_out = _tools(objects(body.get("tools"), "tools"))
    placed = mapping(body.get("toolConfig"), "toolConfig")
    calling = mapping(placed.get("functionCallingConfig"), "functionCallingConfig")
    tools, fields = _chosen(calling, tools)
    if stops := config.get("stopSequences"):
        fields["stop"] = stops
    schema, older = config.get("responseJsonSchema"), config.get("responseSchema")
    if schema is not None and older is not None:
        raise BadProgramRequest("responseSchema: responseJsonSchema is given too; send one of them")
    if (kind := config.get("responseMimeType")) not in (None, "", "text/plain", "application/json"):
        raise BadProgramRequest("responseMimeType: use text/plain or application/json")
    if schema is None and older is not None:
        schema = _schema(older)
    if schema is not None:
        described = {"name": "answer", "schema": schema}
        fields["response_format"] = {"type": "json_schema", "json_schema": described}
    elif kind == "application/json":
        fields["response_format"] = {"type": "json_object"}
    thinking = mapping(config.get("thinkingConfig"), "thinkingConfig")
    return ProgramRequest(
        messages=tuple(merge_system_messages(said)),
        tools=tools,
        left_out=(
            *left_out,
            *unread(body, _KNOWN),
            *unread(config, _KNOWN_CONFIG),
            *unread(placed, frozenset({"functionCallingConfig"})),
            *unread(calling, frozenset({"mode", "allowedFunctionNames"})),
            *(["VALIDATED"] if calling.get("mode") == "VALIDATED" else []),
            *unread(thinking, frozenset({"includeThoughts"})),
            *(name for content in contents for name in _unread_in(content)),
        ),
        thinking=flag(thinking, "includeThoughts") is True,
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
        if name == "properties" and isinstance(each, dict):
            each = {key: _camel(schema) for key, schema in each.items()}
        elif name not in _FREE:
            each = _camel(each)
        camel = _SNAKE.sub(lambda found: found[1].upper(), name)
        if camel in made:
            raise BadProgramRequest(f"{camel[:60]} is given twice, as {name[:60]} too; send one of them")
        made[camel] = each
    return made


def _system(value: Any) -> list[ProgramMessage]:
    if isinstance(value, str):
        return [ProgramMessage(role=Role.SYSTEM, text=value)] if value else []
    held = mapping(value, "systemInstruction")
    content = _content(objects(held.get("parts"), "parts"))
    content = content._replace(not_shown=(*content.not_shown, *unread(held, frozenset({"role", "parts"}))))
    if not content.text and content.not_shown:
        raise BadProgramRequest("systemInstruction must have parts with a text")
    return [ProgramMessage(role=Role.SYSTEM, **content._asdict())] if content.text else []


class _Calls:
    """The calls of a conversation, which programs may leave without ids."""

    def __init__(self) -> None:
        self.made = 0
        self._open: list[tuple[str, str]] = []
        """Name and id of the calls without a result."""

    def named(self, call: dict[str, Any]) -> ToolCall:
        name = named(call.get("name"), "the name of a functionCall")
        call_id = text_of(call.get("id"), "the id of a functionCall") or unnamed(self.made)
        self.made += 1
        self._open.append((name, call_id))
        return ToolCall(
            id=named(call_id, "the id of a functionCall"),
            name=name,
            arguments=as_json(mapping(call.get("args"), "args")),
        )

    def answered(self, result: dict[str, Any]) -> str:
        """Returns the id of the call of a result: its own, or that of the first open call of its name."""
        name, given = text_of(result.get("name"), "name"), text_of(result.get("id"), "id")
        fits = (each for each in self._open if given in ("", each[1]) and (given or name == each[0]))
        found = next(fits, None)
        if found is not None:
            self._open.remove(found)
        elif not given:
            raise BadProgramRequest(f"functionResponse: no call of {name!r} is without a result")
        return found[1] if found else named(given, "the id of a functionResponse")


def _said(content: dict[str, Any], calls: _Calls) -> list[ProgramMessage]:
    """Converts one content to its results of functions, in order, followed by its other parts."""
    role = _ROLES.get(text_of(content.get("role"), "role"))
    if role is None:
        raise BadProgramRequest(
            f"a content has the role {word(content.get('role'))[:40]!r}: use user or model"
        )
    parts = objects(content.get("parts"), "parts")
    results, made, thoughts, others = list[Any](), list[Any](), list[Any](), list[Any]()
    for part in parts:
        if "functionResponse" in part:
            results.append(mapping(part["functionResponse"], "functionResponse"))
        elif "functionCall" in part:
            made.append(mapping(part["functionCall"], "functionCall"))
        else:
            (thoughts if _is_thought(part) and role is Role.ASSISTANT else others).append(part)
    said = [_result(result, calls) for result in results]
    if role is Role.ASSISTANT and (made or thoughts or others or not said):
        said.append(
            ProgramMessage(
                role=role,
                **_content(others)._asdict(),
                reasoning="".join(part["text"] for part in thoughts),
                tool_calls=tuple(calls.named(call) for call in made),
            )
        )
    elif made:
        raise BadProgramRequest("functionCall: only the model calls functions; use the role model")
    elif others or not said:
        said.append(ProgramMessage(role=role, **_content(others, "\n")._asdict()))
    return said


def _is_thought(part: dict[str, Any]) -> bool:
    return flag(part, "thought") is True and isinstance(part.get("text"), str)


def _unread_in(content: dict[str, Any]) -> list[str]:
    """Returns the names of fields without effect of a content and of its calls, results and thoughts."""
    found = [*unread(content, frozenset({"role", "parts"}))]
    for part in objects(content.get("parts"), "parts"):
        for field, known in _INNER.items():
            if field in part:
                found += unread(part, _OF_PART | {field}) + unread(part[field], known)
                break
        else:
            if content.get("role") == "model" and _is_thought(part):
                found += unread(part, _OF_PART | {"text"})
    return found


def _result(result: dict[str, Any], calls: _Calls) -> ProgramMessage:
    response = result.get("response")
    output = child(response).get("output")
    text = output if isinstance(output, str) and len(child(response)) == 1 else as_json(response)
    shown = _content(objects(result.get("parts"), "the parts of a functionResponse"), "\n")
    content = shown._replace(text="\n".join(filter(None, (text, shown.text))))
    return ProgramMessage(role=Role.TOOL, **content._asdict(), tool_call_id=calls.answered(result))


def _content(parts: list[dict[str, Any]], between: str = "") -> Content:
    content = content_of([_part(part) for part in parts], "parts", between)
    typed = ("type" for part in parts if part.get("type"))  # those of this wire have no type
    return content._replace(not_shown=(*content.not_shown, *typed))


def _part(part: dict[str, Any]) -> dict[str, Any]:
    """Returns a part as those of the other wires: a text, an image, or one with its field as type."""
    more = {name: value for name, value in part.items() if name not in _OF_PART}
    if isinstance(part.get("text"), str):
        return {**more, "type": "text"}
    for field, name in (("inlineData", "data"), ("fileData", "fileUri")):
        data = child(part.get(field))
        kind, held = word(data.get("mimeType")), word(data.get(name))
        if held and kind.startswith("image/"):
            more |= {"image_url": held if name == "fileUri" else f"data:{kind};base64,{held}"}
            more |= {each: data[each] for each in data.keys() - {"mimeType", name}}
            return {each: value for each, value in more.items() if each != field}
    return {"type": next(iter(more), "part")}


def _tools(listed: list[dict[str, Any]]) -> tuple[tuple[dict[str, Any], ...], tuple[str, ...]]:
    """Returns the functions, and the names of the tools that Google's servers run."""
    functions, left_out = list[dict[str, Any]](), list[str]()
    for tool in listed:
        left_out += [
            name for name, value in tool.items() if name != "functionDeclarations" and value is not None
        ]
        for each in objects(tool.get("functionDeclarations"), "functionDeclarations"):
            parameters = each.get("parametersJsonSchema")
            field = "parameters" if parameters is None else "parametersJsonSchema"
            if parameters is None:
                parameters = _schema(each.get("parameters") or {"type": "OBJECT", "properties": {}})
            functions.append(function(each.get("name"), each.get("description"), parameters))
            left_out += unread(each, frozenset({"name", "description", field}))
    return tuple(functions), tuple(left_out)


def _schema(value: Any) -> Any:
    """Converts a schema of OpenAPI 3.0, with types in capitals, to JSON Schema."""
    if isinstance(value, list):
        return [_schema(each) for each in value]
    if not isinstance(value, dict):
        return value
    made: dict[str, Any] = {}
    for name, each in value.items():
        if name == "properties" and isinstance(each, dict):
            made[name] = {key: _schema(inner) for key, inner in each.items()}
        elif name in ("items", "anyOf"):
            made[name] = _schema(each)
        elif name in _COUNTS and word(each).isdecimal():
            made[name] = int(each)
        else:
            made[name] = each
    if isinstance(kind := value.get("type"), str):
        made["type"] = [kind.lower(), "null"] if made.pop("nullable", None) is True else kind.lower()
    return made


def _chosen(
    config: dict[str, Any], tools: tuple[dict[str, Any], ...]
) -> tuple[tuple[dict[str, Any], ...], dict[str, Any]]:
    names = config.get("allowedFunctionNames") or []
    if not isinstance(names, list):
        raise BadProgramRequest("allowedFunctionNames must be a list of names")
    if names:
        offered = [name_of(tool) for tool in tools]
        if missing := [name for name in names if name not in offered]:
            raise BadProgramRequest(f"allowedFunctionNames: no function is called {str(missing[0])[:60]!r}")
        tools = tuple(tool for tool in tools if name_of(tool) in names)
    asked = text_of(config.get("mode"), "functionCallingConfig.mode") or "AUTO"
    if asked not in _MODES:
        raise BadProgramRequest(f"functionCallingConfig.mode: use one of {', '.join(_MODES)}")
    mode = _MODES[asked]
    if mode == "required" and not tools:
        raise BadProgramRequest("functionCallingConfig: no function is declared; leave the mode out")
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
