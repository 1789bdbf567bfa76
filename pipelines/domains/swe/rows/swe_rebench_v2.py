"""SWE-rebench V2: 20 languages, an `install_config` with commands and parser for each row."""

from orchard.pipelines.domains.swe.benchmark_repositories import all_of
from orchard.pipelines.domains.swe.rows.columns import Columns, Family, RowFamily, patched_paths, row_task
from orchard.schemas.tasks import SWETests, Task


def _read(columns: Columns) -> Task:
    repo = columns.repo()
    test_patch = columns.patch("test_patch")
    config = columns.object("install_config")
    commands = columns.commands("install_config", config.get("test_cmd"))
    if not commands:
        raise columns.fail("install_config", "must hold the test commands under `test_cmd`")
    return row_task(
        columns,
        Family.SWE_REBENCH_V2,
        repo=repo,
        image=columns.text("image_name"),
        workdir=f"/{repo.split('/')[1]}",
        hints=columns.optional("hints_text"),
        version=columns.optional("version"),
        grading=SWETests(
            test_patch=test_patch,
            test_files=tuple(patched_paths(test_patch)),
            test_command=all_of(commands),
            parser=columns.parser("install_config", str(config.get("log_parser", ""))),
            strip_timing=True,
            fail_to_pass=columns.tests("FAIL_TO_PASS", empty=False),
            pass_to_pass=columns.tests("PASS_TO_PASS", empty=True),
        ),
    )


SWE_REBENCH_V2 = RowFamily(
    Family.SWE_REBENCH_V2, lambda row: "install_config" in row and "docker_image" not in row, _read
)
