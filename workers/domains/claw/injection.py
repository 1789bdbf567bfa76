"""Errors that a world's services make on purpose, seeded: what each call meets hangs on its number alone."""

import random
from dataclasses import dataclass
from typing import Any

import msgspec

from orchard.schemas.claw import Injected

_KINDS: tuple[Injected, ...] = ("rate_limited", "server_error", "slow", "malformed")
SLOW = (2.0, 4.0)
"""Seconds, from and to."""


@dataclass(frozen=True)
class Draw:
    """What one call meets."""

    kind: Injected
    wait: float = 0.0
    """Seconds before the answer."""
    answer: tuple[int, Any] | None = None
    """Status and response in place of the service's; None: it is asked."""

    @property
    def spoils(self) -> bool:
        """Whether the answer is cut off, and the service stays as it was."""
        return self.kind == "malformed"


@dataclass(frozen=True)
class Injection:
    """Errors at a rate, in [0, 1], of a seed."""

    seed: int
    rate: float

    def draw(self, number: int) -> Draw | None:
        """What call `number` meets, if anything."""
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
                return Draw(kind, answer=(429, told))
            case "server_error":
                return Draw(kind, answer=(500, {"error": "internal server error"}))
            case "slow":
                return Draw(kind, wait=round(dice.uniform(*SLOW), 3))
            case "malformed":
                return Draw(kind)


def garbled(answer: Any) -> str:
    """The JSON of an answer, cut off in its middle: no JSON any more."""
    text = msgspec.json.encode(answer).decode()
    return text[: max(1, len(text) // 2)]
