"""Prompts of `mini-swe-agent-compact`, for models of a few million parameters with some hundred tokens of
context."""

from orchard.workers.episode.machine import CommandOutcome

OBSERVATION_LIMIT = 1_000
"""Maximum characters of output; of a longer one the first and the last half of that are shown."""

SYSTEM = "You repair code with bash. `echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && git diff` hands in."
TASK = "{statement}"


def observation(outcome: CommandOutcome, _limit: float) -> str:
    """Formats a command's output, and its exit status on failure."""
    text = outcome.output
    if len(text) > OBSERVATION_LIMIT:
        half = OBSERVATION_LIMIT // 2
        text = f"{text[:half]}\n[...]\n{text[-half:]}"
    if outcome.timed_out:
        return f"{text}[timed out]"
    return text if outcome.returncode == 0 else f"{text}[exit {outcome.returncode}]"


def format_error(error: str, _finish_reason: str) -> str:
    """Answers a message without an executable action."""
    return f"Call bash with a command: {error}"
