"""The repository that a submitted patch goes into, inside a machine: applies, restores and compares.

A patch is data: it goes in as a file, and paths go in through stdin, never as part of a shell line.
"""

import secrets
import time
from collections.abc import Iterable, Sequence

import msgspec

from orchard.schemas.outcomes import AbortCause
from orchard.schemas.tasks import Task
from orchard.workers.domains.swe.patch_policy import ABSENT, FileChange
from orchard.workers.episode.machine import CommandOutcome, FileTooLarge, Machine
from orchard.workers.episode.patches import ISOLATED_GIT
from orchard.workers.failures import InfrastructureError

LADDER = ("git apply --verbose", "git apply --verbose --3way")
"""Ways to apply a patch, from strict to lenient; the repository is reset between them."""

PUBLISHED_LADDER = (*LADDER, "git apply --verbose --reject", "patch --batch --forward --fuzz=5 -p1 -i")
"""The ways of published benchmarks, for evaluations only: GNU patch finds paths in texts where git sees none,
so the paths are unknown before it has run."""

_BEGIN = """\
set -e
mkdir -p "$SCRATCH"
git rev-parse --verify --quiet "$BASE^{commit}" > "$SCRATCH/base"
index=$(git rev-parse --git-path index)
if [ -f "$index" ]; then cp "$index" "$SCRATCH/real"; cp "$index" "$SCRATCH/index"; fi
GIT_INDEX_FILE="$SCRATCH/index" git add -A
GIT_INDEX_FILE="$SCRATCH/index" git write-tree > "$SCRATCH/tree"
"""

_RESET = """\
set -e
GIT_INDEX_FILE="$SCRATCH/index" git add -A
GIT_INDEX_FILE="$SCRATCH/index" git read-tree --reset -u "$(cat "$SCRATCH/tree")"
index=$(git rev-parse --git-path index)
if [ -f "$SCRATCH/real" ]; then cp "$SCRATCH/real" "$index"; else rm -f "$index"; fi
"""

_STAGE = """\
cp "$SCRATCH/index" "$SCRATCH/staged" && GIT_INDEX_FILE="$SCRATCH/staged" $WAY --cached "$PATCH" || exit 1
GIT_INDEX_FILE="$SCRATCH/staged" git write-tree > "$SCRATCH/staged-tree"
"""

_CHANGES = """\
set -e
exec > "$SCRATCH/changes"
before=$(cat "$SCRATCH/tree") after=$(cat "$SCRATCH/staged-tree")
git diff-tree -r -z --raw --no-renames --no-ext-diff --no-textconv "$before" "$after" 2>/dev/null
printf '\\0//\\0'
git diff-tree -r -z --numstat --no-renames --no-ext-diff --no-textconv "$before" "$after" 2>/dev/null
printf '\\0//\\0'
git ls-tree -r -z --name-only "$before" 2>/dev/null
"""

_PUT = """\
cd "$(git rev-parse --show-toplevel)" || exit 1
tr '\\n' '\\0' < "$SCRATCH/put" | GIT_INDEX_FILE="$SCRATCH/staged" git checkout-index -f -z --stdin || exit 1
while IFS= read -r path; do
  rm -f -- "./$path" || exit 1
  rmdir -p -- "$(dirname -- "./$path")" 2>/dev/null || true
done < "$SCRATCH/gone"
"""

_RESTORE = """\
base=$(cat "$SCRATCH/base")
while IFS= read -r path; do
  if git cat-file -e "$base:./$path" 2>/dev/null; then
    git checkout -q "$base" -- "$path" || exit 1
  else
    rm -rf -- "./$path"
  fi
done
"""

_DIFFERENCE = """\
set -e
base=$(cat "$SCRATCH/base")
cp "$SCRATCH/index" "$SCRATCH/compared"
while IFS= read -r path; do
  if [ -e "./$path" ]; then git add -f -- "./$path"; else git rm -q --cached --ignore-unmatch -- "./$path"; fi
done < "$SCRATCH/paths"
tr '\\n' '\\0' < "$SCRATCH/paths" > "$SCRATCH/paths0"
xargs -0 git diff --cached --binary --no-renames --no-ext-diff --no-textconv "$base" -- \
  < "$SCRATCH/paths0" > "$SCRATCH/difference"
"""

_FORGET = """\
rm -f -- "$SCRATCH"/*.diff
find "$(git rev-parse --git-path objects)" -type f -newer "$SCRATCH/tree" -delete
"""


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """The result of applying a patch."""

    by: str | None
    """The command that applied it; None if none of the ladder did."""
    log: str


class Staged(msgspec.Struct, frozen=True, kw_only=True):
    """A patch as a git tree: its changes, and what was there before."""

    by: str
    changes: tuple[FileChange, ...]
    base: tuple[str, ...]
    """Paths of the tree before."""


class RepositoryCheckout:
    """The repository at `workdir` of a trusted machine, which can be reset to its initial state.

    Every method raises InfrastructureError: the machine's own, or GRADER_FAILED if git fails in it.
    """

    def __init__(self, machine: Machine, task: Task, deadline: float) -> None:
        self._machine = machine
        self._workdir = task.workdir
        self._task_id = task.task_id
        self.deadline = deadline
        """The deadline on the clock of time.monotonic()."""
        self.scratch = f"/tmp/orchard-grading-{secrets.token_hex(8)}"
        self._env = {**ISOLATED_GIT, "SCRATCH": self.scratch, "BASE": task.base_commit or "HEAD"}

    @property
    def seconds_left(self) -> float:
        """The remaining time; never less than one second."""
        return max(1.0, self.deadline - time.monotonic())

    async def begin(self) -> None:
        """Records the state to return to, including uncommitted changes of the image."""
        outcome = await self._git(_BEGIN)
        if outcome.returncode != 0:
            raise self._failed(
                f"{self._workdir} holds no git repository with the commit {self._env['BASE']}", outcome
            )

    async def reset(self) -> None:
        """Returns to the state that `begin` found; ignored files stay."""
        outcome = await self._git(_RESET)
        if outcome.returncode != 0:
            raise self._failed("the repository cannot be reset", outcome)

    async def restore(self, paths: set[str]) -> bool:
        """Restores paths to the base commit, or deletes those it lacks; False if that is impossible."""
        if not paths:
            return True
        outcome = await self._git(_RESTORE, stdin="".join(f"{path}\n" for path in sorted(paths)))
        return outcome.returncode == 0

    async def stage(self, patch: str) -> Staged | Applied:
        """Applies the patch to git's index alone: no file of the repository is touched.

        Paths in the changes are relative to the repository's top. If no way of the ladder works, the result
        is an Applied with `by` None and the log.
        """
        path = await self._written(patch)
        log = []
        for way in LADDER:
            outcome = await self._git(_STAGE, WAY=way, PATCH=path)
            log.append(f"$ {way}\n{outcome.output}")
            if outcome.returncode == 0:
                said = await self._git(_CHANGES)
                if said.returncode != 0:  # a few kilobytes of a patch may be a file that no memory holds
                    return Applied(by=None, log=f"git cannot say what it changes: {said.output}\n")
                try:
                    changes = await self._machine.read(f"{self.scratch}/changes")
                except FileTooLarge as error:
                    return Applied(by=None, log=f"it changes more files than can be looked at: {error}\n")
                raw, numbers, base = changes.decode("utf-8", "replace").split("\0//\0")
                return Staged(
                    by=way, changes=_changes(raw, numbers), base=tuple(base.rstrip("\0").split("\0"))
                )
        return Applied(by=None, log="".join(log))

    async def put(self, changes: Iterable[FileChange]) -> bool:
        """Writes these changes, of what was staged last, to the files; False if that is impossible."""
        put = "".join(f"{change.path}\n" for change in changes if change.after != ABSENT)
        gone = "".join(f"{change.path}\n" for change in changes if change.after == ABSENT)
        await self._machine.write(f"{self.scratch}/put", put.encode())
        await self._machine.write(f"{self.scratch}/gone", gone.encode())
        return (await self._git(_PUT)).returncode == 0

    async def apply(self, patch: str, ladder: Sequence[str] = LADDER) -> Applied:
        """Applies the patch by the first way of the ladder that works; otherwise the repository is
        unchanged."""
        path = await self._written(patch)
        log = []
        for way in ladder:
            outcome = await self._git(f"{way} {path}")
            log.append(f"$ {way}\n{outcome.output}")
            if outcome.returncode == 0:
                return Applied(by=way, log="".join(log))
            await self.reset()
        return Applied(by=None, log="".join(log))

    async def files(self) -> list[str]:
        """Returns the paths of all files of the state that `begin` found, from the repository's top."""
        outcome = await self._git(
            'git ls-tree -r -z --name-only "$(cat "$SCRATCH/tree")" > "$SCRATCH/listed"'
        )
        if outcome.returncode != 0:
            raise self._failed("its files cannot be listed", outcome)
        listed = await self._machine.read(f"{self.scratch}/listed")
        return listed.decode(errors="replace").split("\0")

    async def difference(self, paths: Iterable[str]) -> bytes:
        """Returns what these files are now, as a patch to the base commit."""
        await self._machine.write(f"{self.scratch}/paths", "".join(f"{each}\n" for each in paths).encode())
        outcome = await self._git(_DIFFERENCE, GIT_INDEX_FILE=f"{self.scratch}/compared")
        if outcome.returncode != 0:
            raise self._failed("its tests cannot be compared with the base commit", outcome)
        return await self._machine.read(f"{self.scratch}/difference")

    async def forget_patches(self) -> None:
        """Deletes the applied patches, and git's objects from them, which tested code could read."""
        await self._git(_FORGET)

    async def _written(self, patch: str) -> str:
        path = f"{self.scratch}/{secrets.token_hex(4)}.diff"
        ended = patch if patch.endswith("\n") else patch + "\n"
        await self._machine.write(path, ended.encode("utf-8", "surrogateescape"))
        return path

    async def _git(self, script: str, stdin: str | None = None, **more: str) -> CommandOutcome:
        limit = self.seconds_left
        outcome = await self._machine.run(
            script, timeout=limit, cwd=self._workdir, env={**self._env, **more}, stdin=stdin
        )
        if outcome.timed_out:
            raise self._failed(f"git did not end within {limit:.0f} s", outcome)
        return outcome

    def _failed(self, what: str, outcome: CommandOutcome) -> InfrastructureError:
        said = outcome.output.strip()[-300:]
        return InfrastructureError(
            AbortCause.GRADER_FAILED, f"task {self._task_id}: {what}" + (f": {said}" if said else "")
        )


def _changes(raw: str, numbers: str) -> tuple[FileChange, ...]:
    """Parses `git diff-tree -z --raw` and `--numstat`, which has no numbers for binary files."""
    binary = {
        line.split("\t", 2)[2]
        for line in numbers.split("\0")
        if line.startswith("-\t-\t") and line.count("\t") > 1
    }
    fields = raw.split("\0")
    return tuple(
        FileChange(path=path, before=modes[1:7], after=modes[8:14], binary=path in binary)
        for modes, path in zip(fields[::2], fields[1::2], strict=False)
    )
