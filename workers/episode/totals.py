"""The usage of an attempt: answers, tokens, money and time."""

import msgspec

from orchard.schemas.llm_calls import LLMCall, ModelKind
from orchard.workers.llm.answers import Completion


class Totals(msgspec.Struct, kw_only=True):
    """Sums over all calls and commands, abandoned branches included. Tokens and cost are sums of what is
    known: budgets are compared with them. What is published of a sum with a gap is that it is not known."""

    turns: int = 0
    calls: int = 0
    prompt: int = 0
    """Known prompt tokens, as a lower bound."""
    completion: int = 0
    """Known completion tokens, as a lower bound."""
    uncounted: int = 0
    """Calls whose tokens are not known."""
    usd: float = 0.0
    unpriced: int = 0
    """Calls whose cost is not known."""
    seconds_llm: float = 0.0
    seconds_commands: float = 0.0
    seconds_beside: float = 0.0
    """Seconds of a program by its clock, less those of its calls: its own work, or negative if calls
    overlapped."""
    seconds_waiting: float = 0.0
    """Seconds spent on places at the endpoint, on tries that failed, and on answers that did not come."""
    model_kind: ModelKind | None = None
    """ORACLE as soon as one answer came from an oracle; None before the first call."""

    @property
    def tokens(self) -> int:
        return self.prompt + self.completion

    @property
    def prompt_tokens(self) -> int | None:
        """Prompt tokens of all calls; None as soon as one call did not report them."""
        return None if self.uncounted else self.prompt

    @property
    def completion_tokens(self) -> int | None:
        """Completion tokens of all calls; None as soon as one call did not report them."""
        return None if self.uncounted else self.completion

    @property
    def cost_usd(self) -> float | None:
        """Cost of all calls; None as soon as one had no known price."""
        return None if self.unpriced else self.usd

    @property
    def seconds(self) -> float:
        """Seconds that the agent itself has used, without queues, retries and storage: thinking and commands,
        or what a program's clock says."""
        return self.seconds_llm + self.seconds_commands + self.seconds_beside

    def __add__(self, other: "Totals") -> "Totals":
        oracle = ModelKind.ORACLE in (self.model_kind, other.model_kind)
        return Totals(
            turns=self.turns + other.turns,
            calls=self.calls + other.calls,
            prompt=self.prompt + other.prompt,
            completion=self.completion + other.completion,
            uncounted=self.uncounted + other.uncounted,
            usd=self.usd + other.usd,
            unpriced=self.unpriced + other.unpriced,
            seconds_llm=self.seconds_llm + other.seconds_llm,
            seconds_commands=self.seconds_commands + other.seconds_commands,
            seconds_beside=self.seconds_beside + other.seconds_beside,
            seconds_waiting=self.seconds_waiting + other.seconds_waiting,
            model_kind=ModelKind.ORACLE if oracle else self.model_kind or other.model_kind,
        )


def used_by(call: LLMCall | Completion) -> Totals:
    usage = call.usage
    return Totals(
        turns=1,
        calls=1,
        prompt=usage.prompt_tokens or 0,
        completion=usage.completion_tokens or 0,
        uncounted=None in (usage.prompt_tokens, usage.completion_tokens),
        usd=call.cost_usd or 0.0,
        unpriced=call.cost_usd is None,
        seconds_llm=call.seconds or 0.0,
        seconds_waiting=call.seconds_waiting or 0.0,
        model_kind=call.model_kind,
    )
