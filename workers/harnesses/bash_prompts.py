"""The tool `bash` for models: its definition, observations and format errors."""

from typing import Any

from orchard.workers.episode.machine import CommandOutcome

OBSERVATION_LIMIT = 10_000
"""Characters; an output this long or longer is shown as its first and last half of that."""

BASH_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a bash command.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "The command to run."}},
            "required": ["command"],
        },
    },
}

TOO_LONG = """\
<warning>
The command printed too much, and the middle is left out here.
Ask for less: head, tail or sed show part of a file, a narrower pattern finds less.
To search in everything that was printed, send it to a file first.
</warning>"""

FORMAT_ERROR = """\
The tool could not be called:

<error>
{error}
</error>

Every message needs at least one call of the tool `bash`, with the command as its argument:
- tool: bash
- arguments: {{"command": "your command"}}

If the work is done, the first message says how to submit it; after that you cannot go on working."""

CUT_OFF = """\
Your message reached the limit of output tokens (finish_reason={finish_reason}) before it called a tool, so \
it was cut off. Think in fewer words and end with one call of the tool `bash`."""


def observation(outcome: CommandOutcome, limit: float) -> str:
    """Returns the result of a command as the model reads it; `limit` is the seconds it had, named if they ran
    out."""
    parts = []
    if outcome.timed_out:
        parts.append(
            f"<exception>TimeoutExpired: the command was stopped after {limit:g} seconds</exception>"
        )
    parts.append(f"<returncode>{outcome.returncode}</returncode>")
    text = outcome.output
    if len(text) < OBSERVATION_LIMIT:
        parts.append(f"<output>\n{text}</output>")
    else:
        half = OBSERVATION_LIMIT // 2
        parts.append(TOO_LONG)
        parts.append(f"<output_head>\n{text[:half]}\n</output_head>")
        parts.append(f"<elided_chars>\n{len(text) - 2 * half} characters left out\n</elided_chars>")
        parts.append(f"<output_tail>\n{text[-half:]}\n</output_tail>")
    return "\n".join(parts)


def format_error(error: str, finish_reason: str) -> str:
    if finish_reason == "length":
        return CUT_OFF.format(finish_reason=finish_reason)
    return FORMAT_ERROR.format(error=error)
