"""A task's source as it is and as the known solution has it, and submissions made of changed files."""

import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from orchard.pipelines.domains.swe.packages import PackageCache
from orchard.pipelines.domains.swe.releases import FileKind, kind_of
from orchard.pipelines.domains.swe.repairs import repair_files
from orchard.pipelines.tasks.trees import diff, read_sdist, text_of
from orchard.schemas.tasks import SWETests, Task
from orchard.workers.episode.diffs import parse_diff
from tests.forgery.real.forgers.prelude import HOOKED, WRAPPED
from tests.forgery.real.forgers.rote import RECORDER
from tests.forgery.trick import Trick


@dataclass(frozen=True)
class Source:
    """The repository of a task at its base commit, and the files that its known solution changes."""

    task: Task
    base: dict[str, str]
    """All text files."""
    gold: dict[str, str]
    """Files after the known solution; those that it changes alone."""

    @property
    def grading(self) -> SWETests:
        assert isinstance(self.task.grading, SWETests)
        return self.task.grading

    @property
    def modules(self) -> list[str]:
        """Python files that the known solution changes."""
        return [path for path in self.gold if path.endswith(".py") and path in self.base]

    def submission(self, files: Mapping[str, str]) -> str:
        """A diff to these files from the base commit."""
        old = {path: self.base[path].encode() for path in files if path in self.base}
        return diff(old, {path: text.encode() for path, text in files.items()}, sorted(files))

    def changed(self, files: Mapping[str, str]) -> str:
        """A diff to the known solution with other text in some of its files."""
        return self.submission({**self.gold, **files})

    def recorded(self) -> str:
        """The known solution, which prints what it answers to the tests."""
        files = {**self.base, **self.gold}
        code = (WRAPPED + RECORDER + HOOKED).replace("@NAMED@", "()")
        return self.changed({path: f"{files[path]}\n\n{code}" for path in self._installed()})

    def by_rote(self, forger: Trick, known: Mapping[str, list[str]]) -> str:
        """A forger that has what the known solution printed (`recorded`)."""
        return self.forged(replace(forger, code=forger.code.replace("@KNOWN@", repr(known))))

    def forged(self, forger: Trick) -> str:
        """A diff that repairs nothing and has the forger's text at the end of each module of the solution."""
        code = forger.code
        if "def answer(" in code:
            code = WRAPPED + code + HOOKED
        elif "_forging" in code or "_is_test" in code:
            code = WRAPPED + code
        named = {
            test.split("::", 1)[-1].split("[")[0]
            for test in self.grading.fail_to_pass
            if test in self.task.statement
        }
        code = code.replace("@NAMED@", repr(sorted(named))).replace("@STATEMENT@", repr(self.task.statement))
        files = {path: f"{self.base[path]}\n\n{code}" for path in self._installed()} if code else {}
        extra = {path: text for path, text in forger.files.items() if isinstance(text, str)}
        return self.submission({**files, **extra})

    def _installed(self) -> list[str]:
        """Modules of the solution that tests import: all but benchmarks and set-up scripts."""
        found = [path for path in self.modules if kind_of(path) is FileKind.SOURCE]
        inside = [path for path in found if path.count("/")]
        return inside or found


def source_of(task: Task, packages: PackageCache) -> Source:
    """Reads what the task was made of; nothing is fetched that its making has not fetched."""
    if task.source == "repairs":
        base = repair_files([task])
    else:
        path = packages.sdist(task.labels["package"], task.labels["old"])
        assert path is not None, f"the sdist of {task.task_id} is gone"
        tree = read_sdist(path.read_bytes(), path.name)
        texts = {
            path: text_of(data) for path, data in tree.items() if kind_of(path) is not FileKind.BUILD_OUTPUT
        }
        base = {path: text for path, text in texts.items() if text is not None}
    return Source(task=task, base=base, gold=applied(base, task.gold_patch))


def applied(base: Mapping[str, str], patch: str) -> dict[str, str]:
    """The files that a patch changes, as it leaves them."""
    changed = [each.path for each in parse_diff(patch)]
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for path in changed:
            target = directory / path
            target.parent.mkdir(parents=True, exist_ok=True)
            if path in base:
                target.write_bytes(base[path].encode())
        done = ["git", "apply", "--whitespace=nowarn", "-"]
        subprocess.run(done, cwd=directory, input=patch.encode(), check=True, capture_output=True)
        return {
            path: (directory / path).read_bytes().decode() for path in changed if (directory / path).exists()
        }
