"""Asks the gold patch and the base commit about fresh inputs, and keeps what tells the two apart."""

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

import msgspec

from orchard.workers.domains.swe.sheets.conditions import Condition
from orchard.workers.domains.swe.sheets.fresh import (
    affordable,
    enough,
    fresh_questions,
    function_and_row,
    numbers_for,
    steady,
)
from orchard.workers.domains.swe.sheets.sheet import ExpectedVisit, FreshQuestion, problem
from orchard.workers.domains.swe.sheets.told import Told
from orchard.workers.domains.swe.sheets.variants import Variant, number_of_variant, with_variants
from orchard.workers.domains.swe.testing import TestRun

SHARE, MOST = 0.2, 0.2
"""Of the seconds of a sheet, what fresh inputs may take beside them, and their seconds at most; with a
submission they may take ten times as many (`child.Within`)."""

Run = Callable[[Mapping[str, str]], Awaitable[TestRun]]
"""Writes files and runs all tests."""
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

    def with_numbers(self, numbers: Numbers) -> tuple[dict[str, str], dict[str, Variant]]:
        """Returns all files, and the variants by file and function."""
        texts = dict(self.files)
        variants: dict[str, Variant] = {}
        for file, wanted in numbers.items():
            texts[file], made = with_variants(self.files[file], wanted)
            variants |= {f"{file}::{each.name}": each for each in made}
        return texts, variants

    def deviates(self, told: Told) -> bool:
        """Whether a test is answered otherwise than without variants."""
        return any(
            name not in told.tests or problem(self.conditions, visits, told.tests[name].visits)
            for name, visits in self.expected.items()
        )


async def with_fresh_inputs(
    asked: AskedTests, gold: Run, base: Run, seconds: float
) -> tuple[Mapping[str, str], dict[str, tuple[FreshQuestion, ...]]]:
    """Returns the files with the variants that are kept, and their questions by the variants' ids.

    `seconds` are those of the sheet without them.
    """
    texts, variants = asked.with_numbers(asked.numbers())
    if not variants:
        return asked.files, {}
    by_gold, by_base = (await gold(texts)).told, (await base(texts)).told
    conditions = {
        ask: each
        for ask, each in asked.conditions.items()
        if ask not in asked.pinned and each[0] not in ("loose", "or")
    }
    found = enough(fresh_questions(conditions, asked.expected, variants, by_gold, by_base))
    chosen = affordable(found, by_gold, min(SHARE * seconds, MOST))
    numbers: Numbers = {}
    for name in {each.partition("[")[0] for each in chosen}:
        functions = numbers.setdefault(name.partition("::")[0], {})
        functions.setdefault(variants[name].function, []).append(number_of_variant(name))
    if not numbers:
        return asked.files, {}
    texts, _ = asked.with_numbers(numbers)
    again = (await gold(texts)).told
    questions = enough(steady(asked.conditions, chosen, again))
    return (asked.files, {}) if not questions or asked.deviates(again) else (texts, questions)
