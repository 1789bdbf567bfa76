"""SWE-rebench: an image and an `install_config` with pytest's command for each row."""

from orchard.pipelines.domains.swe.benchmark_repositories import pytest_command
from orchard.pipelines.domains.swe.rows.columns import (
    CONDA,
    Columns,
    Family,
    RowFamily,
    patched_paths,
    row_task,
)
from orchard.schemas.tasks import SWETests, Task


def _read(columns: Columns) -> Task:
    test_patch = columns.patch("test_patch")
    config = columns.object("install_config")
    commands = columns.commands("install_config", config.get("test_cmd"))
    if len(commands) != 1:
        raise columns.fail("install_config", "must hold one test command under `test_cmd`")
    command = pytest_command(commands[0], patched_paths(test_patch))
    if command is None:
        raise columns.fail("test_patch", "touches no test file that could be run")
    return row_task(
        columns,
        Family.SWE_REBENCH,
        repo=columns.repo(),
        environment=CONDA,
        image=columns.image() or columns.text("image_name"),
        hints=columns.optional("hints_text"),
        version=columns.optional("version"),
        grading=SWETests(
            test_patch=test_patch,
            test_files=tuple(patched_paths(test_patch)),
            test_command=command,
            parser=columns.parser("install_config", str(config.get("log_parser", "pytest"))),
            fail_to_pass=columns.tests("FAIL_TO_PASS", empty=False),
            pass_to_pass=columns.tests("PASS_TO_PASS", empty=True),
        ),
    )


SWE_REBENCH = RowFamily(
    Family.SWE_REBENCH, lambda row: "install_config" in row and "docker_image" in row, _read
)
