"""Scale-SWE: tests as a patch, a synthetic script, or both."""

import shlex

from orchard.pipelines.domains.swe.rows.columns import Columns, Family, RowFamily, patched_paths, row_task
from orchard.pipelines.tasks.trees import diff
from orchard.schemas.tasks import SWETests, Task

_SCRIPT_NAME = "test_fail_to_pass.py"
"""Path of Scale-SWE's synthetic test in the repository."""


def _read(columns: Columns) -> Task:
    fail_to_pass = columns.tests("FAIL_TO_PASS", empty=False)
    pass_to_pass = columns.tests("PASS_TO_PASS", empty=True)
    test_patch = columns.patch("f2p_patch") if columns.optional("f2p_patch") else ""
    script = columns.optional("f2p_script")
    if script:
        test_patch += diff({}, {_SCRIPT_NAME: script.encode()}, [_SCRIPT_NAME])
    if not test_patch:
        raise columns.fail("f2p_patch", "and f2p_script are both empty, so there is no test to bring")
    files = dict.fromkeys(test.split("::")[0] for test in (*fail_to_pass, *pass_to_pass))
    user, repo = columns.text("user"), columns.text("repo")
    return row_task(
        columns,
        Family.SCALE_SWE,
        repo=repo if "/" in repo else f"{user}/{repo}",
        image=columns.text("image_url"),
        workdir=columns.text("workdir"),
        base_commit=columns.text("parent_commit"),
        setup=tuple(columns.commands("pre_commands", columns.value("pre_commands") or [])),
        grading=SWETests(
            test_patch=test_patch,
            test_files=tuple(patched_paths(test_patch)),
            test_command="python -m pytest -rA --tb=short -p no:cacheprovider " + shlex.join(files),
            fail_to_pass=fail_to_pass,
            pass_to_pass=pass_to_pass,
        ),
    )


SCALE_SWE = RowFamily(Family.SCALE_SWE, lambda row: "f2p_patch" in row or "f2p_script" in row, _read)
