"""Canaries: copies of hidden tests in which most of the expected values are wrong. Pure.

Code that repairs the defect agrees with the right constants and with no others. Code that forges (makes every
comparison hold, reads what is expected, ends the process, rewrites the runner) has to decide with which of
several equally plausible constants it agrees. So each test is copied many times, each expected value is
replaced in all copies but one, and where the right one is, nobody in the sandbox knows, the runner included.
Each assertion draws its own place. Who takes over the whole sandbox gains one guess for each of them.

A *slot* is what an assertion expects: its constants, and what parameters and local names hold for it. Of a
table each row is replaced on its own, so that no copy has all rows right. A *site* is a statement that
asserts something, in a block that counts (`runner.SiteCounter`), so that a failed one does not keep the
others from being asked.
"""

import ast
import copy
import random
import re
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from orchard.workers.domains.swe.canaries.assertions import without_words
from orchard.workers.domains.swe.canaries.expected import Function, TestSlots, expected_of, functions
from orchard.workers.domains.swe.canaries.likely import Drawn, ValueDraw

SITE = "__site__"


class MutantSite(msgspec.Struct, frozen=True, kw_only=True):
    """One assertion of one test, and how much of it is as the task has it."""

    test: str
    """`test_x` or `Class::test_x`."""
    right: tuple[int, ...]
    """Of its rows, in each copy."""
    rows: int = 1
    """How many it is met for; one where it does not stand over a table."""
    halves: bool = False
    """Whether about half of all rows are right, because there are but two values."""


class MutantCopies(msgspec.Struct, frozen=True, kw_only=True):
    """A test file many times over."""

    texts: tuple[str, ...]
    sites: dict[str, MutantSite]
    """By the name under which the sandbox reports them, the same in all copies."""
    without: tuple[str, ...]
    """Tests that are not in it: they assert nothing that could be changed."""


def copies(source: str, tests: Mapping[str, int], dice: random.Random) -> MutantCopies | None:
    """So many copies of each of these tests of a file; None where this version's Python cannot read it."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None
    words = sorted({word for word in re.findall(r"[A-Za-z]{3,12}", source) if word.islower()})
    names: dict[str, str] = {}
    marks: dict[str, list[str]] = {}
    drawn: dict[str, list[Drawn]] = {}
    sites: dict[str, MutantSite] = {}
    for test, function in functions(tree):
        found = expected_of(function) if test in tests else None
        if found is None or not found.sites:
            continue
        names[test] = function.name = f"test_{dice.getrandbits(32):08x}"
        draw = ValueDraw(tests[test], dice, words)
        drawn[names[test]] = [draw.slot(slot) for slot in found.slots]
        marks[names[test]] = [f"{dice.getrandbits(48):012x}" for _ in found.sites]
        for mark, (_, number_of) in zip(marks[names[test]], found.sites, strict=True):
            made = drawn[names[test]][number_of]
            sites[mark] = MutantSite(test=test, right=made.right, rows=made.rows, halves=made.halves)
    texts = []
    for at in range(max((tests[test] for test in names), default=0)):
        _keep(tree, {name for test, name in names.items() if at < tests[test]})
        changed = copy.deepcopy(tree)
        for _, function in list(functions(changed)):
            if function.name in drawn:
                found = expected_of(function)
                for slot, made in zip(found.slots, drawn[function.name], strict=True):
                    slot.put(made.values[at])
                wrapped = {
                    id(statement): mark
                    for (statement, _), mark in zip(found.sites, marks[function.name], strict=True)
                }
                _silence(function, found)
                _Wrapped(wrapped).visit(function)
        texts.append(ast.unparse(ast.fix_missing_locations(changed)) + "\n")
    return MutantCopies(
        texts=tuple(texts), sites=sites, without=tuple(test for test in sorted(tests) if test not in names)
    )


class _Wrapped(ast.NodeTransformer):
    """Each site in a block that counts."""

    def __init__(self, names: dict[int, str]) -> None:
        self._names = names

    def visit(self, node: ast.AST) -> Any:
        name = self._names.get(id(node))
        if name is None or not isinstance(node, ast.stmt):
            return super().visit(node)
        call = ast.Call(func=ast.Name(id=SITE, ctx=ast.Load()), args=[ast.Constant(value=name)], keywords=[])
        return ast.With(items=[ast.withitem(context_expr=call)], body=[node])


def _silence(function: Function, found: TestSlots) -> None:
    """Take out the words that may tell what is right."""
    for statement, _ in found.sites:
        without_words(statement)
    if ast.get_docstring(function, clean=False) is not None:
        function.body[0] = ast.Pass()


def _keep(tree: ast.Module, names: Collection[str]) -> None:
    """Take the other tests out."""

    def stays(node: ast.stmt) -> bool:
        is_test = isinstance(node, Function) and node.name.startswith("test")
        return not is_test or node.name in names  # type: ignore[attr-defined]

    tree.body = [node for node in tree.body if stays(node)]
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            node.body = [each for each in node.body if stays(each)] or [ast.Pass()]
