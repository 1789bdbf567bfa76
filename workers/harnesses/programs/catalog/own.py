"""Programs of Orchard's own."""

from orchard.workers.harnesses.programs import mcp_loop_script
from orchard.workers.harnesses.programs.record import (
    McpClient,
    OwnFiles,
    Program,
)

MCP_LOOP = Program(
    name="mcp-loop",
    wire="chat",
    source=OwnFiles(files={"bin/mcp-loop": mcp_loop_script.RUN}),
    command=("$layer/bin/mcp-loop", "$home/settings.json"),
    stdin="$prompt",
    files={"$home/settings.json": '{"url": "$url/v1/chat/completions", "model": "$model"}\n'},
    mcp=McpClient(files={"$home/settings.json": '{"mcp": "$mcp"}\n'}),
)
"""A minimal program: a loop over the tools of an MCP server, or over a shell."""
