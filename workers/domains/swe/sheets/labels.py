"""What a forger would have to know to pass a test: labels of assertions, tests and tasks. Pure."""

import ast
import builtins
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from orchard.schemas.protection import Protected
from orchard.workers.domains.swe.sheets.conditions import Condition
from orchard.workers.domains.swe.sheets.sheet import ExpectedVisit, Visit, wrong

_ORDER = list(Protected)
_POOR = frozenset({"", "list", "tuple", "dict", "set", "str", "int", "float", "bool", "object", "ValueError"})


class SheetWords:
    """All that stands in a sheet and in the data beside it, where a forger can read it."""

    def __init__(self, sources: Iterable[str], data: Iterable[str] = ()) -> None:
        texts = list(sources)
        self._text = "\n".join([*texts, *data])
        self._numbers = {
            node.value
            for source in texts
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.Constant) and isinstance(node.value, int | float)
        }

    def have(self, scalar: object) -> bool:
        if isinstance(scalar, str):
            return scalar in self._text or repr(scalar)[1:-1] in self._text
        return scalar in self._numbers or str(scalar) in self._text


def scalars(told: Any) -> Iterator[object]:
    """Yields the plain values that a told value is made of."""
    if isinstance(told, dict):
        for kind, body in told.items():
            if kind == "float":
                yield float(body)
            elif kind == "class":
                yield body[0]
            elif kind in ("long", "unreadable", "deep"):
                yield f"{body}"
            elif kind == "own":
                yield from scalars(body[1])
            else:
                yield from scalars(body)
    elif isinstance(told, list):
        for each in told:
            yield from scalars(each)
    else:
        yield told


def _is_rich(scalar: object) -> bool:
    """Whether a value is hard to guess for who does not know it."""
    if isinstance(scalar, bool) or scalar is None:
        return False
    if isinstance(scalar, float) and not scalar.is_integer():
        return math.isfinite(scalar) and len(repr(scalar)) > 3
    if isinstance(scalar, int | float):
        return abs(scalar) > 2
    if isinstance(scalar, str):
        return (
            len(scalar) > 1 and scalar not in _POOR and not isinstance(getattr(builtins, scalar, None), type)
        )
    return False


def label_of(
    condition: Condition, key: Sequence[Any], words: SheetWords, inputs: Collection[int] = ()
) -> Protected:
    """Labels one time of asking one assertion; `inputs` are the expected values that the question is asked
    about."""
    if any(not wrong(condition, key, answers) for answers in _guesses(condition)):
        return Protected.BIT
    return _label(condition, key, words, inputs)


def _label(condition: Condition, key: Sequence[Any], words: SheetWords, inputs: Collection[int]) -> Protected:
    kind, *rest = condition
    if kind in ("and", "or"):
        labels = [_label(each, key, words, inputs) for each in rest]
        return best(labels) if kind == "and" else min(labels, key=_weakness)
    if kind in ("all", "any"):
        return _label(rest[0], key, words, inputs)
    if kind == "compare":
        left, operators, rights = rest
        pairs = zip(operators, [left, *rights], rights, strict=False)
        condition = [kind, *(side for name, *sides in pairs if name in ("Eq", "In", "Is") for side in sides)]
    if kind in ("leaf", "not", "called:assert_called", "called:assert_not_called"):
        return Protected.BIT
    known = {number: set(filter(_is_rich, scalars(key[number]))) for number in _pures(condition)}
    if not any(known.values()):
        return Protected.BIT
    hidden = [
        part
        for number, parts in known.items()
        if number not in inputs and not _is_class(key[number])
        for part in parts
    ]
    if _answer_is_searched(kind, rest) or all(map(words.have, hidden)):
        return Protected.ECHO
    return Protected.VALUE


def _is_class(told: Any) -> bool:
    """Whether a class is told, which a forger finds in the repository by trying."""
    return isinstance(told, dict) and (
        "class" in told or ("tuple" in told and bool(told["tuple"]) and all(map(_is_class, told["tuple"])))
    )


def _answer_is_searched(kind: str, rest: list[Any]) -> bool:
    """Whether an answer that holds everything would do: a dictionary in which something is looked for."""
    if kind in ("raises", "search"):
        return True
    return kind == "compare" and "In" in rest[1] and rest[0][0] == "pure"


def _weakness(label: Protected) -> int:
    return -_ORDER.index(label)


def best(labels: Iterable[Protected], default: Protected = Protected.INSIDE) -> Protected:
    return min(labels, key=_ORDER.index, default=default)


def _pures(condition: Any) -> Iterator[int]:
    if isinstance(condition, list):
        if condition[:1] == ["pure"]:
            yield condition[1]
        for each in condition:
            yield from _pures(each)


def label_of_test(
    conditions: Mapping[int, Condition],
    expected: Sequence[ExpectedVisit],
    base: Sequence[Visit],
    words: SheetWords,
    inputs: Mapping[int, Collection[int]] = {},
) -> Protected:
    """Labels a test by its strongest assertion that the base commit answers wrongly, or does not reach.

    `inputs` are, by assertion, the expected values that its question is asked about.
    """
    labels = []
    for at, visit in enumerate(expected):
        reached = at < len(base) and base[at].ask == visit.ask
        if not reached or wrong(conditions[visit.ask], visit.key, base[at].got):
            labels.append(label_of(conditions[visit.ask], visit.key, words, inputs.get(visit.ask, ())))
    return best(labels)


GUESSES: tuple[Any, ...] = (
    *(True, False, None, 0, 1, "", {"list": []}, {"dict": []}),
    *({"float": each} for each in ("0.0", "inf", "nan")),
    {"class": ["_"]},
    {"object": [["_"], [], None, False, True, None]},
)
_ERROR = {"raised": [["ValueError", "Exception", "BaseException"], ""]}


def _guesses(condition: Condition) -> Iterator[list[Any]]:
    """Yields what a forger answers who knows nothing but how an assertion is asked."""
    for guess in GUESSES:
        yield _forged(condition, guess, None)
    yield _forged(condition, None, _ERROR)


def is_forgeable(
    conditions: Mapping[int, Condition],
    tests: Collection[Sequence[ExpectedVisit]],
    words: Mapping[int, list[Any]],
) -> bool:
    """Whether one generic forger passes all of these tests: it knows which assertion is asked, and answers
    all with the same guess, or each with the first or the last literal of its question."""
    forgers: list[Any] = [lambda _, guess=guess: guess for guess in GUESSES]
    forgers += [
        lambda ask: (words.get(ask) or [None])[0],
        lambda ask: (words.get(ask) or [None])[-1],
    ]
    return any(
        all(
            not wrong(
                conditions[visit.ask],
                visit.key,
                _forged(conditions[visit.ask], forger(visit.ask), raised),
            )
            for visits in tests
            for visit in visits
        )
        for forger in forgers
        for raised in (_ERROR, None)
    )


def _forged(condition: Condition, guess: Any, raised: Any) -> list[Any]:
    if condition[0] == "raises":
        return [raised]
    listed = {"list": [guess]} if condition[0] in ("all", "any") else guess
    return [listed] * (1 + max(_leaves(condition), default=0))


def _leaves(condition: Any) -> Iterator[int]:
    if isinstance(condition, list):
        if condition[:1] == ["leaf"]:
            yield condition[1]
        for each in condition:
            yield from _leaves(each)


def literals_of(source: str) -> dict[int, list[Any]]:
    """Returns the literals in each question of a sheet, as the child would tell them."""
    found: dict[int, list[Any]] = {}
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("__ask__", "__later__")
        ):
            constants = [
                each.value
                for part in node.args[1:]
                for each in ast.walk(part)
                if isinstance(each, ast.Constant)
            ]
            number = node.args[0]
            assert isinstance(number, ast.Constant) and isinstance(number.value, int)
            found[number.value] = [
                each for each in constants if isinstance(each, bool | int | str) or each is None
            ]
    return found
