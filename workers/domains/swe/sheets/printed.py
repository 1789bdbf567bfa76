"""Judges what examples of doctest print as doctest and pytest do. Pure."""

import doctest
import re

from orchard.workers.domains.swe.sheets.values import Unclear

_FLAGS = ("DONT_ACCEPT_TRUE_FOR_1", "DONT_ACCEPT_BLANKLINE", "NORMALIZE_WHITESPACE", "ELLIPSIS")
_PREFIXES = {"ALLOW_UNICODE": r"(\W|^)[uU]([rR]?['\"])", "ALLOW_BYTES": r"(\W|^)[bB]([rR]?['\"])"}
_NUMBER = re.compile(
    r"(?!(?<=\d)\d)(?:[+-]?\d*\.(?P<fraction>\d+)|[+-]?\d+\.)(?:[Ee](?P<exponent1>[+-]?\d+))?"
    r"|(?!(?<=\d)\d)[+-]?\d+[Ee](?P<exponent2>[+-]?\d+)"
)


def printed(got: object, want: str, flags: list[str]) -> bool:
    """Whether an example with these options accepts what it printed, as pytest's doctests do."""
    if not isinstance(got, str):
        raise Unclear("it is too long to be told")
    checker, options = doctest.OutputChecker(), 0
    for name in _FLAGS:
        if name in flags:
            options |= doctest.OPTIONFLAGS_BY_NAME[name]
    if checker.check_output(want, got, options):
        return True
    for name, pattern in _PREFIXES.items():
        if name in flags:
            want, got = (re.sub(pattern, r"\1\2", each) for each in (want, got))
    if "NUMBER" in flags:
        got = _as_precise(want, got)
    return checker.check_output(want, got, options)


def printed_error(got: object, want: str, flags: list[str]) -> bool:
    """The same of the last line of a traceback."""
    if printed(got, want, flags):
        return True
    return "IGNORE_EXCEPTION_DETAIL" in flags and printed(class_in(str(got)), class_in(want), flags)


def class_in(message: str) -> str:
    """Returns the class that an exception's message names, without its module."""
    return message.partition("\n")[0].partition(":")[0].rpartition(".")[2]


def _as_precise(want: str, got: str) -> str:
    """Writes wanted numbers in the place of those printed that are equal in all digits of the wanted ones."""
    wanted, found = list(_NUMBER.finditer(want)), list(_NUMBER.finditer(got))
    if len(wanted) != len(found):
        return got
    parts, end = [], 0
    for one, another in zip(wanted, found, strict=True):
        exponent = one["exponent1"] or one["exponent2"] or "0"
        tolerance = 10.0 ** (int(exponent) - len(one["fraction"] or ""))
        expected, number = float(one[0]), float(another[0])
        near = expected == number or abs(expected - number) <= tolerance
        parts += [got[end : another.start()], (one if near else another)[0]]
        end = another.end()
    return "".join([*parts, got[end:]])
