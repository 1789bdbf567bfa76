"""The oracle's turns: a pure function of the task, the behaviour, the seed and the turn's number."""

import random
import re
import shlex

from orchard.schemas.messages import ToolCall
from orchard.schemas.tasks import SWETests, Task, graded_in_place
from orchard.workers.domains.swe.oracle import repairs
from orchard.workers.domains.swe.oracle.edits import edit_commands, heredoc, quoted, wrong_edit
from orchard.workers.episode.diffs import FileDiff, parse_diff, touched_paths
from orchard.workers.oracle.behaviours import Behaviour, chance
from orchard.workers.oracle.replies import SUBMIT, Turn, bash

FILES_READ = 4
TEST_SECONDS = 40


def turn(task: Task, behaviour: Behaviour, seed: int, number: int) -> Turn:
    """Returns the assistant message after `number` earlier ones (from 0)."""
    turns = play(task, behaviour, seed)
    if number < len(turns):
        return turns[number]
    if behaviour is Behaviour.OUT_OF_STEPS:
        return _wander(task, number, chance(seed, task.task_id, f"wander-{number}"))
    return turns[-1]


def play(task: Task, behaviour: Behaviour, seed: int) -> list[Turn]:
    """Returns all turns up to the submission, or up to where wandering begins."""
    if task.source == repairs.SOURCE:
        return repairs.play(task, behaviour, seed)
    dice = chance(seed, task.task_id, "play")
    if graded_in_place(task.grading):
        return _in_place(task, behaviour, dice)
    gold = parse_diff(task.gold_patch)
    explored = _explore(task, gold, dice)
    match behaviour:
        case Behaviour.RESOLVES | Behaviour.RECOVERS:
            return [*explored, *_edit(gold, dice), *_finish(task, gold, dice)]
        case Behaviour.WRONG_EDIT:
            wrong = wrong_edit(gold, dice)
            return [*explored, *_edit(wrong, dice), *_finish(task, wrong, dice)]
        case Behaviour.GIVES_UP:
            said = "I have looked everywhere that seemed to matter and cannot find the cause. I give up."
            return [*explored, bash(said, SUBMIT)]
        case Behaviour.MALFORMED:
            return _malformed(task, gold, explored, dice)
        case Behaviour.OUT_OF_STEPS:
            return [*explored, *(_edit(gold, dice) if dice.random() < 0.4 else [])]


def _in_place(task: Task, behaviour: Behaviour, dice: random.Random) -> list[Turn]:
    """If the sandbox itself is judged, the known solution is a script; without one nothing is done."""
    look = bash("First I want to see what is here.", "pwd; ls -la")
    script = task.gold_patch if task.gold_patch.endswith("\n") else f"{task.gold_patch}\n"
    solved = [bash("I see what to do.", f"bash {heredoc(script)}")] if script.strip() else []
    match behaviour:
        case Behaviour.RESOLVES | Behaviour.RECOVERS:
            return [look, *solved, bash("That is what was asked for. I submit.", SUBMIT)]
        case Behaviour.MALFORMED:
            return [look, *(_bad(dice) for _ in range(3))]
        case Behaviour.OUT_OF_STEPS:
            return [look]
        case Behaviour.WRONG_EDIT | Behaviour.GIVES_UP:
            return [look, bash("I do not see how to do it. I give up.", SUBMIT)]


def _explore(task: Task, gold: list[FileDiff], dice: random.Random) -> list[Turn]:
    """Lists files, searches the code in question, reads it, and runs the tests."""
    turns = [
        bash(
            dice.choice(
                (
                    "I start with the layout of the repository and its latest commits.",
                    "First I want to see what is here.",
                    "Let me get an overview before I look for the cause.",
                )
            ),
            "ls -la",
            "git log --oneline | head -5",
        )
    ]
    known = [file for file in gold if file.old_path is not None]
    if word := _search_word(known):
        turns.append(
            bash(
                f"The description has to do with `{word}`, so I look where that is used.",
                f"grep -rn --include='*.py' -w -e {shlex.quote(word)} . | head -20",
            )
        )
    for file in known[:FILES_READ]:
        commands = [
            f"sed -n '{max(1, hunk.old_start - 12)},{hunk.old_start + hunk.old_count + 12}p' "
            f"{shlex.quote(file.old_path or '')}"
            for hunk in file.hunks[:2]
        ]
        if commands:
            turns.append(bash(f"The code in {file.old_path} matters here. I read it.", *commands))
    turns.append(bash("Before I change anything I want to see how the tests stand.", _test_command(task)))
    return turns


def _search_word(files: list[FileDiff]) -> str | None:
    words = {
        word
        for file in files
        for hunk in file.hunks
        for line in hunk.lines
        if line[0] in " -"
        for word in re.findall(r"[A-Za-z_][A-Za-z0-9_]{3,30}", line[1:])
    }
    return max(words, key=lambda word: (len(word), word)) if words else None


def _edit(files: list[FileDiff], dice: random.Random) -> list[Turn]:
    turns = []
    for number, file in enumerate(files):
        if file.old_path is None:
            said = f"A new file is needed: {file.path}."
        elif file.new_path is None:
            said = f"{file.path} is no longer needed."
        elif number == 0:
            said = f"I see what is wrong. I change {file.path}."
        else:
            said = f"{file.path} has to follow."
        turns.append(bash(said, *edit_commands(file, dice)))
    return turns


def _finish(task: Task, files: list[FileDiff], dice: random.Random) -> list[Turn]:
    """Tests again, writes the patch, reads it, submits."""
    tests: set[str] = set()
    if isinstance(task.grading, SWETests):
        tests = set(task.grading.test_files) | touched_paths(task.grading.test_patch)
    paths = sorted({path for file in files for path in (file.old_path, file.new_path) if path} - tests)
    new = [file.path for file in files if file.old_path is None and file.path not in tests]
    announce = f"git add -N -- {quoted(new)} && " if new else ""
    said = dice.choice(("Now the tests again.", "Let me check that this helps and breaks nothing."))
    return [
        bash(said, _test_command(task), "git status --short"),
        bash(
            "I write the patch, only of the files that I changed, and look at it.",
            f"{announce}git diff --binary -- {quoted(paths)} > patch.txt && cat patch.txt"
            if paths
            else ": > patch.txt",
        ),
        bash("The patch holds what I mean to change. I submit it.", f"{SUBMIT} && cat patch.txt"),
    ]


def _malformed(task: Task, gold: list[FileDiff], explored: list[Turn], dice: random.Random) -> list[Turn]:
    if dice.random() < 0.5:
        return [*explored, *(_bad(dice) for _ in range(3))]
    turns = [*explored, *_edit(gold, dice), *_finish(task, gold, dice)]
    for _ in range(dice.choice((1, 2))):
        turns.insert(dice.randrange(len(turns)), _bad(dice))
    return turns


def _bad(dice: random.Random) -> Turn:
    """Returns one of the malformed calls that models make."""
    call = dice.choice(
        (
            None,
            ToolCall(id="", name="python", arguments='{"command": "print(1)"}'),
            ToolCall(id="", name="bash", arguments='{"command": "ls'),
            ToolCall(id="", name="bash", arguments='{"cmd": "ls"}'),
        )
    )
    return Turn(text="I look at the files next.", calls=() if call is None else (call,))


def _wander(task: Task, number: int, dice: random.Random) -> Turn:
    paths = sorted(file.old_path for file in parse_diff(task.gold_patch) if file.old_path) or ["."]
    path, start = shlex.quote(dice.choice(paths)), 1 + 40 * (number % 25)
    return bash(
        dice.choice(("There may be more to it.", "I am not sure yet.", "Let me look further.")),
        dice.choice(
            (
                f"sed -n '{start},{start + 39}p' {path}",
                f"git log --oneline -5 -- {path}",
                f"grep -n -e def -e class {path} | head -{10 + number % 30}",
                f"wc -l {path}; git diff --stat",
            )
        ),
    )


def _test_command(task: Task) -> str:
    """Returns the task's test command in its own shell, with a short time limit and only the end of its
    output."""
    if not isinstance(task.grading, SWETests):
        return "git status --short"
    script = "\n".join([*task.grading.pre_commands, task.grading.test_command, ""])
    return f"timeout {TEST_SECONDS} bash 2>&1 {heredoc(script, ' | tail -n 20')}"
