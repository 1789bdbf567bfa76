"""`mini-swe-agent-compact`: for models of a few million parameters with some hundred tokens of context."""

from orchard.workers.episode.machine import CommandOutcome

OBSERVATION_LIMIT = 1_000
"""Characters; a longer output is shown as its first and last half of that."""

SYSTEM = "You repair code with bash. `echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && git diff` hands in."
TASK = "{statement}"


def observation(outcome: CommandOutcome, _limit: float) -> str:
    """What the command printed, and how it ended where that was not well."""
    text = outcome.output
    if len(text) > OBSERVATION_LIMIT:
        half = OBSERVATION_LIMIT // 2
        text = f"{text[:half]}\n[...]\n{text[-half:]}"
    if outcome.timed_out:
        return f"{text}[timed out]"
    return text if outcome.returncode == 0 else f"{text}[exit {outcome.returncode}]"


def format_error(error: str, _finish_reason: str) -> str:
    """What a message that could not be acted on is answered with."""
    return f"Call bash with a command: {error}"
