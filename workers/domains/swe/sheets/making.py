"""Makes the question sheet of a task, by trial: the gold patch must answer it as it passes the tests, and the
base commit must not.

Runs: with the gold patch the tests as they are, unless the caller knows what they give, the key twice, and
what changed of the sheet until nothing deviates; at the base commit the key and the sheet; fresh inputs are
tried with both (`trying.py`).
What deviates is treated less strictly by steps (`sites.Treatment`), in the end left as it is.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec

from orchard.schemas.protection import Protected
from orchard.schemas.tasks import SWETests, Task
from orchard.workers.domains.swe.checkout import RepositoryCheckout
from orchard.workers.domains.swe.sheets.drafts import (
    Draft,
    KnownTest,
    answered,
    function_of,
    roots_of,
    same_places,
)
from orchard.workers.domains.swe.sheets.forging import SheetForger
from orchard.workers.domains.swe.sheets.imported import imported_files, is_of_tests
from orchard.workers.domains.swe.sheets.labels import (
    SheetWords,
    best,
    is_forgeable,
    label_of_test,
    literals_of,
)
from orchard.workers.domains.swe.sheets.sheet import FORMAT, Sheet, SheetTest
from orchard.workers.domains.swe.sheets.sites import Treatment
from orchard.workers.domains.swe.sheets.told import Told
from orchard.workers.domains.swe.sheets.trials import SheetTrials
from orchard.workers.domains.swe.sheets.trying import AskedTests, FreshTrial
from orchard.workers.domains.swe.sheets.variants import original_of
from orchard.workers.domains.swe.testing import RunnerPlan, run_tests
from orchard.workers.domains.swe.verdict import FAILING
from orchard.workers.episode.diffs import split_diff, touched_paths
from orchard.workers.episode.machine import FileTooLarge, Machine

ROUNDS = 8
"""Trials of the sheet with the gold patch; what still deviates then is left as it is."""
LONGEST = 120.0
"""Seconds that the tests may take for a sheet to be tried."""
PATIENCE = 160.0
"""Seconds that these trials may take, by what the tests took once: a slow suite has fewer of them."""
SLOWEST = 3.0
"""A sheet may take so many times the seconds of the tests, and some for its start."""


class Prepared(Protocol):
    """Opens a machine with the task's repository, its tests and perhaps the gold patch."""

    def __call__(self, *, gold: bool) -> AbstractAsyncContextManager[tuple[Machine, RepositoryCheckout]]: ...


def modules_in(texts: Mapping[str, str]) -> list[str]:
    """Returns the texts of the Python files alone."""
    return [text for file, text in texts.items() if file.endswith(".py")]


def without_sheet(why: str) -> Sheet:
    """The sheet of a task of which all tests are judged inside."""
    return Sheet(format=FORMAT, patch=b"", conditions={}, lines={}, tests={}, label=Protected.INSIDE, why=why)


class PlainRun(msgspec.Struct, frozen=True, kw_only=True):
    """The task's own tests with the gold patch."""

    statuses: Mapping[str, str]
    seconds: float


def _forgeable(sheet: Sheet, answer: str) -> Sheet:
    """Labels a sheet that a forger passes; `answer` is what it gives, empty where none passes."""
    if not answer:
        return sheet
    why = f"code that repairs nothing gets a +1 by {answer}"
    return msgspec.structs.replace(sheet, label=Protected.FORGEABLE, why=why)


class SheetMaker:
    def __init__(
        self,
        task: Task,
        grading: SWETests,
        plan: RunnerPlan,
        prepared: Prepared,
        plain: PlainRun | None = None,
    ) -> None:
        self._task = task
        self._grading = grading
        self._plan = plan
        self._prepared = prepared
        self._plain = plain
        self._rounds = ROUNDS
        """Trials that are left."""
        self._helpers: frozenset[str] = frozenset()
        """Files of the repository's tests that the test files import."""
        self._shared: set[str] = set()
        """Files that others import, test files among them."""
        self._order: list[str] = []
        """Ids of all tests in the order of the key's first run."""
        self._files = [file for file in plan.files if self._is_of_task(file)]
        """Test files, of which a submission is judged by the task's own."""
        self._ids = {
            f"{name.file}::{name.qualified}": test for test, name in plan.names.items() if "::" not in test
        }

    async def make(self) -> Sheet:
        """Raises InfrastructureError; a task whose tests no sheet can ask gets one without questions."""
        async with self._prepared(gold=True) as (machine, checkout):
            plain = self._plain or await self._run_plain(machine, checkout)
            if plain is None:
                return without_sheet("the tests give no result with the known solution")
            if plain.seconds > LONGEST:
                return without_sheet(
                    f"the tests take {plain.seconds:.0f} s, and a sheet is tried over {ROUNDS} runs"
                )
            self._rounds = max(2, min(ROUNDS, int(PATIENCE / max(plain.seconds, 0.1))))
            draft = await self._draft(machine, checkout)
            keys = draft.keys()
            if not keys:
                return without_sheet("no test file can be read by this version of Python")
            gold = self._trials(machine, checkout)
            first = await gold.run(keys)
            keys = draft.keys(first.told.too_deep())  # which will be asked so, and take long
            second = await gold.run(keys, again=keys)
            async with self._prepared(gold=False) as (other, base_checkout):
                base = self._trials(other, base_checkout)
                by_base = (await base.run(keys)).told
                tests = self._known(plain, first.told, second.told, by_base)
                draft.learn(tests, first.told.outside)
                for least in (Treatment.BITS, Treatment.INSIDE, Treatment.INSIDE):
                    ids, seconds = await self._settle(draft, tests, gold)
                    fresh = FreshTrial(self._asked(draft, tests, ids), gold)
                    await fresh.begin()
                    by_base = (await base.run(fresh.texts, self._must_files)).told
                    if not self._too_easy(draft, tests, by_base, ids, least):
                        break
                for _ in range(2):  # a stall of the machine says nothing
                    if seconds <= SLOWEST * plain.seconds + 2:
                        break
                    seconds = (await gold.run(draft.files(), again=self._plan.files)).seconds
                else:
                    return without_sheet(f"its sheet takes {seconds:.0f} s, the tests {plain.seconds:.0f} s")
                sheet = self._finished(draft, tests, by_base, ids)
                files, questions = await fresh.end(by_base, seconds)
                await gold.write(files)
                patch = await checkout.difference(self._paths)
                sheet = self._labelled(msgspec.structs.replace(sheet, patch=patch, fresh=questions), files)
                if sheet.label in (Protected.INSIDE, Protected.FORGEABLE):
                    return sheet
                await base.write(files)
                forger = SheetForger(self._task, self._grading, sheet, other, base_checkout)
                return _forgeable(sheet, await forger.passing(sorted(self._must_files)))

    async def _run_plain(self, machine: Machine, checkout: RepositoryCheckout) -> PlainRun | None:
        run = await run_tests(self._task, self._grading, machine, checkout)
        return PlainRun(statuses=run.statuses, seconds=run.seconds) if run.conclusive else None

    def _trials(self, machine: Machine, checkout: RepositoryCheckout) -> SheetTrials:
        return SheetTrials(self._task, self._grading, self._plan.files, self._shared, machine, checkout)

    @property
    def _must_files(self) -> set[str]:
        """Files with tests that must come to pass."""
        return {self._plan.names[test].file for test in self._grading.fail_to_pass}

    def _is_of_task(self, file: str) -> bool:
        """Whether a file of tests is no part of submissions, as what the known solution changes is, and a
        module with doctests in its docstrings."""
        if file in {*self._grading.test_files, *touched_paths(self._grading.test_patch)}:
            return True
        if file in touched_paths(self._task.gold_patch):
            return False
        names = [name for name in self._plan.names.values() if name.file == file]
        return is_of_tests(file) or not all(name.is_of_docstring for name in names)

    @property
    def _paths(self) -> set[str]:
        return {*self._files, *self._helpers, *touched_paths(self._grading.test_patch)}

    def _data(self) -> Iterator[str]:
        """Yields what the test patch says of other files than tests."""
        for file, lines in split_diff(self._grading.test_patch):
            if file is not None and file.path not in self._files:
                yield "\n".join(line[1:] for line in lines if line[:1] in ("+", " "))

    async def _draft(self, machine: Machine, checkout: RepositoryCheckout) -> Draft:
        files = {*await checkout.files(), *touched_paths(self._grading.test_patch)}
        importable = files - {*self._plan.files, *touched_paths(self._task.gold_patch)}
        sources: dict[str, str] = {}
        left = list(self._files)
        while left:
            file = left.pop()
            try:
                sources[file] = (await machine.read(f"{self._task.workdir}/{file}")).decode()
            except (FileNotFoundError, FileTooLarge, UnicodeDecodeError):
                continue
            imported = imported_files(file, sources[file], files)
            self._shared |= imported
            left += sorted((imported & importable) - {*sources, *left})
        self._helpers = frozenset(sources) - {*self._files}
        tested = roots_of(files) - sys.stdlib_module_names
        draft = Draft(sources, lambda module: module in tested, self._helpers)
        draft.left_alone |= {*self._plan.files} - {*sources}
        return draft

    def _asked(self, draft: Draft, tests: Sequence[KnownTest], ids: Mapping[str, str]) -> AskedTests:
        must = set(self._grading.fail_to_pass)
        expected = {
            test.id: draft.expected(test)
            for test in tests
            if test.id in ids and test.id not in draft.unjudged and test.file not in draft.left_alone
        }
        return AskedTests(
            files=draft.files(),
            conditions=draft.conditions(),
            pinned={number for number, site in draft.sites.items() if site.pinned},
            expected={ids[name]: visits for name, visits in expected.items()},
            must=[
                ids[name] for name, visits in expected.items() if visits and self._ids.get(name, name) in must
            ],
        )

    def _known(self, plain: PlainRun, first: Told, second: Told, base: Told) -> list[KnownTest]:
        self._order = list(first.tests)
        named = set(self._plan.names)
        again, before = same_places(second, first.tests), same_places(base, first.tests)
        return [
            KnownTest(
                id=name,
                function=function_of(name),
                file=name.partition("::")[0],
                status=plain.statuses.get(self._ids.get(name, name), ""),
                visits=test.visits,
                again=second.tests[again[name]].visits if name in again else [],
                base=base.tests[before[name]].visits if name in before else [],
            )
            for name, test in first.tests.items()
            if self._ids.get(name, name) in named
        ]

    async def _settle(
        self, draft: Draft, tests: Sequence[KnownTest], gold: SheetTrials
    ) -> tuple[dict[str, str], float]:
        """Tries the sheet with the gold patch until it answers all; returns the tests' ids in it, and the
        seconds of its run."""
        while True:
            self._rounds -= 1
            run = await gold.run(draft.files())
            ids = same_places(run.told, self._order)
            if draft.settled(tests, run.told, ids):
                return ids, run.seconds
            if self._rounds <= 0:
                break
        return await self._give_up(draft, tests, run.told, ids, gold)

    async def _give_up(
        self,
        draft: Draft,
        tests: Sequence[KnownTest],
        told: Told,
        ids: Mapping[str, str],
        gold: SheetTrials,
    ) -> tuple[dict[str, str], float]:
        """Leaves alone what still deviates, and what does then; returns as `_settle` does."""
        draft.degrade_all(draft.deviating(tests, told, ids), Treatment.INSIDE)
        run = await gold.run(draft.files())
        ids = same_places(run.told, self._order)
        for test in draft.deviating(tests, run.told, ids):
            draft.leave_alone(test.file)
        return ids, run.seconds

    def _too_easy(
        self,
        draft: Draft,
        tests: Sequence[KnownTest],
        base: Told,
        ids: Mapping[str, str],
        least: Treatment,
    ) -> bool:
        """Whether the base commit passes a test in the sheet that it must fail; such tests are treated less
        strictly."""
        must = set(self._grading.fail_to_pass)
        conditions = draft.conditions()
        easy = []
        for test in tests:
            if self._ids.get(test.id, test.id) in must and test.file not in draft.left_alone:
                told = base.tests.get(ids.get(test.id, ""))
                failed = told is None or not told.status or told.status in FAILING
                if not failed and not answered(conditions, draft.expected(test), told):
                    easy.append(test)
        draft.degrade_all(easy, least)
        return bool(easy)

    def _finished(
        self,
        draft: Draft,
        tests: Sequence[KnownTest],
        base: Told,
        ids: Mapping[str, str],
    ) -> Sheet:
        texts = draft.texts()
        conditions = draft.conditions()
        words = SheetWords(modules_in(texts), [self._task.statement, *texts.values(), *self._data()])
        inputs = {number: site.inputs for number, site in draft.sites.items()}
        must = set(self._grading.fail_to_pass)
        made: dict[str, SheetTest] = {}
        for test in tests:
            if test.id not in ids:
                continue
            expected = [] if test.file in draft.left_alone else draft.expected(test)
            name = self._ids.get(test.id, test.id)
            label = best(())  # of what the base commit answers rightly
            if test.file in self._must_files:
                told = base.tests.get(ids[test.id])
                label = label_of_test(conditions, expected, told.visits if told else [], words, inputs)
            made[ids[test.id]] = SheetTest(
                name=name,
                status=test.status,
                visits=tuple(expected),
                label=label,
                unjudged=test.id in draft.unjudged,
            )
        label = best(test.label for test in made.values() if test.name in must)
        return Sheet(
            format=FORMAT,
            patch=b"",
            paths=tuple(sorted(self._paths)),
            conditions=conditions,
            lines={number: site.line for number, site in draft.sites.items()},
            tests=made,
            label=label,
        )

    def _labelled(self, sheet: Sheet, files: Mapping[str, str]) -> Sheet:
        """Adds to a finished sheet what a generic forger gets, and why the label is not better."""
        must = set(self._grading.fail_to_pass)
        asked = [test for test in sheet.tests.values() if test.name in must]
        why = []
        if inside := sum(test.label is Protected.INSIDE for test in asked):
            why.append(
                f"{inside} of {len(must)} tests that must come to pass are judged in the tested code's "
                "process"
            )
        if sheet.label is not Protected.INSIDE and is_forgeable(sheet, asked, literals_of(modules_in(files))):
            return _forgeable(sheet, "the same answer to each question")
        if sheet.label is not Protected.VALUE and sheet.fresh:
            functions = {original_of(name.partition("[")[0]) for name in sheet.fresh}
            why.append(f"{len(functions)} test functions are asked about fresh inputs too")
        return msgspec.structs.replace(sheet, why="; ".join(why))
