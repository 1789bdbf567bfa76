"""The real MCP client, with the server as its child process, over stdio."""

import os
import sys

from mcp import Client, StdioServerParameters


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
