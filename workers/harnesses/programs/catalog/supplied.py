"""Programs that no package index has: their user brings the files."""

from orchard.workers.harnesses.programs.record import (
    McpClient,
    Program,
    SuppliedFiles,
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
