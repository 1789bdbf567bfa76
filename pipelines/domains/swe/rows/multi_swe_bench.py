"""Multi-SWE-bench: rows of pull requests; the image has the script that runs the tests."""

from collections.abc import Mapping
from typing import Any

from orchard.pipelines.domains.swe.rows.columns import Columns, Family, RowFamily, patched_paths, row_task
from orchard.schemas.tasks import SWETests, Task

_SETUP = "rm -f /home/fix.patch /home/test.patch /home/fix-run.sh /home/test-run.sh"
"""The image has the solution."""
_PARSERS = {
    # by the repository
    "jqlang/jq": "automake",
    "nlohmann/json": "ctest",
    "simdjson/simdjson": "ctest",
    "vuejs/core": "vitest",
    "alibaba/fastjson2": "surefire-classes",
    "apache/dubbo": "surefire-classes",
    "fasterxml/jackson-core": "surefire-classes",
    "fasterxml/jackson-dataformat-xml": "surefire-classes",
    # by the language
    "go": "go",
    "rust": "cargo-all",
}
"""Parsers of Orchard that read whole logs as those of multi-swe-bench 1.1.2. Others of its repositories
change their parser between pull requests."""


def _read(columns: Columns) -> Task:
    org, name, number = columns.text("org"), columns.text("repo"), columns.value("number")
    repo, language = f"{org}/{name}", columns.optional("lang") or columns.optional("language")
    test_patch = columns.patch("test_patch")
    parser = (
        columns.given.parser
        or _PARSERS.get(repo.lower())
        or _PARSERS.get(language.lower())
        or _missing(columns, repo)
    )
    return row_task(
        columns,
        Family.MULTI_SWE_BENCH,
        task_id=columns.optional("instance_id") or f"{org}__{name}-{number}",
        repo=repo,
        image=columns.image() or f"mswebench/{org}_m_{name}:pr-{number}".lower(),
        workdir=columns.given.workdir or f"/home/{name}",
        base_commit=columns.text("base.sha"),
        gold_patch=columns.patch("fix_patch"),
        statement=_statement(columns),
        setup=(_SETUP,),
        language=language,
        grading=SWETests(
            test_patch=test_patch,
            test_files=tuple(patched_paths(test_patch)),
            test_command=columns.given.test_command or "bash /home/run.sh",
            parser=columns.parser("repo", parser),
            fail_to_pass=_names(columns, "fixed_tests", "f2p_tests", "s2p_tests", "n2p_tests"),
            pass_to_pass=_names(columns, "p2p_tests"),
        ),
    )


def _missing(columns: Columns, repo: str) -> str:
    raise columns.fail("repo", f"is {repo!r}, of whose test output no parser is known: pass --parser")


def _statement(columns: Columns) -> str:
    """The issues that the pull request resolves, or its own text where it names none."""
    issues = columns.value("resolved_issues") or [columns.row]
    said = "\n\n".join(
        f"{issue.get('title') or ''}\n\n{issue.get('body') or ''}".strip()
        for issue in issues
        if isinstance(issue, Mapping)
    )
    if not said:
        raise columns.fail("resolved_issues", "has no issue with a title or a text, so nothing is asked")
    return said


def _names(columns: Columns, *several: str) -> tuple[str, ...]:
    """Tests by their names, as an object or, in Parquet, as columns of which one is `name`."""
    found: dict[str, Any] = {}
    for column in several:
        tests = columns.value(column) or {}
        if not isinstance(tests, Mapping):
            raise columns.fail(column, f"must be an object of tests by name, not {type(tests).__name__}")
        names = tests.get("name", tests)
        found |= dict.fromkeys(names if isinstance(names, list) else (name for name in tests if tests[name]))
    if not found and "fixed_tests" in several:
        raise columns.fail("fixed_tests", "names no test, so nothing could be resolved")
    return tuple(found)


MULTI_SWE_BENCH = RowFamily(Family.MULTI_SWE_BENCH, lambda row: "fix_patch" in row and "org" in row, _read)
