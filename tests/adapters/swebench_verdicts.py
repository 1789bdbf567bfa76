"""Submissions judged by the published rules, as `orchard eval` judges: swebench, given the same output of the
tests, comes to the same verdicts."""

import json
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from orchard.injector.client import AsyncSandboxClient
from orchard.schemas.tasks import SWETests, Task
from orchard.storage.blobs import BlobStore
from orchard.workers.episode.machine import Machine
from orchard.workers.episode.sandboxes import SandboxMachine
from orchard.workers.graders import grade
from tests.tiny_tasks import build_tiny_image, tiny_task

TASKS = 20
RIGHT = "    total = left + right"
CHANGES = {
    "nothing": None,
    "right": RIGHT,
    "wrong": "    total = left * right",
    "no Python": "    total = (left +",
    "breaks a test": "    total = left + right or 1",
    "ends the process": "    __import__('os')._exit(0)",
    "skips all": "    raise __import__('unittest').SkipTest('hard')",
}
SWEBENCH = """
import json, sys
from pathlib import Path
from swebench.harness.grading import get_eval_report
from swebench.types import TestSpec

found = {}
for case in json.loads(Path(sys.argv[1]).read_text()):
    log = Path(sys.argv[1]).with_suffix(".log")
    log.write_text(case["log"])
    row = TestSpec(eval_script_list=[], image="", version="", eval_type="pass_and_fail", **case["row"])
    report = get_eval_report(row, case["prediction"], str(log), True)
    found[case["row"]["instance_id"]] = report[case["row"]["instance_id"]]["resolved"]
print(json.dumps(found))
"""


def submission(number: int, line: str | None) -> str:
    """The known solution of the task with another line in place of the right one."""
    return "" if line is None else tiny_task(number).gold_patch.replace(f"+{RIGHT}\n", f"+{line}\n")


async def judged(task: Task, patch: str, client: AsyncSandboxClient, blobs: BlobStore) -> tuple[bool, str]:
    """Whether the patch resolves the task, and the output of the tests."""

    @asynccontextmanager
    async def pristine() -> AsyncIterator[Machine]:
        async with await client.create_sandbox(task.image, cpu="1", memory=task.memory) as sandbox:
            yield SandboxMachine(sandbox)

    async with pristine() as machine:
        reward = await grade(
            task, patch, machine, timeout=120.0, blobs=blobs, pristine=pristine, published=True
        )
    assert reward.grader == "swe-tests-published"
    return reward.resolved, "" if reward.log is None else blobs.get(reward.log).decode()


def by_swebench(cases: list[dict[str, Any]], file: Path) -> dict[str, bool]:
    file.write_text(json.dumps(cases))
    python = Path(os.environ["ADAPTERS"], "swebench", "bin", "python")
    command = [str(python), "-c", SWEBENCH, str(file)]
    said = subprocess.run(command, check=True, capture_output=True, text=True, cwd=file.parent)
    found: dict[str, bool] = json.loads(said.stdout.splitlines()[-1])
    return found


async def test_verdicts_are_those_of_swebench(tmp_path: Path) -> None:
    ours, cases = {}, []
    async with AsyncSandboxClient(os.environ["SANDBOX_BASE_URL"]) as client:
        await build_tiny_image(client, TASKS)
        for number in range(TASKS):
            task = tiny_task(number)
            assert isinstance(task.grading, SWETests)
            patch = submission(number, list(CHANGES.values())[number % len(CHANGES)])
            ours[task.task_id], log = await judged(task, patch, client, BlobStore(str(tmp_path / "store")))
            row = {
                "instance_id": task.task_id,
                "repo": task.repo,
                "log_parser": "parse_log_django",
                "FAIL_TO_PASS": task.grading.fail_to_pass,
                "PASS_TO_PASS": task.grading.pass_to_pass,
            }
            prediction = {"instance_id": task.task_id, "model_name_or_path": "m", "model_patch": patch}
            marked = f">>>>> Start Test Output\n{log}\n>>>>> End Test Output\n"
            cases.append({"row": row, "prediction": prediction, "log": marked})
    assert by_swebench(cases, tmp_path / "cases.json") == ours
    assert set(ours.values()) == {True, False}
