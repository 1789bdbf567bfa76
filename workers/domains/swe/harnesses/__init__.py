"""Harnesses for tasks that are judged by a patch: one loop, in Orchard's own words and in those of
mini-swe-agent."""

from orchard.workers.domains.swe.harnesses import compact_prompts, orchard_bash_prompts
from orchard.workers.domains.swe.harnesses.mini_swe_agent import TextWords, ToolCallWords
from orchard.workers.harnesses.bash_loop import BashLoop
from orchard.workers.harnesses.own_words import OwnWords


class OrchardBash(BashLoop):
    """`orchard-bash`, which needs no package beside Orchard."""

    def __init__(self) -> None:
        super().__init__(OwnWords("orchard-bash", orchard_bash_prompts))


class Compact(BashLoop):
    """`mini-swe-agent-compact`, in few words."""

    def __init__(self) -> None:
        super().__init__(OwnWords("mini-swe-agent-compact", compact_prompts))


class MiniSweAgent(BashLoop):
    """`mini-swe-agent`. Raises UnknownHarness where the package cannot be used."""

    def __init__(self) -> None:
        super().__init__(ToolCallWords())


class MiniSweAgentText(BashLoop):
    """`mini-swe-agent-text`. Raises UnknownHarness where the package cannot be used."""

    def __init__(self) -> None:
        super().__init__(TextWords())
