"""What the model of `orchard-bash` reads: prompts, tool, observations and format errors."""

from typing import Any

from orchard.workers.episode.machine import CommandOutcome

OBSERVATION_LIMIT = 10_000
"""Characters; an output this long or longer is shown as its first and last half of that."""

SYSTEM = "You are an assistant that solves programming tasks by running commands in a computer's shell."

TASK = """\
<pr_description>
Read the description of this change:
{statement}
</pr_description>

<instructions>
# What to do

You are a software engineer at work in a shell. Change the source files under {workdir} so that what the \
description asks for holds, in general and not for its example alone, in the style of the code around it.

You work in turns: think, run one or more commands, look at what they print, and go on from there.

## In every message

1. Write down what you have found out and what you want to do next.
2. Call the `bash` tool at least once. Commands that do not need each other's results may go into one message.

## Limits of the job

- CHANGE: ordinary source files under {workdir}, where all your commands start.
- LEAVE ALONE: tests and configuration files such as pyproject.toml, setup.cfg or tox.ini.

## A way that works

1. Find and read the code that matters.
2. Write a small script that shows the problem.
3. Change the source.
4. Run the script again to see that the problem is gone.
5. Try the unusual cases too.

## How commands run

- Each command runs in a new shell, so `cd` and exported variables do not last. Write \
`cd somewhere && NAME=value command` where you need them.
- You are on Linux with the usual programs; what is missing you may install.
- Nothing can answer a question: pass -y or -f, and do not start editors or pagers.

## How to hand in

When you are done, hand in a git patch, in this order and with one command for each step:

1. Write the patch: `git diff -- path/to/changed_file path/to/other_file > patch.txt`, naming only source \
files that you changed. Do not commit. It must not hold tests, scripts of yours, binary files, or build and \
configuration files that the description does not ask for.
2. Look at patch.txt: it must hold what you mean to change and nothing else, with `--- a/` and `+++ b/` paths.
3. Submit with exactly this command:

```bash
echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat patch.txt
```

A command that fails submits nothing. After the submission you cannot go on working.
</instructions>"""

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
    """The result of a command as the model reads it; `limit` is the seconds it had, named if they ran out."""
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
    """What a message that could not be acted on is answered with."""
    if finish_reason == "length":
        return CUT_OFF.format(finish_reason=finish_reason)
    return FORMAT_ERROR.format(error=error)
