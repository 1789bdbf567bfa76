"""Errors that services make on purpose. They are seeded: a call's error depends only on the call's number."""

import random
from dataclasses import dataclass
from typing import Any

import msgspec

from orchard.schemas.claw import Injected

_KINDS: tuple[Injected, ...] = ("rate_limited", "server_error", "slow", "malformed")
SLOW = (2.0, 4.0)
"""Range of the delay of a slow call, in seconds."""


@dataclass(frozen=True)
class InjectedError:
    kind: Injected
    wait: float = 0.0
    answer: tuple[int, Any] | None = None
    """The status and response that replace the service's; None means that the service is called."""

    @property
    def spoils(self) -> bool:
        """Whether the answer is cut off and the service's state stays unchanged."""
        return self.kind == "malformed"


@dataclass(frozen=True)
class Injection:
    seed: int
    rate: float

    def draw(self, number: int) -> InjectedError | None:
        if not self.rate:
            return None
        dice = random.Random(f"{self.seed}/{number}")
        if dice.random() >= self.rate:
            return None
        kind = dice.choice(_KINDS)
        match kind:
            case "rate_limited":
                seconds = dice.randint(1, 3)
                told = {"error": f"too many requests: retry after {seconds} s", "retry_after": seconds}
                return InjectedError(kind, answer=(429, told))
            case "server_error":
                return InjectedError(kind, answer=(500, {"error": "internal server error"}))
            case "slow":
                return InjectedError(kind, wait=round(dice.uniform(*SLOW), 3))
            case "malformed":
                return InjectedError(kind)


def garbled(answer: Any) -> str:
    """Returns an answer's JSON cut in the middle, so that it is invalid."""
    text = msgspec.json.encode(answer).decode()
    return text[: max(1, len(text) // 2)]
