"""Fresh inputs: questions of a sheet about inputs that its tests do not have, and gold's answers. Pure.

Whoever knows a test's inputs alone falls back on something for all others: on what the base commit does, on
a constant, on the opposite. So the questions that the base commit answers wrongly, and those that it answers
rightly, are counted apart; so are questions of which yes is right, and those of which no is. Other right
implementations may differ where nobody said what is right: only who is wrong about more than ALLOWED of a
group is refused.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from orchard.workers.domains.swe.sheets.conditions import Condition
from orchard.workers.domains.swe.sheets.sheet import FreshQuestion, Sheet, Visit, held
from orchard.workers.domains.swe.sheets.told import Told, ToldTest
from orchard.workers.domains.swe.sheets.variants import Variant, original_of

ALLOWED, FEW = 1 / 3, 2
"""Share of a group that a right solution may answer otherwise than the gold patch, and how many at least."""
ENOUGH = 4
"""Questions of a function that the base commit must answer wrongly, for any of its questions to be kept."""
ITEMS = 240
"""Variants that are tried for a task, each row of a table counted."""
EACH = 12
"""Variants that are tried for a function at most."""
SLOW = 0.025
"""Seconds of a variant's row that are too many; it may take ten times as many with a submission
(`child.Within`)."""
_BAD_INPUT = frozenset({"ValueError", "TypeError", "LookupError", "ArithmeticError"})
_SHOWN = 300
"""Characters of an input or answer in a log."""
_PAIRS = (
    *("almost", "counts", "sequence", "allclose", "assert_allclose"),
    *("array_equal", "assert_array_equal", "assert_frames", "equals"),
)


def numbers_for(rows: Mapping[str, int]) -> dict[str, range]:
    """Returns which variants are tried of each function, given the number of its tests."""
    share = ITEMS // max(1, len(rows))
    return {name: range(min(EACH, max(2, share // max(1, tests)))) for name, tests in rows.items()}


def function_and_row(name: str) -> tuple[str, str]:
    """Splits the id of a test after its file: the function, and what stands in brackets."""
    function, bracket, row = name.partition("::")[2].partition("[")
    return function, bracket + row


# --- which questions are kept --------------------------------------------------------------------


def fresh_questions(
    conditions: Mapping[int, Condition],
    keys: Mapping[str, Sequence[Any]],
    variants: Mapping[str, Variant],
    gold: Told,
    base: Told,
) -> dict[str, list[FreshQuestion]]:
    """Returns the questions that tell solutions apart, by the variants' ids in the sheet.

    `keys` has each test's expected visits by its id, `variants` each variant by file and function.
    """
    found: dict[str, list[FreshQuestion]] = {}
    for name, test in gold.tests.items():
        file = name.partition("::")[0]
        function, row = function_and_row(name)
        variant = variants.get(f"{file}::{function}")
        if variant is None or test.status != "PASSED":
            continue
        original = f"{file}::{original_of(function)}{row}"
        known = gold.tests.get(original)
        if known is None:
            continue
        key = {visit.ask: visit.key for visit in keys.get(original, ())}
        questions = list(_questions(conditions, key, variant, test, known, base.tests.get(name)))
        if questions:
            found[name] = questions
    return found


def _questions(
    conditions: Mapping[int, Condition],
    keys: Mapping[int, Sequence[Any]],
    variant: Variant,
    gold: ToldTest,
    known: ToldTest,
    base: ToldTest | None,
) -> Iterator[FreshQuestion]:
    before = dict(_numbered(known.visits))
    by_base = dict(_numbered(base.visits)) if base is not None else {}
    for place, visit in _numbered(gold.visits):
        if visit.ask not in conditions or visit.ask not in keys:
            continue
        changed = variant.table or visit.ask in variant.asked
        if not changed and (place not in before or before[place].got == visit.got):
            continue
        asked = _question(conditions[visit.ask], place, keys[visit.ask], visit.got)
        if asked is not None:
            other = by_base.get(place)
            right = other is not None and is_right(conditions[visit.ask], asked, other.got)
            inputs = variant.change_of(visit.ask)[:_SHOWN]
            strange = variant.is_strange(visit.ask)
            yield msgspec.structs.replace(asked, base=right, inputs=inputs, strange=strange)


def _numbered(visits: Iterable[Visit]) -> Iterator[tuple[tuple[int, int], Visit]]:
    seen: Counter[int] = Counter()
    for visit in visits:
        yield (visit.ask, seen[visit.ask]), visit
        seen[visit.ask] += 1


def _question(
    condition: Condition, place: tuple[int, int], key: Sequence[Any], got: Sequence[Any]
) -> FreshQuestion | None:
    """Returns the question that the gold patch answered so; None for an answer that says nothing."""
    ask, at = place
    if condition[0] == "raises":
        raised = got[0]["raised"][0] if got and isinstance(got[0], dict) and "raised" in got[0] else []
        truth = _truth(condition, key, got)
        if truth is None or (raised and not truth):
            return None  # what another error says is that the input is bad
        return FreshQuestion(ask=ask, at=at, key=list(key), holds=truth)
    if any(isinstance(each, dict) and {"raised", "unreadable", "deep"} & each.keys() for each in got):
        return None
    pinned = _pinned(condition, list(key), got)
    truth = _truth(condition, pinned, got)
    return None if truth is None else FreshQuestion(ask=ask, at=at, key=pinned, holds=truth)


def _pinned(condition: Condition, key: list[Any], got: Sequence[Any]) -> list[Any]:
    """Puts the gold patch's answers in place of what is expected, where an assertion compares the two."""
    kind, *rest = condition
    if kind in ("and", "all"):
        for part in rest if kind == "and" else rest[:1]:
            key = _pinned(part, key, got)
        return key
    if kind == "compare" and rest[1] in (["Eq"], ["Is"]):
        sides = rest[0], rest[2][0]
    elif kind in _PAIRS:
        sides = rest[0], rest[1]
    else:
        return key
    asked = [side[1] for side in sides if side[0] == "leaf"]
    known = [side[1] for side in sides if side[0] == "pure"]
    if len(asked) == len(known) == 1 and asked[0] < len(got) and known[0] < len(key):
        key[known[0]] = _near(key[known[0]], got[asked[0]], exact=kind != "compare")
    return key


def _near(expected: Any, answer: Any, *, exact: bool) -> Any:
    """The gold patch's answer with the tolerance that the test has, or a small one for its fractions."""
    if isinstance(expected, dict) and "approx" in expected:
        return {"approx": [answer, *expected["approx"][1:]]}
    return answer if exact or not _has_fraction(answer) else {"approx": [answer, None, None, True]}


def _has_fraction(answer: Any) -> bool:
    """Whether an answer is a fraction, or a plain container of some."""
    if not isinstance(answer, dict):
        return False
    if "list" in answer or "tuple" in answer:
        return any(map(_has_fraction, *answer.values()))
    return "float" in answer or any(_has_fraction(value) for _, value in answer.get("dict", ()))


def _truth(condition: Condition, key: Sequence[Any], got: Sequence[Any]) -> bool | None:
    """Whether an assertion holds; None where it cannot be told."""
    if condition[0] == "raises":
        condition = condition[:3]
    return held(condition, key, got)


def is_right(condition: Condition, question: FreshQuestion, got: Sequence[Any]) -> bool:
    """Whether an answer agrees with the gold patch's."""
    raised = any(isinstance(each, dict) and "raised" in each for each in got)
    if raised and condition[0] != "raises":
        return False
    return _truth(condition, question.key, got) is question.holds


def enough(questions: Mapping[str, Sequence[FreshQuestion]]) -> dict[str, tuple[FreshQuestion, ...]]:
    """Leaves out the functions that have too few questions, or one answer for all of them."""
    by_function: dict[str, list[FreshQuestion]] = {}
    for name, asked in questions.items():
        by_function.setdefault(_function(name), []).extend(asked)
    kept = {
        name
        for name, asked in by_function.items()
        if sum(not each.base for each in asked) >= ENOUGH
        and len({json.dumps([each.key, each.holds]) for each in asked}) > 1
    }
    return {name: tuple(asked) for name, asked in questions.items() if _function(name) in kept}


def _variant(name: str) -> str:
    """File and variant of a test's id."""
    return name.partition("[")[0]


def _function(name: str) -> str:
    """File and test function of a variant's id."""
    return original_of(_variant(name))


def steady(
    conditions: Mapping[int, Condition], questions: Mapping[str, Sequence[FreshQuestion]], told: Told
) -> dict[str, list[FreshQuestion]]:
    """Returns the questions that another run of the gold patch answers alike."""
    kept = {}
    for name, asked in questions.items():
        visits = dict(_numbered(told.tests[name].visits)) if name in told.tests else {}
        kept[name] = [
            each
            for each in asked
            if (each.ask, each.at) in visits
            and is_right(conditions[each.ask], each, visits[each.ask, each.at].got)
        ]
    return {name: asked for name, asked in kept.items() if asked}


def in_time(told: Told) -> set[str]:
    """Returns the variants of which a test passes, and none takes long."""
    passed = {_variant(name) for name, test in told.tests.items() if test.status == "PASSED"}
    return passed - {_variant(name) for name, test in told.tests.items() if test.seconds > SLOW}


def affordable(
    questions: Mapping[str, Sequence[FreshQuestion]], told: Told, seconds: float
) -> dict[str, Sequence[FreshQuestion]]:
    """Leaves out variants that take long, and those that tell least, of all functions in turn, until the rest
    takes so many seconds."""
    tells: Counter[str] = Counter()
    costs: Counter[str] = Counter()
    quick = in_time(told)
    for name, asked in questions.items():
        tells[_variant(name)] += sum(1 if each.base else 4 for each in asked)
    for name, test in told.tests.items():
        costs[_variant(name)] += test.seconds  # type: ignore[assignment]
    ranks: Counter[str] = Counter()
    ranked = []
    for name, _ in tells.most_common():
        ranked.append((ranks[original_of(name)], name))
        ranks[original_of(name)] += 1
    kept: set[str] = set()
    for _, name in sorted(ranked):
        if name in quick and costs[name] <= seconds:
            seconds -= costs[name]
            kept.add(name)
    return {name: asked for name, asked in questions.items() if _variant(name) in kept}


# --- what a submission answers -------------------------------------------------------------------


Answers = Callable[[str, FreshQuestion], Sequence[Any] | None]
"""What a submission answers to a question of a variant; None for nothing."""


class FreshTally(msgspec.Struct):
    """A submission's answers to the fresh questions of one function, in groups: by whether the base commit
    answers rightly, and by the bit that is right, or whether the assertion holds."""

    asked: Counter[tuple[bool, bool]] = msgspec.field(default_factory=Counter)
    wrong: Counter[tuple[bool, bool]] = msgspec.field(default_factory=Counter)
    late: Counter[tuple[bool, bool]] = msgspec.field(default_factory=Counter)
    """What was not answered in time, which is forgiven in a group of which at least half was, and all that
    rightly: who hangs at the inputs that it does not know has to know as many."""
    example: tuple[FreshQuestion, Sequence[Any] | None] | None = None
    right: int = 0
    refusals: int = 0
    """Strange inputs that it refuses; they count only where it answers nothing rightly."""

    @property
    def refused(self) -> bool:
        if self.refusals and self.right < FEW:
            return True
        return any(map(self._is_refused, self.asked))

    def _is_refused(self, group: tuple[bool, bool]) -> bool:
        asked, wrong, late = self.asked[group], self.wrong[group], self.late[group]
        if wrong or 2 * late > asked:
            wrong += late
        return wrong > max(FEW, ALLOWED * asked)


def tallies(
    conditions: Mapping[int, Condition],
    fresh: Mapping[str, Sequence[FreshQuestion]],
    answers: Answers,
    cut_off: Collection[str] = (),
) -> dict[str, FreshTally]:
    """Counts by file and test function. What is not answered is wrong, or late in the variants in
    `cut_off`."""
    found: dict[str, FreshTally] = {}
    for name, questions in fresh.items():
        tally = found.setdefault(_function(name), FreshTally())
        for each in questions:
            condition, got = conditions[each.ask], answers(name, each)
            group = each.base, _bit(condition, each)
            right = got is not None and is_right(condition, each, got)
            tally.right += right
            if not right and each.strange and _refuses(got):
                tally.refusals += 1
                continue
            tally.asked[group] += 1
            if not right:
                missed = tally.late if got is None and name in cut_off else tally.wrong
                missed[group] += 1
            if not right and (tally.example is None or not each.base):
                tally.example = each, got
    return found


def _refuses(got: Sequence[Any] | None) -> bool:
    """Whether an answer says that the input is bad."""
    names = [
        name
        for each in got or ()
        if isinstance(each, dict) and isinstance(each.get("raised"), list)
        for name in each["raised"][0]
    ]
    return not _BAD_INPUT.isdisjoint(name for name in names if isinstance(name, str))


def _bit(condition: Condition, question: FreshQuestion) -> bool:
    if len(question.key) == 1 and (question.key[0] is None or isinstance(question.key[0], bool)):
        return bool(question.key[0]) is question.holds
    return question.holds is not (condition[0] == "not")


def by_rote(sheet: Sheet, told: Told) -> dict[str, str]:
    """Returns the functions whose tests a submission passes for their own inputs alone, with what it says of
    others."""
    visits = {name: dict(_numbered(test.visits)) for name, test in told.tests.items() if name in sheet.fresh}

    def answers(name: str, question: FreshQuestion) -> Sequence[Any] | None:
        visit = visits.get(name, {}).get((question.ask, question.at))
        return None if visit is None else visit.got

    cut_off = {name for name in visits if told.tests[name].cut_off}
    found = tallies(sheet.conditions, sheet.fresh, answers, cut_off)
    return {name: _said(sheet, tally) for name, tally in found.items() if tally.refused}


def _said(sheet: Sheet, tally: FreshTally) -> str:
    if tally.example is None:
        return f"{tally.refusals} inputs are refused, and {tally.right} answers are right"
    question, got = tally.example
    answer = "nothing" if got is None else json.dumps(got)[:_SHOWN]
    missed = tally.wrong.total() + tally.late.total()
    expected = json.dumps(question.key)[:_SHOWN] if question.key else "true"
    return (
        f"{missed} of {tally.asked.total()} answers to other inputs are wrong or late; line "
        f"{sheet.lines[question.ask]} of its file with {question.inputs}: it answers {answer}, the known "
        f"solution {'' if question.holds else 'not '}{expected}"
    )
