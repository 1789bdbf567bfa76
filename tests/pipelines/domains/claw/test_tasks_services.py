"""`orchard tasks validate` on tasks that are graded by their bundle: proven by played calls."""

import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from orchard.injector.client import AsyncSandboxClient
from orchard.pipelines.domains.claw.author import DRAFT_MISTAKES, plot_of
from orchard.pipelines.domains.claw.drafts import read_draft, task_of
from orchard.pipelines.tasks.proving import ValidationSettings
from orchard.pipelines.tasks.validate import Validation, Validator, provable
from orchard.schemas.events import TaskRejected, TaskValidated
from orchard.schemas.tasks import PluginGrading, Task, WorldUse
from orchard.storage.blobs import BlobStore
from tests.claw_world import LETTER, LETTER_ONLY, SCRIPT, desk_task
from tests.sandbox_service import LocalService

SOLUTION = [{"tool": LETTER[0], "arguments": LETTER[1]}]
"""Of the desk's task, without its file."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalService]:
    made = LocalService(tmp_path_factory.mktemp("services") / "state")
    yield made
    made.stop()


@pytest.fixture
async def validator(service: LocalService, tmp_path: Path) -> AsyncIterator[Validator]:
    async with AsyncSandboxClient(service.url) as client:
        yield Validator(client, BlobStore(str(tmp_path / "store")), ValidationSettings(runs=1))


def judged(script: str, solution: object = None, **settings: Any) -> Task:
    """The desk's task with this script, of a world with errors on purpose."""
    task = desk_task(error_rate=0.9)
    tests = {"script": script, **settings}
    gold = "" if solution is None else msgspec.json.encode(solution).decode()
    return msgspec.structs.replace(
        task, grading=PluginGrading(grader="claw", settings=tests), gold_patch=gold
    )


def rejected(found: Validation) -> tuple[str, str]:
    assert isinstance(found.event, TaskRejected), found.event
    return found.event.reason, found.event.detail


@pytest.mark.long
async def test_what_an_author_wrote_is_proven_again_and_its_mistakes_are_found(validator: Validator) -> None:
    plot = plot_of(3, 1)
    found = await validator.validate(task_of(plot.draft))
    assert isinstance(found.event, TaskValidated) and found.event.detail is None
    blind = read_draft(DRAFT_MISTAKES["blind_script"](plot_of(3, 1), random.Random(0)))
    reason, _ = rejected(await validator.validate(task_of(blind)))
    assert reason == "mutation_survives"


@pytest.mark.long
async def test_a_task_by_hand_is_proven_by_its_own_calls_scripts_and_files(validator: Validator) -> None:
    assert isinstance((await validator.validate(judged(LETTER_ONLY, SOLUTION))).event, TaskValidated)
    both = judged(
        LETTER_ONLY, SOLUTION, scripts={"more": "from seen import grade"}, files={"seen.py": SCRIPT}
    )
    assert rejected(await validator.validate(both))[0] == "reference_fails", "the second script wants a file"
    unknown = (await validator.validate(judged(LETTER_ONLY))).event
    assert isinstance(unknown, TaskValidated) and "no solution is known" in str(unknown.detail)
    anything = "def grade(bundle):\n    return {'checks': {'notes': bundle.text('notes/todo.txt') != ''}}"
    assert rejected(await validator.validate(judged(anything)))[0] == "empty_passes"
    assert rejected(await validator.validate(judged(SCRIPT, [{"instrument": "x"}])))[0] == "invalid"
    reason, detail = rejected(await validator.validate(judged(SCRIPT, rubric="Is it polite?")))
    assert reason == "script_failed" and "asks a judge" in detail


def test_a_world_that_only_a_rollout_can_judge_is_told_apart() -> None:
    task = desk_task()
    assert provable(task)
    assert not provable(msgspec.structs.replace(task, world=WorldUse(kind="claw-eval")))
