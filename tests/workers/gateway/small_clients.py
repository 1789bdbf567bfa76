"""A small client of each wire, written apart from the gateway: how a program says a conversation, and what it
reads of an answer."""

import json
from dataclasses import dataclass, field
from typing import Any

UNSEEN = {
    "chat": {"type": "input_audio", "input_audio": {}},
    "responses": {"type": "input_file", "file_id": "f"},
    "anthropic": {"type": "document", "source": {"type": "file", "file_id": "f"}},
    "gemini": {"videoMetadata": {}},
}
"""A part that no model of chat completions reads."""
UNSEEN_KIND = {
    "chat": "input_audio",
    "responses": "input_file",
    "anthropic": "document",
    "gemini": "videoMetadata",
}
BETWEEN = {"chat": "", "responses": "\n", "anthropic": "\n", "gemini": "\n"}
"""What the parts of a user's message are joined with."""
HOSTED = {
    "responses": ({"type": "web_search"}, "web_search"),
    "anthropic": ({"type": "web_search_20250305", "name": "web_search"}, "web_search_20250305"),
    "gemini": ({"googleSearch": {}}, "googleSearch"),
}
"""A tool that a vendor's server runs, and its name in the counts."""
STATE = {
    "chat": {"functions": [{"name": "f"}]},
    "completions": {"echo": True},
    "responses": {"conversation": "c"},
    "anthropic": {"thread": {"type": "create"}},
    "gemini": {"cachedContent": "c"},
}
"""A field that asks for what only a vendor's server has."""
ODD = {
    "chat": {"seed": 3, "frequency_penalty": 0.5},
    "completions": {"seed": 3, "later": {"a": 1}},
    "responses": {"top_logprobs": 3, "later": [1]},
    "anthropic": {"top_k": 5},
    "gemini": {"safetySettings": [{"category": "x"}]},
}
"""Fields without effect here."""
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}


@dataclass(frozen=True)
class Said:
    """A message as a program knows it."""

    role: str
    text: str
    reasoning: str = ""
    calls: tuple[tuple[str, str, str], ...] = ()
    """Id, name and JSON arguments."""
    answers: tuple[str, str] = ("", "")
    """Id and name of the call whose result it is."""
    unseen: bool = False


@dataclass(frozen=True)
class Ask:
    said: list[Said]
    streamed: bool
    tools: list[str]
    """Names: `f` and `g` are functions, the others are the wire's own."""
    hosted: bool
    thinks: bool
    """Whether it asks for reasoning, where a wire must be asked, and sends it back."""
    ids: bool
    """Whether a client of Gemini sends ids of calls."""
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Read:
    """What a program reads of an answer."""

    text: str
    reasoning: str
    calls: list[tuple[str, str, Any]]
    usage: dict[str, int]


def request(wire: str, ask: Ask) -> tuple[str, dict[str, Any]]:
    """The path and the body of a call."""
    path, body = {
        "chat": _chat,
        "completions": _completions,
        "responses": _responses,
        "anthropic": _anthropic,
        "gemini": _gemini,
    }[wire](ask)
    return path, body | ask.more


def read(wire: str, ask: Ask, raw: bytes) -> Read:
    """Reads an answer, whole or as a stream."""
    if not ask.streamed:
        return _WHOLE[wire](json.loads(raw))
    lines = [line[6:] for line in raw.split(b"\n") if line.startswith(b"data: ")]
    return _STREAMED[wire]([json.loads(line) for line in lines if line != b"[DONE]"])


def _content(wire: str, said: Said, kind: str) -> Any:
    text = {"text": said.text} if wire == "gemini" else {"type": kind, "text": said.text}
    return [text, UNSEEN[wire]] if said.unseen else [text]


# --- chat and completions --------------------------------------------------------------------------


def _chat(ask: Ask) -> tuple[str, dict[str, Any]]:
    messages = []
    for said in ask.said:
        message: dict[str, Any] = {"role": said.role, "content": said.text}
        if said.unseen:
            message["content"] = _content("chat", said, "text")
        if said.reasoning and ask.thinks:
            message["reasoning_content"] = said.reasoning
        if said.calls:
            message["tool_calls"] = [_chat_call(*call) for call in said.calls]
        if said.role == "tool":
            message["tool_call_id"] = said.answers[0]
        messages.append(message)
    tools = [
        {"type": "custom", "custom": {"name": name}}
        if name == "patch"
        else {"type": "function", "function": {"name": name, "description": "", "parameters": SCHEMA}}
        for name in ask.tools
    ]
    return "/v1/chat/completions", {"messages": messages, "tools": tools, "stream": ask.streamed}


def _chat_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    if name == "patch":
        custom = {"name": name, "input": json.loads(arguments)["input"]}
        return {"id": call_id, "type": "custom", "custom": custom}
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _completions(ask: Ask) -> tuple[str, dict[str, Any]]:
    return "/v1/completions", {"prompt": ask.said[-1].text, "stream": ask.streamed}


def _openai_usage(usage: dict[str, Any]) -> dict[str, int]:
    return {
        "prompt": usage["prompt_tokens"],
        "completion": usage["completion_tokens"],
        "cached": usage["prompt_tokens_details"]["cached_tokens"],
        "reasoning": usage["completion_tokens_details"]["reasoning_tokens"],
    }


def _read_chat_call(call: dict[str, Any]) -> tuple[str, str, Any]:
    if call["type"] == "custom":
        return call["id"], call["custom"]["name"], {"input": call["custom"]["input"]}
    return call["id"], call["function"]["name"], json.loads(call["function"]["arguments"])


def _read_chat(body: dict[str, Any]) -> Read:
    message = body["choices"][0]["message"]
    calls = [_read_chat_call(call) for call in message.get("tool_calls", ())]
    thought = message.get("reasoning_content", "")
    return Read(message["content"] or "", thought, calls, _openai_usage(body["usage"]))


def _read_chat_chunks(chunks: list[dict[str, Any]]) -> Read:
    text = thought = ""
    calls: dict[int, dict[str, Any]] = {}
    for chunk in chunks:
        delta = chunk["choices"][0]["delta"]
        text += delta.get("content", "")
        thought += delta.get("reasoning_content", "")
        for piece in delta.get("tool_calls", ()):
            call = calls.setdefault(piece["index"], piece)
            kind, name = ("custom", "input") if "custom" in call else ("function", "arguments")
            if call is not piece:
                call[kind][name] += piece[kind][name]
    return Read(text, thought, [*map(_read_chat_call, calls.values())], _openai_usage(chunks[-1]["usage"]))


def _read_completions(body: dict[str, Any]) -> Read:
    return Read(body["choices"][0]["text"], "", [], _openai_usage(body["usage"]))


def _read_completions_chunks(chunks: list[dict[str, Any]]) -> Read:
    text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
    return Read(text, "", [], _openai_usage(chunks[-1]["usage"]))


# --- Responses -------------------------------------------------------------------------------------


def _responses(ask: Ask) -> tuple[str, dict[str, Any]]:
    items: list[dict[str, Any]] = []
    body: dict[str, Any] = {"input": items, "stream": ask.streamed}
    for said in ask.said:
        if said.role == "system":
            body["instructions"] = said.text
        elif said.role == "user":
            items.append({"role": "user", "content": _content("responses", said, "input_text")})
        elif said.role == "tool":
            call_id, name = said.answers
            kind = {"patch": "custom_tool_call_output", "shell": "shell_call_output"}.get(name)
            output: Any = json.loads(said.text) if name == "shell" else said.text
            items.append({"type": kind or "function_call_output", "call_id": call_id, "output": output})
        else:
            if said.reasoning and ask.thinks:
                items.append(
                    {"type": "reasoning", "summary": [{"type": "summary_text", "text": said.reasoning}]}
                )
            part = {"type": "output_text", "text": said.text}
            items.append({"type": "message", "role": "assistant", "content": [part]})
            items += [_responses_call(*call) for call in said.calls]
    body["tools"] = [
        {"type": "custom", "name": name}
        if name == "patch"
        else {"type": "shell"}
        if name == "shell"
        else {"type": "function", "name": name, "description": "", "parameters": SCHEMA}
        for name in ask.tools
    ]
    body["tools"] += [HOSTED["responses"][0]] if ask.hosted else []
    return "/v1/responses", body


def _responses_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    if name == "patch":
        text = json.loads(arguments)["input"]
        return {"type": "custom_tool_call", "call_id": call_id, "name": name, "input": text}
    if name == "shell":
        return {"type": "shell_call", "call_id": call_id, "action": json.loads(arguments)}
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


def _read_responses(body: dict[str, Any]) -> Read:
    text = thought = ""
    calls: list[tuple[str, str, Any]] = []
    for item in body["output"]:
        if item["type"] == "message":
            text += item["content"][0]["text"]
        elif item["type"] == "reasoning":
            thought += item["summary"][0]["text"]
        elif item["type"] == "custom_tool_call":
            calls.append((item["call_id"], item["name"], {"input": item["input"]}))
        elif item["type"] == "shell_call":
            calls.append((item["call_id"], "shell", item["action"]))
        else:
            calls.append((item["call_id"], item["name"], json.loads(item["arguments"])))
    used = body["usage"]
    usage = {
        "prompt": used["input_tokens"],
        "completion": used["output_tokens"],
        "cached": used["input_tokens_details"]["cached_tokens"],
        "reasoning": used["output_tokens_details"]["reasoning_tokens"],
    }
    return Read(text, thought, calls, usage)


def _read_responses_events(events: list[dict[str, Any]]) -> Read:
    ended = events[-1]["response"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == ended["output"]
    deltas = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    found = _read_responses(ended)
    assert deltas == found.text
    return found


# --- Anthropic -------------------------------------------------------------------------------------


def _anthropic(ask: Ask) -> tuple[str, dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    body: dict[str, Any] = {"messages": messages, "stream": ask.streamed, "max_tokens": 99}
    if ask.thinks:
        body["thinking"] = {"type": "enabled", "budget_tokens": 50}
    for said in ask.said:
        if said.role == "system":
            body["system"] = said.text
        elif said.role == "user":
            messages.append({"role": "user", "content": _content("anthropic", said, "text")})
        elif said.role == "tool":
            result = {"type": "tool_result", "tool_use_id": said.answers[0], "content": said.text}
            if messages[-1]["role"] == "assistant":
                messages.append({"role": "user", "content": []})
            messages[-1]["content"].append(result)
        else:
            blocks: list[dict[str, Any]] = []
            if said.reasoning and ask.thinks:
                blocks.append({"type": "thinking", "thinking": said.reasoning, "signature": "s"})
            blocks += [{"type": "text", "text": said.text}] if said.text else []
            blocks += [
                {"type": "tool_use", "id": call_id, "name": name, "input": json.loads(arguments)}
                for call_id, name, arguments in said.calls
            ]
            messages.append({"role": "assistant", "content": blocks})
    body["tools"] = [
        {"type": "bash_20250124", "name": "bash"}
        if name == "bash"
        else {"name": name, "description": "", "input_schema": SCHEMA}
        for name in ask.tools
    ]
    body["tools"] += [HOSTED["anthropic"][0]] if ask.hosted else []
    return "/v1/messages", body


def _read_anthropic(body: dict[str, Any]) -> Read:
    blocks = body["content"]
    used = body["usage"]
    usage = {
        "prompt": used["input_tokens"] + used["cache_read_input_tokens"],
        "completion": used["output_tokens"],
        "cached": used["cache_read_input_tokens"],
    }
    return Read(
        "".join(block["text"] for block in blocks if block["type"] == "text"),
        "".join(block["thinking"] for block in blocks if block["type"] == "thinking"),
        [(block["id"], block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"],
        usage,
    )


def _read_anthropic_events(events: list[dict[str, Any]]) -> Read:
    blocks: list[dict[str, Any]] = []
    usage: dict[str, Any] = {}
    written: dict[int, str] = {}
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(event["content_block"])
        elif event["type"] == "content_block_delta":
            delta, at = event["delta"], event["index"]
            if delta["type"] == "input_json_delta":
                written[at] = written.get(at, "") + delta["partial_json"]
                continue
            for name in ("text", "thinking"):
                if name in delta:
                    blocks[at][name] += delta[name]
        elif event["type"] == "message_delta":
            usage = event["usage"]
    for at, text in written.items():
        blocks[at]["input"] = json.loads(text)
    return _read_anthropic({"content": blocks, "usage": usage})


# --- Gemini ----------------------------------------------------------------------------------------


def _gemini(ask: Ask) -> tuple[str, dict[str, Any]]:
    contents: list[dict[str, Any]] = []
    body: dict[str, Any] = {"contents": contents}
    if ask.thinks:
        body["generationConfig"] = {"thinkingConfig": {"includeThoughts": True}}
    for said in ask.said:
        if said.role == "system":
            body["systemInstruction"] = {"parts": [{"text": said.text}]}
        elif said.role == "user":
            contents.append({"role": "user", "parts": _content("gemini", said, "")})
        elif said.role == "tool":
            call_id, name = said.answers
            result = {"name": name, "response": {"output": said.text}} | ({"id": call_id} if ask.ids else {})
            contents.append({"role": "user", "parts": [{"functionResponse": result}]})
        else:
            parts: list[dict[str, Any]] = []
            if said.reasoning and ask.thinks:
                parts.append({"text": said.reasoning, "thought": True})
            parts.append({"text": said.text})
            for call_id, name, arguments in said.calls:
                call = {"name": name, "args": json.loads(arguments)} | ({"id": call_id} if ask.ids else {})
                parts.append({"functionCall": call})
            contents.append({"role": "model", "parts": parts})
    declared = [{"name": name, "description": "", "parameters": SCHEMA} for name in ask.tools]
    body["tools"] = [{"functionDeclarations": declared}] + ([HOSTED["gemini"][0]] if ask.hosted else [])
    method = "streamGenerateContent?alt=sse" if ask.streamed else "generateContent"
    return f"/v1beta/models/theirs:{method}", body


def _read_gemini(body: dict[str, Any]) -> Read:
    return _read_gemini_chunks([body])


def _read_gemini_chunks(chunks: list[dict[str, Any]]) -> Read:
    parts = [part for chunk in chunks for part in chunk["candidates"][0]["content"]["parts"]]
    calls = [part["functionCall"] for part in parts if "functionCall" in part]
    used = chunks[-1]["usageMetadata"]
    usage = {
        "prompt": used["promptTokenCount"],
        "completion": used["candidatesTokenCount"] + used["thoughtsTokenCount"],
        "cached": used["cachedContentTokenCount"],
        "reasoning": used["thoughtsTokenCount"],
    }
    return Read(
        "".join(part["text"] for part in parts if "text" in part and not part.get("thought")),
        "".join(part["text"] for part in parts if part.get("thought")),
        [(call["id"], call["name"], call["args"]) for call in calls],
        usage,
    )


_WHOLE = {
    "chat": _read_chat,
    "completions": _read_completions,
    "responses": _read_responses,
    "anthropic": _read_anthropic,
    "gemini": _read_gemini,
}
_STREAMED = {
    "chat": _read_chat_chunks,
    "completions": _read_completions_chunks,
    "responses": _read_responses_events,
    "anthropic": _read_anthropic_events,
    "gemini": _read_gemini_chunks,
}
