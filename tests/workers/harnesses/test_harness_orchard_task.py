"""The words of `orchard-task` are true of a task judged by its state, and the oracle plays in them."""

import msgspec
import pytest

from orchard.schemas.tasks import Asked, StateCheck, SWETests, Task
from orchard.workers.domains.swe.oracle.player import StatementIndex
from orchard.workers.domains.swe.oracle.script import play
from orchard.workers.episode.machine import CommandOutcome
from orchard.workers.harnesses import TASK, get_harness, orchard_task_prompts, patch_harness
from orchard.workers.harnesses.bash_loop import SUBMIT_LINE, BashLoop, submitted
from orchard.workers.harnesses.bash_prompts import BASH_TOOL
from orchard.workers.harnesses.module_prompts import ModulePrompts, parse
from orchard.workers.harnesses.programs.catalog import PROGRAMS
from orchard.workers.harnesses.programs.runner import prompt_of
from orchard.workers.oracle.behaviours import Behaviour


def task(asks: Asked | None = None) -> Task:
    return Task(
        task_id="sum",
        source="prompts",
        repo="prompts",
        image="host",
        workdir="/srv",
        statement="Write {17 + 25} to sum.txt.\n\nNothing else.",
        grading=StateCheck(files={}, command="grep -qx 42 sum.txt"),
        gold_patch="echo 42 > sum.txt",
        **({} if asks is None else {"asks": asks}),
    )


WORDS = ModulePrompts(TASK, orchard_task_prompts)


def test_it_is_registered_beside_the_released_one() -> None:
    harness = get_harness(TASK)
    assert isinstance(harness, BashLoop)
    assert (harness.name, harness.tools, harness.replayable) == ("orchard-task", (BASH_TOOL,), True)
    assert get_harness(patch_harness()).name == "orchard-bash"


@pytest.mark.parametrize(
    ("asks", "said"),
    [
        (None, "There is no network"),
        (Asked(agent_seconds=9.0), "There is no network"),
        (Asked(network=True), "You have a network: public addresses can be reached."),
        (
            Asked(hosts=("packages.example:443",)),
            "you can reach packages.example:443 over TCP, and nothing else",
        ),
    ],
)
def test_it_tells_of_the_task_and_of_the_network_that_there_is(asks: Asked | None, said: str) -> None:
    system, user = WORDS.first_messages(task(asks))
    assert said in user
    assert "/srv" in user
    assert SUBMIT_LINE in user
    for released in (
        "git diff",
        "patch",
        "LEAVE ALONE",
        "you may install",
        "software engineer",
        "pr_description",
    ):
        assert released not in system + user


def test_the_oracle_finds_the_task_in_its_words_and_hands_in_by_the_same_mark() -> None:
    index = StatementIndex(lambda: [task()])
    index.reload()
    found = index.find(WORDS.first_messages(task())[1])
    assert found is not None
    turns = play(found, Behaviour.RESOLVES, 1)
    commands = [command for turn in turns for _, command in parse(turn.calls)]
    assert any("echo 42 > sum.txt" in command for command in commands)
    assert submitted(CommandOutcome(output=f"{SUBMIT_LINE}\n", returncode=0, seconds=0.0)) == ""
    assert commands[-1] == f"echo {SUBMIT_LINE}"


def test_programs_are_not_told_of_a_repository_either() -> None:
    for program in PROGRAMS:
        told = prompt_of(program, task())
        assert "$statement" in told
        assert "repository" not in told
    patch = msgspec.structs.replace(
        task(), grading=SWETests(test_patch="", test_command="", fail_to_pass=("t",))
    )
    assert all(prompt_of(program, patch) == program.prompt for program in PROGRAMS)
