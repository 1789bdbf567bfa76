"""An MCP server with the tools of one sandbox: `orchard sandbox mcp --image IMAGE`, over stdio.

Without the command line: `python -m orchard.adapters.mcp_server IMAGE [PROGRAM ...]`.
"""

import os
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

from orchard.schemas.installation import install_command

try:
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"mcp is missing: {install_command('mcp')}", name=error.name) from error

from orchard.injector.client import AsyncSandboxClient
from orchard.injector.errors import SandboxError
from orchard.injector.results import check_outlived
from orchard.injector.sandbox import AsyncSandbox

IN_ONE_ANSWER = 64 * 1024
"""Maximum bytes of a file or an output that a model is given."""


def server(
    image: str, block_network: bool = True, base_url: str | None = None, programs: Sequence[str] = ()
) -> MCPServer:
    """Makes a server whose sandbox lives as long as the connection, with `programs` on its PATH. `base_url`
    None: SANDBOX_BASE_URL."""
    held: list[AsyncSandbox] = []

    @asynccontextmanager
    async def lifespan(_server: object) -> AsyncIterator[None]:
        async with (
            AsyncSandboxClient(base_url) as client,
            await client.create_sandbox(image, block_network, programs=programs) as made,
        ):
            held[:] = [made]
            yield

    @contextmanager
    def told() -> Iterator[AsyncSandbox]:
        """Yields the sandbox; its errors reach the model as the service's sentences."""
        try:
            yield held[0]
        except SandboxError as error:
            raise ToolError(str(error)) from error

    tools = MCPServer("orchard-sandbox", lifespan=lifespan)

    @tools.tool()
    async def run(command: str, cwd: str = "/workspace", timeout_seconds: float = 120.0) -> str:
        """Run a shell command in the sandbox; its output (stderr included) and, on failure, its exit code."""
        with told() as sandbox:
            job = await sandbox.exec(
                command, timeout_seconds, cwd, merge_output=True, output_limit=IN_ONE_ANSWER
            )
            check_outlived(job)
        return job.stdout if job.succeeded else f"{job.stdout}\n[exit code {job.exit_code}] {job.error or ''}"

    @tools.tool()
    async def read_file(path: str) -> str:
        """The text of a file in the sandbox, up to 64 KiB."""
        with told() as sandbox:
            return (await sandbox.download_content(path, limit=IN_ONE_ANSWER)).decode(errors="replace")

    @tools.tool()
    async def write_file(path: str, content: str) -> str:
        """Make or replace a file in the sandbox."""
        with told() as sandbox:
            return f"wrote {(await sandbox.upload_content(content, path)).size} bytes"

    @tools.tool()
    async def list_files(path: str = "/workspace") -> list[str]:
        """Names in a directory of the sandbox; those of directories end with a slash. Bytes that are no text
        stand as in $'\\xff' of a shell.
        """
        with told() as sandbox:
            found = await sandbox.list_files(path)
        return [f"{_shown(one.name)}{'/' * (one.type == 'directory')}" for one in found]

    return tools


def _shown(name: str) -> str:
    return os.fsencode(name).decode(errors="backslashreplace")


if __name__ == "__main__":
    server(sys.argv[1] if len(sys.argv) > 1 else "host", programs=sys.argv[2:]).run()
