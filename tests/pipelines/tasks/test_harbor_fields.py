"""What a Harbor definition says of users, readiness, scripts, rewards and the place of its tests is done."""

from pathlib import Path

import msgspec
import pytest

from orchard.injector.client import AsyncSandboxClient
from orchard.pipelines.tasks.directories import directory_task, read_directory
from orchard.pipelines.tasks.errors import TaskError
from orchard.pipelines.tasks.proving import ProofContext, ValidationSettings
from orchard.pipelines.tasks.validate import Validator
from orchard.schemas.events import TaskRejected, TaskValidated
from orchard.schemas.outcomes import Reward
from orchard.schemas.tasks import Asked, CheckSandbox, StateCheck, Task
from orchard.storage.blobs import BlobStore
from orchard.workers.failures import InfrastructureError

BEGINNING = '[environment]\nworkdir = "/tmp"\nnetwork_mode = "no-network"\n'
REWARD = "/logs/verifier/reward"
PYTHON_SCRIPT = f"""#!/usr/bin/env python3
import pathlib
solved = pathlib.Path("solved").exists()
pathlib.Path("{REWARD}.json").write_text('{{"reward": %s, "style": 0.25}}' % (0.75 if solved else 0))
"""


def _task(path: Path, **files: str) -> Task:
    given = {"task.toml": BEGINNING, "instruction.md": "Solve it.\n", "solution/solve.sh": "touch solved\n"}
    for name, text in (given | files).items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    return directory_task(read_directory(path), "host")


def _check(task: Task) -> tuple[StateCheck, CheckSandbox]:
    assert isinstance(task.grading, StateCheck) and isinstance(task.grading.sandbox, CheckSandbox)
    return task.grading, task.grading.sandbox


async def _graded(client: AsyncSandboxClient, task: Task, path: Path, solution: str | None = None) -> Reward:
    context = ProofContext(client, BlobStore(str(path / "store")), ValidationSettings(runs=1))
    return await context.grade(task, task.gold_patch if solution is None else solution)


@pytest.mark.long
async def test_a_script_is_executed_and_all_its_numbers_are_kept(
    sandboxes: AsyncSandboxClient, tmp_path: Path
) -> None:
    task = _task(tmp_path / "it", **{"tests/test.sh": PYTHON_SCRIPT})
    reward = await _graded(sandboxes, task, tmp_path)
    assert (reward.value, reward.resolved, reward.score) == (-1.0, False, 0.75)
    assert reward.parts == {"reward": 0.75, "style": 0.25}
    eased = directory_task(read_directory(tmp_path / "it"), "host", resolved_at=0.75)
    reward = await _graded(sandboxes, eased, tmp_path)
    assert (reward.value, reward.resolved, reward.score) == (1.0, True, 0.75)


@pytest.mark.long
@pytest.mark.parametrize(
    ("rewards", "score"),
    [('{"pass": 1}', 1.0), ('{"reward": true, "b": 3}', 1.0), ('{"a": 1, "b": 1}', None)],
)
async def test_one_number_alone_is_the_reward(
    sandboxes: AsyncSandboxClient, tmp_path: Path, rewards: str, score: float | None
) -> None:
    script = f"echo '{rewards}' > {REWARD}.json\n"
    task = _task(
        tmp_path / "it",
        **{"tests/test.sh": f"[ -e solved ] && {script} [ -e solved ] || echo 0 > {REWARD}.txt"},
    )
    verdict = await Validator(
        sandboxes, BlobStore(str(tmp_path / "store")), ValidationSettings(runs=1)
    ).validate(task)
    assert isinstance(verdict.event, TaskValidated if score else TaskRejected), verdict.event


@pytest.mark.long
async def test_solution_and_tests_run_as_their_users(sandboxes: AsyncSandboxClient, tmp_path: Path) -> None:
    users = '[agent]\nuser = "nobody"\n[verifier]\nuser = "daemon"\n'
    test = f"[ $(id -un) = daemon ] && [ $(stat -c %U solved) = nobody ] && echo 1 > {REWARD}.txt"
    files = {"task.toml": BEGINNING + users, "tests/test.sh": f"{test} || echo 0 > {REWARD}.txt\n"}
    files["solution/solve.sh"] = "rm -f solved; touch solved\n"
    task = _task(tmp_path / "it", **files)
    assert task.user == "nobody"
    reward = await _graded(sandboxes, task, tmp_path)
    assert reward.resolved, reward.detail


@pytest.mark.long
async def test_the_agent_waits_for_what_is_to_be_ready(sandboxes: AsyncSandboxClient, tmp_path: Path) -> None:
    check = "[environment.healthcheck]\ninterval_sec = 0.1\nretries = 2\n"
    third = "command = 'echo x >> /tmp/tries; [ $(wc -l < /tmp/tries) -ge 2 ]'\n"
    test = f"[ -e solved ] && wc -l < /tmp/tries > {REWARD}.txt || echo 0 > {REWARD}.txt\n"
    task = _task(tmp_path / "it", **{"task.toml": BEGINNING + check + third, "tests/test.sh": test})
    assert (await _graded(sandboxes, task, tmp_path)).score == 2.0
    never = _task(
        tmp_path / "never", **{"task.toml": f'{BEGINNING}{check}command = "false"\n', "tests/test.sh": test}
    )
    validator = Validator(sandboxes, BlobStore(str(tmp_path / "store")), ValidationSettings(runs=1))
    event = (await validator.validate(never)).event
    assert isinstance(event, TaskRejected) and "the healthcheck failed 2 times" in event.detail


SEPARATE = """artifacts = ["/tmp/out", "/tmp/note.txt", "/tmp/missing"]
[verifier]
environment_mode = "separate"
network_mode = "public"
[verifier.env]
WANTED = "forty-two"
[environment]
network_mode = "no-network"
workdir = "/tmp"
"""


@pytest.mark.long
async def test_a_separate_verifier_has_the_artifacts_and_nothing_else(
    sandboxes: AsyncSandboxClient, tmp_path: Path
) -> None:
    test = f"""
found=$(cat /tmp/out/deep/answer) note=$(cat /tmp/note.txt) made=$(cat /logs/artifacts/made)
echo 0 > {REWARD}.txt
[ ! -e /tmp/beside ] && [ -z "$(find /tmp/out -name tests -o -name up)" ] && [ -L /tmp/out/deep/in ] || exit
[ "$found$note$made" = "$WANTED-and-more" ] && echo 1 > {REWARD}.txt
"""
    solution = (
        "mkdir -p out/deep /logs/artifacts\nprintf forty-two > out/deep/answer\nprintf -- -and > note.txt\n"
        "printf -- -more > /logs/artifacts/made\ntouch beside\n"
        "ln -s /tests/test.sh out/tests; ln -s ../../up out/deep/up; ln -s ../deep/answer out/deep/in\n"
    )
    files = {"task.toml": SEPARATE, "tests/test.sh": test, "solution/solve.sh": solution}
    task = _task(tmp_path / "it", **files)
    check, sandbox = _check(task)
    sandbox = msgspec.structs.replace(sandbox, asks=Asked())
    closed = msgspec.structs.replace(task, grading=msgspec.structs.replace(check, sandbox=sandbox))
    reward = await _graded(sandboxes, closed, tmp_path)
    assert reward.resolved, reward.detail
    assert "in a sandbox of its own" in reward.detail
    nothing = await _graded(sandboxes, closed, tmp_path, "")
    assert (nothing.resolved, nothing.score) == (False, 0.0)
    validator = Validator(sandboxes, BlobStore(str(tmp_path / "store")), ValidationSettings(runs=1))
    with pytest.raises(TaskError, match=r"asks for a network \(any public address\)"):
        await validator.validate(task)


@pytest.mark.long
async def test_an_artifact_that_cannot_be_carried_is_not_taken_for_missing(
    sandboxes: AsyncSandboxClient, tmp_path: Path
) -> None:
    deep = "import os\nfor _ in range(210): os.mkdir('d'); os.chdir('d')"
    test = f"[ -e /tmp/out/answer ] && n=1 || n=0; echo $n > {REWARD}.txt\n"
    toml = SEPARATE.replace('network_mode = "public"\n', "")
    files = {"task.toml": toml, "tests/test.sh": test, "solution/solve.sh": "mkdir out && touch out/answer\n"}
    task = _task(tmp_path / "it", **files)
    assert (await _graded(sandboxes, task, tmp_path)).resolved
    files["solution/solve.sh"] = f'mkdir out && cd out && python3 -c "{deep}"\n'
    with pytest.raises(InfrastructureError, match="the directory has more than 200 levels"):
        await _graded(sandboxes, _task(tmp_path / "deep", **files), tmp_path)


@pytest.mark.long
async def test_files_beside_a_published_image_keep_their_run_bits(
    sandboxes: AsyncSandboxClient, tmp_path: Path
) -> None:
    run = tmp_path / "it" / "environment" / "bin" / "run"
    run.parent.mkdir(parents=True)
    run.write_text("#!/bin/sh\necho 1\n")
    run.chmod(0o755)
    toml = '[environment]\ndocker_image = "host"\nworkdir = "/tmp"\nnetwork_mode = "no-network"\n'
    test = f"[ -e solved ] && ./bin/run > {REWARD}.txt || echo 0 > {REWARD}.txt\n"
    task = _task(tmp_path / "it", **{"task.toml": toml, "tests/test.sh": test})
    assert (await _graded(sandboxes, task, tmp_path)).resolved


def test_an_image_of_the_verifier_has_its_tests(tmp_path: Path) -> None:
    own = {"tests/Dockerfile": "FROM debian:12\nCOPY . /tests\nWORKDIR /judge\n", "tests/test.sh": "true\n"}
    path = tmp_path / "it"
    _task(path, **{"task.toml": f"{SEPARATE}[verifier.environment]\n", **own})
    read = read_directory(path)
    assert read.verifier is not None and read.verifier.bundled and not read.tests
    task = directory_task(read, "agent:1", verifier_image=read.verifier_image)
    check, sandbox = _check(task)
    assert sandbox.image.startswith("harbor/it:")
    assert "cd /judge" in check.command and "/tests" not in str(check.prepare)


def test_files_beside_a_published_image_come_to_the_working_directory(tmp_path: Path) -> None:
    toml = BEGINNING.replace("[environment]\n", '[environment]\ndocker_image = "debian:12"\n')
    task = _task(tmp_path / "it", **{"task.toml": toml, "tests/test.sh": "", "environment/data.txt": "x"})
    assert "./data.txt" in task.setup_commands[0]


def test_what_harbor_does_not_know_is_named(tmp_path: Path) -> None:
    toml = f"{BEGINNING}storage_mb = 100\nspeed = 3\n[verifier.more]\na = 1\n"
    path = tmp_path / "it"
    _task(path, **{"task.toml": toml, "tests/test.sh": ""})
    assert read_directory(path).notes == (
        "Harbor ignores environment.speed, verifier.more, and so does Orchard",
        "it asks for 100 MiB of disk, and a sandbox has what its site gives each",
    )


@pytest.mark.long
async def test_what_an_agent_left_where_the_tests_are_brought_is_not_among_them(
    sandboxes: AsyncSandboxClient, tmp_path: Path
) -> None:
    script = f"[ -e /tests/sub/data ] && [ ! -e /tests/conftest.py ]; echo $((1 - $?)) > {REWARD}.txt"
    task = _task(tmp_path / "it", **{"tests/test.sh": script, "tests/sub/data": "1\n"})
    assert isinstance(task.grading, StateCheck)
    place = next(path for path in task.grading.files if path.endswith("/test.sh")).removesuffix("/test.sh")
    agent = msgspec.structs.replace(task, gold_patch=f"mkdir -p {place} && touch {place}/conftest.py\n")
    reward = await _graded(sandboxes, agent, tmp_path)
    assert reward.resolved, reward.detail


@pytest.mark.parametrize("name", ["A-B", "1A", "Ä"])
def test_a_variable_that_no_shell_can_set_is_refused(tmp_path: Path, name: str) -> None:
    given = f'[verifier.env]\n"{name}" = "1"\n{BEGINNING}'
    with pytest.raises(TaskError, match="cannot be set by a shell"):
        _task(tmp_path / "it", **{"task.toml": given, "tests/test.sh": "true"})


@pytest.mark.long
async def test_a_solution_may_execute_its_other_files(sandboxes: AsyncSandboxClient, tmp_path: Path) -> None:
    files = {"solution/solve.sh": "/solution/bin/other\n", "solution/bin/other": "#!/bin/sh\ntouch solved\n"}
    script = f"[ -e solved ]; echo $((1 - $?)) > {REWARD}.txt"
    reward = await _graded(sandboxes, _task(tmp_path / "it", **{"tests/test.sh": script}, **files), tmp_path)
    assert reward.resolved, reward.detail


def test_lines_may_end_as_on_other_systems(tmp_path: Path) -> None:
    task = _task(tmp_path / "it", **{"tests/test.sh": "true\n"})
    for end in (b"\r\n", b"\r"):
        (tmp_path / "it" / "task.toml").write_bytes(BEGINNING.encode().replace(b"\n", end))
        (tmp_path / "it" / "instruction.md").write_bytes(b"Solve it." + end)
        assert directory_task(read_directory(tmp_path / "it"), "host") == task


@pytest.mark.parametrize(
    ("toml", "files", "said"),
    [
        ("tpu = {}\n", {}, "needs TPUs"),
        (
            'allowed_hosts = ["a.example"]\n',
            {"environment/docker-compose.yaml": "services:\n  main: {network_mode: none}\n"},
            "allowed_hosts needs network_mode",
        ),
        ("", {"environment/docker-compose.yaml/x": ""}, "Is a directory"),
        (
            '[agent]\nallowed_hosts = ["a:80"]\n[[steps]]\nname = "a"\nagent.network_mode = "public"\n',
            {"steps/a/instruction.md": "Do it.\n"},
            "allowed_hosts needs network_mode",
        ),
        (
            '[verifier.environment]\ncpus = nan\n[[steps]]\nname = "a"\n',
            {"steps/a/instruction.md": "Do it.\n"},
            "is not a resource quantity",
        ),
        ("[[verifier.collect]]\ncommand = 'x'\nservice = 'db'\n", {}, "none of this name beside the agent's"),
        ("[[artifacts]]\nsource = '/a'\nservice = 'd b'\n", {}, "that is no name"),
    ],
)
def test_what_nothing_here_does_is_not_dropped(
    tmp_path: Path, toml: str, files: dict[str, str], said: str
) -> None:
    given = BEGINNING.replace('network_mode = "no-network"\n', "") + toml
    with pytest.raises(TaskError, match=said):
        _task(tmp_path / "it", **{"task.toml": given, "tests/test.sh": "true"}, **files)


def test_a_file_in_place_of_the_solutions_is_no_solution(tmp_path: Path) -> None:
    _task(tmp_path / "it", **{"tests/test.sh": "true"})
    (tmp_path / "it" / "solution" / "solve.sh").unlink()
    (tmp_path / "it" / "solution").rmdir()
    (tmp_path / "it" / "solution").write_text("touch solved\n")
    assert not directory_task(read_directory(tmp_path / "it"), "host").gold_patch
