"""Turns a record of an ACP agent into the program that is started: a client, which starts the agent."""

import json
from pathlib import Path

import msgspec

from orchard.workers.harnesses.programs import acp_client
from orchard.workers.harnesses.programs.record import McpClient, Program

CLIENT_PYTHON = ("3.12", "3.11", "3.13")
"""Versions of Python that can be laid beside an agent for the client."""
CLIENT = "$home/acp_client.py"
SETTINGS = "$home/acp.json"


def with_client(program: Program) -> Program:
    """Returns the program as it is started: an agent of the protocol by its client, any other as it is."""
    if program.acp is None:
        return program
    script = Path(acp_client.__file__).read_text(encoding="utf-8").replace("$", "$$")
    mcp = program.mcp
    if program.acp.mcp_by_protocol:
        besides = mcp or McpClient()
        mcp = msgspec.structs.replace(besides, files={**besides.files, SETTINGS: '{"mcp": "$mcp"}\n'})
    authentication = json.dumps({"authentication": program.acp.authentication})
    return msgspec.structs.replace(
        program,
        command=("$layer/bin/python3", CLIENT, SETTINGS, *program.command),
        stdin="$prompt",
        files={
            **program.files,
            CLIENT: script,
            SETTINGS: f'{{"workdir": "$workdir"}}\n{authentication}\n',
        },
        mcp=mcp,
        acp=None,
    )
