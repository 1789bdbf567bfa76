"""Harnesses for tasks that are judged by a patch: one loop with several sets of prompts."""

from orchard.workers.domains.swe.harnesses import compact_prompts, orchard_bash_prompts
from orchard.workers.domains.swe.harnesses.mini_swe_agent import TextWords, ToolCallPrompts
from orchard.workers.harnesses.bash_loop import BashLoop
from orchard.workers.harnesses.module_prompts import ModulePrompts

HARNESSES = {
    "orchard-bash": "OrchardBash",
    "mini-swe-agent": "MiniSweAgent",
    "mini-swe-agent-text": "MiniSweAgentText",
    "mini-swe-agent-compact": "Compact",
}


class OrchardBash(BashLoop):
    """The harness `orchard-bash`, with Orchard's own prompts."""

    def __init__(self) -> None:
        super().__init__(ModulePrompts("orchard-bash", orchard_bash_prompts))


class Compact(BashLoop):
    """The harness `mini-swe-agent-compact`, with a short prompt."""

    def __init__(self) -> None:
        super().__init__(ModulePrompts("mini-swe-agent-compact", compact_prompts))


class MiniSweAgent(BashLoop):
    """The harness `mini-swe-agent`. Raises UnknownHarness if the package cannot be used."""

    def __init__(self) -> None:
        super().__init__(ToolCallPrompts())


class MiniSweAgentText(BashLoop):
    """The harness `mini-swe-agent-text`. Raises UnknownHarness if the package cannot be used."""

    def __init__(self) -> None:
        super().__init__(TextWords())
