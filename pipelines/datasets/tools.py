"""The tools that each harness offers its model."""

from typing import Any

from orchard.pipelines.datasets.errors import DatasetError
from orchard.workers.harnesses import UnknownHarness, planned_harness
from orchard.workers.harnesses.interface import Harness
from orchard.workers.harnesses.programs.runner import ProgramHarness


def harness_tools(harness: str, version: str | None) -> tuple[dict[str, Any], ...]:
    """OpenAI tools of a harness, named as rollouts name it; DatasetError for an unknown one. Imported
    trajectories bring theirs."""
    return _harness(harness, version).tools


def is_known(harness: str) -> bool:
    """Whether it is a harness of this installation: an imported trajectory may name another."""
    try:
        planned_harness(harness, None)
    except UnknownHarness:
        return False
    return True


def has_tools_in_log(harness: str, version: str | None) -> bool:
    """Whether the log has the tools of each task, for a harness in the worker."""
    return getattr(_harness(harness, version), "tools_in_log", False)


def is_program(harness: str, version: str | None) -> bool:
    """Whether the tools are known from the log of each call alone: programs and worlds."""
    found = _harness(harness, version)
    return isinstance(found, ProgramHarness) or (getattr(found, "tools_in_log", False) and not found.tools)


def _harness(name: str, version: str | None) -> Harness:
    try:
        return planned_harness(name, version)
    except UnknownHarness as error:
        raise DatasetError(f"{error}, in `source.harnesses`") from None


def tool_names(tools: tuple[dict[str, Any], ...]) -> frozenset[str]:
    """Names that may be called."""
    return frozenset(str(tool.get("function", tool).get("name")) for tool in tools)
