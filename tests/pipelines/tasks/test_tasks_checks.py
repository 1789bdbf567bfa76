"""Tasks that are judged by the state of the sandbox are proven by a rule of their own, in real sandboxes."""

from pathlib import Path

import msgspec
import pytest

from orchard.injector.client import AsyncSandboxClient
from orchard.pipelines.tasks.proving import ValidationSettings
from orchard.pipelines.tasks.validate import Validator
from orchard.schemas.events import TaskRejected, TaskValidated
from orchard.schemas.tasks import StateCheck, Task
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
