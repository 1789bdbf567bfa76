"""Evaluates an asked assertion from what was told: a condition is a tree of lists, whose first word says what
it is (`rewriting.py` makes them). Pure."""

import json
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import regex

from orchard.workers.domains.swe.sheets.elements import (
    allclose,
    array_equal,
    assert_allclose,
    assert_array_equal,
    assert_frames,
    elementwise,
    equals,
)
from orchard.workers.domains.swe.sheets.printed import printed, printed_error
from orchard.workers.domains.swe.sheets.values import (
    Array,
    ClassNames,
    Incomplete,
    Member,
    NotHeld,
    Raised,
    Tolerance,
    Unclear,
    called,
    class_names,
    flat,
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
    if kind == "loose":
        return _value(rest[0], leaves, pures)
    if kind == "not":
        return not _value(rest[0], leaves, pures)
    if kind == "if":
        return _value(rest[1 if _value(rest[0], leaves, pures) else 2], leaves, pures)
    if kind in ("all", "any"):
        return _each(kind, rest[0], leaves, pures, *rest[1:])
    if kind == "compare":
        return _compare(rest, leaves, pures)
    if kind == "elements":
        word, twice, name, *sides = rest
        one, another = (_value(each, leaves, pures) for each in sides)
        return elementwise(word, _COMPARISONS[name], one, another, frames=twice)
    if kind == "raises":
        return _raises(leaves[rest[0]], *(_value(each, leaves, pures) for each in rest[1:]))
    if kind == "raises_group":
        return _is_as(leaves[rest[0]], rest[1], pures)
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
    if not _is_one_of(answer, expected):
        raise NotHeld(f"{answer.names[0]} was raised: {answer.text}")
    return match is None or _search(answer.text, match)


def _is_as(answer: Any, wanted: list[Any], pures: Sequence[Any]) -> bool:
    """Whether an exception is as `RaisesGroup`, or one of its arguments, wants it."""
    if not isinstance(answer, Raised):
        raise NotHeld("nothing was raised")
    match, more = wanted[1], wanted[2:]
    if wanted[0] == "exception":
        kinds = more[0]
        if kinds is not None and not _is_one_of(answer, pures[kinds[1]]):
            return False
    elif answer.members is None:
        members, unwrapped, _ = more
        return bool(unwrapped) and len(members) == 1 and _is_as(answer, members[0], pures)
    if match is not None and not _search(answer.searched, pures[match[1]]):
        return False
    return wanted[0] == "exception" or _are_as(answer, more[0], pures, flattened=more[2])


def _are_as(group: Raised, wanted: list[Any], pures: Sequence[Any], *, flattened: bool) -> bool:
    """Whether each member is as one that is wanted, where each takes the first that it can."""
    left = list(_unrolled(group)) if flattened else list(group.members or ())
    if len(left) != len(wanted):
        return False
    for each in wanted:
        found = next((at for at, member in enumerate(left) if _is_as(member, each, pures)), None)
        if found is None:
            return False
        del left[found]
    return True


def _unrolled(group: Raised) -> Iterator[Raised]:
    for member in group.members or ():
        if member.members is None:
            yield member
        else:
            yield from _unrolled(member)


def _is_one_of(answer: Raised, expected: Any) -> bool:
    wanted = expected if isinstance(expected, list | tuple) else [expected]
    if not any(isinstance(each, ClassNames) for each in wanted):
        raise Unclear("what should be raised cannot be told")
    return any(isinstance(each, ClassNames) and each.names[0] in answer.names for each in wanted)


def _warns(found: Any, fatal: Any, expected: Any, match: Any = None) -> bool:
    """`pytest.warns`, which gives the warnings that it does not want to the filters: these may be `fatal`."""
    wanted = [_is_one_of(each, expected) and (match is None or _search(each.text, match)) for each in found]
    return any(wanted) and not any(
        of_filters and not is_wanted for of_filters, is_wanted in zip(fatal, wanted, strict=True)
    )


def _assert_warns(found: Any, fatal: Any, expected: Any, match: Any = None) -> bool:
    """`assertWarns`, which leaves warnings of other classes to the filters."""
    return _warns(found, fatal, expected) and any(
        _is_one_of(each, expected) and (match is None or _search(each.text, match)) for each in found
    )


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
    names = {called([name]) for name in class_names(value)}
    return any(called(each.names) in names for each in wanted)


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


def _called(how: str, calls: Any, expected: Any) -> bool:
    """Whether a mock's calls are as one of its own assertions wants; `expected` are calls too."""
    if how == "assert_not_called":
        return not calls
    if how == "assert_called":
        return bool(calls)
    if how == "assert_called_once":
        return len(calls) == 1
    if how == "assert_called_with":
        return bool(calls[-1:] == expected)
    if how == "assert_called_once_with":
        return bool(calls == expected)
    return any(call == expected[0] for call in calls)


def _has_calls(calls: Any, expected: Any, any_order: Any) -> bool:
    if not any_order:
        last = len(calls) - len(expected)
        return any(calls[at : at + len(expected)] == expected for at in range(last + 1))
    left = list(calls)
    for each in expected:
        if each not in left:
            return False
        left.remove(each)
    return True


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "isinstance": _isinstance,
    "startswith": lambda text, part: text.startswith(part),
    "endswith": lambda text, part: text.endswith(part),
    "almost": _almost,
    "counts": _counts,
    "sequence": lambda one, another: list(one) == list(another),
    "search": _search,
    "array_equal": array_equal,
    "allclose": allclose,
    "assert_allclose": assert_allclose,
    "assert_array_equal": assert_array_equal,
    "assert_frames": assert_frames,
    "equals": equals,
    "has_calls": _has_calls,
    "warns": _warns,
    "assert_warns": _assert_warns,
    "printed": printed,
    "printed_error": printed_error,
}
_FUNCTIONS |= {
    f"called:{how}": lambda calls, expected, how=how: _called(how, calls, expected)
    for how in (
        *("assert_not_called", "assert_called", "assert_called_once", "assert_called_with"),
        *("assert_called_once_with", "assert_any_call"),
    )
}
