"""A whole `orchard eval` of rows in SWE-bench's columns: swebench reads the predictions that it exports, and,
given what their tests print in sandboxes of this test's own, finds the same tasks resolved."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from orchard.injector.client import AsyncSandboxClient
from orchard.schemas.tasks import SWETests
from tests.adapters.swebench_verdicts import SWEBENCH
from tests.chaos.world import pipeline, session_for
from tests.tiny_tasks import IMAGE, WORKDIR, build_tiny_image, tiny_task

TASKS = 20
SUITE = """
name = "published"
harnesses = ["mini-swe-agent-compact"]
max_tries = 3
published_rules = true
models = [{ name = "oracle", endpoint = "oracle", kind = "oracle" }]
task_sets = [{ source = "rows", unproven = true }]

[budget]
steps = 20
"""
READ = """
import json, sys
from swebench.harness.utils import get_predictions_from_file
print(json.dumps(get_predictions_from_file(sys.argv[1], "", "")))
"""


def row(number: int, commit: str) -> dict[str, Any]:
    task = tiny_task(number)
    assert isinstance(task.grading, SWETests)
    return {
        "instance_id": task.task_id,
        "repo": task.repo,
        "base_commit": commit,
        "problem_statement": task.statement,
        "patch": task.gold_patch,
        "test_patch": task.grading.test_patch,
        "FAIL_TO_PASS": task.grading.fail_to_pass,
        "PASS_TO_PASS": task.grading.pass_to_pass,
        "test_command": task.grading.test_command,
        "log_parser": "parse_log_django",
        "image_name": IMAGE,
    }


async def log_of(client: AsyncSandboxClient, row: dict[str, Any], patch: str) -> str:
    """What the tests print after the patch, applied as swebench applies it."""
    async with await client.create_sandbox(IMAGE, cpu="1", memory="512Mi") as sandbox:
        for name, text in (("model", patch), ("tests", row["test_patch"])):
            await sandbox.upload_content(text, f"/tmp/{name}.diff")
            if text:
                applied = await sandbox.exec(f"git apply /tmp/{name}.diff", cwd=WORKDIR)
                assert applied.succeeded, applied.stderr
        return (await sandbox.exec(f"{row['test_command']} 2>&1", cwd=WORKDIR)).stdout


def by_swebench(program: str, file: Path) -> Any:
    python = Path(os.environ["ADAPTERS"], "swebench", "bin", "python")
    said = subprocess.run([str(python), "-c", program, str(file)], check=True, capture_output=True, text=True)
    return json.loads(said.stdout.splitlines()[-1])


async def test_swebench_resolves_the_predictions_that_a_whole_evaluation_resolves(tmp_path: Path) -> None:
    store, suite, out = tmp_path / "store", tmp_path / "suite.toml", tmp_path / "out"

    def orchard(*words: str) -> str:
        line = [sys.executable, "-m", "orchard", "--store", str(store), *words]
        done = subprocess.run(line, capture_output=True, text=True)
        assert not done.returncode, done.stdout + done.stderr
        return done.stdout

    suite.write_text(SUITE)
    session = session_for(store)
    async with pipeline(store, workers=1, slots=2), session.sandboxes() as client:
        await build_tiny_image(client, TASKS)
        async with await client.create_sandbox(IMAGE, cpu="1", memory="512Mi") as sandbox:
            commit = (await sandbox.exec("git rev-parse HEAD", cwd=WORKDIR)).stdout.strip()
        rows = {each["instance_id"]: each for each in (row(number, commit) for number in range(TASKS))}
        (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in rows.values()))
        orchard("tasks", "import", str(tmp_path / "rows.jsonl"), "--source", "rows")
        orchard("eval", str(suite), "--out", str(out))
        graded = (
            "select task_id, resolved from rollouts where campaign = 'published' and resolved is not null"
        )
        ours = {
            each["task_id"]: each["resolved"]
            for each in json.loads(orchard("sql", graded, "--format", "json"))
        }
        (file,) = (out / "preds").iterdir()
        predictions = by_swebench(READ, file)
        cases = [
            {
                "row": {
                    name: rows[each["instance_id"]][name]
                    for name in ("instance_id", "repo", "log_parser", "FAIL_TO_PASS", "PASS_TO_PASS")
                },
                "prediction": each,
                "log": ">>>>> Start Test Output\n"
                f"{await log_of(client, rows[each['instance_id']], each['model_patch'])}\n"
                ">>>>> End Test Output\n",
            }
            for each in predictions
        ]
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    assert by_swebench(SWEBENCH, tmp_path / "cases.json") == ours
    assert len(ours) == TASKS and set(ours.values()) == {True, False}
