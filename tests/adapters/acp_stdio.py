"""Orchard's client of the Agent Client Protocol, judged by the public package: its schema reads all that the
client says, an agent made with it asks for all that a client serves."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from acp import (
    Agent,
    AuthenticateResponse,
    InitializeResponse,
    NewSessionResponse,
    PromptResponse,
    RequestError,
    run_agent,
    text_block,
    update_agent_message,
)
from acp.schema import AgentCapabilities, EnvVariable, McpCapabilities, PermissionOption, ToolCallUpdate

CLIENT = Path(__file__).parents[2] / "workers/harnesses/programs/acp_client.py"


def test_the_client_says_and_answers_what_the_schema_allows(tmp_path: Path) -> None:
    settings = tmp_path / "settings"
    settings.write_text(
        f'{json.dumps({"workdir": str(tmp_path), "authentication": "by-key"})}\n{{"mcp": "http://127.0.0.1:1/"}}'
    )
    done = subprocess.run(
        [sys.executable, CLIENT, settings, sys.executable, __file__],
        input="do it",
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "SEEN": str(tmp_path / "seen.json")},
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen == {
        "version": 1,
        "can": [True, True, True],
        "method": "by-key",
        "cwd": str(tmp_path),
        "servers": [["http", "world", "http://127.0.0.1:1/"]],
        "prompt": "do it",
        "permission": ["selected", "always"],
        "no permission": "cancelled",
        "file": "two\n",
        "whole": "one\ntwo\nthree\n",
        "missing": True,
        "words": ["a b\n", False, 0, None],
        "line": ["done elsewhere", False, 3],
        "cut": ["ß\n", True],
        "killed": "SIGKILL",
        "unknown": -32601,
    }


class Inquirer(Agent):
    """Asks its client for everything in one turn, and notes what it was told."""

    def __init__(self) -> None:
        self.seen: dict[str, Any] = {}

    def on_connect(self, conn: Any) -> None:
        self.client = conn

    async def initialize(
        self, protocol_version: int, client_capabilities: Any = None, client_info: Any = None, **_: Any
    ) -> InitializeResponse:
        can = client_capabilities
        self.seen["version"] = protocol_version
        self.seen["can"] = [can.fs.read_text_file, can.fs.write_text_file, can.terminal]
        assert client_info.name == "orchard"
        return InitializeResponse(
            protocol_version=1,
            agent_capabilities=AgentCapabilities(mcp_capabilities=McpCapabilities(http=True)),
        )

    async def authenticate(self, method_id: str, **_: Any) -> AuthenticateResponse:
        self.seen["method"] = method_id
        return AuthenticateResponse()

    async def new_session(self, cwd: str, mcp_servers: Any = None, **_: Any) -> NewSessionResponse:
        self.seen["cwd"] = cwd
        self.seen["servers"] = [[each.type, each.name, each.url] for each in mcp_servers]
        return NewSessionResponse(session_id="one")

    async def prompt(self, session_id: str, prompt: Any, **_: Any) -> PromptResponse:
        seen, client = self.seen, self.client
        seen["prompt"] = prompt[0].text
        await client.session_update(session_id, update_agent_message(text_block("I begin.")))
        options = [
            PermissionOption(option_id=kind.rpartition("_")[2], name=kind, kind=kind)
            for kind in ("reject_once", "allow_once", "allow_always")
        ]
        call = ToolCallUpdate(tool_call_id="call")
        answer = (await client.request_permission(session_id, call, options)).outcome
        seen["permission"] = [answer.outcome, answer.option_id]
        answer = (await client.request_permission(session_id, call, options[:1])).outcome
        seen["no permission"] = answer.outcome
        path = f"{seen['cwd']}/new/file"
        await client.write_text_file(session_id, path, "one\ntwo\nthree\n")
        seen["file"] = (await client.read_text_file(session_id, path, line=2, limit=1)).content
        seen["whole"] = (await client.read_text_file(session_id, path)).content
        try:
            await client.read_text_file(session_id, f"{path}-missing")
        except RequestError as error:
            seen["missing"] = "No such file" in str(error.data) + str(error)
        await self._terminals(session_id)
        try:
            await client.ext_method("unknown", {})
        except RequestError as error:
            seen["unknown"] = error.code
        Path(os.environ["SEEN"]).write_text(json.dumps(seen))
        return PromptResponse(stop_reason="end_turn")

    async def _terminals(self, session_id: str) -> None:
        seen, client = self.seen, self.client

        async def ran(command: str, *words: str, **options: Any) -> tuple[Any, Any]:
            made = await client.create_terminal(session_id, command, args=list(words), **options)
            ended = await client.wait_for_terminal_exit(session_id, made.terminal_id)
            output = await client.terminal_output(session_id, made.terminal_id)
            await client.release_terminal(session_id, made.terminal_id)
            return output, ended

        output, ended = await ran("echo", "a b")
        seen["words"] = [output.output, output.truncated, ended.exit_code, ended.signal]
        place = [EnvVariable(name="PLACE", value="elsewhere")]
        output, ended = await ran('printf %s "done $PLACE"; exit 3', cwd="/tmp", env=place)
        seen["line"] = [output.output, output.truncated, ended.exit_code]
        output, _ = await ran("echo", "ßß", output_byte_limit=4)
        seen["cut"] = [output.output, output.truncated]
        made = await client.create_terminal(session_id, "sleep", args=["1000"])
        running = await client.terminal_output(session_id, made.terminal_id)
        assert running.exit_status is None
        await client.kill_terminal(session_id, made.terminal_id)
        seen["killed"] = (await client.wait_for_terminal_exit(session_id, made.terminal_id)).signal


if __name__ == "__main__":
    asyncio.run(run_agent(Inquirer(), use_unstable_protocol=True))
