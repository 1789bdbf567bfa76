"""Harnesses: the loops around the model. One interface, so that any task, sandbox and log serves them all."""

from orchard.workers.harnesses.interface import Harness
from orchard.workers.harnesses.mini_swe_agent import COMPACT, MiniSweAgent

_HARNESSES: dict[str, Harness] = {
    harness.name: harness for harness in (MiniSweAgent(), MiniSweAgent("mini-swe-agent-compact", COMPACT))
}

HARNESS_NAMES = tuple(sorted(_HARNESSES))


class UnknownHarness(ValueError):
    """No harness has that name."""


def get_harness(name: str) -> Harness:
    """The harness of that name; raises UnknownHarness with the names there are."""
    try:
        return _HARNESSES[name]
    except KeyError:
        known = ", ".join(HARNESS_NAMES)
        raise UnknownHarness(f"no harness is named {name!r}: use one of {known}") from None
