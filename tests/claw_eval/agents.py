"""Scripted agents and a scripted judge behind `/v1/chat/completions`: the same request, the same answer.

It needs the standard library alone, for it also runs beside Claw-Eval's own runner.
"""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

JUDGE = "judge"
WORKSPACE = frozenset(
    {"Bash", "Read", "Write", "Edit", "Glob", "Grep", "BrowserScreenshot", "ReadMedia", "Download"}
)
_LOOKS = re.compile(r"list|search|get|find|read|fetch|extract|query|check|stat|view|show")
_HARMS = re.compile(r"send|delete|remove|cancel|share|publish|transfer|pay|reject|approve|close")
_WORDS = 6000
"""Characters of the results that the last message repeats."""

Call = tuple[str, dict[str, Any]]
Message = dict[str, Any]

NOTE = "/workspace/note.txt"
_EVERY: tuple[Call, ...] = (
    ("Bash", {"command": "echo one; echo two >&2; exit 3"}),
    ("Bash", {"command": "echo late; sleep 5", "timeout": 1000}),
    ("Write", {"file_path": NOTE, "content": "one\ntwo\n"}),
    ("Read", {"file_path": NOTE}),
    ("Read", {"file_path": NOTE, "offset": 2, "limit": 1}),
    ("Read", {"file_path": "/workspace/none.txt"}),
    ("Edit", {"file_path": NOTE, "old_string": "two", "new_string": "three"}),
    ("Edit", {"file_path": NOTE, "old_string": "four", "new_string": "five"}),
    ("Glob", {"pattern": "/workspace/*.txt"}),
    ("Grep", {"pattern": "three", "path": "/workspace", "output_mode": "content"}),
    ("Download", {"path": NOTE}),
    ("ReadMedia", {"path": "/workspace/none.mp4"}),
    ("Write", {"content": "without a path"}),
    ("Read", {"file_path": ["no", "path"]}),
    ("no_such_tool", {"a": 1}),
)


def idle(tools: list[dict[str, Any]], messages: list[Message]) -> tuple[str, list[Call]]:
    """Does nothing."""
    del tools, messages
    return "I did nothing.", []


def each(tools: list[dict[str, Any]], messages: list[Message]) -> tuple[str, list[Call]]:
    """Calls each tool once, those of the workspace in several ways, and one that there is not."""
    if _turn(messages):
        return "Done. " + _said(messages)[:500], []
    own = [(name, _filled(schema, {})) for name, schema in _own(tools)]
    return "I try everything.", [*own, *_EVERY]


def diligent(tools: list[dict[str, Any]], messages: list[Message]) -> tuple[str, list[Call]]:
    """Looks, looks closer with what it found, acts once with each tool that acts and can be taken back, and
    reports what it saw."""
    seen = _found(messages)
    looking = [(name, schema) for name, schema in _own(tools) if _LOOKS.search(name)]
    match _turn(messages):
        case 0:
            return "I look.", [(name, _filled(schema, {})) for name, schema in looking if not _ids(schema)]
        case 1:
            closer = [
                (name, _filled(schema, {**seen, _ids(schema)[0]: [value]}))
                for name, schema in looking
                if _ids(schema)
                for value in seen.get(_ids(schema)[0], ["unknown"])[:8]
            ]
            return "I look closer.", closer[:30] or [("Bash", {"command": "ls /workspace"})]
        case 2:
            acting = [
                (name, schema)
                for name, schema in _own(tools)
                if not re.search(f"{_LOOKS.pattern}|{_HARMS.pattern}", name)
            ]
            write = ("Write", {"file_path": "/workspace/report.md", "content": _said(messages)})
            return "I act.", [*((name, _filled(schema, seen)) for name, schema in acting), write]
    return "# Report\n\n" + _said(messages), []


AGENTS = {one.__name__: one for one in (idle, each, diligent)}


def verdict(messages: list[Message]) -> str:
    """A score that hangs on every character that the judge is shown, and a category for each `msg_...`.

    All but the record of actions: Claw-Eval's runner has its own health checks there in the first trial.
    """
    shown = json.dumps([_judged(message["content"]) for message in messages if message["role"] != "system"])
    number = int(hashlib.sha256(shown.encode()).hexdigest()[:8], 16)
    categories = ("需回复", "仅供参考", "垃圾邮件", "未提及", "needs_reply", "fyi", "spam", "not_mentioned")
    given = {name: categories[(number + place) % 3] for place, name in enumerate(_names(shown))}
    return json.dumps(
        {"score": number % 101 / 100, "reasoning": "by its digits", **given}, ensure_ascii=False
    )


def _names(shown: str) -> list[str]:
    return sorted(set(re.findall(r"msg_\w+", shown)))


def _judged(content: Any) -> Any:
    """Returns what the judge is shown without the record of actions and the times of the run. Some graders
    put the record under a heading of their own at the end of the conversation."""
    text = content if isinstance(content, str) else json.dumps(content)
    text = re.sub(r"--- 工具调用摘要 ---.*?(?=## )", "", text, flags=re.DOTALL)
    text = re.sub(r"## (Actions Taken|Agent Actions).*?(?=## Rubric)", "", text, flags=re.DOTALL)
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+(\+00:00|Z)?", "T", text)
    return re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|(?<=[_-])[0-9a-f]{6,16}\b", "ID", text)


def completion(body: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request; the model's name says who answers."""
    messages = body["messages"]
    calls: list[Call] = []
    if body["model"] == JUDGE:
        text = verdict(messages)
    else:
        text, calls = AGENTS[body["model"]](body.get("tools") or [], messages)
    message: Message = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = tool_calls(calls, len(messages))
    return {
        "id": "c",
        "object": "chat.completion",
        "created": 0,
        "model": body["model"],
        "choices": [
            {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"},
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }


def tool_calls(calls: list[Call], turn: int) -> list[dict[str, Any]]:
    """The calls as chat completions have them."""
    return [
        {
            "id": f"call-{turn}-{number}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for number, (name, arguments) in enumerate(calls)
    ]


def serve() -> tuple[ThreadingHTTPServer, str]:
    """A server in a thread of this process, and its base URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["Content-Length"]))
            body = json.dumps(completion(json.loads(raw))).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, f"http://127.0.0.1:{server.server_address[1]}/v1"


def _own(tools: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    functions = [tool["function"] for tool in tools]
    return [(one["name"], one["parameters"]) for one in functions if one["name"] not in WORKSPACE]


def _turn(messages: list[Message]) -> int:
    return sum(message["role"] == "assistant" for message in messages)


def _results(messages: list[Message]) -> Iterator[Any]:
    for message in messages:
        if message["role"] == "tool":
            try:
                yield json.loads(message["content"])
            except ValueError:
                yield message["content"]


def _found(messages: list[Message]) -> dict[str, list[Any]]:
    """What the results say by name, in order, each value once."""
    seen: dict[str, list[Any]] = {}

    def walk(value: Any) -> None:
        if isinstance(value, list):
            for part in value:
                walk(part)
        elif isinstance(value, dict):
            for name, part in value.items():
                if isinstance(part, str | int | float) and part not in seen.setdefault(name, []):
                    seen[name].append(part)
                walk(part)

    for result in _results(messages):
        walk(result)
    return seen


def _said(messages: list[Message]) -> str:
    """What the results of the task's tools say, but for moments and names of this run."""
    texts = [json.dumps(result, ensure_ascii=False, sort_keys=True) for result in _results(messages)]
    return str(_judged("\n".join(texts)))[:_WORDS]


def _ids(schema: dict[str, Any]) -> list[str]:
    return [name for name in schema.get("required", []) if name == "id" or name.endswith("_id")]


def _filled(schema: dict[str, Any], seen: dict[str, list[Any]]) -> dict[str, Any]:
    """Arguments that fit the schema: what is required, with values that were seen where there are some."""
    properties = schema.get("properties", {})
    return {name: _value(name, properties.get(name, {}), seen) for name in schema.get("required", [])}


def _value(name: str, schema: dict[str, Any], seen: dict[str, list[Any]]) -> Any:
    kind = schema.get("type", "string")
    if schema.get("enum"):
        return schema["enum"][0]
    if kind == "array":
        return [_value(name.removesuffix("s"), schema.get("items", {}), seen)]
    if kind == "object":
        return _filled(schema, seen)
    if kind in ("integer", "number"):
        return 1
    if kind == "boolean":
        return False
    if name in seen and isinstance(seen[name][0], str):
        return seen[name][0]
    return "2026-03-02" if "date" in name else f"the {name}"
