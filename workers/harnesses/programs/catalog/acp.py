"""Programs that are agents of the Agent Client Protocol, through their servers of it."""

from msgspec.structs import replace

from orchard.workers.harnesses.programs.catalog.binaries import CLAUDE_CODE, CODEX, OPENCODE
from orchard.workers.harnesses.programs.catalog.javascript import GEMINI_CLI, QWEN_CODE
from orchard.workers.harnesses.programs.record import (
    API_KEY,
    AcpAgent,
    McpClient,
    NpmPackage,
    Program,
    PythonPackages,
)


def _served(program: Program, *command: str) -> Program:
    """Returns the same program, whose `command` serves the protocol."""
    return replace(program, name=f"{program.name}-acp", command=command, stdin="", mcp=None, acp=AcpAgent())


GEMINI_CLI_ACP = _served(
    GEMINI_CLI, "$layer/bin/gemini", "--acp", "--model", "$model", "--approval-mode", "yolo", "--skip-trust"
)
QWEN_CODE_ACP = replace(
    _served(QWEN_CODE, "$layer/bin/qwen", "--acp", "--auth-type", "openai", "--model", "$model", "--yolo"),
    # Else its model must search for the server's tools first, and is asked before they are known.
    mcp=McpClient(
        files={"$home/system.json": '{"tools": {"toolSearch": {"enabled": false}}}\n'},
        environment={
            "QWEN_CODE_SYSTEM_SETTINGS_PATH": "$home/system.json",
            "QWEN_CODE_LEGACY_MCP_BLOCKING": "1",
        },
    ),
)
OPENCODE_ACP = _served(OPENCODE, "$layer/bin/opencode", "acp")
CLAUDE_CODE_ACP = replace(
    _served(CLAUDE_CODE, "$layer/bin/claude-agent-acp"),
    source=NpmPackage(package="@agentclientprotocol/claude-agent-acp@0.101.0"),
    # Else it asks its model whether a call is safe.
    files={"$home/settings.json": '{"permissions": {"defaultMode": "bypassPermissions"}}\n'},
    mcp=McpClient(environment={"ENABLE_TOOL_SEARCH": "false"}),
)
CODEX_ACP = replace(
    _served(CODEX, "$layer/bin/codex-acp"),
    source=NpmPackage(package="@agentclientprotocol/codex-acp@2.6.0"),
    # Its own sandbox would need privileges that this one does not give.
    environment={**CODEX.environment, "INITIAL_AGENT_MODE": "agent-full-access"},
)

HERMES = Program(
    name="hermes",
    wire="chat",
    source=PythonPackages(packages=("hermes-agent[acp,mcp]==0.19.0",), python=("3.13", "3.12", "3.11")),
    command=("$layer/bin/hermes-acp",),
    memory="1Gi",
    environment={"HERMES_HOME": "$home", "HERMES_YOLO_MODE": "1"},
    files={
        "$home/config.yaml": f"""\
model:
  provider: custom
  base_url: "$url/v1"
  api_key: {API_KEY}
  default: "$model"
  context_length: 262144
"""
    },
    # It does not announce that it takes such servers by the protocol.
    mcp=McpClient(files={"$home/config.yaml": 'mcp_servers: {world: {url: "$mcp"}}\n'}),
    acp=AcpAgent(mcp_by_protocol=False),
)

KIMI_CODE = Program(
    name="kimi-code",
    wire="chat",
    source=NpmPackage(package="@moonshot-ai/kimi-code@2.1.0"),
    command=("$layer/bin/kimi", "acp"),
    memory="1Gi",
    environment={
        "KIMI_MODEL_PROVIDER_TYPE": "openai",
        "KIMI_MODEL_BASE_URL": "$url/v1",
        "KIMI_MODEL_API_KEY": API_KEY,
        "KIMI_MODEL_NAME": "$model",
        "KIMI_MODEL_MAX_CONTEXT_SIZE": "262144",
        "KIMI_CODE_HOME": "$home",
        "KIMI_CODE_NO_AUTO_UPDATE": "1",
        "KIMI_DISABLE_TELEMETRY": "1",
    },
    acp=AcpAgent(),
)
"""The successor of `kimi-cli`."""
