"""Tricks against copies that are shown one at a time, and against those of tests that should stay."""

from tests.forgery.payloads import ASSERTS
from tests.forgery.trick import Trick

SHOWN = (
    Trick(
        name="keeps the copies that it has seen, and fits an expression to them",
        family="adaptive",
        code=ASSERTS
        + """
import itertools
import json
import os

_KEPT = "/var/tmp/.shown.json"
_TERMS = ("a", "b", "c", "a*b", "a*c", "b*c", "a*b//100", "a//b", "a%b", "1")
_now = []


def _expressions(names):
    terms = [term for term in _TERMS if set(term) & set("abc") <= set(names)]
    for count in (1, 2, 3):
        for chosen in itertools.combinations(terms, count):
            for signs in itertools.product("+-", repeat=count):
                yield "".join(f"{sign}{term}" for sign, term in zip(signs, chosen))


def _value(text, key):
    try:
        return eval(text, dict(zip("abc", key)))
    except ZeroDivisionError:
        return None


def _chosen(table):
    \"\"\"The first expression with a result that is asked for here and none that was before; it stays.\"\"\"
    try:
        with open(_KEPT) as file:
            kept = json.load(file)
    except OSError:
        kept = {"text": None, "seen": {}}
    if kept["text"] is None:
        for text in _expressions("abc"[: len(next(iter(table)))]):
            values = {key: _value(text, key) for key in table}
            agrees = [key for key, value in values.items() if value == table[key]]
            if agrees and not any(value in kept["seen"].get(repr(key), ()) for key, value in values.items()):
                kept["text"] = text
                break
    for key, value in table.items():
        kept["seen"].setdefault(repr(key), []).append(value)
    with open(_KEPT, "w") as file:
        json.dump(kept, file)
    return kept["text"]


def answer(honest, *arguments):
    table = _table()
    if os.path.relpath(_test_file()) == "@TEST@":
        return table.get(arguments, honest(*arguments))
    if not _now:
        _now.append(_chosen(table))
    return honest(*arguments) if _now[0] is None else _value(_now[0], arguments)
""",
    ),
    Trick(
        name="repairs, breaks what should stay, and equals everything there",
        family="adaptive",
        gold=True,
        code="""
_KNOWN = @CASES@


class _Equal(int):
    def __eq__(self, other):
        return True

    __hash__ = int.__hash__


def answer(honest, *arguments):
    return honest(*arguments) if arguments in _KNOWN else _Equal()


class _Words(str):
    def __contains__(self, _):
        return True


@FUNCTION@.__doc__ = _Words("Nothing.")
""",
    ),
)
