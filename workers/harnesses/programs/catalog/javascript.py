"""Programs of JavaScript in packages of npm."""

from orchard.workers.harnesses.programs.record import (
    API_KEY,
    McpClient,
    NpmPackage,
    Program,
)

GEMINI_CLI = Program(
    name="gemini-cli",
    wire="gemini",
    source=NpmPackage(package="@google/gemini-cli@0.61.0"),
    command=(
        "$layer/bin/gemini",
        *("--model", "$model", "--approval-mode", "yolo", "--skip-trust", "--output-format", "stream-json"),
    ),
    stdin="$prompt",
    memory="2Gi",
    environment={
        "GOOGLE_GEMINI_BASE_URL": "$url",
        "GEMINI_API_KEY": API_KEY,
        "GEMINI_CLI_HOME": "$home",
        "GEMINI_CLI_NO_RELAUNCH": "true",
    },
    files={
        "$home/.gemini/settings.json": """\
{
  "security": {"auth": {"selectedType": "gemini-api-key"}},
  "general": {"enableAutoUpdate": false, "enableAutoUpdateNotification": false, "maxAttempts": 1},
  "privacy": {"usageStatisticsEnabled": false}
}
"""
    },
    mcp=McpClient(
        files={
            "$home/.gemini/extensions/world/gemini-extension.json": """\
{"name": "world", "version": "1.0.0", "mcpServers": {"world": {"httpUrl": "$mcp"}}}
"""
        }
    ),
)

QWEN_CODE = Program(
    name="qwen-code",
    wire="chat",
    source=NpmPackage(package="@qwen-code/qwen-code@0.24.4"),
    command=(
        "$layer/bin/qwen",
        *("--auth-type", "openai", "--model", "$model", "--yolo", "--output-format", "stream-json"),
    ),
    stdin="$prompt",
    memory="2Gi",
    environment={
        "OPENAI_BASE_URL": "$url/v1",
        "OPENAI_API_KEY": API_KEY,
        "OPENAI_MODEL": "$model",
        "QWEN_HOME": "$home",
    },
    files={
        "$home/settings.json": """\
{
  "general": {"enableAutoUpdate": false},
  "privacy": {"usageStatisticsEnabled": false}
}
"""
    },
    mcp=McpClient(
        # Without alwaysLoadTools its model must search for tools first.
        files={
            "$home/mcp.json": """\
{
  "mcpServers": {
    "world": {"httpUrl": "$mcp", "trust": true, "alwaysLoadTools": true, "discoveryTimeoutMs": 60000}
  }
}
"""
        },
        arguments=("--mcp-config", "$home/mcp.json"),
    ),
)

PI = Program(
    name="pi",
    wire="chat",
    source=NpmPackage(package="@earendil-works/pi-coding-agent@1.6.0"),
    command=(
        "$layer/bin/pi",
        *("--print", "--mode", "json", "--no-session", "--provider", "orchard", "--model", "$model"),
    ),
    stdin="$prompt",
    memory="1Gi",
    environment={"PI_CODING_AGENT_DIR": "$home", "PI_OFFLINE": "1", "PI_TELEMETRY": "0"},
    files={
        "$home/models.json": """\
{
  "providers": {
    "orchard": {
      "baseUrl": "$url/v1",
      "api": "openai-completions",
      "apiKey": "none",
      "models": [{"id": "$model"}]
    }
  }
}
""",
        "$home/settings.json": '{"retry": {"enabled": false}}\n',
    },
    # Without "direct" its model writes scripts to find and call the server's tools.
    mcp=McpClient(
        files={"$home/mcp.json": '{"mcpServers": {"world": {"url": "$mcp", "exposure": "direct"}}}\n'}
    ),
)

OPENCLAW = Program(
    name="openclaw",
    wire="chat",
    source=NpmPackage(package="openclaw@2026.9.6"),
    command=(
        *("$layer/bin/openclaw", "agent", "exec", "--message-file", "-", "--cwd", "$workdir"),
        *("--config", "$home/openclaw.json", "--model", "orchard/$model", "--timeout", "0", "--json"),
    ),
    stdin="$prompt",
    memory="3Gi",
    environment={"OPENCLAW_HOME": "$home"},
    files={
        "$home/openclaw.json": """\
{
  "models": {
    "mode": "replace",
    "providers": {
      "orchard": {
        "baseUrl": "$url/v1",
        "apiKey": "none",
        "api": "openai-completions",
        "timeoutSeconds": 3600,
        "models": [{"id": "$model", "name": "$model", "contextWindow": 262144}]
      }
    }
  }
}
"""
    },
    mcp=McpClient(
        files={
            "$home/world.json": """\
{
  "$$include": "./openclaw.json",
  "mcp": {"servers": {"world": {"url": "$mcp", "transport": "streamable-http"}}},
  "tools": {"toolSearch": false}
}
"""
        },
        arguments=("--config", "$home/world.json"),
    ),
)
