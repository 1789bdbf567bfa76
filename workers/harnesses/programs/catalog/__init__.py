"""The programs that Orchard knows, in the versions that were tested."""

from orchard.workers.harnesses.programs.catalog.acp import (
    CLAUDE_CODE_ACP,
    CODEX_ACP,
    GEMINI_CLI_ACP,
    HERMES,
    KIMI_CODE,
    OPENCODE_ACP,
    QWEN_CODE_ACP,
)
from orchard.workers.harnesses.programs.catalog.binaries import CLAUDE_CODE, CODEX, OPENCODE
from orchard.workers.harnesses.programs.catalog.javascript import GEMINI_CLI, OPENCLAW, PI, QWEN_CODE
from orchard.workers.harnesses.programs.catalog.own import MCP_LOOP
from orchard.workers.harnesses.programs.catalog.python import KIMI_CLI, MINI_SWE_AGENT, OPENHANDS
from orchard.workers.harnesses.programs.catalog.supplied import ZEROCLAW

PROGRAMS = (
    *(MINI_SWE_AGENT, OPENHANDS, CODEX, CLAUDE_CODE, OPENCODE, GEMINI_CLI, QWEN_CODE, PI, KIMI_CLI),
    *(OPENCLAW, HERMES, KIMI_CODE),
    *(CODEX_ACP, CLAUDE_CODE_ACP, OPENCODE_ACP, GEMINI_CLI_ACP, QWEN_CODE_ACP),
    *(ZEROCLAW, MCP_LOOP),
)
