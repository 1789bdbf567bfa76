"""Programs on the PATH of one sandbox without network: each says its version, with the others beside it."""

from collections.abc import Sequence
from pathlib import Path

from orchard.injector.client import AsyncSandboxClient
from orchard.workers.harnesses.programs.layers import Layer
from tests.sandbox_service import LocalService

COMMANDS = {
    "codex": "codex",
    "claude-code": "claude",
    "pi": "pi",
    "opencode": "opencode",
    "hermes": "hermes",
    "gemini-cli": "gemini",
    "kimi-code": "kimi",
    "mini-swe-agent-cli": "mini",
}
"""What users start, by program."""


async def missing(layers: Sequence[Layer], state: Path) -> str:
    """What is wrong with the programs of these layers in one sandbox; empty when nothing is."""
    service = LocalService(state)
    try:
        async with (
            AsyncSandboxClient(service.url) as client,
            await client.create_sandbox(
                "host", programs=[layer.program for layer in layers], memory="4Gi"
            ) as sandbox,
        ):
            for layer in layers:
                command = f"cd && HOME=/tmp {COMMANDS[layer.program]} --version"
                said = await sandbox.exec(command, 120.0, merge_output=True, login_shell=True)
                if layer.version not in said.stdout:
                    return f"`{command}` says {said.stdout[-500:]!r}, status {said.exit_code}"
    finally:
        service.stop()
    return ""
