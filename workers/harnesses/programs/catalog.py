"""The programs that Orchard knows, in the versions that were tested."""

from orchard.workers.harnesses.programs import mcp_loop_script
from orchard.workers.harnesses.programs.openhands_script import RUN
from orchard.workers.harnesses.programs.record import (
    FileSubmission,
    McpClient,
    NpmBinary,
    NpmPackage,
    OwnFiles,
    Program,
    PythonPackages,
    SuppliedFiles,
)

_KEY = "none"
"""The API key; the gateway needs none, because it identifies callers by their address."""

MINI_SWE_AGENT = Program(
    name="mini-swe-agent-cli",
    wire="chat",
    # litellm imports mcp, and does not ask for it.
    source=PythonPackages(packages=("mini-swe-agent==2.4.6", "mcp"), python=("3.12", "3.11", "3.13")),
    prompt="$statement",
    command=(
        "$layer/bin/mini",
        *("--config", "swebench.yaml", "--config", "$home/orchard.yaml"),
        *("--model", "openai/$model", "--environment-class", "local"),
        *("--yolo", "--exit-immediately", "--output", "$home/trajectory.json", "--task", "$prompt"),
    ),
    environment={
        "OPENAI_API_KEY": _KEY,
        "MSWEA_CONFIGURED": "true",
        "MSWEA_COST_TRACKING": "ignore_errors",
        "MSWEA_GLOBAL_CONFIG_DIR": "$home",
        "MSWEA_SILENT_STARTUP": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        # The gateway made all tries that are worth it. Its refusal for a budget has no type in litellm that
        # ends the agent, which would ask nine times more, in four minutes.
        "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "1",
    },
    # Budgets are the gateway's: it says that one ran out as an API does.
    files={
        "$home/orchard.yaml": """\
agent: {step_limit: 0, cost_limit: 0}
environment: {cwd: "$workdir"}
model: {model_kwargs: {api_base: "$url/v1"}}
"""
    },
    submission=FileSubmission(path="$home/trajectory.json", keys=("info", "submission")),
)

CODEX = Program(
    name="codex",
    wire="responses",
    source=NpmBinary(
        package="@openai/codex@0.169.0",
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
    environment={"CODEX_HOME": "$home", "ORCHARD_KEY": _KEY},
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
        package="@anthropic-ai/claude-code@2.1.330",
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
        "ANTHROPIC_AUTH_TOKEN": _KEY,
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

GEMINI_CLI = Program(
    name="gemini-cli",
    wire="gemini",
    source=NpmPackage(package="@google/gemini-cli@0.61.0"),
    command=(
        "$layer/bin/node",
        "$layer/node_modules/@google/gemini-cli/bundle/gemini.js",
        *("--model", "$model", "--approval-mode", "yolo", "--skip-trust", "--output-format", "stream-json"),
    ),
    stdin="$prompt",
    memory="2Gi",
    environment={
        "GOOGLE_GEMINI_BASE_URL": "$url",
        "GEMINI_API_KEY": _KEY,
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
        "$layer/bin/node",
        "$layer/node_modules/@qwen-code/qwen-code/cli-entry.js",
        *("--auth-type", "openai", "--model", "$model", "--yolo", "--output-format", "stream-json"),
    ),
    stdin="$prompt",
    memory="2Gi",
    environment={
        "OPENAI_BASE_URL": "$url/v1",
        "OPENAI_API_KEY": _KEY,
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
        "$layer/bin/node",
        "$layer/node_modules/@earendil-works/pi-coding-agent/dist/bundle/cli.js",
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

KIMI_CLI = Program(
    name="kimi-cli",
    wire="chat",
    # 1.52 refuses to start, and the first releases of Python 3.12 cannot import this one.
    source=PythonPackages(packages=("kimi-cli==1.49.0",), python=("3.13",)),
    command=(
        "$layer/bin/kimi",
        *("--print", "--output-format", "stream-json", "--work-dir", "$workdir", "--prompt", "$prompt"),
    ),
    memory="1Gi",
    environment={
        "KIMI_BASE_URL": "$url/v1",
        "KIMI_API_KEY": _KEY,
        "KIMI_MODEL_NAME": "$model",
        "KIMI_MODEL_MAX_CONTEXT_SIZE": "262144",
        "KIMI_SHARE_DIR": "$home",
        "KIMI_DISABLE_TELEMETRY": "1",
        "KIMI_CLI_NO_AUTO_UPDATE": "1",
    },
    mcp=McpClient(
        files={"$home/mcp.json": '{"mcpServers": {"world": {"transport": "http", "url": "$mcp"}}}\n'},
        arguments=("--mcp-config-file", "$home/mcp.json"),
    ),
)

OPENHANDS = Program(
    name="openhands",
    wire="chat",
    source=PythonPackages(packages=("openhands-sdk==1.43.0", "openhands-tools==1.43.0", "mcp")),
    command=("$layer/bin/python3", "$home/run.py"),
    memory="1Gi",
    environment={
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "OPENHANDS_SUPPRESS_BANNER": "1",
        "OH_PERSISTENCE_DIR": "$home",
    },
    files={"$home/run.py": RUN},
)

ZEROCLAW = Program(
    name="zeroclaw",
    wire="chat",
    source=SuppliedFiles(hint="a release of zeroclaw-labs/zeroclaw, 0.8, for this machine"),
    command=("$layer/bin/zeroclaw", "--config-dir", "$home", "agent", "-a", "main", "-m", "$prompt"),
    # Without native_tools a provider of the user's own gets its tools as text. A profile that is named must
    # be there. What the agent remembers would lie in its workspace, the repository.
    files={
        "$home/config.toml": """\
schema_version = 3

[providers.models.custom.orchard]
uri = "$url/v1"
api_key = "none"
model = "$model"
wire_api = "chat_completions"
native_tools = true
timeout_secs = 3600

[agents.main]
model_provider = "custom.orchard"
risk_profile = "open"
runtime_profile = "long"

[agents.main.workspace]
path = "$workdir"

[agents.main.memory]
backend = "none"

[risk_profiles.open]
level = "full"
workspace_only = false
allowed_commands = ["*"]
forbidden_paths = []
auto_approve = ["*"]
require_approval_for_medium_risk = false
block_high_risk_commands = false
sandbox_enabled = false

[runtime_profiles.long]
agentic = true
max_tool_iterations = 1000
max_actions_per_hour = 4294967295
max_cost_per_day_cents = 4294967295
shell_timeout_secs = 600
"""
    },
    mcp=McpClient(
        files={
            "$home/config.toml": """\

[mcp]
enabled = true

[[mcp.servers]]
name = "world"
transport = "http"
url = "$mcp"
"""
        }
    ),
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

PROGRAMS = (
    *(MINI_SWE_AGENT, OPENHANDS, CODEX, CLAUDE_CODE, OPENCODE, GEMINI_CLI, QWEN_CODE, PI, KIMI_CLI),
    *(ZEROCLAW, MCP_LOOP),
)
