"""What a forger would have to know to pass a test: labels of assertions, tests and tasks. Pure."""

import ast
import builtins
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from orchard.schemas.protection import Protected
from orchard.workers.domains.swe.sheets.child import told
from orchard.workers.domains.swe.sheets.conditions import Condition
from orchard.workers.domains.swe.sheets.fresh import tallies
from orchard.workers.domains.swe.sheets.parametrized import dotted
from orchard.workers.domains.swe.sheets.purity import FUNCTIONS
from orchard.workers.domains.swe.sheets.sheet import (
    ExpectedVisit,
    FreshQuestion,
    Sheet,
    SheetTest,
    Visit,
    is_loose,
    problem,
    wrong,
)
from orchard.workers.domains.swe.sheets.variants import original_of

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
    if condition[0] == "loose" or any(not wrong(condition, key, answers) for answers in _guesses(condition)):
        return Protected.BIT
    return _label(condition, key, words, inputs)


def _label(condition: Condition, key: Sequence[Any], words: SheetWords, inputs: Collection[int]) -> Protected:
    kind, *rest = condition
    if kind in ("and", "or"):
        labels = [_label(each, key, words, inputs) for each in rest]
        return best(labels) if kind == "and" else min(labels, key=_weakness)
    if kind == "if":
        decides, *branches = rest
        if decides[0] == "pure" and isinstance(key[decides[1]], bool):
            return _label(branches[0 if key[decides[1]] else 1], key, words, inputs)
        return min((_label(each, key, words, inputs) for each in branches), key=_weakness)
    if kind in ("all", "any"):
        return _label(rest[0], key, words, inputs)
    if kind in PRINTED:
        return _label_of_text(kind, key[0], set(scalars(key[1])), words)
    if kind == "elements" and (rest[0] == "any" or rest[2] != "Eq"):
        return Protected.BIT
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


PRINTED = ("printed", "printed_error")


def _label_of_text(kind: str, want: str, flags: Collection[object], words: SheetWords) -> Protected:
    """Labels what an example should print, by the values that it shows or else by its lines."""
    loose = "..." in want and "ELLIPSIS" in flags
    if kind == "printed_error" and ("IGNORE_EXCEPTION_DETAIL" in flags or ":" not in want):
        return Protected.ECHO  # a class
    rich = set(filter(_is_rich, _shown(want.replace("...", "\n") if loose else want)))
    if not rich:
        return Protected.BIT
    return Protected.ECHO if loose or all(map(words.have, rich)) else Protected.VALUE


def _shown(text: str) -> Iterator[object]:
    try:
        yield from scalars(told(ast.literal_eval(text.strip())))
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        yield from filter(None, map(str.strip, text.splitlines()))


def _is_class(told: Any) -> bool:
    """Whether a class is told, which a forger finds in the repository by trying."""
    return isinstance(told, dict) and (
        "class" in told or ("tuple" in told and bool(told["tuple"]) and all(map(_is_class, told["tuple"])))
    )


def _answer_is_searched(kind: str, rest: list[Any]) -> bool:
    """Whether an answer that holds everything would do: a dictionary in which something is looked for."""
    if kind in ("raises", "raises_group", "search", "warns", "assert_warns"):
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
    loose = [visit for visit in expected if is_loose(conditions, visit.ask)]
    reached_loose = [visit for visit in base if is_loose(conditions, visit.ask)]
    if loose and (not reached_loose or problem(conditions, loose, reached_loose)):
        labels.append(Protected.BIT)
    expected = [visit for visit in expected if not is_loose(conditions, visit.ask)]
    base = [visit for visit in base if not is_loose(conditions, visit.ask)]
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


Literals = Mapping[tuple[str, int], list[Any]]
"""The literals of a question, by the variant that asks it (empty in all others) and its number."""


def is_forgeable(sheet: Sheet, tests: Collection[SheetTest], literals: Literals) -> bool:
    """Whether one generic forger passes all of these tests and the fresh inputs: it knows which assertion is
    asked, and answers all with the same guess, or each with the first or the last literal of its question."""
    forgers: list[Callable[[list[Any]], Any]] = [
        *(partial(_always, guess) for guess in GUESSES),
        lambda found: found[0],
        lambda found: found[-1],
    ]
    return any(
        _passes(sheet, tests, literals, forger, raised) for forger in forgers for raised in (_ERROR, None)
    )


def _always(guess: Any, _: list[Any]) -> Any:
    return guess


def _passes(
    sheet: Sheet,
    tests: Collection[SheetTest],
    literals: Literals,
    forger: Callable[[list[Any]], Any],
    raised: Any,
) -> bool:
    def answer(ask: int, variant: str = "") -> list[Any]:
        found = literals.get((variant, ask)) or literals.get(("", ask)) or [None]
        return _forged(sheet.conditions[ask], forger(found), raised)

    if any(
        wrong(sheet.conditions[visit.ask], visit.key, answer(visit.ask))
        for test in tests
        for visit in test.visits
    ):
        return False

    def fresh(name: str, question: FreshQuestion) -> list[Any]:
        return answer(question.ask, name.partition("[")[0].rpartition("::")[2])

    return not any(tally.refused for tally in tallies(sheet.conditions, sheet.fresh, fresh).values())


def _forged(condition: Condition, guess: Any, raised: Any) -> list[Any]:
    if condition[0] == "loose":
        condition = condition[1]
    if condition[0] in ("raises", "raises_group"):
        group = ["ExceptionGroup", "Exception", "BaseExceptionGroup", "BaseException"]
        plain = condition[0] == "raises" or raised is None
        return [raised if plain else {"raised": [group, "", "", [raised["raised"]]]}]
    if condition[0] in PRINTED:
        error = condition[0] == "printed_error"
        return ["ValueError\n" if error else "" if guess is None else f"{_plain(guess)!r}\n"]
    if condition[0] in ("warns", "assert_warns"):
        warned = {"raised": [["DeprecationWarning", "UserWarning", "Warning"], ""]}
        return [{"list": [warned]}, {"list": [False]}]
    listed = {"list": [guess]} if condition[0] in ("all", "any") else guess
    return [listed] * (1 + max(_leaves(condition), default=0))


def _plain(guess: Any) -> Any:
    """Returns a guess as it would print."""
    return next(iter(guess.values())) if isinstance(guess, dict) else guess


def _leaves(condition: Any) -> Iterator[int]:
    if isinstance(condition, list):
        if condition[:1] == ["leaf"]:
            yield condition[1]
        for each in condition:
            yield from _leaves(each)


def literals_of(sources: Iterable[str]) -> dict[tuple[str, int], list[Any]]:
    """Returns the literals in each question of a sheet's files, as the child would tell them."""
    found: dict[tuple[str, int], list[Any]] = {}

    def visit(node: ast.AST, variant: str) -> None:
        if isinstance(node, FUNCTIONS) and original_of(node.name) != node.name:
            variant = node.name
        if isinstance(node, ast.Call) and dotted(node.func) in ("__ask__", "__later__"):
            number = node.args[0]
            assert isinstance(number, ast.Constant) and isinstance(number.value, int)
            constants = [
                each.value
                for part in node.args[1:]
                for each in ast.walk(part)
                if isinstance(each, ast.Constant)
            ]
            found[variant, number.value] = [
                each for each in constants if isinstance(each, bool | int | str) or each is None
            ]
        for each in ast.iter_child_nodes(node):
            visit(each, variant)

    for source in sources:
        visit(ast.parse(source), "")
    return found
