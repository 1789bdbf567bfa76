"""Asks the gold patch and the base commit about fresh inputs, and keeps what tells the two apart."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from orchard.workers.domains.swe.sheets.conditions import Condition
from orchard.workers.domains.swe.sheets.fresh import (
    affordable,
    enough,
    fresh_questions,
    function_and_row,
    in_time,
    numbers_for,
    steady,
)
from orchard.workers.domains.swe.sheets.sheet import ExpectedVisit, FreshQuestion, problem
from orchard.workers.domains.swe.sheets.told import Told
from orchard.workers.domains.swe.sheets.trials import SheetTrials
from orchard.workers.domains.swe.sheets.variants import Variant, number_of_variant, with_variants

SHARE, MOST = 0.2, 0.2
"""Of the seconds of a sheet, what fresh inputs may take beside them, and their seconds at most; with a
submission they may take ten times as many (`child.Within`)."""

Numbers = dict[str, dict[str, list[int]]]
"""By file and function, which variants it has."""


class AskedTests(msgspec.Struct, frozen=True, kw_only=True):
    """A sheet without fresh inputs."""

    files: Mapping[str, str]
    conditions: dict[int, Condition]
    expected: Mapping[str, Sequence[ExpectedVisit]]
    """By the id of a test in the sheet."""
    pinned: Collection[int]
    """Assertions that expect what tested code computes, of which no answer is the right one."""
    must: Collection[str]
    """Tests whose functions get fresh inputs."""

    def numbers(self) -> Numbers:
        wanted = {name.partition("[")[0] for name in self.must if ".py::" in name}
        rows = Counter(name.partition("[")[0] for name in self.expected)
        found: Numbers = {}
        for name, numbers in numbers_for({name: rows[name] for name in wanted}).items():
            found.setdefault(name.partition("::")[0], {})[function_and_row(name)[0]] = list(numbers)
        return found

    def with_numbers(
        self, numbers: Numbers, *, trial: bool = False
    ) -> tuple[dict[str, str], dict[str, Variant]]:
        """Returns all files, and the variants by file and function."""
        texts = dict(self.files)
        variants: dict[str, Variant] = {}
        for file, wanted in numbers.items():
            texts[file], made = with_variants(self.files[file], wanted, trial=trial)
            variants |= {f"{file}::{each.name}": each for each in made}
        return texts, variants

    def deviates(self, told: Told) -> bool:
        """Whether a test is answered otherwise than without variants."""
        return any(
            name not in told.tests or problem(self.conditions, visits, told.tests[name].visits)
            for name, visits in self.expected.items()
        )


class FreshTrial:
    """Tries variants of a sheet's tests: all with the gold patch, then those that it answers in time at the
    base commit, then those that are kept with the gold patch again."""

    def __init__(self, asked: AskedTests, gold: SheetTrials) -> None:
        self._asked = asked
        self._gold = gold
        self._variants: dict[str, Variant] = {}
        self._by_gold = Told()
        self.texts: Mapping[str, str] = asked.files
        """For the base commit."""

    async def begin(self) -> None:
        numbers = self._asked.numbers()
        texts, self._variants = self._asked.with_numbers(numbers, trial=True)
        if self._variants:
            self._by_gold = (await self._gold.run(texts, numbers)).told
            self.texts, _ = self._asked.with_numbers(self._numbers(in_time(self._by_gold)))

    async def end(
        self, by_base: Told, seconds: float
    ) -> tuple[Mapping[str, str], dict[str, tuple[FreshQuestion, ...]]]:
        """Returns the files with the variants that are kept, and their questions by the variants' ids.

        `seconds` are those of the sheet without them.
        """
        asked = self._asked
        conditions = {
            ask: each
            for ask, each in asked.conditions.items()
            if ask not in asked.pinned and each[0] not in ("loose", "or")
        }
        found = enough(fresh_questions(conditions, asked.expected, self._variants, self._by_gold, by_base))
        chosen = affordable(found, self._by_gold, min(SHARE * seconds, MOST))
        numbers = self._numbers(name.partition("[")[0] for name in chosen)
        if not numbers:
            return asked.files, {}
        texts, _ = asked.with_numbers(numbers)
        again = (await self._gold.run(texts, again=numbers)).told
        questions = enough(steady(asked.conditions, chosen, again))
        return (asked.files, {}) if not questions or asked.deviates(again) else (texts, questions)

    def _numbers(self, names: Iterable[str]) -> Numbers:
        """Sorts variants by file and function."""
        numbers: Numbers = {}
        for name in sorted(self._variants.keys() & set(names)):
            functions = numbers.setdefault(name.partition("::")[0], {})
            functions.setdefault(self._variants[name].function, []).append(number_of_variant(name))
        return numbers
