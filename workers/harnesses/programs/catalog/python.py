"""Programs that are packages of PyPI."""

from orchard.workers.harnesses.programs.openhands_script import RUN
from orchard.workers.harnesses.programs.record import (
    API_KEY,
    FileSubmission,
    McpClient,
    Program,
    PythonPackages,
)

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
        "OPENAI_API_KEY": API_KEY,
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

OPENHANDS = Program(
    name="openhands",
    wire="chat",
    source=PythonPackages(packages=("openhands-sdk==1.58.2", "openhands-tools==1.58.2", "mcp")),
    command=("$layer/bin/python3", "$home/run.py"),
    memory="1Gi",
    environment={
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "OPENHANDS_SUPPRESS_BANNER": "1",
        "OH_PERSISTENCE_DIR": "$home",
    },
    files={"$home/run.py": RUN},
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
        "KIMI_API_KEY": API_KEY,
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
