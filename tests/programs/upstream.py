"""A model for any program: it calls whatever runs shell commands, then says that it is done."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from aiohttp import web

_SHELLS = (
    *("bash", "Bash", "exec_command", "shell_command", "shell", "Shell", "exec", "terminal", "execute_bash"),
    "run_shell_command",
)
_COMMAND = ("command", "cmd", "commands")
_FINISH = ("finish",)


class Upstream:
    """Answers the n-th call that has tools with the n-th command, of each conversation."""

    def __init__(self, commands: Sequence[str]) -> None:
        self.commands = commands
        self.url = ""
        self.requests: list[dict[str, Any]] = []

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """The assistant's message."""
        tools = {tool["function"]["name"]: tool["function"] for tool in body.get("tools") or ()}
        shell = shell_among(tools)
        done = sum(message["role"] == "assistant" for message in body["messages"])
        if shell is None:
            return {"role": "assistant", "content": "A sum that is a difference"}
        if done < len(self.commands):
            return self._calls(shell, self.commands[done], done)
        if finish := next((tools[name] for name in _FINISH if name in tools), None):
            return self._calls(finish, "The issue is resolved.", done)
        return {"role": "assistant", "content": "The issue is resolved."}

    def _calls(self, tool: dict[str, Any], text: str, number: int) -> dict[str, Any]:
        return called(tool["name"], _arguments(tool["parameters"], text), number)

    async def chat(self, request: web.Request) -> web.Response:
        """One completion."""
        body = await request.json()
        self.requests.append(body)
        message = self.answer(body)
        return web.json_response(
            {
                "id": "x",
                "object": "chat.completion",
                "model": "script",
                "choices": [
                    {
                        "index": 0,
                        "finish_reason": "tool_calls" if "tool_calls" in message else "stop",
                        "message": message,
                    }
                ],
                "usage": {"prompt_tokens": 1000, "completion_tokens": 20, "total_tokens": 1020},
            }
        )

    @asynccontextmanager
    async def served(self) -> AsyncIterator["Upstream"]:
        """Listen on a free port."""
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/chat/completions", self.chat)
        runner = web.AppRunner(app, shutdown_timeout=1.0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        try:
            yield self
        finally:
            await runner.cleanup()


def shell_among(tools: dict[str, Any]) -> Any:
    """The tool that runs shell commands; None where there is none, as in a request for a title."""
    return next((tools[name] for name in _SHELLS if name in tools), None)


def called(name: str, arguments: Any, number: int) -> dict[str, Any]:
    """The message that calls a tool."""
    text = msgspec.json.encode(arguments).decode()
    call = {"id": f"call{number}", "type": "function", "function": {"name": name, "arguments": text}}
    return {"role": "assistant", "content": f"Step {number}.", "tool_calls": [call]}


def _arguments(schema: dict[str, Any], text: str) -> dict[str, Any]:
    """Arguments that the schema takes: `text` as the command, and something for all that is required."""
    fields = schema["properties"]
    required = [name for name in schema.get("required", ()) if name not in _COMMAND]
    main = next((name for name in (*_COMMAND, "message") if name in fields), None)
    found = {name: _any(fields[name]) for name in required}
    if main is not None:
        listed = fields[main].get("type") == "array"
        found[main] = ["bash", "-c", text] if listed else text
    return found


def _any(field: dict[str, Any]) -> Any:
    if "enum" in field:
        return field["enum"][0]
    kind = field.get("type", "string")
    return {"string": "fix it", "boolean": False, "integer": 1, "number": 1, "array": [], "object": {}}[kind]
