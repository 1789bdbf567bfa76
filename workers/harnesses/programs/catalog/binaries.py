"""Programs that are binaries in packages of npm."""

from orchard.workers.harnesses.programs.record import (
    API_KEY,
    McpClient,
    NpmBinary,
    Program,
)

CODEX = Program(
    name="codex",
    wire="responses",
    source=NpmBinary(
        package="@openai/codex@0.171.0",
        binaries={
            "codex": "@openai/codex-linux-*/vendor/*/bin/codex",
            "codex-code-mode-host": "@openai/codex-linux-*/vendor/*/bin/codex-code-mode-host",
        },
    ),
    command=(
        "$layer/bin/codex",
        *("exec", "--dangerously-bypass-approvals-and-sandbox", "--skip-git-repo-check", "--json"),
        *("--cd", "$workdir", "-"),
    ),
    stdin="$prompt",
    environment={"CODEX_HOME": "$home", "ORCHARD_KEY": API_KEY},
    files={
        "$home/config.toml": """\
model = "$model"
model_provider = "orchard"
check_for_update_on_startup = false
web_search = "disabled"

[model_providers.orchard]
name = "orchard"
base_url = "$url/v1"
env_key = "ORCHARD_KEY"
wire_api = "responses"
stream_idle_timeout_ms = 3600000

[analytics]
enabled = false
"""
    },
    mcp=McpClient(
        files={
            "$home/config.toml": """\

[mcp_servers.world]
url = "$mcp"
tool_timeout_sec = 120
default_tools_approval_mode = "approve"
"""
        }
    ),
)

CLAUDE_CODE = Program(
    name="claude-code",
    wire="anthropic",
    source=NpmBinary(
        package="@anthropic-ai/claude-code@2.1.332",
        binaries={"claude": "@anthropic-ai/claude-code-linux-*/claude"},
    ),
    command=(
        "$layer/bin/claude",
        *("--print", "--output-format", "stream-json", "--verbose", "--dangerously-skip-permissions"),
    ),
    stdin="$prompt",
    memory="2Gi",
    environment={
        "ANTHROPIC_BASE_URL": "$url",
        "ANTHROPIC_AUTH_TOKEN": API_KEY,
        "ANTHROPIC_MODEL": "$model",
        "ANTHROPIC_SMALL_FAST_MODEL": "$model",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CONFIG_DIR": "$home",
        "IS_SANDBOX": "1",
        "DISABLE_AUTOUPDATER": "1",
        "API_TIMEOUT_MS": "3600000",
    },
    mcp=McpClient(
        files={"$home/mcp.json": '{"mcpServers": {"world": {"type": "http", "url": "$mcp"}}}\n'},
        arguments=("--mcp-config", "$home/mcp.json", "--strict-mcp-config"),
        environment={"ENABLE_TOOL_SEARCH": "false"},  # or its model must search for tools first
    ),
)

OPENCODE = Program(
    name="opencode",
    wire="chat",
    source=NpmBinary(package="opencode-ai@1.18.33", binaries={"opencode": "opencode-linux-*/bin/opencode"}),
    command=("$layer/bin/opencode", "run", "--format", "json", "--model", "orchard/$model"),
    stdin="$prompt",
    memory="2Gi",
    environment={
        "OPENCODE_CONFIG": "$home/opencode.json",
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "XDG_CACHE_HOME": "$home/cache",
        "XDG_CONFIG_HOME": "$home/config",
        "XDG_DATA_HOME": "$home/data",
        "XDG_STATE_HOME": "$home/state",
    },
    files={
        "$home/opencode.json": """\
{
  "model": "orchard/$model",
  "small_model": "orchard/$model",
  "autoupdate": false,
  "share": "disabled",
  "permission": {"*": "allow"},
  "provider": {
    "orchard": {
      "npm": "@ai-sdk/openai-compatible",
      "options": {"baseURL": "$url/v1", "apiKey": "none", "timeout": false},
      "models": {"$model": {"tool_call": true}}
    }
  }
}
"""
    },
    mcp=McpClient(
        environment={
            "OPENCODE_CONFIG_CONTENT": '{"mcp": {"world": {"type": "remote", "url": "$mcp", "oauth": false}}}'
        }
    ),
)
