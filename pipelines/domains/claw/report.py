"""The report of a synthesis run, from its steps alone: which check caught which mistake, and what an
accepted task cost."""

from collections import Counter
from collections.abc import Sequence

import msgspec

from orchard.schemas.synthesis import Check, SynthesisAction, SynthesisStep

UNLABELLED = "(not seeded)"


class Report:
    """A fold over the steps of a run."""

    def __init__(self, steps: Sequence[SynthesisStep]) -> None:
        self._steps = list({(one.slot, one.turn, one.step): one for one in steps}.values())
        self.proposals = len({one.slot for one in self._steps})
        self.accepted = [one for one in self._steps if one.step is SynthesisAction.ACCEPT]
        self.rejected = [one for one in self._steps if one.step is SynthesisAction.REJECT]

    @property
    def caught(self) -> dict[tuple[str, Check], int]:
        """Seeded mistake and the check that caught it, to how often, refinements included."""
        return Counter(
            (self._mistake(one), one.check)
            for one in self._steps
            if one.check is not None and one.step is not SynthesisAction.REJECT
        )

    @property
    def missed(self) -> list[SynthesisStep]:
        """Accepted tasks whose author says that it made a mistake in them."""
        return [one for one in self.accepted if one.seeded_mistake]

    @property
    def mistaken(self) -> set[int]:
        """Slots whose author made a mistake in its first draft."""
        return {one.slot for one in self._steps if one.turn == 0 and self._mistake(one) != UNLABELLED}

    def cost(self, slot: int) -> float | None:
        """USD of a slot, author and solver; None where a price is not known."""
        asked = [one.cost_usd for one in self._steps if one.slot == slot and one.model is not None]
        known = [cost for cost in asked if cost is not None]
        return sum(known) if len(known) == len(asked) else None

    @property
    def cost_each(self) -> float | None:
        """USD of the whole run, rejected proposals included, for each accepted task."""
        costs = [self.cost(slot) for slot in {one.slot for one in self._steps}]
        known = [cost for cost in costs if cost is not None]
        return sum(known) / len(self.accepted) if len(known) == len(costs) and self.accepted else None

    def _mistake(self, step: SynthesisStep) -> str:
        # An answer that could not be read has no label of its own.
        return step.seeded_mistake or ("no_json" if step.check is Check.UNREADABLE else UNLABELLED)


class MistakeRow(msgspec.Struct, frozen=True, kw_only=True):
    mistake: str
    check: str
    times: int


def table(report: Report) -> list[MistakeRow]:
    """Which check caught what, by mistake."""
    return [
        MistakeRow(mistake=mistake, check=check.value, times=times)
        for (mistake, check), times in sorted(report.caught.items())
    ]
