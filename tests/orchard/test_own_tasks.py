"""docs/own-tasks.md, followed word by word; what it imports runs as a campaign's tasks do."""

import asyncio
import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from orchard.actions.reporter import Reporter
from orchard.actions.tasks import registry
from orchard.pipelines.rl.coordinator import RunError
from orchard.pipelines.rl.settings import RlSettings, TaskPool
from orchard.pipelines.tasks.registry import read_task_refs, stored_tasks
from orchard.pipelines.tasks.validate import Validation
from orchard.processes.rl_run import enter
from orchard.schemas.campaigns import ModelSpec
from orchard.schemas.events import TaskValidated
from orchard.schemas.llm_calls import ModelKind
from orchard.schemas.protection import Protected
from orchard.schemas.tasks import task_hash
from tests.chaos.world import until
from tests.orchard.conftest import Command, Running
from tests.orchard.test_facts import check, jq
from tests.tiny_tasks import tiny_task

GUIDE = Path(__file__).parent.parent.parent / "docs" / "own-tasks.md"
FILE = re.compile(r"`([\w./]+)`:\n\n```(?:json|toml|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"^```(console|bash)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
STATES = "select task_id, state, detail from tasks where task_id in ('sum', 'sorted', 'fractions', 'greet')"


@pytest.mark.slow
async def test_the_guide_works_word_by_word(
    running: Running, command_line: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = GUIDE.read_text(encoding="utf-8")
    for name, content in FILE.findall(text):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(content, encoding="utf-8")
    said = {}
    for kind, block in BLOCK.findall(text):
        if kind == "bash":
            await asyncio.to_thread(subprocess.run, ["bash", "-ec", block], check=True)
            continue
        for line in block.splitlines():
            words = shlex.split(line)[1:]
            once = ["--runs", "1"] if words[1] in ("validate", "from-repo") else []
            done = await asyncio.to_thread(command_line, *words, *once, store=running.store, COLUMNS="200")
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
            said[" ".join(words[1:])] = done.stdout

    states = {name: (state, detail) for name, state, detail in running.sql(STATES)}
    assert {name: state for name, (state, _) in states.items()} == dict.fromkeys(
        ("sum", "sorted", "fractions", "greet"), "valid"
    )
    unshown = {name: detail for name, (_, detail) in states.items() if detail is not None}
    assert list(unshown) == ["sorted"]
    assert "no solution is known" in str(unshown["sorted"])
    refs = read_task_refs(running.store, ids=list(states))
    oracle = ModelSpec(name="oracle/resolves", endpoint="oracle", kind=ModelKind.ORACLE)
    await running.submit(running.spec("own", tasks=tuple(refs), models=(oracle,)))
    await until(lambda: len(running.outcomes("own")) == len(refs), "the outcomes of the campaign")
    outcomes = "select task_id, status, resolved from rollouts where campaign = 'own' order by task_id"
    assert running.sql(outcomes) == [
        ("fractions", "completed", True),
        ("greet", "completed", True),
        ("sorted", "completed", False),
        ("sum", "completed", True),
    ]

    assert "proven 2, rejected 0" in said["validate sum sorted"]
    fractions = said["show fractions"]
    assert "Division gives fractions" in fractions
    assert "test_half (test_calculator.Divide.test_half)" in fractions
    assert "a diff of" in fractions
    assert "a / b" not in fractions
    assert "0.5" not in fractions, "the hidden tests are named and not shown"
    assert "echo hello" not in said["show greet"]
    assert "a script of" in said["show greet"]
    assert "never validated" not in said["show greet"]


@pytest.mark.long
async def test_rows_of_any_repository_are_imported(
    running: Running, command_line: Command, tmp_path: Path
) -> None:
    patch = "diff --git a/{0} b/{0}\n--- a/{0}\n+++ b/{0}\n@@ -1 +1 @@\n-a\n+b\n"
    row = {
        "instance_id": "ours-1",
        "repo": "ours/tool",
        "base_commit": "HEAD",
        "problem_statement": "It must be b. AKIAQWERTYUIOPASDFGH",
        "patch": patch.format("tool.py"),
        "test_patch": patch.format("tests/test_tool.py"),
        "FAIL_TO_PASS": ["tests/test_tool.py::test_b"],
        "PASS_TO_PASS": [],
    }
    (tmp_path / "tickets.jsonl").write_text(json.dumps(row) + "\n")
    words = ["--image", "ours/{instance_id}:1", "--test-command", "pytest -q {tests}"]
    done = await asyncio.to_thread(
        command_line, "tasks", "import", str(tmp_path / "tickets.jsonl"), *words, store=running.store
    )
    assert done.returncode == 0, done.stderr
    page = await asyncio.to_thread(
        command_line, "tasks", "show", "ours-1", store=running.store, COLUMNS="200"
    )
    assert "ours/ours-1:1" in page.stdout
    assert "pytest -q tests/test_tool.py" in page.stdout
    assert "never validated" in page.stdout
    assert "AKIAQWERTYUIOPASDFGH" not in page.stdout, "keys are masked"


@pytest.mark.slow
async def test_a_bad_item_costs_itself_and_the_exit_status_says_so(
    running: Running, command_line: Command, tmp_path: Path
) -> None:
    lines = tmp_path / "bad.jsonl"
    lines.write_text('{"id": "half-1", "prompt": "p", "check": "true"}\n{"id": "half-2", "prompt": "p"}\n')

    async def imported(*words: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(command_line, "tasks", *words, store=running.store, COLUMNS="500")

    def stored() -> list[str]:
        names = [each.ref.task_id for each in stored_tasks(running.store)]
        return [name for name in names if name.startswith("half-")]

    done = await imported("from-jsonl", str(lines), "--strict")
    assert (done.returncode, stored()) == (1, [])
    assert "1 of 2 items" in done.stderr and "line 2: give either `check`" in done.stderr
    done = await imported("from-jsonl", str(lines))
    assert (done.returncode, stored()) == (3, ["half-1"]), done.stdout
    assert "line 2: give either `check`" in done.stdout
    assert "imported 1 new tasks of 1 in bad.jsonl, 1 left out" in done.stdout.splitlines()[-1]

    for number in range(26):
        folder = tmp_path / "set" / f"half-{number + 2}"
        (folder / "tests").mkdir(parents=True)
        (folder / "tests" / "test.sh").touch()
        (folder / "instruction.md").write_text("Do it.")
        (folder / "task.toml").write_text("[environment]\ngpus = 1\n" if number else "")
    done = await imported("from-harbor", str(tmp_path / "set"), "--image", "host")
    assert (done.returncode, stored()) == (3, ["half-1", "half-2"]), done.stdout + done.stderr
    assert "imported 1 new tasks of 1 in set, 25 left out" in done.stdout.splitlines()[-1]
    assert done.stdout.count("the task needs GPUs") == 20 and "and 5 more" in done.stdout
    (line,) = [line for line in done.stdout.splitlines() if "all of them: " in line]
    assert len(Path(line.rpartition(": ")[2]).read_text().splitlines()) == 25


ONLINE = {
    "task.toml": "[verifier]\ntimeout_sec = 30\n[agent]\ntimeout_sec = 900\n[environment]\nworkdir = '/tmp'",
    "instruction.md": "Fetch the page.\n",
    "tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n",
    "solution/solve.sh": "true\n",
}
SUITE = """
name = "terminal"
harnesses = ["orchard-task"]
task_sets = [{ source = "terminal", unproven = true }]
models = [{ name = "oracle", endpoint = "oracle", kind = "oracle" }]
"""


@pytest.mark.long
async def test_tasks_that_ask_for_a_network_are_refused_by_all_that_would_run_them_without(
    running: Running, command_line: Command, tmp_path: Path
) -> None:
    for name, text in ONLINE.items():
        (tmp_path / "fetch" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "fetch" / name).write_text(text)
    (tmp_path / "suite.toml").write_text(SUITE)

    async def done(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(command_line, *words, store=running.store, COLUMNS="200", **variables)

    imported = ("tasks", "from-harbor", str(tmp_path / "fetch"), "--image", "host", "--source", "terminal")
    assert (await done(*imported)).returncode == 0
    submit = ("submit", "online", "--model", "oracle/resolves", "--source", "terminal", "--unproven")
    for words in (submit, ("eval", str(tmp_path / "suite.toml")), ("tasks", "validate", "fetch")):
        refused = await done(*words)
        assert refused.returncode == 1, words
        assert "task_network" in refused.stderr
        assert "asks for a network" in refused.stderr or "1 of 1 tasks ask for a network" in refused.stderr
    planned = await done("eval", str(tmp_path / "suite.toml"), "--plan")
    assert "this suite is refused: 1 of 1 tasks ask for a network (fetch)" in planned.stdout

    asked = await done(*submit, ORCHARD_SANDBOX__TASK_NETWORK="as_asked")
    assert "1 of 1 tasks have a network, for agent and check: any public address" in asked.stdout
    await until(lambda: bool(running.outcomes("online")), "the outcome where the workers say never")
    ended = "select harness, cause, turns from rollouts where campaign = 'online'"
    assert running.sql(ended) == [("orchard-task", "invalid_request", 0)]

    begun, granted = [*submit], {"ORCHARD_SANDBOX__TASK_NETWORK": "as_asked"}
    begun[1] = "begun"
    assert (await done(*begun, "--harness", "orchard-bash", **granted)).returncode == 0
    assert (await done(*begun, **granted)).returncode == 0, "a campaign goes on with the harness that it has"


@pytest.mark.long
async def test_tasks_below_a_minimum_label_are_left_out_and_told(
    running: Running, command_line: Command
) -> None:
    labels = (Protected.VALUE, Protected.FORGEABLE, None)
    tasks = [tiny_task(number) for number in range(len(labels))]
    names = [task.task_id for task in tasks]
    async with registry(running.session) as kept:
        for task, label in zip(tasks, labels, strict=True):
            event = TaskValidated(
                task_id=task.task_id,
                task_hash=task_hash(task),
                runs=1,
                seconds=1.0,
                protected=label,
                protected_why="so it is",
            )
            await kept.record(Validation(original=task, task=task, event=event))

    async def orchard(*words: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(command_line, *words, store=running.store, COLUMNS="300")

    listed = (await orchard("tasks", "list", "--source", "tiny")).stdout.splitlines()
    assert ["value" in line for line in listed if names[0] in line] == [True]
    facts = (await orchard("tasks", "list", "--json")).stdout
    check("tasks list", facts)
    assert jq(f'.tasks[] | select(.task_id == "{names[0]}") | .protected', facts) == "value\n"
    assert "so it is" in (await orchard("tasks", "show", names[1])).stdout

    chosen = [word for name in names for word in ("--task", name)]
    submit = ("submit", "protected", "--model", "oracle", *chosen, "--min-protected")
    done = await orchard(*submit, "echo")
    assert done.returncode == 0 and "1 rollout of 1 task." in done.stdout, done.stderr
    assert "left out: 2 tasks below --min-protected echo" in done.stdout
    assert "1 tasks have no label" in done.stdout and "count as `inside`" in done.stdout
    none = await orchard("submit", "none", "--model", "oracle", "--task", names[1], "--min-protected", "bit")
    assert none.returncode == 1 and "no task that matches is at least `bit`" in none.stderr

    def run(**pool: object) -> RlSettings:
        pool = {"ids": tuple(names), **pool}
        return RlSettings(run="labels", model="m", out="o", harness="orchard-bash", tasks=TaskPool(**pool))  # type: ignore[arg-type]

    with pytest.raises(RunError, match=rf"a \+1 on {names[1]}, .*tasks.min_protected = \"inside\""):
        await enter(running.session, run())
    told = Notes()
    plan, _ = await enter(running.session, run(min_protected=Protected.INSIDE), told)
    assert [task.task_id for task in plan.tasks] == [names[0], names[2]]
    assert [note.partition(",")[0] for note in told.notes] == [
        "1 tasks have no label",
        "1 tasks are no prompts: below_min_protected",
    ]


class Notes(Reporter):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str, label: str = "") -> None:
        self.notes.append(f"{label}{text}")
