"""Tasks that are judged by the state of the sandbox are proven by a rule of their own, in real sandboxes."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchard.injector.client import AsyncSandboxClient
from orchard.pipelines.tasks.proving import ValidationSettings
from orchard.pipelines.tasks.validate import Validator
from orchard.schemas.events import TaskRejected, TaskValidated
from orchard.schemas.tasks import StateCheck, Task, task_hash
from orchard.storage.blobs import BlobStore
from orchard.workers.failures import InfrastructureError
from tests.refusing_service import Refusal, refusing

TASK = Task(
    task_id="letter",
    source="prompts",
    repo="letters",
    image="host",
    workdir="/tmp",
    statement="Write `Dear Ada` to the file letter.",
    setup_commands=("mkdir desk",),
    gold_patch="cd desk && echo Dear Ada > ../letter\n",
    grading=StateCheck(
        files={"/tmp/expected": "Dear Ada\n"},
        command="diff /tmp/expected /tmp/letter && echo well written",
        timeout_seconds=20.0,
    ),
)


@pytest.fixture
def validator(sandboxes: AsyncSandboxClient, tmp_path: Path) -> Validator:
    return Validator(sandboxes, BlobStore(str(tmp_path / "store")), ValidationSettings(runs=1))


@pytest.mark.long
async def test_a_check_is_proven_by_the_solution_and_by_an_untouched_sandbox(validator: Validator) -> None:
    def but(name: str, **changes: object) -> Task:
        return msgspec.structs.replace(TASK, task_id=name, **changes)

    tasks = [
        TASK,
        but("unknown", gold_patch=""),
        but("wrong", gold_patch="echo Dear Bob > letter"),
        but("easy", grading=StateCheck(files={}, command="true")),
        but("broken", setup_commands=("exit 7",)),
    ]
    events = {task.task_id: (await validator.validate(task)).event for task in tasks}

    proven = events["letter"]
    assert isinstance(proven, TaskValidated)
    assert proven.detail is None
    unknown = events["unknown"]
    assert isinstance(unknown, TaskValidated)
    assert unknown.detail is not None
    assert "no solution is known" in unknown.detail
    rejected = {name: event for name, event in events.items() if isinstance(event, TaskRejected)}
    assert {name: event.reason for name, event in rejected.items()} == {
        "wrong": "gold_does_not_resolve",
        "easy": "empty_resolves",
        "broken": "invalid",
    }
    assert "> Dear Bob" in rejected["wrong"].detail, "the end of the check's log says why"


@pytest.mark.long
async def test_a_check_runs_in_the_safest_sandbox_in_which_the_solution_passes(validator: Validator) -> None:
    """Validation finds it by trial: a check that looks at processes needs the agent's, one that looks
    elsewhere than in the work directory needs its files, and what the task says itself stands."""

    def but(name: str, command: str, **changes: Any) -> Task:
        check = StateCheck(files={}, command=command, timeout_seconds=20.0, **changes)
        return msgspec.structs.replace(TASK, task_id=name, grading=check, setup_commands=())

    told = "echo Dear Ada > letter; (exec -a greeter sleep 600) > /dev/null 2>&1 & cp letter /var/letter"
    read = "grep -q Ada {} && echo well written"
    tasks = [
        but("data", read.format("/tmp/letter")),
        but("elsewhere", read.format("/var/letter")),
        but("named", read.format("/var/letter"), check_in="fresh", check_paths=("/var",)),
        but("process", "grep -qsa ^greeter /proc/[0-9]*/cmdline"),
        but("process-said", "grep -qsa ^greeter /proc/[0-9]*/cmdline", check_in="fresh"),
    ]
    found = {
        task.task_id: await validator.validate(msgspec.structs.replace(task, gold_patch=told))
        for task in tasks
    }
    events = {name: each.event for name, each in found.items()}
    assert {
        name: each.task.grading.check_in  # type: ignore[union-attr]
        for name, each in found.items()
        if isinstance(events[name], TaskValidated)
    } == {"data": "fresh", "elsewhere": "stopped", "named": "fresh", "process": msgspec.UNSET}
    assert "check_in = fresh: with" not in (events["data"].detail or "")
    for name in ("elsewhere", "process"):
        assert "not proven with check_in = fresh" in (events[name].detail or ""), "the event says why"
    assert isinstance(events["process-said"], TaskRejected)
    assert events["data"].task_hash == task_hash(found["data"].task) != task_hash(found["data"].original)
    assert events["process"].task_hash == task_hash(found["process"].original)


@pytest.mark.parametrize("reason", [(410, "image_denied"), (422, "sandbox_refused")])
async def test_what_its_image_cannot_be_had_for_is_neither_proven_nor_rejected(
    sandboxes: AsyncSandboxClient, tmp_path: Path, reason: Refusal
) -> None:
    away = msgspec.structs.replace(TASK, image="registry.example/away:1")
    settings = ValidationSettings(runs=1)
    async with (
        refusing(sandboxes.base_url, lambda _: reason) as (url, _),
        AsyncSandboxClient(url) as client,
    ):
        validator = Validator(client, BlobStore(str(tmp_path / "store")), settings)
        with pytest.raises(InfrastructureError, match=f"because of {reason[1]}"):
            await validator.validate(away)
