"""The real MCP client, with the server as its child process, over stdio."""

import asyncio
import hashlib
import io
import json
import os
import sys
import tarfile
from pathlib import Path

from mcp import Client, StdioServerParameters

from orchard.injector.client import AsyncSandboxClient


async def test_a_client_runs_commands_and_has_files() -> None:
    command = ["-P", "-m", "orchard.adapters.mcp_server", "host"]
    server = StdioServerParameters(command=sys.executable, args=command, env=dict(os.environ))
    async with Client(server) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert names == {"run", "read_file", "write_file", "list_files"}

        async def said(tool: str, **arguments: object) -> str:
            result = await client.call_tool(tool, arguments)
            return "\n".join(part.text for part in result.content)

        assert "wrote 6 bytes" in await said("write_file", path="/workspace/a.txt", content="hello\n")
        assert await said("run", command="mkdir d; cat a.txt") == "hello\n"
        assert "[exit code 3]" in await said("run", command="exit 3")
        assert await said("read_file", path="/workspace/a.txt") == "hello\n"
        assert {"a.txt", "d/"} <= set((await said("list_files")).split("\n"))
        assert "does not exist" in await said("read_file", path="/nowhere")


async def test_a_sandbox_that_ends_under_a_command_is_a_tools_error() -> None:
    command = ["-P", "-m", "orchard.adapters.mcp_server", "host"]
    server = StdioServerParameters(command=sys.executable, args=command, env=dict(os.environ))
    async with Client(server) as client, AsyncSandboxClient(auto_cleanup=False) as sandboxes:
        await client.call_tool("write_file", {"path": "/workspace/mine", "content": ""})
        (info,) = await sandboxes.list_sandboxes()
        running = asyncio.create_task(
            client.call_tool("run", {"command": "touch begun; sleep 600", "timeout_seconds": 600})
        )
        sandbox = await sandboxes.get_sandbox(info.sandbox_id)
        await sandbox.exec("until [ -e begun ]; do :; done")
        await sandbox.delete()
        result = await running
        assert result.is_error and "ended under a command" in result.content[0].text, result


async def test_the_sandbox_has_the_programs_that_are_named(tmp_path: Path) -> None:
    name = f"orchard-program/hello:1-{'0' * 64}"
    async with AsyncSandboxClient() as client:
        await client.import_image(_image(tmp_path / "hello.tar", name), name)
    command = ["-P", "-m", "orchard.adapters.mcp_server", "host", "hello"]
    server = StdioServerParameters(command=sys.executable, args=command, env=dict(os.environ))
    async with Client(server) as client:
        result = await client.call_tool("run", {"command": "hello"})
        assert result.content[0].text == "hello\n"


def _image(archive: Path, name: str) -> Path:
    """What `docker save` would write of a layer with one command."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        _add(tar, "opt/orchard/programs/hello/commands/hello", b"#!/bin/sh\necho hello\n")
    digest = hashlib.sha256(layer.getvalue()).hexdigest()
    config = {"rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]}}
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(archive, "w") as tar:
        _add(tar, "manifest.json", json.dumps(manifest).encode())
        _add(tar, "config.json", json.dumps(config).encode())
        _add(tar, "layer.tar", layer.getvalue())
    return archive


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o755
    tar.addfile(member, io.BytesIO(content))
