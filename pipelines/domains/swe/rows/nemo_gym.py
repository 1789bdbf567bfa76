"""SWE rows of NeMo Gym, on which Nemotron was trained: rows of other datasets inside a request, and rows with
a script that runs the tests and one that parses their output."""

from orchard.pipelines.domains.swe.rows.columns import (
    NOTHING_GIVEN,
    Columns,
    Family,
    Row,
    RowFamily,
    patched_paths,
    row_task,
)
from orchard.pipelines.domains.swe.rows.scripted import by_scripts
from orchard.schemas.tasks import SWETests, Task

_INSIDE = "responses_create_params.metadata.instance_dict", "instance"


def unwrapped(row: Row, number: int) -> Row:
    """The row of another dataset that is inside a row of NeMo Gym; any other row as it is.

    Raises MalformedRow for one that is no object.
    """
    columns = Columns(row, number, NOTHING_GIVEN)
    outer = next((name for name in _INSIDE if name.partition(".")[0] in row and columns.value(name)), None)
    return row if outer is None else columns.object(outer)


def _read(columns: Columns) -> Task:
    test_patch = columns.patch("test_patch")
    files = columns.tests("test_files", empty=True) or tuple(patched_paths(test_patch))
    exports = columns.commands("env_exports", columns.value("env_exports") or [])
    return row_task(
        columns,
        Family.NEMO_GYM,
        repo=columns.repo(),
        image=columns.optional("image_ref") or columns.image() or columns.text("image_ref"),
        workdir=columns.optional("workdir") or columns.given.workdir or "/app",
        grading=SWETests(
            test_patch=test_patch,
            test_files=tuple(patched_paths(test_patch)),
            test_command="\n".join(
                [*exports, by_scripts(columns.text("run_script"), columns.text("parsing_script"), files)]
            ),
            parser="statuses-json",
            fail_to_pass=columns.tests("FAIL_TO_PASS", empty=False),
            pass_to_pass=columns.tests("PASS_TO_PASS", empty=True),
        ),
    )


NEMO_GYM = RowFamily(Family.NEMO_GYM, lambda row: "run_script" in row and "image_ref" in row, _read)
