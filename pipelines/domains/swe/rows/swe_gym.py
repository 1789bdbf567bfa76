"""SWE-Gym: SWE-bench's columns for 11 other repositories."""

import shlex

from orchard.pipelines.domains.swe.benchmark_repositories import pytest_command
from orchard.pipelines.domains.swe.rows.columns import (
    CONDA,
    Columns,
    Family,
    Row,
    RowFamily,
    patched_paths,
    row_task,
)
from orchard.schemas.tasks import SWETests, Task

_PYTEST = "pytest -rA -p no:cacheprovider"
_MYPY = "python/mypy"
_REPOSITORIES = (
    "bokeh/bokeh",
    "conan-io/conan",
    "dask/dask",
    "facebookresearch/hydra",
    "getmoto/moto",
    "iterative/dvc",
    "modin-project/modin",
    "pandas-dev/pandas",
    "project-monai/monai",
    "pydantic/pydantic",
    _MYPY,
)


def _read(columns: Columns) -> Task:
    instance, repo = columns.text("instance_id"), columns.repo()
    test_patch = columns.patch("test_patch")
    paths = patched_paths(test_patch)
    fail_to_pass = columns.tests("FAIL_TO_PASS", empty=False)
    pass_to_pass = columns.tests("PASS_TO_PASS", empty=True)
    tests = (*fail_to_pass, *pass_to_pass)
    if repo.lower() == _MYPY:
        # Its cases are text; the modules that run them take the names of cases.
        names = " or ".join(dict.fromkeys(test.rpartition("::")[2] for test in tests))
        paths = sorted({test.partition("::")[0] for test in tests})
        command = pytest_command(f"{_PYTEST} -k {shlex.quote(names)}", paths)
    else:
        command = pytest_command(_PYTEST, paths)
    if command is None:
        raise columns.fail("test_patch", "touches no test file that could be run")
    return row_task(
        columns,
        Family.SWE_GYM,
        repo=repo,
        environment=CONDA,
        image=columns.image(f"xingyaoww/sweb.eval.x86_64.{instance.replace('__', '_s_')}:latest".lower()),
        workdir=columns.given.workdir or "/testbed",
        hints=columns.optional("hints_text"),
        version=columns.optional("version"),
        language="python",
        grading=SWETests(
            test_patch=test_patch,
            test_files=tuple(patched_paths(test_patch)),
            test_command=command,
            fail_to_pass=fail_to_pass,
            pass_to_pass=pass_to_pass,
        ),
    )


def _known(row: Row) -> bool:
    own = any(row.get(name) for name in ("test_command", "test_cmd", "eval_script"))
    return str(row.get("repo")).lower() in _REPOSITORIES and not own


SWE_GYM = RowFamily(Family.SWE_GYM, _known, _read)
