"""SWE-bench-Live: commands in the row, and pytest's parser or a function in Python. A test that the log does
not name has failed here; the benchmark lets it pass if another that must pass does."""

from orchard.pipelines.domains.swe.rows.columns import (
    CONDA,
    Columns,
    Family,
    RowFamily,
    patched_paths,
    row_task,
)
from orchard.pipelines.domains.swe.rows.scripted import by_function
from orchard.schemas.tasks import SWETests, Task


def _read(columns: Columns) -> Task:
    instance = columns.text("instance_id")
    test_patch = columns.patch("test_patch")
    commands = columns.commands("test_cmds", columns.value("test_cmds"))
    if not commands:
        raise columns.fail("test_cmds", "holds no command that runs the tests")
    # The last of them prints what the others wrote, where the row says how.
    shown = columns.commands("print_cmds", columns.value("print_cmds") or [])
    command = "\n".join([*commands, *shown])
    parser = columns.optional("log_parser") or columns.text("parser")
    if "def parser" in parser:
        command, parser = by_function(command, parser), "statuses-json"
    return row_task(
        columns,
        Family.SWE_BENCH_LIVE,
        repo=columns.repo(),
        environment=CONDA,
        image=columns.image(
            f"starryzhang/sweb.eval.x86_64.{instance.replace('__', '_1776_')}:latest".lower()
        ),
        workdir=columns.given.workdir or "/testbed",
        hints=columns.optional("hints_text"),
        grading=SWETests(
            test_patch=test_patch,
            test_files=tuple(patched_paths(test_patch)),
            test_command=command,
            parser=columns.parser("log_parser", parser),
            pre_commands=tuple(columns.commands("rebuild_cmds", columns.value("rebuild_cmds") or [])),
            fail_to_pass=columns.tests("FAIL_TO_PASS", empty=False),
            pass_to_pass=columns.tests("PASS_TO_PASS", empty=True),
        ),
    )


SWE_BENCH_LIVE = RowFamily(Family.SWE_BENCH_LIVE, lambda row: "test_cmds" in row, _read)
