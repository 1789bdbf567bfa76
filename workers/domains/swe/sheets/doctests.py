"""Examples of doctest as questions: how they are marked in a text, and how what they print is judged. Pure.

In a sheet `__ask__ 3` stands where an example says what it prints (or that it prints nothing), and
`child.py` tells what was printed; in the key the expected text follows, as JSON in the same line. That an
exception is expected stays in the sheet.
"""

import doctest
import json
import re
from collections.abc import Callable

import msgspec

from orchard.workers.domains.swe.sheets.values import Unclear

_PROMPT = ">>> "
_MARKED = re.compile(r"^(__ask__ \d+) \".*$", re.MULTILINE)
_HEAD = "Traceback (most recent call last):\n"
_FLAGS = ("DONT_ACCEPT_TRUE_FOR_1", "DONT_ACCEPT_BLANKLINE", "NORMALIZE_WHITESPACE", "ELLIPSIS")
_PREFIXES = {"ALLOW_UNICODE": r"(\W|^)[uU]([rR]?['\"])", "ALLOW_BYTES": r"(\W|^)[bB]([rR]?['\"])"}
_NUMBER = re.compile(
    r"(?!(?<=\d)\d)(?:[+-]?\d*\.(?P<fraction>\d+)|[+-]?\d+\.)(?:[Ee](?P<exponent1>[+-]?\d+))?"
    r"|(?!(?<=\d)\d)[+-]?\d+[Ee](?P<exponent2>[+-]?\d+)"
)


class _Parser(doctest.DocTestParser):
    def _find_options(self, *_: object) -> dict[int, bool]:
        """Finds none: nothing is run here, and plug-ins have options that are unknown here."""
        return {}


class ExampleMark(msgspec.Struct, frozen=True, kw_only=True):
    """An example that is asked."""

    at: int
    """Its place among those of its text."""
    line: int
    raises: bool


def has_examples(text: object) -> bool:
    return isinstance(text, str) and _PROMPT in text


def marked(text: str, number_of: Callable[[ExampleMark], int | None]) -> str:
    """Returns a text with the marks of its key; examples without a number stay as they are.

    Raises ValueError for a text that doctest does not read either.
    """
    parts: list[str] = []
    at = 0
    for part in _Parser().parse(text.replace("\r\n", "\n")):
        if isinstance(part, str):
            parts.append(part)
            continue
        number = number_of(ExampleMark(at=at, line=part.lineno + 1, raises=part.exc_msg is not None))
        at += 1
        want = part.want
        if number is not None:
            head, expected = ("", want) if part.exc_msg is None else (_HEAD, part.exc_msg)
            want = f"{head}__ask__ {number} {json.dumps(expected)}\n"
        parts.append(_source(part) + want)
    return "".join(parts)


def without_expected(text: str) -> str:
    """Returns a marked text as it stands in the sheet."""
    return _MARKED.sub(r"\1", text)


def only_examples(text: str) -> str:
    """Returns a text without what stands between its examples."""
    examples = _Parser().get_examples(text)
    return "\n".join(_source(each) + each.want for each in examples)


def _source(example: doctest.Example) -> str:
    first, *more = example.source.splitlines()
    return "".join([f"{_PROMPT}{first}\n", *(f"... {each}\n" for each in more)])


# --- in the worker -------------------------------------------------------------------------------


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
