"""Runs generic forgers on a finished question sheet: a task that one of them passes is labelled so."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from orchard.schemas.tasks import SWETests, Task
from orchard.workers.domains.swe.checkout import RepositoryCheckout
from orchard.workers.domains.swe.sheets.answering import answered_run, otherwise_than_gold
from orchard.workers.domains.swe.sheets.fresh import by_rote
from orchard.workers.domains.swe.sheets.imported import is_of_tests
from orchard.workers.domains.swe.sheets.sheet import Sheet
from orchard.workers.domains.swe.testing import TestRun, run_tests
from orchard.workers.domains.swe.verdict import PASSING, judge
from orchard.workers.episode.diffs import touched_paths
from orchard.workers.episode.machine import FileTooLarge, Machine

FORGER = Path(__file__).with_name("forger.py")
CHOICES = {
    "alike": "an argument of the answer's type in place of each answer",
    "first": "the first argument in place of each answer",
}


class SheetForger:
    """Forges in a machine at the base commit, which is used for nothing afterwards."""

    def __init__(
        self, task: Task, grading: SWETests, sheet: Sheet, machine: Machine, checkout: RepositoryCheckout
    ) -> None:
        self._task = task
        self._grading = grading
        self._sheet = sheet
        self._machine = machine
        self._checkout = checkout

    async def passing(self, must: Collection[str]) -> str:
        """Says which forger gets a +1; empty where none does. Only one that passes the files `must`, of the
        tests that must come to pass, is asked the rest."""
        modules = await self._modules()
        for choice, said in CHOICES.items() if modules else ():
            text = f"{FORGER.read_text()}\nforge({choice})\n"
            for path, source in modules.items():
                forged = f'{source}\n\nexec({text!r}, {{"__name__": __name__}})\n'
                await self._machine.write(path, forged.encode())
            if await self._passes_must(sorted(must)) and await self._passes():
                return said
        return ""

    async def _modules(self) -> Mapping[str, str]:
        """Reads the modules that the known solution changes, as they are at the base commit."""
        found = {}
        for file in sorted(touched_paths(self._task.gold_patch)):
            if file.endswith(".py") and not is_of_tests(file):
                path = f"{self._task.workdir}/{file}"
                try:
                    found[path] = (await self._machine.read(path)).decode()
                except (FileNotFoundError, FileTooLarge, UnicodeDecodeError):
                    continue
        return found

    async def _passes_must(self, files: Sequence[str]) -> bool:
        run = await self._run(files)
        return all(run.statuses.get(test) in PASSING for test in self._grading.fail_to_pass)

    async def _passes(self) -> bool:
        """Whether the submission would get a +1."""
        run = await self._run(None)
        verdict = judge(run.statuses, self._grading.fail_to_pass, self._grading.pass_to_pass)
        otherwise = otherwise_than_gold(self._sheet, run.statuses)
        return verdict.resolved and not otherwise and not by_rote(self._sheet, run.told)

    async def _run(self, files: Sequence[str] | None) -> TestRun:
        run = await run_tests(
            self._task, self._grading, self._machine, self._checkout, sheet=True, files=files
        )
        return answered_run(self._sheet, run)
