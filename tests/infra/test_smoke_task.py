"""The task that the deployment guide tries a cluster with: row, repository and image fit together."""

import shutil
import subprocess
from pathlib import Path

from orchard.pipelines.domains.swe.benchmark_rows import task_from_row
from orchard.pipelines.tasks.row_files import check_rows
from orchard.schemas.tasks import SWETests
from tests.infra.conftest import INFRA

SMOKE = INFRA / "smoke"


def test_it_is_solved_by_its_patch_alone(tmp_path: Path) -> None:
    (task,) = check_rows(SMOKE / "tasks.jsonl", task_from_row).tasks()
    assert isinstance(task.grading, SWETests)
    shutil.copytree(SMOKE / "repository", tmp_path, dirs_exist_ok=True)

    def applied(patch: str) -> None:
        subprocess.run(["git", "apply"], cwd=tmp_path, input=patch, text=True, check=True)

    def passed() -> bool:
        command = str(task.grading.test_command)  # type: ignore[union-attr]
        return (
            subprocess.run(command, cwd=tmp_path, shell=True, capture_output=True, check=False).returncode
            == 0
        )

    applied(task.grading.test_patch)
    assert not passed()
    applied(task.gold_patch)
    assert passed()


def test_its_image_is_what_the_file_builds() -> None:
    (task,) = check_rows(SMOKE / "tasks.jsonl", task_from_row).tasks()
    text = (SMOKE / "Containerfile").read_text()
    assert f"-t {task.image} " in text
    assert f"WORKDIR {task.workdir}\nCOPY repository .\n" in text
