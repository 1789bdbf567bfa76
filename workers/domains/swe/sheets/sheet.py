"""What is kept of a task's question sheet: the files as a patch, and what each test is expected to answer."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from orchard.schemas.protection import Protected
from orchard.workers.domains.swe.sheets.conditions import Condition, holds
from orchard.workers.domains.swe.sheets.values import NotHeld, Unclear, decode

FORMAT = 5
"""Raised where an older worker would read a sheet wrongly, or a newer one makes a better one."""


_SAID = 300
"""Characters that are kept of what is wrong with an answer: they may be the answer's."""


class Visit(msgspec.Struct, frozen=True, kw_only=True):
    """One time that a test came to an assertion."""

    ask: int
    """Number of the assertion."""
    got: list[Any] = []
    """What was computed, as `child.py` tells it."""
    key: list[Any] | None = None
    """What is expected, told by the gold patch in a key; None in a sheet."""


class ExpectedVisit(msgspec.Struct, frozen=True, array_like=True):
    ask: int
    key: list[Any]


class SheetTest(msgspec.Struct, frozen=True, kw_only=True):
    """One test of the task."""

    name: str
    """Its id in the task."""
    status: str
    """Status with the gold patch, which a submission must have too where that is no plain pass."""
    visits: tuple[ExpectedVisit, ...] = ()
    """Its assertions in order; none where it is judged inside."""
    label: Protected
    unjudged: bool = False
    """Whether it is expected to fail by an assertion, so that its answers decide nothing."""


class FreshQuestion(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """An assertion about an input that the task's tests do not have."""

    ask: int
    at: int
    """How often the test comes to this assertion before."""
    key: list[Any]
    """What is expected, of which the gold patch's answer is a part where the two are compared."""
    holds: bool = True
    """Whether the assertion holds with the gold patch."""
    base: bool = False
    """Whether the base commit answers as the gold patch does."""
    inputs: str = ""
    """What is another literal than in the test; for people."""
    strange: bool = False
    """Whether that is a text which a right solution may refuse."""


class Sheet(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    patch: bytes
    """The task's test files with the questions in place of the tests, as a patch to the base commit."""
    paths: tuple[str, ...] = ()
    """Paths that it changes, relative to the working directory."""
    conditions: dict[int, Condition]
    """By the number of an assertion: how it holds."""
    lines: dict[int, int]
    """Where it stands in the task's own file."""
    tests: dict[str, SheetTest]
    """By the id that the test has in the sheet."""
    fresh: dict[str, tuple[FreshQuestion, ...]] = {}
    """Questions about other inputs, by the ids of the tests that ask them."""
    label: Protected
    why: str = ""
    """Why the label is not better; for people."""


def problem(
    conditions: Mapping[int, Condition], expected: Sequence[ExpectedVisit], visits: Sequence[Visit]
) -> str:
    """Says which answer of a test is not what is expected; empty when all are right."""
    keys = {wanted.ask: wanted.key for wanted in expected}
    for visit in visits:
        if is_loose(conditions, visit.ask):
            said = wrong(conditions[visit.ask], keys.get(visit.ask, []), visit.got)
            if said:
                return said
    expected = [wanted for wanted in expected if not is_loose(conditions, wanted.ask)]
    visits = [visit for visit in visits if not is_loose(conditions, visit.ask)]
    for number, (wanted, visit) in enumerate(zip(expected, visits, strict=False)):
        if wanted.ask != visit.ask:
            return f"assertion {number + 1} is another one than with the known solution"
        if said := wrong(conditions[wanted.ask], wanted.key, visit.got):
            return said
    if len(visits) != len(expected):
        return f"{len(visits)} assertions were reached, not {len(expected)}"
    return ""


def is_loose(conditions: Mapping[int, Condition], ask: int) -> bool:
    """Whether a right solution may come to an assertion more or less often than the gold patch."""
    return ask in conditions and conditions[ask][0] == "loose"


def held(condition: Condition, key: Sequence[Any], got: Sequence[Any]) -> bool | None:
    """Whether an assertion holds; None where it cannot be told."""
    try:
        return holds(condition, [decode(each, trusted=False) for each in got], [decode(each) for each in key])
    except NotHeld:
        return False
    except Exception:  # answers come from tested code, and may be anything
        return None


def wrong(condition: Condition, key: Sequence[Any], got: Sequence[Any]) -> str:
    """Says why an assertion does not hold; empty when it does."""
    try:
        answers = [decode(each, trusted=False) for each in got]
        found = holds(condition, answers, [decode(each) for each in key])
    except (NotHeld, Unclear) as error:
        return str(error)[:_SAID] or "it cannot be told"
    except Exception as error:  # answers come from tested code, and may be anything
        return f"not an answer: {type(error).__name__}"
    return "" if found else "the answer is not what is expected"
