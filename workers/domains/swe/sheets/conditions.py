"""Evaluates an asked assertion from what was told: a condition is a tree of lists, whose first word says what
it is (`rewriting.py` makes them). Pure."""

import json
import operator
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import regex

from orchard.workers.domains.swe.sheets.values import (
    Array,
    ClassNames,
    Incomplete,
    Member,
    PandasFrame,
    PandasSeries,
    Raised,
    Tolerance,
    Unclear,
    class_names,
    flat,
    near,
)

Condition = list[Any]
_SEARCH_SECONDS = 2.0
"""Time for a test's pattern in a text that tested code chose."""
_FLAGS = re.IGNORECASE | re.MULTILINE | re.DOTALL | re.VERBOSE | re.ASCII
"""Flags that both libraries have under one number."""
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "Eq": operator.eq,
    "NotEq": operator.ne,
    "Lt": operator.lt,
    "LtE": operator.le,
    "Gt": operator.gt,
    "GtE": operator.ge,
    "In": lambda item, container: operator.contains(_container(container), item),
    "NotIn": lambda item, container: not operator.contains(_container(container), item),
    "Is": lambda one, another: _same(one, another),
    "IsNot": lambda one, another: not _same(one, another),
}


class NotHeld(Exception):
    """An answer with which the assertion does not hold; the text says why."""


def holds(condition: Condition, leaves: Sequence[Any], pures: Sequence[Any]) -> bool:
    """Whether an assertion holds, given its decoded answers and expected values.

    Raises Unclear where the worker cannot say, and NotHeld for an exception in place of a needed answer.
    """
    try:
        return bool(_value(condition, leaves, pures))
    except (Unclear, NotHeld):
        raise
    except Exception as error:
        raise Unclear(f"{type(error).__name__}: {error}") from error


def _value(node: Condition, leaves: Sequence[Any], pures: Sequence[Any]) -> Any:
    kind, *rest = node
    if kind == "leaf":
        return _answer(leaves[rest[0]])
    if kind == "pure":
        return pures[rest[0]]
    if kind == "and":
        return all(_value(each, leaves, pures) for each in rest)
    if kind == "or":
        return any(_value(each, leaves, pures) for each in rest)
    if kind == "not":
        return not _value(rest[0], leaves, pures)
    if kind in ("all", "any"):
        return _each(kind, rest[0], leaves, pures, *rest[1:])
    if kind == "compare":
        return _compare(rest, leaves, pures)
    if kind == "raises":
        return _raises(leaves[rest[0]], *(_value(each, leaves, pures) for each in rest[1:]))
    return _FUNCTIONS[kind](*(_value(each, leaves, pures) for each in rest))


def _answer(value: Any) -> Any:
    if isinstance(value, Raised):
        raise NotHeld(f"{value.names[0]}: {value.text}")
    return value


def _each(
    kind: str, sub: Condition, leaves: Sequence[Any], pures: Sequence[Any], asked: list[int], known: list[int]
) -> bool:
    columns = [_answer(leaves[number]) for number in asked] + [pures[number] for number in known]
    if len({len(column) for column in columns}) > 1:
        raise NotHeld("the answers are not as many as what is expected")
    found = []
    for row in zip(*columns, strict=True):
        some, more = list(leaves), list(pures)
        for number, value in zip(asked, row, strict=False):
            some[number] = value
        for number, value in zip(known, row[len(asked) :], strict=True):
            more[number] = value
        found.append(bool(_value(sub, some, more)))
    return all(found) if kind == "all" else any(found)


def _compare(rest: list[Any], leaves: Sequence[Any], pures: Sequence[Any]) -> bool:
    left, operators, rights = rest
    one = _value(left, leaves, pures)
    for name, right in zip(operators, rights, strict=True):
        another = _value(right, leaves, pures)
        if isinstance(one, Tolerance):
            one, another = another, one  # an answer never has a say in how it is compared
        if name in ("Eq", "NotEq") and isinstance(another, Tolerance):
            if (another == one) != (name == "Eq"):
                return False
        elif not _COMPARISONS[name](one, another):
            return False
        one = another
    return True


def _same(one: Any, another: Any) -> bool:
    if isinstance(one, bool) or isinstance(another, bool) or one is None or another is None:
        return one is another
    if isinstance(one, ClassNames) and isinstance(another, ClassNames):
        return one == another
    if isinstance(one, Member) and isinstance(another, Member):
        return one == another
    raise Unclear("identity cannot be told")


def _container(value: Any) -> Any:
    if getattr(value, "names", None) and hasattr(value, "fields"):
        inner = value.fields
        if value.names[0] in ("dict_values", "deque", "array"):
            return inner
        raise Unclear(f"what a {value.names[0]} contains cannot be told")
    if isinstance(value, Array):
        return flat(value.items)
    if isinstance(value, Incomplete):
        raise Unclear("it is too long to be told")
    return value


def _raises(answer: Any, expected: Any, match: Any = None) -> bool:
    if not isinstance(answer, Raised):
        raise NotHeld("nothing was raised")
    wanted = expected if isinstance(expected, list | tuple) else [expected]
    if not any(isinstance(each, ClassNames) for each in wanted):
        raise Unclear("what should be raised cannot be told")
    if not any(isinstance(each, ClassNames) and each.names[0] in answer.names for each in wanted):
        raise NotHeld(f"{answer.names[0]} was raised: {answer.text}")
    return match is None or _search(answer.text, match)


def _search(text: Any, pattern: Any) -> bool:
    flags = 0
    if getattr(pattern, "shown", None):  # a compiled one
        pattern, flags = json.loads(pattern.shown)
    try:
        found = regex.search(pattern, text, flags & _FLAGS, timeout=_SEARCH_SECONDS)
        return bool(found is not None)
    except TimeoutError:
        raise NotHeld(f"the search for {pattern!r} in it does not end") from None


def _isinstance(value: Any, kinds: Any) -> bool:
    wanted = kinds if isinstance(kinds, tuple) else (kinds,)
    if not all(isinstance(each, ClassNames) for each in wanted):
        raise Unclear("the classes cannot be told")
    return any(each.names[0] in class_names(value) for each in wanted)


def _almost(one: Any, another: Any, places: Any, delta: Any) -> bool:
    if one == another:
        return True
    if delta is not None:
        return bool(abs(one - another) <= delta)
    return bool(round(abs(one - another), 7 if places is None else places) == 0)


def _counts(one: Any, another: Any) -> bool:
    try:
        return Counter(one) == Counter(another)
    except TypeError:
        left = list(another)
        for each in one:
            if each not in left:
                return False
            left.remove(each)
        return not left


def _as_list(value: Any) -> Any:
    if isinstance(value, Array):
        return value.items
    if isinstance(value, PandasSeries):
        return value.items
    return value


def _allclose(one: Any, another: Any, relative: Any, absolute: Any, equal_nan: Any) -> bool:
    found, expected = flat(_listed(one)), flat(_listed(another))
    if len(expected) == 1:
        expected *= len(found)
    return len(found) == len(expected) and all(
        near(right, left, float(relative), float(absolute), bool(equal_nan))
        if not isinstance(right, float | int) or isinstance(right, bool)
        else _numpy_near(left, right, float(relative), float(absolute), bool(equal_nan))
        for left, right in zip(found, expected, strict=True)
    )


def _numpy_near(found: Any, expected: Any, relative: float, absolute: float, equal_nan: bool) -> bool:
    if found != found or expected != expected:
        return equal_nan and found != found and expected != expected
    return bool(found == expected or abs(found - expected) <= absolute + relative * abs(expected))


def _listed(value: Any) -> Any:
    value = _as_list(value)
    return [_listed(each) for each in value] if isinstance(value, list | tuple) else value


def _arrays(one: Any, another: Any) -> bool:
    for each in (one, another):
        if not isinstance(each, Array | list | tuple | int | float | str | bool):
            raise Unclear("no array")
    if isinstance(one, Array) and isinstance(another, Array) and one.shape != another.shape:
        small = 1 in (len(flat(one.items)), len(flat(another.items)))
        return small and _allclose(one, another, 0, 0, True)
    return _allclose(one, another, 0, 0, True)


def _frames(one: Any, another: Any, options: Any) -> bool:
    if set(options) - {"check_dtype", "check_exact", "rtol", "atol", "check_names", "check_index_type"}:
        raise Unclear("options of the comparison")
    exact = options.get("check_exact", False)
    relative = 0.0 if exact else options.get("rtol", 1e-5)
    absolute = 0.0 if exact else options.get("atol", 1e-8)
    types = options.get("check_dtype", True)
    if isinstance(one, PandasFrame) and isinstance(another, PandasFrame):
        pairs = list(zip(one.columns, another.columns, strict=False))
        return (
            len(one.columns) == len(another.columns)
            and one.index == another.index
            and all(left[0] == right[0] and (not types or left[1] == right[1]) for left, right in pairs)
            and all(_allclose(left[2], right[2], relative, absolute, True) for left, right in pairs)
        )
    if isinstance(one, PandasSeries) and isinstance(another, PandasSeries):
        return (
            one.kind == another.kind
            and (not types or one.dtype == another.dtype)
            and one.index == another.index
            and (one.name == another.name or not options.get("check_names", True))
            and len(one.items) == len(another.items)
            and _allclose(one.items, another.items, relative, absolute, True)
        )
    raise Unclear("no frames")


def _called(how: str, calls: Any, expected: Any) -> bool:
    """Whether a mock's calls, each (arguments, named arguments), are as one of its own assertions wants."""
    if how == "assert_not_called":
        return not calls
    if how == "assert_called":
        return bool(calls)
    if how == "assert_called_once":
        return len(calls) == 1
    if how == "assert_called_with":
        return bool(calls) and calls[-1] == expected
    if how == "assert_called_once_with":
        return len(calls) == 1 and calls[0] == expected
    return any(call == expected for call in calls)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "constant": lambda value: value,
    "isinstance": _isinstance,
    "startswith": lambda text, part: text.startswith(part),
    "endswith": lambda text, part: text.endswith(part),
    "almost": _almost,
    "counts": _counts,
    "sequence": lambda one, another: list(one) == list(another),
    "search": _search,
    "allclose": _allclose,
    "arrays": _arrays,
    "frames": _frames,
}
_FUNCTIONS |= {
    f"called:{how}": lambda calls, expected, how=how: _called(how, calls, expected)
    for how in (
        *("assert_not_called", "assert_called", "assert_called_once", "assert_called_with"),
        *("assert_called_once_with", "assert_any_call"),
    )
}
