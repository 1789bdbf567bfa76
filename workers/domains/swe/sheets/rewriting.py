"""Rewrites a test file into a question sheet, and into the key that the gold patch fills in. Pure.

Each assertion becomes `__ask__(number, leaf, ...)`: the leaves are what depends on tested code. In the key
the call has `key=lambda: (...)` beside them, with what is expected; the sheet has not. How an assertion
holds, given both, is its *condition* (`conditions.py`).

An assertion in a loop over what tested code gave, or in a branch that it decides over, is *loose*: another
right solution may come to it more or less often.

Where both sides depend on tested code, the side with fewer calls, or the right one, is *pinned*: it leaves
the file as an expected value, which is sound where the gold patch and the base commit agree on it."""

import ast
import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from orchard.workers.domains.swe.sheets.asked import AskedAssertion
from orchard.workers.domains.swe.sheets.assertions import (
    ExpectedGroup,
    ExpectedWarning,
    Raising,
    Special,
    as_expression,
    as_group,
    as_raising,
    as_special,
    as_warning,
)
from orchard.workers.domains.swe.sheets.conditions import Condition
from orchard.workers.domains.swe.sheets.doctests import mark_docstrings, without_expected
from orchard.workers.domains.swe.sheets.parametrized import Function, cells_of, dotted
from orchard.workers.domains.swe.sheets.purity import (
    FunctionNames,
    ModuleNames,
    functions_of,
    is_given,
    names_in,
)
from orchard.workers.domains.swe.sheets.sites import RewrittenFile, Site, Treatment

ASKING = ("__ask__", "__later__", "__raises__", "__warns__")
"""What a sheet calls with the number of an assertion."""
_OF_DOCSTRINGS = 5_000_000
"""From here on the examples in a module's docstrings have their numbers."""
_EAGER = (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)
"""What changes its meaning inside a lambda."""


def rewrite(
    source: str,
    tested: Callable[[str], bool],
    *,
    first: int = 0,
    treatments: Mapping[str, Treatment] = {},
    bits: Collection[int] = (),
    swapped: Collection[int] = (),
) -> RewrittenFile:
    """Rewrites all functions of a file, numbering its assertions from `first`.

    `treatments` are by function, TOKENS without an entry; `bits` are assertions that are asked as a whole,
    `swapped` those of which the other operand is pinned.
    Raises SyntaxError, ValueError or RecursionError where this version's Python cannot read the file.
    """
    tree = ast.parse(source)
    numbers = {id(node): first + at for at, node in enumerate(_candidates(tree))}
    module = ModuleNames(tree, tested)
    sites: dict[int, Site] = {}
    for name, function, owner in list(functions_of(tree)):
        treatment = treatments.get(name, Treatment.TOKENS)
        if treatment is Treatment.INSIDE:
            continue
        names = FunctionNames(module, function, owner, cells_of(function, owner))
        whole = None if treatment is Treatment.BITS else frozenset(bits)
        rewriter = _FunctionRewriter(name, function, names, numbers, whole, swapped)
        function.body = rewriter.block(function.body)
        if is_given(function):
            function.body.insert(0, rewriter.drawn())
        sites |= rewriter.sites
    sites |= mark_docstrings(tree, first=first + _OF_DOCSTRINGS, treatments=treatments, bits=bits)
    ast.fix_missing_locations(tree)
    key = ast.unparse(tree)
    return RewrittenFile(sheet=_without_key(tree), key=key + "\n", sites=sites)


def _candidates(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert | ast.With | ast.AsyncWith | ast.Expr | ast.Assign | ast.FunctionDef):
            yield node


def _without_key(tree: ast.Module) -> ast.Module:
    sheet = copy.deepcopy(tree)
    for node in ast.walk(sheet):
        if isinstance(node, ast.Call) and dotted(node.func) in ASKING:
            node.keywords = [each for each in node.keywords if each.arg != "key"]
    without_expected(sheet)
    return sheet


class _FunctionRewriter:
    def __init__(
        self,
        name: str,
        function: Function,
        names: FunctionNames,
        numbers: Mapping[int, int],
        bits: Collection[int] | None,
        swapped: Collection[int],
    ) -> None:
        self._name = name
        self._function = function
        self._names = names
        self._numbers = numbers
        self._bits = bits
        self._swapped = swapped
        self._loops = 0
        """Loops around a statement over what tested code may decide."""
        self._branches = 0
        """Branches around it that tested code may decide over."""
        self._infos = frozenset(
            item.optional_vars.id
            for each in ast.walk(function)
            if isinstance(each, ast.With | ast.AsyncWith)
            for item in each.items
            if isinstance(item.optional_vars, ast.Name)
            and (as_raising(item.context_expr) is not None or as_group(item.context_expr) is not None)
        )
        self.sites: dict[int, Site] = {}

    def drawn(self) -> ast.stmt:
        """Asks a function of hypothesis first which example it was given."""
        number = self._numbers[id(self._function)]
        given = [each.arg for each in self._function.args.args if each.arg not in ("self", "cls")]
        given += [each.arg for each in self._function.args.kwonlyargs]
        example: list[ast.expr] = [ast.Name(each, ast.Load()) for each in given]
        asked = self._asked(number)
        condition = [
            "compare",
            asked.leaf(ast.Tuple(example, ast.Load())),
            ["Eq"],
            [asked.pure(ast.Tuple(example, ast.Load()))],
        ]
        return self._asking(number, self._function, condition, asked)

    def block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        return [self.statement(each) for each in body]

    def statement(self, node: ast.stmt) -> ast.stmt:
        changed = self._changed(node)
        if changed is not None:
            return changed
        loops, branches = self._loops, self._branches
        match node:
            case ast.While() | ast.AsyncFor():
                self._loops += 1
            case ast.For():
                self._loops += not self._names.is_free(node.iter)
            case ast.If():
                self._branches += not self._names.is_free(node.test)
            case ast.Match():
                self._branches += not self._names.is_free(node.subject)
        for field in ("body", "orelse", "finalbody"):
            if isinstance(getattr(node, field, None), list) and not (field == "body" and _catches(node)):
                setattr(node, field, self.block(getattr(node, field)))
        for handler in [*getattr(node, "handlers", []), *getattr(node, "cases", [])]:
            handler.body = self.block(handler.body)
        self._loops, self._branches = loops, branches
        return node

    def _changed(self, node: ast.stmt) -> ast.stmt | None:
        if isinstance(node, ast.Assert):
            return self._expression(node, node.test)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            if (expression := as_expression(node.value)) is not None:
                return self._expression(node, expression)
            if (special := as_special(node.value)) is not None:
                return self._special(node, special)
            if self._is_match(node.value):
                return self._expression(node, node.value)
        if (
            isinstance(node, ast.Expr | ast.Assign)
            and (raising := as_raising(node.value)) is not None
            and raising.rest
        ):
            return self._raising_call(node, raising)
        if isinstance(node, ast.With | ast.AsyncWith):
            self._with(node)
        return None

    def _expression(self, node: ast.stmt, expression: ast.expr) -> ast.stmt:
        number = self._numbers[id(node)]
        asked = self._asked(number)
        eager = any(isinstance(each, _EAGER) for each in ast.walk(expression))
        if self._is_bit(number) or self._branches or (eager and isinstance(expression, ast.BoolOp)):
            asked.leaves.append(expression)
            return self._asking(number, node, ["leaf", 0], asked)
        condition = asked.condition(expression)
        if eager and asked.lazy:
            asked = self._asked(number)
            condition = asked.leaf(expression)
        return self._asking(number, node, condition, asked)

    def _special(self, node: ast.stmt, special: Special) -> ast.stmt:
        number = self._numbers[id(node)]
        if self._is_bit(number) or self._branches:
            return node
        asked = self._asked(number)
        if special.mock is not None:
            sides = asked.leaf(special.sides[0]), asked.pure(special.sides[1])
            calls = [special.mock, special.sides[1]]
            asked.pures[0] = ast.Call(ast.Name("__matched__", ast.Load()), calls, [])
        else:
            sides = asked.sides(*special.sides)
        condition: Condition = [special.kind, *sides, *map(asked.pure, special.options)]
        return self._asking(number, node, ["not", condition] if special.negated else condition, asked)

    def _asking(self, number: int, node: ast.stmt, condition: Condition, asked: AskedAssertion) -> ast.stmt:
        name = "__later__" if asked.lazy else "__ask__"
        leaves = [_lambda(each) for each in asked.leaves] if asked.lazy else asked.leaves
        if self._branches or (self._loops and not asked.pinned):
            condition = ["loose", condition]
        self._add(number, node, condition, asked)
        call = ast.Call(ast.Name(name, ast.Load()), [ast.Constant(number), *leaves], [_key(asked.pures)])
        return ast.copy_location(ast.Expr(call), node)

    def _raising_call(self, node: ast.Expr | ast.Assign, raising: Raising) -> ast.stmt | None:
        number = self._numbers[id(node)]
        if self._is_bit(number) or self._branches:
            return node
        assert isinstance(node.value, ast.Call)
        context = self._context(number, node, raising)
        call = ast.Attribute(context, "call", ast.Load())
        keywords = [each for each in node.value.keywords if each.arg != "match"]
        node.value = ast.Call(call, raising.rest, keywords)
        return node

    def _with(self, node: ast.With | ast.AsyncWith) -> None:
        number = self._numbers[id(node)]
        if self._is_bit(number) or self._branches:
            return
        for item in node.items:
            raising = as_raising(item.context_expr)
            if raising is not None and not raising.rest:
                item.context_expr = self._context(number, node, raising)
                return
            if (group := as_group(item.context_expr)) is not None:
                asked = self._asked(number)
                item.context_expr = self._raises(
                    number, node, ["raises_group", 0, _wanted(asked, group)], asked
                )
                return
            if (warning := as_warning(item.context_expr)) is not None and isinstance(node, ast.With):
                item.context_expr = self._warning(number, node, warning)
                return

    def _context(self, number: int, node: ast.stmt, raising: Raising) -> ast.expr:
        asked = self._asked(number)
        condition: Condition = ["raises", 0, asked.pure(raising.error)]
        if raising.match is not None:
            condition.append(asked.pure(raising.match))
        return self._raises(number, node, condition, asked)

    def _raises(self, number: int, node: ast.stmt, condition: Condition, asked: AskedAssertion) -> ast.expr:
        self._add(number, node, condition, asked)
        return ast.Call(ast.Name("__raises__", ast.Load()), [ast.Constant(number)], [_key(asked.pures)])

    def _warning(self, number: int, node: ast.stmt, warning: ExpectedWarning) -> ast.expr:
        asked = self._asked(number)
        condition: Condition = [warning.kind, ["leaf", 0], ["leaf", 1], asked.pure(warning.category)]
        if warning.match is not None:
            condition.append(asked.pure(warning.match))
        self._add(number, node, condition, asked)
        call = [ast.Constant(number), warning.whole]
        return ast.Call(ast.Name("__warns__", ast.Load()), call, [_key(asked.pures)])

    def _is_match(self, call: ast.Call) -> bool:
        """Whether it is `info.match(pattern)`, which is an assertion by itself."""
        method = call.func
        return (
            isinstance(method, ast.Attribute)
            and method.attr == "match"
            and dotted(method.value) in self._infos
            and len(call.args) == 1
            and not call.keywords
        )

    def _asked(self, number: int) -> AskedAssertion:
        return AskedAssertion(self._names, self._infos, swapped=number in self._swapped)

    def _is_bit(self, number: int) -> bool:
        return self._bits is None or number in self._bits

    def _add(self, number: int, node: ast.stmt, condition: Condition, asked: AskedAssertion) -> None:
        self.sites[number] = Site(
            number=number,
            function=self._name,
            line=getattr(node, "lineno", 0),
            condition=condition,
            pinned=tuple(asked.pinned),
            called=asked.called,
            changing=asked.changing,
            inputs=asked.inputs(),
        )


def _wanted(asked: AskedAssertion, group: ExpectedGroup) -> list[Any]:
    match = None if group.match is None else asked.pure(group.match)
    if group.members is None:
        return ["exception", match, None if group.error is None else asked.pure(group.error)]
    members = [_wanted(asked, each) for each in group.members]
    return ["group", match, members, group.unwrapped, group.flattened]


def _catches(node: ast.stmt) -> bool:
    """Whether a statement goes on after a failed assertion in its body."""
    caught: list[ast.expr | None] = []
    if isinstance(node, ast.With | ast.AsyncWith):
        caught += [each.context_expr for each in node.items]
    elif isinstance(node, ast.Try | ast.TryStar):
        caught += [each.type or ast.Name("BaseException") for each in node.handlers]
    names = {name for each in caught if each is not None for name in names_in(each)}
    return not names.isdisjoint(("AssertionError", "Exception", "BaseException"))


def _key(values: list[ast.expr]) -> ast.keyword:
    return ast.keyword("key", _lambda(ast.Tuple(copy.deepcopy(values), ast.Load())))


def _lambda(body: ast.expr) -> ast.expr:
    nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    return ast.Lambda(nothing, body)
