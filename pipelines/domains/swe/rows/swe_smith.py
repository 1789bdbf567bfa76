"""SWE-smith: a bug as the patch that makes it, in an image without it. The solution is the reversed patch."""

import re
import shlex

from orchard.pipelines.domains.swe.benchmark_repositories import ACTIVATE, given_command
from orchard.pipelines.domains.swe.rows.columns import Columns, Family, RowFamily, row_task
from orchard.schemas.tasks import SWETests, Task

_BASE = "orchard-base"
"""Tag of the commit that has the bug: it is made in each sandbox."""
_PYTEST = "pytest --disable-warnings --color=no --tb=no --verbose"
_COMMANDS = {
    "tkrajina__gpxpy": f"{ACTIVATE} && pytest test.py --verbose --color=no --tb=no --disable-warnings",
    "mido__mido": f"{ACTIVATE} && {_PYTEST} -rs -c /dev/null",
    "paramiko__paramiko": f"{ACTIVATE} && pytest -rA --color=no --disable-warnings",
    "pydantic__pydantic": f"/root/.local/bin/uv run {_PYTEST}",
}
"""Commands of the repositories that do not run the named files by pytest as the others do."""
_OTHER = ("un33k__python-slugify", "tornadoweb__tornado", "python__mypy")
"""Repositories in Python whose tests have ids of their own."""


def _read(columns: Columns) -> Task:
    bug = columns.patch("patch")
    fail_to_pass = columns.tests("FAIL_TO_PASS", empty=False)
    pass_to_pass = columns.tests("PASS_TO_PASS", empty=True)
    files = sorted({test.partition("::")[0] for test in (*fail_to_pass, *pass_to_pass)})
    repo = columns.text("repo").rpartition("/")[2].partition(".")[0]
    command = given_command(columns.given.test_command, files)
    if not command:
        known = repo not in _OTHER and all(file.endswith(".py") for file in files)
        if not known:
            raise columns.fail(
                "repo", f"is {repo!r}, whose test command is not known: pass --test-command and --parser"
            )
        command = _COMMANDS.get(repo) or f"{ACTIVATE} && {_PYTEST} {shlex.join(files)}"
    return row_task(
        columns,
        Family.SWE_SMITH,
        repo=repo.replace("__", "/"),
        image=columns.image() or columns.text("image_name"),
        workdir=columns.given.workdir or "/testbed",
        base_commit=_BASE,
        gold_patch=reversed_patch(bug),
        setup=(_with_bug(bug),),
        grading=SWETests(
            test_patch="",
            test_files=tuple(file for file in files if file.endswith(".py")),
            test_command=command,
            parser=columns.parser("repo", columns.given.parser or "pytest"),
            fail_to_pass=fail_to_pass,
            pass_to_pass=pass_to_pass,
        ),
    )


def _with_bug(bug: str) -> str:
    """Shell, run in the repository: one commit without a past, which has the bug. Nothing is done twice."""
    return f"""(
set -e
git rev-parse -q --verify refs/tags/{_BASE} > /dev/null && exit 0
git update-index -q --refresh || true
printf %s {shlex.quote(bug)} | git apply --index -
commit=$(git -c user.name=image -c user.email=image@localhost commit-tree \\
    -m 'The repository' "$(git write-tree)")
git update-ref HEAD "$commit"
git update-ref refs/tags/{_BASE} "$commit"
)"""


_HUNK = re.compile(r"@@ -(\S+) \+(\S+) @@(.*)")
_PAIRS = {"--- ": "+++ ", "old mode ": "new mode ", "rename from ": "rename to ", "copy from ": "copy to "}
"""Lines of a header that follow each other, of which each has one side."""
_ONE_SIDED = {"new file mode ": "deleted file mode ", "deleted file mode ": "new file mode "}
_OPPOSITE = {"+": "-", "-": "+"}


def reversed_patch(patch: str) -> str:
    """The patch that undoes a unified diff with `diff --git` headers."""
    done: list[str] = []
    left = [0, 0]
    before = ""
    for line in patch.split("\n"):
        if any(count > 0 for count in left) and line[:1] in (" ", "-", "+", ""):
            left[0] -= line[:1] != "+"
            left[1] -= line[:1] != "-"
            done.append(_OPPOSITE.get(line[:1], line[:1]) + line[1:])
        elif match := _HUNK.fullmatch(line):
            left = [int(part.partition(",")[2] or 1) for part in match.groups()[:2]]
            done.append(f"@@ -{match[2]} +{match[1]} @@{match[3]}")
        elif line.startswith(tuple(_PAIRS)):
            before = line
        elif pair := next((each for each in _PAIRS.items() if line.startswith(each[1])), None):
            old, new = pair
            done += [old + _other_side(line.removeprefix(new)), new + _other_side(before.removeprefix(old))]
        else:
            done.append(_reversed_header(line))
    return "\n".join(done)


def _other_side(path: str) -> str:
    return {"a/": "b/", "b/": "a/"}.get(path[:2], path[:2]) + path[2:]


def _reversed_header(line: str) -> str:
    if match := re.fullmatch(r"diff --git a/(.+) b/(.+)", line):
        return f"diff --git a/{match[2]} b/{match[1]}"
    if match := re.fullmatch(r"index (\w+)\.\.(\w+)(.*)", line):
        return f"index {match[2]}..{match[1]}{match[3]}"
    known = next((start for start in _ONE_SIDED if line.startswith(start)), None)
    return line if known is None else _ONE_SIDED[known] + line.removeprefix(known)


SWE_SMITH = RowFamily(
    Family.SWE_SMITH,
    lambda row: str(row.get("repo")).startswith("swesmith/") and not row.get("test_patch"),
    _read,
)
