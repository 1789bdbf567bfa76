"""The annotator's prompt, which asks for what `replies` reads, and its version.

Free text, the model's and the machine's, stands behind a bar at the beginning of each line, so that
nothing in it can pass for a heading. The rule for long trajectories: each observation is cut to 5,000
characters, its first and last half. Where the whole is over the limit, all texts of steps are cut
shorter, to 2,000, 800 and 300 characters; where that is not enough, steps in the middle are left out
and the gap is named.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from orchard.pipelines.values.cases import Case, CaseStep
from orchard.pipelines.values.replies import FINAL_LIMIT, needed_key_steps
from orchard.schemas.decoding import Unreadable, decode_text

PROMPT_VERSION = "1"
OBSERVATION_LIMIT = 5_000
"""Characters of one observation; the paper's 5K."""
SHORTER = (2_000, 800, 300)
STATEMENT_LIMIT = 20_000
SUBMISSION_LIMIT = 4_000
TESTS_SHOWN = 30

SYSTEM = f"""\
You judge how a coding agent came to fail. You are given a task, the result of its hidden tests, and every \
step the agent took. The agent did NOT solve the task. Looking back, estimate for each important step the \
probability that an agent in that position would still have solved it.

How to work:
1. Read the test result first: it tells what is wrong with what the agent handed in.
2. Find the step that made the failure: a wrong edit, a wrong conclusion, giving up, running out of steps.
3. Walk through the steps in order and give each important one a probability: the one that holds AFTER the \
result of that step has been seen.

What the numbers mean:
- "step": -1 is the state before the agent did anything: the base rate for such a task, usually 0.3 to 0.5.
- A step that brings real progress (the right file found, the failure reproduced, the cause understood, a \
correct part of the repair) raises the probability, and the rise belongs to that very step.
- At the step of the decisive mistake, or before, the probability MUST FALL, and it stays low unless the \
agent really recovers.
- The last step must be below {FINAL_LIMIT}: the task was not solved.
- The numbers must not be all the same and must not only rise.
- Steps that you leave out are read as lying on a straight line between their neighbours, so give every step \
where the probability changes, and the step before it.

Answer with one JSON array and nothing else: no text before or after it, no code fence. Each entry is \
{{"step": integer, "p_resolve": number from 0 to 1, "reasoning": "one short sentence"}}. Each step at most \
once.
"""


@dataclass(frozen=True)
class AnnotationPrompt:
    """The first messages of an annotation."""

    messages: tuple[dict[str, str], ...]
    omitted_steps: int


def make_prompt(case: Case, limit: int) -> AnnotationPrompt:
    """The prompt for a case in at most about `limit` characters; only headings may take it over."""
    return fitted(case.steps, lambda steps: _messages(case, steps), limit)


def fitted(
    steps: Sequence[CaseStep], messages: Callable[[str], tuple[dict[str, str], ...]], limit: int
) -> AnnotationPrompt:
    """The messages around the text of the steps, which is shortened so that all have at most about `limit`
    characters."""
    frame = sum(len(message["content"]) for message in messages(""))
    shown: list[str] = []
    for cut in (OBSERVATION_LIMIT, *SHORTER):
        shown = [_step(number, step, cut) for number, step in enumerate(steps)]
        if frame + sum(map(len, shown)) <= limit:
            return AnnotationPrompt(messages("".join(shown)), 0)
    head, tail = _kept(shown, max(limit - frame, 0))
    omitted = len(shown) - head - tail
    gap = f"\n## Steps {head} to {len(shown) - tail - 1}\nLeft out here for length.\n"
    shown = [*shown[:head], gap, *shown[len(shown) - tail :]]
    return AnnotationPrompt(messages("".join(shown)), omitted)


def retry_message(fault: str) -> str:
    """The message after a reply that was not accepted."""
    return (
        f"Your answer was not accepted: {fault}. Answer again with the whole JSON array, corrected, and "
        "nothing else."
    )


def _kept(steps: list[str], room: int) -> tuple[int, int]:
    """How many steps from the beginning and from the end fit, taken in turns; one of each at least."""
    head = tail = 0
    while head + tail < len(steps) - 1:
        from_head = head <= tail
        size = len(steps[head] if from_head else steps[len(steps) - 1 - tail])
        if size > room and head and tail:
            break
        room -= size
        head, tail = (head + 1, tail) if from_head else (head, tail + 1)
    return head, tail


def _messages(case: Case, steps: str) -> tuple[dict[str, str], ...]:
    return ({"role": "system", "content": SYSTEM}, {"role": "user", "content": _user(case, steps)})


def _user(case: Case, steps: str) -> str:
    count = len(case.steps)
    needed = needed_key_steps(count)
    tests = [
        *_listed("Tests that had to pass and do not", case.unfixed),
        *_listed("Tests that passed before and do not now", case.regressed),
        f"Tests that had to pass and do: {case.fixed}",
    ]
    return "\n".join(
        [
            "# The task",
            barred(cut_middle(case.statement, STATEMENT_LIMIT)),
            "\n# The result: not solved",
            *tests,
            *(["Grader:", barred(cut_middle(case.detail, 1000))] if case.detail else []),
            f"The run ended by: {case.exit_status}",
            "What was handed in:",
            barred(cut_middle(case.submission, SUBMISSION_LIMIT)) if case.submission else "nothing",
            "\n# The steps",
            steps,
            f"\n# The question\nThere are {count} steps, numbered 0 to {count - 1}. Give the base rate as "
            f"step -1, and values for at least {needed} steps, the last one among them.",
        ]
    )


def _listed(title: str, names: tuple[str, ...]) -> list[str]:
    if not names:
        return [f"{title}: none"]
    more = [f"... and {len(names) - TESTS_SHOWN} more"] if len(names) > TESTS_SHOWN else []
    return [f"{title}: {len(names)}", barred("\n".join([*names[:TESTS_SHOWN], *more]))]


def _step(number: int, step: CaseStep, limit: int) -> str:
    lines = [f"\n## Step {number}"]
    if step.thought:
        lines += ["Thought:", barred(cut_middle(step.thought, limit))]
    for name, arguments in step.actions:
        lines += [f"Action: {_NAME.sub('?', name)[:60]}", barred(cut_middle(spoken(arguments), limit))]
    if not step.actions:
        lines.append("Action: none")
    for result in step.results:
        lines += ["Result:", barred(cut_middle(result, limit))]
    return "\n".join(lines) + "\n"


_NAME = re.compile(r"[^\w.-]")


def spoken(arguments: str) -> str:
    """The one argument that is a text, such as a command, else the arguments in the model's spelling."""
    try:
        found = decode_text(arguments)
    except Unreadable:
        return arguments
    if isinstance(found, dict) and len(found) == 1:
        value = next(iter(found.values()))
        if isinstance(value, str):
            return value
    return arguments


def cut_middle(text: str, limit: int) -> str:
    """The text, or its first and last half of `limit` characters with the gap named."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters left out ...]\n{text[-half:]}"


def barred(text: str) -> str:
    """Put a bar before each line, whatever ends lines in it."""
    return "\n".join(f"| {line}" for line in text.splitlines() or [""])
