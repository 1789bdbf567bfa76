"""Runs a question sheet in the making, each of its files only where that may tell something new."""

from collections.abc import Collection, Mapping, Sequence

from orchard.schemas.tasks import SWETests, Task
from orchard.workers.domains.swe.checkout import RepositoryCheckout
from orchard.workers.domains.swe.sheets.told import Told
from orchard.workers.domains.swe.testing import ToldRun, run_tests
from orchard.workers.episode.machine import Machine


class SheetTrials:
    """The runs of a sheet's files in one machine. Each file has a process of its own, so what one tells stays
    true until its text changes, or that of one which others import."""

    def __init__(
        self,
        task: Task,
        grading: SWETests,
        files: Sequence[str],
        shared: Collection[str],
        machine: Machine,
        checkout: RepositoryCheckout,
    ) -> None:
        """`files` have tests, `shared` are those that others import."""
        self._task = task
        self._grading = grading
        self._files = files
        self._shared = frozenset(shared)
        self._machine = machine
        self._checkout = checkout
        self._written: dict[str, str] = {}
        self._told: dict[str, ToldRun] = {}

    async def run(
        self, texts: Mapping[str, str], files: Collection[str] | None = None, *, again: Collection[str] = ()
    ) -> ToldRun:
        """Writes the texts, and returns what the tests in `files`, or in all, tell; those in `again` are run
        even where nothing changed."""
        await self.write(texts)
        wanted = [file for file in self._files if files is None or file in files]
        stale = [file for file in wanted if file in again or file not in self._told]
        if stale:
            made = await run_tests(
                self._task, self._grading, self._machine, self._checkout, sheet=True, files=stale
            )
            for file in stale:
                self._told.pop(file, None)
            self._told |= made.by_file
        told = Told()
        for file in wanted:
            if file in self._told:
                told.join(self._told[file].told)
        return ToldRun(
            told=told, seconds=sum(self._told[file].seconds for file in wanted if file in self._told)
        )

    async def write(self, texts: Mapping[str, str]) -> None:
        changed = {file: text for file, text in texts.items() if self._written.get(file) != text}
        for file, text in changed.items():
            await self._machine.write(f"{self._task.workdir}/{file}", text.encode())
            self._told.pop(file, None)
        if not self._shared.isdisjoint(changed):
            self._told.clear()
        self._written |= changed
