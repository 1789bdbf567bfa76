"""A question sheet in the making: which functions are treated how, and what a trial changes. Pure."""

import ast
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import msgspec

from orchard.workers.domains.swe.sheets.conditions import Condition
from orchard.workers.domains.swe.sheets.doctests import only_examples, rewrite_text
from orchard.workers.domains.swe.sheets.labels import scalars
from orchard.workers.domains.swe.sheets.purity import ModuleNames, functions_of
from orchard.workers.domains.swe.sheets.rewriting import rewrite
from orchard.workers.domains.swe.sheets.sheet import ExpectedVisit, Visit, held, problem, wrong
from orchard.workers.domains.swe.sheets.sites import RewrittenFile, Site, Treatment
from orchard.workers.domains.swe.sheets.told import Told, ToldTest
from orchard.workers.domains.swe.sheets.trimming import hold_back, trim
from orchard.workers.domains.swe.verdict import PASSING

_ROUNDS_OF_TOKENS = 2
"""Trials in which literals are put back one by one."""
_APART = 10_000_000
"""Between the numbers of two files' assertions and tokens."""


class KnownTest(msgspec.Struct, kw_only=True):
    """One test of the task, as the gold patch answers it in the key."""

    id: str
    """The framework's id in the task's own files."""
    function: str
    file: str
    status: str
    """Of the plain run with the gold patch."""
    visits: list[Visit]
    again: list[Visit]
    """The same in another run."""
    base: list[Visit]
    """The same at the base commit."""


class Draft:
    """The files of one task's sheet."""

    def __init__(
        self, sources: Mapping[str, str], tested: Callable[[str], bool], helpers: frozenset[str] = frozenset()
    ) -> None:
        """`helpers` are those of the files that have no tests of their own but are imported by these."""
        self.sources = dict(sources)
        self._helpers = helpers
        self._tested = tested
        self._first = {file: at * _APART for at, file in enumerate(sorted(sources))}
        self.treatments: dict[tuple[str, str], Treatment] = {}
        """By file and function."""
        self.bits: set[int] = set()
        self.swapped: set[int] = set()
        """Assertions of which the other operand is pinned."""
        self.needed: set[int] = set()
        """Tokens that the tests used."""
        self.tokens: dict[int, tuple[str, str]] = {}
        """File and function of each token of the last texts."""
        self._rounds_of_tokens = 0
        self.answers: set[object] = set()
        """Plain values that answers are made of."""
        self.unjudged: set[str] = set()
        """Tests that are expected to fail, and do by an assertion of the sheet."""
        self.left_alone: set[str] = set()
        """Files that stay as they are."""
        for file in sources:
            try:
                self._rewritten(file)
            except (SyntaxError, ValueError, RecursionError):
                self.left_alone.add(file)
        for file in self._helpers - self.left_alone:  # others read what nothing reads in them
            self.treatments |= {(file, name): Treatment.WHOLE for name in ("", *self._functions(file))}
        self.sites: dict[int, Site] = {}

    def _rewritten(self, file: str) -> RewrittenFile:
        treatments = {name: how for (where, name), how in self.treatments.items() if where == file}
        if not file.endswith(".py"):
            return rewrite_text(
                self.sources[file],
                PurePosixPath(file).name,
                first=self._first[file],
                treatments=treatments,
                bits=self.bits,
            )
        return rewrite(
            self.sources[file],
            self._tested,
            first=self._first[file],
            treatments=treatments,
            bits=self.bits,
            swapped=self.swapped,
        )

    def keys(self) -> dict[str, str]:
        """Returns the text of each file's key."""
        return {file: self._rewritten(file).key for file in self.sources if file not in self.left_alone}

    def texts(self) -> dict[str, str]:
        """Returns the text of each file's sheet as it is now treated, and notes its assertions and tokens."""
        self.sites, self.tokens = {}, {}
        return {file: self._text(file) for file in self.sources if file not in self.left_alone}

    def files(self) -> dict[str, str]:
        """Returns the text of each file, of those too that stay as they are."""
        return {**self.sources, **self.texts()}

    def _text(self, file: str) -> str:
        made = self._rewritten(file)
        self.sites |= made.sites
        treated = {name: how for (where, name), how in self.treatments.items() if where == file}
        if isinstance(made.sheet, str):
            trimmed = max(treated.values(), default=Treatment.TOKENS) <= Treatment.TRIMMED
            return only_examples(made.sheet) if trimmed else made.sheet
        untrimmed = {name for name, how in treated.items() if how > Treatment.TRIMMED}
        untokened = {name for name, how in treated.items() if how > Treatment.TOKENS}
        if Treatment.WHOLE in (self.treatments.get((file, "")), None):
            untokened |= {""}
        trim(made.sheet, untrimmed, ModuleNames(ast.parse(self.sources[file]), self._tested))
        held = hold_back(made.sheet, self.answers, untokened, self.needed, self._first[file])
        self.tokens |= {number: (file, function) for number, function in held.items()}
        return ast.unparse(made.sheet) + "\n"

    def conditions(self) -> dict[int, Condition]:
        return {number: site.condition for number, site in self.sites.items()}

    def expected(self, test: KnownTest) -> list[ExpectedVisit]:
        """Returns what a test is expected to answer in the sheet as it is now treated."""
        if test.id in self.unjudged:
            return []
        return [
            ExpectedVisit(
                visit.ask, [] if visit.ask in self.bits or self._bit(visit.ask) else visit.key or []
            )
            for visit in test.visits
            if visit.ask in self.sites
        ]

    def _bit(self, number: int) -> bool:
        return self.sites[number].condition in (["leaf", 0], ["loose", ["leaf", 0]])

    # --- what trials change ----------------------------------------------------------------------

    def learn(self, tests: Sequence[KnownTest], outside: Iterable[int] = ()) -> None:
        """Draws the conclusions from the key: what is unsteady, what cannot be told, what is no answer, and
        what was asked `outside` of tests, where nobody would judge it."""
        self.texts()
        for number in outside:
            self.treatments[self._unit(number)] = Treatment.INSIDE
        self._swap(tests)
        self.texts()
        for test in tests:
            if test.status == "XFAIL" and self._fails_by_an_assertion(test):
                self.unjudged.add(test.id)
                continue
            if [visit.ask for visit in test.visits] != [visit.ask for visit in test.again]:
                self.degrade(test, Treatment.INSIDE)
                continue
            loose: dict[int, list[Any]] = {}
            for visit, again, base in _beside(test):
                if visit.ask not in self.sites:
                    continue
                site = self.sites[visit.ask]
                key = visit.key or []
                if (
                    wrong(site.condition, key, visit.got)
                    or wrong(site.condition, key, again.got)
                    or (site.pinned and not _agreed(site, key, base))
                    or (site.condition[0] == "loose" and key != loose.setdefault(visit.ask, key))
                ):
                    self.bits.add(visit.ask)
                else:
                    self.answers |= {part for each in key for part in _hashable(scalars(each))}

    def _fails_by_an_assertion(self, test: KnownTest) -> bool:
        """Whether an AssertionError is what a test is expected to fail by, so that another one would do."""
        asked = [(self.sites[visit.ask].condition, visit) for visit in test.visits if visit.ask in self.sites]
        others = {"raises", "raises_group", "warns", "assert_warns"}
        return others.isdisjoint(condition[0] for condition, _ in asked) and any(
            held(condition, visit.key or [], visit.got) is False for condition, visit in asked
        )

    def _swap(self, tests: Sequence[KnownTest]) -> None:
        """Pins the other operand of comparisons where base and gold agree on that one alone."""
        pinned: dict[int, list[bool]] = {}
        asked: dict[int, list[bool]] = {}
        for test in tests:
            for visit, again, base in _beside(test):
                site = self.sites.get(visit.ask)
                if site is not None and site.pinned == (0,) and site.condition[0] == "compare":
                    steady = base is not None and visit.got == again.got == base.got and len(visit.got) == 1
                    pinned.setdefault(visit.ask, []).append(_agreed(site, visit.key or [], base))
                    asked.setdefault(visit.ask, []).append(steady)
        self.swapped = {ask for ask in pinned if not all(pinned[ask]) and all(asked[ask])}
        for test in tests:
            for visits in (test.visits, test.again, test.base):
                visits[:] = [_exchanged(each) if each.ask in self.swapped else each for each in visits]

    def deviates(self, test: KnownTest, told: ToldTest | None) -> bool:
        """Whether the gold patch does in the sheet anything else than in the task's own tests; draws the
        conclusions."""
        if told is None:
            return True
        if test.id in self.unjudged:
            return told.status not in PASSING
        expected = self.expected(test)
        if [visit.ask for visit in told.visits] == [visit.ask for visit in expected]:
            bad = [
                visit.ask
                for wanted, visit in zip(expected, told.visits, strict=True)
                if wrong(self.sites[visit.ask].condition, wanted.key, visit.got)
            ]
            if not bad:
                return told.status != test.status
            fresh = set(bad) - self.bits
            self.bits |= fresh
            return not fresh
        return True

    def degrade(self, test: KnownTest, least: Treatment = Treatment.TOKENS) -> bool:
        """Does one thing less to the functions that a test ran through; False if there is nothing left to
        undo."""
        involved = {(test.file, test.function)}
        involved |= {self._unit(visit.ask) for visit in test.visits if visit.ask in self.sites}
        changed = False
        for unit in involved:
            now = self.treatments.get(unit, Treatment.TOKENS)
            if now is not Treatment.INSIDE:
                self.treatments[unit] = Treatment(max(now + 1, least))
                changed = True
        if not changed:
            others = {(test.file, name) for name in self._functions(test.file)}
            for unit in others:
                if self.treatments.get(unit, Treatment.TOKENS) < Treatment.WHOLE:
                    self.treatments[unit] = Treatment.WHOLE
                    changed = True
        if not changed and test.file not in self.left_alone:
            self.leave_alone(test.file)
            changed = True
        if max(self.treatments[unit] for unit in involved if unit[0] == test.file) >= Treatment.WHOLE:
            module = self.treatments.get((test.file, ""), Treatment.WHOLE)
            self.treatments[test.file, ""] = max(module, Treatment.WHOLE)
        return changed

    def leave_alone(self, file: str) -> None:
        """Leaves a file as it is, and helpers too, which its tests may call."""
        self.left_alone |= {file, *self._helpers}

    def _unit(self, number: int) -> tuple[str, str]:
        """File and function of an assertion."""
        return sorted(self.sources)[number // _APART], self.sites[number].function

    def _functions(self, file: str) -> list[str]:
        if not file.endswith(".py"):
            return [PurePosixPath(file).name]
        return [name for name, _, _ in functions_of(ast.parse(self.sources[file]))]

    def settled(self, tests: Sequence[KnownTest], told: Told, ids: Mapping[str, str]) -> bool:
        """Whether the sheet answers with the gold patch as the task's tests do; if not, it is changed.

        `ids` are the tests' ids in the sheet by those in the key.
        """
        before = len(self.bits)
        if told.tokens - self.needed:
            self._put_back(told.tokens)
            return False
        if unread := self._unread(tests, told):
            for file in unread:
                self.treatments[file, ""] = Treatment.WHOLE
            return False
        deviating = self.deviating(tests, told, ids)
        for test in deviating:
            self.degrade(test)
        return not deviating and len(self.bits) == before

    def _unread(self, tests: Iterable[KnownTest], told: Told) -> set[str]:
        """Returns files of which no test was run, and of which more than functions was changed."""
        run = {name.partition("::")[0] for name, test in told.tests.items() if "::" in name}
        return {
            test.file
            for test in tests
            if test.file not in run | self.left_alone and (test.file, "") not in self.treatments
        }

    def deviating(self, tests: Iterable[KnownTest], told: Told, ids: Mapping[str, str]) -> list[KnownTest]:
        return [
            test
            for test in tests
            if test.file not in self.left_alone and self.deviates(test, told.tests.get(ids.get(test.id, "")))
        ]

    def _put_back(self, used: set[int]) -> None:
        """Puts literals back that the tests use; in the end all of the functions in which some are."""
        self._rounds_of_tokens += 1
        if self._rounds_of_tokens > _ROUNDS_OF_TOKENS:
            units = {self.tokens[number] for number in used if number in self.tokens}
            used = used | {number for number, unit in self.tokens.items() if unit in units}
        self.needed |= used


def _beside(test: KnownTest) -> Iterator[tuple[Visit, Visit, Visit | None]]:
    """Yields the visits of a test, each beside the same of the second run and that of the base commit, None
    where that does not come so far."""
    reached: dict[int, list[Visit]] = {}
    for visit in reversed(test.base):
        reached.setdefault(visit.ask, []).append(visit)
    for visit, again in zip(test.visits, test.again, strict=False):
        left = reached.get(visit.ask)
        yield visit, again, left.pop() if left else None


def _agreed(site: Site, key: Sequence[Any], base: Visit | None) -> bool:
    """Whether base and gold agree on expected values that depend on tested code."""
    if site.changing:
        return False
    if base is None:
        return not site.called
    other = base.key or []
    return all(number < len(other) and other[number] == key[number] for number in site.pinned)


def _exchanged(visit: Visit) -> Visit:
    return Visit(ask=visit.ask, got=visit.key or [], key=visit.got)


def same_places(told: Told, names: Iterable[str]) -> dict[str, str]:
    """Returns, for each of these ids, the id of the test of another run that has its place among the tests of
    its function: parameters are numbers in a sheet."""
    places: Counter[str] = Counter()
    found: dict[tuple[str, int], str] = {}
    for name in told.tests:
        function = name.partition("[")[0]
        found[function, places[function]] = name
        places[function] += 1
    places.clear()
    ids: dict[str, str] = {}
    for name in names:
        function = name.partition("[")[0]
        if (function, places[function]) in found:
            ids[name] = found[function, places[function]]
        places[function] += 1
    return ids


def function_of(name: str) -> str:
    """`Class::test_x` or `test_x` of a test's id."""
    return name.partition("[")[0].partition("::")[2]


def roots_of(paths: Iterable[str]) -> frozenset[str]:
    """Returns all names under which modules of a repository might be imported."""
    return frozenset(
        part.removesuffix(".py")
        for path in paths
        if path.endswith((".py", ".pyx", ".so", ".pyd"))
        for part in PurePosixPath(path).parts
    )


def _hashable(values: Iterable[object]) -> Iterable[object]:
    return (value for value in values if isinstance(value, str | bytes | int | float))


def answered(
    sheet_conditions: Mapping[int, Condition], expected: Sequence[ExpectedVisit], told: ToldTest | None
) -> str:
    """Says what is wrong about a test's answers; empty where all are right."""
    return "it was not run" if told is None else problem(sheet_conditions, expected, told.visits)
