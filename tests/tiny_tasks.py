"""Real tasks small enough for tests: one repository with a bug in each module, one task for each bug.

The image is built the way task synthesis builds its own: a sandbox on the machine's root, a git repository
in it, a snapshot.
"""

import difflib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from orchard.injector.client import AsyncSandboxClient
from orchard.schemas.tasks import SWETests, Task
from tests.sandbox_service import LocalService

IMAGE = "tests/tiny:1"
WORKDIR = "/testbed"


def _module(number: int, sign: str) -> str:
    lines = [
        f'"""Arithmetic number {number}."""',
        "",
        "",
        "def combine(left, right):",
        f'    """The {number}-fold sum of two numbers."""',
        f"    total = left {sign} right",
        f"    return total * {number + 1}",
        "",
    ]
    return "\n".join(lines)


def _tests(number: int) -> str:
    return f"""import unittest

from arithmetic.mod_{number} import combine


class Combine(unittest.TestCase):
    def test_adds(self):
        self.assertEqual(combine(2, 3), {5 * (number + 1)})

    def test_zero(self):
        self.assertEqual(combine(0, 0), 0)
"""


def _diff(path: str, old: str, new: str) -> str:
    fromfile = f"a/{path}" if old else "/dev/null"
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), fromfile, f"b/{path}"
    )
    header = f"diff --git a/{path} b/{path}\n" + ("" if old else "new file mode 100644\n")
    return header + "".join(lines)


def tiny_task(number: int, base_commit: str = "HEAD", image: str = IMAGE) -> Task:
    """Task `number`: its module subtracts where it should add."""
    path, test = f"arithmetic/mod_{number}.py", f"tests/test_mod_{number}.py"
    name = f"tests.test_mod_{number}.Combine"
    return Task(
        task_id=f"tiny-{number}",
        source="tiny",
        repo="tests/arithmetic",
        image=image,
        base_commit=base_commit,
        statement=f"combine() in arithmetic/mod_{number}.py gives the difference of its arguments, "
        f"not the sum (report {number}).",
        gold_patch=_diff(path, _module(number, "-"), _module(number, "+")),
        memory="512Mi",
        grading=SWETests(
            test_patch=_diff(test, "", _tests(number)),
            test_command=f"python3 -m unittest -v tests.test_mod_{number}",
            fail_to_pass=(f"test_adds ({name}.test_adds)",),
            pass_to_pass=(f"test_zero ({name}.test_zero)",),
            test_files=(test,),
            parser="unittest",
            timeout_seconds=60.0,
        ),
    )


def tiny_repository(count: int) -> dict[str, str]:
    """Path and content of the files that `tiny_task(0)` to `tiny_task(count - 1)` are about."""
    files = {f"arithmetic/mod_{number}.py": _module(number, "-") for number in range(count)}
    return files | {"arithmetic/__init__.py": "", "tests/__init__.py": "", "README": "arithmetic\n"}


COMMIT = "git init -q . && git add -A && git -c user.name=t -c user.email=t@t commit -qm base"
"""Makes the repository of those files."""


async def build_tiny_image(client: AsyncSandboxClient, count: int) -> None:
    """Make the image that `tiny_task(0)` to `tiny_task(count - 1)` run in."""
    async with await client.create_sandbox("host", memory="512Mi", cpu="1") as sandbox:
        for path, text in tiny_repository(count).items():
            await sandbox.upload_content(text, f"{WORKDIR}/{path}")
        result = await sandbox.exec(COMMIT, cwd=WORKDIR)
        assert result.succeeded, result.stderr
        await sandbox.snapshot(IMAGE)


@asynccontextmanager
async def tiny_service(state: Path) -> AsyncIterator[LocalService]:
    """A sandbox service of its own that has the image, with two bugs."""
    service = LocalService(state)
    try:
        async with AsyncSandboxClient(service.url) as client:
            await build_tiny_image(client, 2)
        yield service
    finally:
        service.stop()
