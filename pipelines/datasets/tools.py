"""The tools that each harness defines, as the model was told of them."""

from typing import Any

from pipelines.datasets.errors import DatasetError
from workers.harnesses.mini_swe_agent_prompts import BASH_TOOL

HARNESS_TOOLS: dict[str, tuple[dict[str, Any], ...]] = {"mini-swe-agent": (BASH_TOOL,)}
"""By harness. Imported trajectories bring their own."""


def harness_tools(harness: str) -> tuple[dict[str, Any], ...]:
    """OpenAI tools of a harness; DatasetError for one that is not known."""
    try:
        return HARNESS_TOOLS[harness]
    except KeyError:
        raise DatasetError(
            f"the tools of harness {harness!r} are not known: name others in `source.harnesses` (known: "
            f"{', '.join(sorted(HARNESS_TOOLS))})"
        ) from None


def tool_names(tools: tuple[dict[str, Any], ...]) -> frozenset[str]:
    """Names that may be called."""
    return frozenset(str(tool.get("function", tool).get("name")) for tool in tools)
