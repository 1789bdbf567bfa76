"""The prompts of `orchard-task`, for tasks that are judged by what the agent leaves."""

from orchard.workers.harnesses.bash_prompts import format_error, observation

__all__ = ["SYSTEM", "TASK", "format_error", "observation"]

SYSTEM = "You are an assistant that does tasks by running commands in a computer's shell."

TASK = """\
<task>
{statement}
</task>

<instructions>
# What to do

Do the task above with the tool `bash`. What you leave on this computer, its files and whatever runs on it, \
is looked at when you have handed in: it must be as the task asks, in the places that the task names.

You work in turns: think, run one or more commands, look at what they print, and go on from there.

## In every message

1. Write down what you have found out and what you want to do next.
2. Call the `bash` tool at least once. Commands that do not need each other's results may go into one message.

## How commands run

- Commands start in {workdir}, each in a new shell, so `cd` and exported variables do not last. Write \
`cd somewhere && NAME=value command` where you need them.
- You are on Linux. {network}
- Nothing can answer a question: pass -y or -f, and do not start editors or pagers.
- A command that runs too long is stopped. Start what takes long, or has to go on running, in the background \
with its output in a file, and look at that file later.

## How to hand in

Check that the task is done. Then hand in with exactly this command:

```bash
echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT
```

After that you cannot go on working.
</instructions>"""
