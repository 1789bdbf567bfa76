"""Rewrites examples of doctest, in texts and in docstrings, into questions. Pure.

In a sheet `__ask__ 3` stands where an example says what it prints (or that it prints nothing), and
`child.py` tells what was printed; in the key the expected text follows, as JSON in the same line. That an
exception is expected stays in the sheet.
"""

import ast
import doctest
import json
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress

from orchard.workers.domains.swe.sheets.purity import functions_of
from orchard.workers.domains.swe.sheets.sites import RewrittenFile, Site, Treatment

_PROMPT = ">>> "
_MARKED = re.compile(r"^(__ask__ \d+) \".*$", re.MULTILINE)
_HEAD = "Traceback (most recent call last):\n"


class _Parser(doctest.DocTestParser):
    def _find_options(self, *_: object) -> dict[int, bool]:
        """Finds none: nothing is run here, and plug-ins have options that are unknown here."""
        return {}


def has_examples(text: object) -> bool:
    return isinstance(text, str) and _PROMPT in text


def only_examples(text: str) -> str:
    """Returns a text without what stands between its examples."""
    return "\n".join(_source(each) + each.want for each in _Parser().get_examples(text))


def _source(example: doctest.Example) -> str:
    first, *more = example.source.splitlines()
    return "".join([f"{_PROMPT}{first}\n", *(f"... {each}\n" for each in more)])


def rewrite_text(
    source: str, name: str, *, first: int, treatments: Mapping[str, Treatment], bits: Collection[int]
) -> RewrittenFile:
    """Rewrites a text, which is one test of this name.

    Raises ValueError for one that doctest does not read either.
    """
    rewriter = _ExampleRewriter(first, treatments, bits)
    key = rewriter.rewritten(source.replace("\r\n", "\n"), name)
    return RewrittenFile(sheet=_MARKED.sub(r"\1", key), key=key, sites=rewriter.sites)


def mark_docstrings(
    tree: ast.Module, *, first: int, treatments: Mapping[str, Treatment], bits: Collection[int]
) -> dict[int, Site]:
    """Marks all docstrings of a module as in its key, in place, and returns the examples."""
    rewriter = _ExampleRewriter(first, treatments, bits)
    for name, docstring in _docstrings(tree):
        with suppress(ValueError):
            docstring.value = rewriter.rewritten(str(docstring.value), name, docstring.lineno - 1)
    return rewriter.sites


def without_expected(tree: ast.Module) -> None:
    """Makes the marks in a module's docstrings those of a sheet, in place."""
    for _, docstring in _docstrings(tree):
        docstring.value = _MARKED.sub(r"\1", str(docstring.value))


def _docstrings(tree: ast.Module) -> Iterator[tuple[str, ast.Constant]]:
    """Yields docstrings with examples, each with its function; those of classes are the module's."""
    owners = {id(function): name for name, function, _ in functions_of(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            match node.body[:1]:
                case [ast.Expr(ast.Constant(text) as docstring)] if has_examples(text):
                    yield owners.get(id(node), ""), docstring


class _ExampleRewriter:
    def __init__(self, first: int, treatments: Mapping[str, Treatment], bits: Collection[int]) -> None:
        self._next = first
        self._treatments = treatments
        self._bits = bits
        self.sites: dict[int, Site] = {}

    def rewritten(self, text: str, function: str, before: int = 0) -> str:
        """`before` are the lines above the text."""
        return "".join(
            part if isinstance(part, str) else self._example(part, function, before + part.lineno + 1)
            for part in _Parser().parse(text)
        )

    def _example(self, example: doctest.Example, function: str, line: int) -> str:
        number, self._next = self._next, self._next + 1
        if self._treatments.get(function, Treatment.TOKENS) >= Treatment.BITS or number in self._bits:
            return _source(example) + example.want
        kind, head, want = "printed", "", example.want
        if example.exc_msg is not None:
            kind, head, want = "printed_error", _HEAD, example.exc_msg
        condition = [kind, ["leaf", 0], ["pure", 0], ["pure", 1]]
        self.sites[number] = Site(number=number, function=function, line=line, condition=condition)
        return f"{_source(example)}{head}__ask__ {number} {json.dumps(want)}\n"
