"""Runs generic forgers on a finished question sheet: a task that one of them passes is labelled so."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from orchard.schemas.tasks import SWETests, Task
from orchard.workers.domains.swe.checkout import RepositoryCheckout
from orchard.workers.domains.swe.sheets.answering import answered_run
from orchard.workers.domains.swe.sheets.fresh import by_rote
from orchard.workers.domains.swe.sheets.imported import is_of_tests
from orchard.workers.domains.swe.sheets.sheet import Sheet
from orchard.workers.domains.swe.testing import run_tests
from orchard.workers.domains.swe.verdict import PASSING
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

    async def passing(self, files: Sequence[str]) -> str:
        """Says which forger passes the tests that must come to pass, which are in `files`; empty where none
        does. Others are not looked at: statements often name the tests that fail, and a forger that forges in
        these alone harms no other."""
        modules = await self._modules()
        for choice, said in CHOICES.items() if modules else ():
            text = f"{FORGER.read_text()}\nforge({choice})\n"
            for path, source in modules.items():
                forged = f'{source}\n\nexec({text!r}, {{"__name__": __name__}})\n'
                await self._machine.write(path, forged.encode())
            run = await run_tests(
                self._task, self._grading, self._machine, self._checkout, sheet=True, files=files
            )
            statuses = answered_run(self._sheet, run).statuses
            passed = all(statuses.get(test) in PASSING for test in self._grading.fail_to_pass)
            if passed and not by_rote(self._sheet, run.told):
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
