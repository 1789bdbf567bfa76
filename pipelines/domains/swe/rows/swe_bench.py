"""SWE-bench, Verified, Multilingual, and rows of any repository that say how its tests run."""

from collections.abc import Sequence

from orchard.pipelines.domains.swe.before_after import reporting
from orchard.pipelines.domains.swe.benchmark_repositories import given_command, repository
from orchard.pipelines.domains.swe.multilingual import commands_of_script, suite
from orchard.pipelines.domains.swe.rows.columns import (
    CONDA,
    Columns,
    Family,
    RowFamily,
    patched_paths,
    row_task,
)
from orchard.schemas.tasks import SWETests, Task


def image_name(instance_id: str) -> str:
    """The published image of a SWE-bench instance: two underscores cannot stand in an image's name."""
    return f"swebench/sweb.eval.x86_64.{instance_id.replace('__', '_1776_')}:latest".lower()


def _read(columns: Columns) -> Task:
    repo = columns.repo()
    test_patch = columns.patch("test_patch")
    paths = patched_paths(test_patch)
    fail_to_pass = columns.tests("FAIL_TO_PASS", empty=False)
    pass_to_pass = columns.tests("PASS_TO_PASS", empty=True)
    known, other = repository(repo), suite(repo)
    build, command, parser = _ways(columns, repo, paths, (*fail_to_pass, *pass_to_pass))
    image = columns.image()
    if known is None and other is None and not image:
        raise columns.fail("image_name", f"is missing, and no image of {repo!r} is known: pass --image")
    return row_task(
        columns,
        Family.SWE_BENCH,
        repo=repo,
        environment={} if known is None else CONDA,
        image=image or image_name(columns.text("instance_id")),
        workdir=columns.optional("workdir") or columns.given.workdir or "/testbed",
        hints=columns.optional("hints_text"),
        version=columns.optional("version"),
        language="" if other is None else other.language,
        grading=SWETests(
            test_patch=test_patch,
            test_files=tuple(paths),
            test_command=command,
            parser=columns.parser("log_parser", parser),
            pre_commands=build,
            fail_to_pass=fail_to_pass,
            pass_to_pass=pass_to_pass,
        ),
    )


def _ways(
    columns: Columns, repo: str, paths: Sequence[str], tests: Sequence[str]
) -> tuple[tuple[str, ...], str, str]:
    """(lines that go before, test command, parser): those of the row or the user, of the SWE-bench
    repository, of the row's script, or of the Multilingual repository."""
    own = columns.optional("test_command") or columns.optional("test_cmd") or columns.given.test_command
    parser = columns.optional("log_parser") or columns.optional("parser") or columns.given.parser
    if own:
        return ((), *reporting(given_command(own, paths), parser))
    known, other = repository(repo), suite(repo)
    script = commands_of_script(columns.optional("eval_script"))
    build: tuple[str, ...] = ()
    command: str | None
    if known is not None:
        command, parser = known.test_command(paths), parser or known.parser
    elif script is not None and (parser or other is not None):
        build, command = script
        parser = parser or (other.parser if other else "")
    elif other is not None:
        build, command, parser = other.build, other.test_command(paths, tests), parser or other.parser
    else:
        raise columns.fail(
            "repo",
            f"is {repo!r}, whose test command is not known: give it in a column `test_command`, or pass "
            "--test-command",
        )
    if command is None:
        raise columns.fail("test_patch", "touches no test file that could be run")
    return build, command, parser


SWE_BENCH = RowFamily(Family.SWE_BENCH, lambda _: True, _read)
