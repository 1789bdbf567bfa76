"""Requests of each wire whose texts and numbers are used once, and random changes that no client makes."""

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

FIRST = 7_000_000


class Marks:
    """Texts and numbers, each of which is used once."""

    def __init__(self) -> None:
        self.number = FIRST

    def text(self) -> str:
        self.number += 1
        return f"tok{self.number} é"

    def __call__(self) -> int:
        self.number += 1
        return self.number


def schema(mark: Marks) -> dict[str, Any]:
    return {"type": "object", "properties": {"n": {"type": "integer", "description": mark.text()}}}


def arguments(mark: Marks, size: int) -> str:
    return json.dumps({"n": mark.text() + "x" * size})


def chat(mark: Marks, size: int) -> dict[str, Any]:
    calls = [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments(mark, size)}},
        {"id": "c2", "type": "custom", "custom": {"name": "patch", "input": mark.text()}},
        {"id": "c3", "type": "function", "function": {"name": "f", "arguments": arguments(mark, 0)}},
    ]
    said = [{"type": "text", "text": mark.text()}]
    picture = {"type": "image_url", "image_url": {"url": f"http://x/{mark.text()}", "detail": mark.text()}}
    return {
        "messages": [
            {"role": "system", "content": [{"type": "image_url", "image_url": f"http://x/{mark.text()}"}]},
            {"role": "user", "name": mark.text(), "content": [*said, picture]},
            {"role": "assistant", "content": mark.text(), "reasoning": mark.text(), "tool_calls": calls},
            {"role": "tool", "tool_call_id": "c3", "content": mark.text()},
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": mark.text()}]},
            {"role": "tool", "tool_call_id": "c2", "content": mark.text()},
            {"role": "developer", "content": mark.text()},
            {"role": "assistant", "content": [], "refusal": mark.text()},
            {"role": "user", "content": [{"type": "file", "file": {"file_data": mark.text()}}]},
        ],
        "tools": [
            {
                "type": "function",
                "function": {"name": "f", "description": mark.text(), "parameters": schema(mark)},
            },
            {"type": "custom", "custom": {"name": "patch", "description": mark.text()}},
        ],
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema(mark)}},
        "stop": [mark.text()],
        "logprobs": True,
        "top_logprobs": mark(),
        "seed": mark(),
    }


def completions(mark: Marks, size: int) -> dict[str, Any]:
    return {"prompt": mark.text() + "x" * size, "stop": [mark.text()], "logprobs": mark(), "seed": mark()}


def responses(mark: Marks, size: int) -> dict[str, Any]:
    def part(kind: str) -> list[dict[str, Any]]:
        return [{"type": kind, "text": mark.text()}]

    return {
        "instructions": mark.text(),
        "input": [
            {
                "role": "user",
                "content": [*part("input_text"), {"type": "input_file", "file_data": mark.text()}],
            },
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": arguments(mark, size)},
            {"type": "reasoning", "summary": part("summary_text"), "encrypted_content": mark.text()},
            {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": mark.text()},
            {"type": "shell_call", "call_id": "c3", "action": {"commands": [mark.text()]}},
            {"type": "shell_call_output", "call_id": "c3", "output": [{"stdout": mark.text()}]},
            {"type": "function_call_output", "call_id": "c1", "output": part("input_text")},
            {"type": "custom_tool_call_output", "call_id": "c2", "output": mark.text()},
            {"type": "function_call_output", "call_id": "c9", "output": mark.text()},
            {"role": "developer", "content": part("input_text")},
            {"type": "message", "role": "assistant", "content": part("output_text")},
            {"type": "reasoning", "content": part("reasoning_text"), "summary": part("summary_text")},
            {"type": "web_search_call", "id": "w", "action": {"query": mark.text()}},
            {"role": "user", "content": [{"type": "input_image", "image_url": f"http://x/{mark.text()}"}]},
        ],
        "tools": [
            {
                "type": "function",
                "name": "f",
                "description": mark.text(),
                "parameters": schema(mark),
                "strict": True,
            },
            {
                "type": "custom",
                "name": "patch",
                "description": mark.text(),
                "format": {"definition": mark.text()},
            },
            {"type": "shell", "environment": {"type": "local", "skills": [mark.text()]}},
            {"type": "web_search", "filters": [mark.text()]},
            {"type": "namespace", "name": "n", "description": mark.text(), "tools": []},
        ],
        "text": {"format": {"type": "json_schema", "name": mark.text(), "schema": schema(mark)}},
        "reasoning": {"effort": mark.text()},
        "top_logprobs": mark(),
    }


def anthropic(mark: Marks, size: int) -> dict[str, Any]:
    def text() -> dict[str, Any]:
        return {"type": "text", "text": mark.text()}

    pdf = {"type": "base64", "media_type": "application/pdf", "data": mark.text()}
    plain = {"type": "text", "media_type": "text/plain", "data": mark.text()}
    large = {"type": "tool_use", "id": "c1", "name": "f", "input": {"n": mark.text() + "x" * size}}
    return {
        "system": [text(), text()],
        "messages": [
            {"role": "user", "content": [text(), {"type": "document", "source": pdf}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": mark.text(), "signature": "s"},
                    text(),
                    large,
                    {"type": "tool_use", "id": "c2", "name": "f", "input": {"n": mark.text()}},
                    {"type": "redacted_thinking", "data": mark.text()},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c2", "content": mark.text(), "is_error": True},
                    text(),
                    {"type": "tool_result", "tool_use_id": "c1", "content": [text()]},
                    {"type": "tool_result", "tool_use_id": "c8", "content": mark.text()},
                ],
            },
            {"role": "system", "content": [text()]},
            {"role": "assistant", "content": [text()]},
            {"role": "user", "content": []},
            {
                "role": "user",
                "content": [
                    {"type": "document", "title": mark.text(), "source": plain, "citations": {"a": mark()}}
                ],
            },
        ],
        "tools": [
            {
                "name": "f",
                "description": mark.text(),
                "input_schema": schema(mark),
                "input_examples": [mark.text()],
            },
            {"type": "text_editor_20250728", "name": "edit", "max_characters": mark()},
            {"type": "web_search_20250305", "name": "web_search", "max_uses": mark()},
        ],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "thinking": {"type": "enabled", "budget_tokens": mark()},
        "output_config": {"effort": mark.text(), "format": {"type": "json_schema", "schema": schema(mark)}},
        "stop_sequences": [mark.text()],
        "max_tokens": 99,
        "top_k": mark(),
    }


def gemini(mark: Marks, size: int) -> dict[str, Any]:
    declared = {"name": "f", "description": mark.text(), "parameters": {"type": "OBJECT", "properties": {}}}
    declared["parameters"]["properties"]["n"] = {"type": "STRING", "description": mark.text()}
    wav = {"mimeType": "audio/wav", "data": mark.text()}
    return {
        "systemInstruction": {"parts": [{"text": mark.text()}]},
        "contents": [
            {"role": "user", "parts": [{"text": mark.text()}, {"inlineData": wav}]},
            {
                "role": "model",
                "parts": [
                    {"functionCall": {"name": "f", "args": {"n": mark.text() + "x" * size}}},
                    {"text": mark.text(), "thought": True, "thoughtSignature": "s"},
                    {"text": mark.text()},
                    {"functionCall": {"name": "f", "args": {"n": mark.text()}}},
                ],
            },
            {
                "role": "user",
                "parts": [
                    {"text": mark.text()},
                    {"functionResponse": {"name": "f", "response": {"output": mark.text()}}},
                    {"functionResponse": {"name": "f", "response": {"error": mark.text(), "code": mark()}}},
                ],
            },
            {"role": "model", "parts": [{"executableCode": {"code": mark.text()}}]},
            {"role": "user", "parts": []},
            {
                "role": "user",
                "parts": [{"fileData": {"mimeType": "image/png", "fileUri": f"http://x/{mark.text()}"}}],
            },
        ],
        "tools": [
            {"functionDeclarations": [declared | {"response": {"title": mark.text()}}]},
            {"googleSearch": {}},
        ],
        "generationConfig": {
            "seed": mark(),
            "stopSequences": [mark.text()],
            "responseMimeType": "application/json",
            "responseSchema": {"type": "OBJECT", "properties": {}, "title": mark.text()},
            "thinkingConfig": {"includeThoughts": True, "thinkingBudget": mark()},
        },
        "toolConfig": {"functionCallingConfig": {"mode": "AUTO", "allowedFunctionNames": ["f"]}},
        "safetySettings": [{"category": mark.text()}],
    }


WIRES: dict[str, tuple[str, Callable[[Marks, int], dict[str, Any]]]] = {
    "chat": ("/v1/chat/completions", chat),
    "completions": ("/v1/completions", completions),
    "responses": ("/v1/responses", responses),
    "anthropic": ("/v1/messages", anthropic),
    "gemini": ("/v1beta/models/m:generateContent", gemini),
}


# --- what is done to them --------------------------------------------------------------------------


def odd(rng: random.Random, mark: Marks) -> Any:
    """A value where another was expected."""
    text = mark.text()
    return rng.choice(
        [
            *(
                text,
                mark(),
                mark() + 0.5,
                [text],
                {text: text},
                [[text]],
                [{"type": text, "text": mark.text()}],
            ),
            *(
                {"type": "text", "text": text},
                {"type": text, "data": mark.text()},
                f"{text}\ud83d",
                f"\x00{text}",
            ),
            *(None, True, False, "", [], {}, [None]),
        ]
    )


def places(value: Any) -> Iterator[dict[str, Any] | list[Any]]:
    if isinstance(value, dict | list):
        yield value
        for each in value.values() if isinstance(value, dict) else value:
            yield from places(each)


def change(rng: random.Random, body: dict[str, Any], mark: Marks) -> None:
    found = [*places(body)]
    place, other = rng.choice(found), rng.choice(found)
    if isinstance(place, dict):
        names = [*place] or ["type"]
        match rng.randrange(4):
            case 0:
                place[rng.choice([mark.text().split()[0], "name", "text", "content", "type"])] = odd(
                    rng, mark
                )
            case 1:
                place[rng.choice(names)] = odd(rng, mark)
            case 2:
                place.pop(rng.choice(names), None)
            case 3:
                place |= json.loads(json.dumps(other)) if isinstance(other, dict) else {}
    else:
        at = rng.randrange(len(place) + 1)
        match rng.randrange(4):
            case 0:
                place.insert(at, odd(rng, mark))
            case 1:
                rng.shuffle(place)
            case 2:
                place.extend(json.loads(json.dumps(place[:at])))
            case 3:
                place.insert(
                    at, json.loads(json.dumps(rng.choice(other))) if isinstance(other, list) and other else {}
                )


def written(rng: random.Random, body: dict[str, Any]) -> bytes:
    """The body as bytes, in which a character may be cut in two."""
    raw = json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
    at = raw.find("é".encode(), rng.randrange(len(raw)))
    return raw[:at] + raw[at + 1 :] if at >= 0 and rng.random() < 0.2 else raw
