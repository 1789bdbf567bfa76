"""Rewrites a test file into a question sheet, and into the key that the gold patch fills in. Pure.

Each assertion becomes `__ask__(number, leaf, ...)`: the leaves are what depends on tested code. In the key
the call has `key=lambda: (...)` beside them, with what is expected; the sheet has not. How an assertion
holds, given both, is its *condition* (`conditions.py`).

Where both sides depend on tested code, the side with fewer calls, or the right one, is *pinned*: it leaves
the file as an expected value, which is sound where the gold patch and the base commit agree on it."""

import ast
import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from enum import IntEnum

import msgspec

from orchard.workers.domains.swe.sheets.assertions import (
    Raising,
    Special,
    as_expression,
    as_raising,
    as_special,
)
from orchard.workers.domains.swe.sheets.conditions import Condition
from orchard.workers.domains.swe.sheets.purity import (
    Function,
    FunctionNames,
    ModuleNames,
    cells_of,
    dotted,
    functions_of,
    is_given,
    names_in,
)

_EAGER = (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)
"""What changes its meaning inside a lambda."""


class Treatment(IntEnum):
    """How much is done to a function, and what is left undone where the gold patch would deviate."""

    TOKENS = 0
    """Literals that stand on the side of the answers too are held back."""
    TRIMMED = 1
    """What nothing reads any more is taken out."""
    WHOLE = 2
    """Only the expected sides are taken out."""
    BITS = 3
    """Whole assertions are asked: one bit each."""
    INSIDE = 4
    """Left as it was, and judged in the process of the tested code."""


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """One assertion."""

    number: int
    function: str
    """`test_x` or `Class::test_x`, a helper's or a fixture's too."""
    line: int
    condition: Condition
    pinned: tuple[int, ...] = ()
    """Which of the expected values depend on tested code."""
    called: bool = False
    """Whether one of these is the result of a call, or of a fixture."""
    inputs: tuple[int, ...] = ()
    """Which of the expected values are made of what the question is asked about."""


class RewrittenFile(msgspec.Struct, frozen=True, kw_only=True):
    sheet: ast.Module
    """With all expected sides gone, and nothing else."""
    key: str
    sites: dict[int, Site]


def rewrite(
    source: str,
    tested: Callable[[str], bool],
    *,
    first: int = 0,
    treatments: Mapping[str, Treatment] = {},
    bits: Collection[int] = (),
) -> RewrittenFile:
    """Rewrites all functions of a file, numbering its assertions from `first`.

    `treatments` are by function, TOKENS without an entry; `bits` are assertions that are asked as a whole.
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
        rewriter = _FunctionRewriter(name, function, names, numbers, whole)
        function.body = rewriter.block(function.body)
        if is_given(function):
            function.body.insert(0, rewriter.drawn())
        sites |= rewriter.sites
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
        if isinstance(node, ast.Call) and dotted(node.func) in ("__ask__", "__later__", "__raises__"):
            node.keywords = [each for each in node.keywords if each.arg != "key"]
    return sheet


class _Asked:
    """The leaves and expected values of one assertion, as its condition is made."""

    def __init__(self, names: FunctionNames) -> None:
        self.names = names
        self.leaves: list[ast.expr] = []
        self.pures: list[ast.expr] = []
        self.pinned: list[int] = []
        self.called = False
        self.lazy = False

    def inputs(self) -> tuple[int, ...]:
        asked = {name for leaf in self.leaves for name in names_in(leaf)}
        return tuple(at for at, pure in enumerate(self.pures) if names_in(pure) and names_in(pure) <= asked)

    def leaf(self, node: ast.expr) -> Condition:
        self.leaves.append(node)
        return ["leaf", len(self.leaves) - 1]

    def pure(self, node: ast.expr) -> Condition:
        if not self.names.is_free(node):
            self.pinned.append(len(self.pures))
            elsewhere = self.names.calls(node) > 0 or self.names.is_made_elsewhere(node)
            self.called = self.called or elsewhere
        self.pures.append(node)
        return ["pure", len(self.pures) - 1]

    def sides(
        self, one: ast.expr, another: ast.expr, *, left_first: bool = False
    ) -> tuple[Condition, Condition]:
        """Asks one of two operands and takes the other one out."""
        free = self.names.is_free(one), self.names.is_free(another)
        if free == (True, True):
            asks_left = not isinstance(one, ast.Constant)
        elif True in free:
            asks_left = not free[0]
        else:
            left, right = self.names.calls(one), self.names.calls(another)
            asks_left = left > right or (left == right and not left_first)
        if asks_left:
            return self.leaf(one), self.pure(another)
        return self.pure(one), self.leaf(another)

    def condition(self, node: ast.expr) -> Condition:
        match node:
            case ast.BoolOp():
                self.lazy = True
                word = "and" if isinstance(node.op, ast.And) else "or"
                return [word, *map(self.condition, node.values)]
            case ast.UnaryOp(op=ast.Not()):
                return ["not", self.condition(node.operand)]
            case ast.Compare():
                return self._compare(node)
            case ast.Call():
                return self._call(node)
        return self.leaf(node)

    def _compare(self, node: ast.Compare) -> Condition:
        operators = [type(each).__name__ for each in node.ops]
        if len(operators) == 1:
            left_first = operators[0] in ("In", "NotIn")
            left, right = self.sides(node.left, node.comparators[0], left_first=left_first)
            return ["compare", left, operators, [right]]
        parts = [node.left, *node.comparators]
        free = [self.names.is_free(each) for each in parts]
        if all(free):
            free[0] = False
        left, *rights = [
            self.pure(each) if known else self.leaf(each) for each, known in zip(parts, free, strict=True)
        ]
        return ["compare", left, operators, rights]

    def _call(self, node: ast.Call) -> Condition:
        name = dotted(node.func)
        if name == "isinstance" and len(node.args) == 2:
            return ["isinstance", self.leaf(node.args[0]), self.pure(node.args[1])]
        if name == "bool" and len(node.args) == 1 and not node.keywords:
            return self.condition(node.args[0])
        last = name.rpartition(".")[2]
        if last == "array_equal" and len(node.args) == 2:
            return ["arrays", *self.sides(*node.args)]
        if last == "allclose" and len(node.args) == 2 and not node.keywords and "." in name:
            numbers: list[Condition] = [self.pure(ast.Constant(each)) for each in (1e-5, 1e-8, False)]
            return ["allclose", *self.sides(*node.args), *numbers]
        match node:
            case ast.Call(ast.Attribute(value, "startswith" | "endswith" as kind), [part], []):
                if self.names.is_free(part):
                    return [kind, self.leaf(value), self.pure(part)]
            case ast.Call(args=[ast.GeneratorExp() | ast.ListComp() as rows], keywords=[]):
                if name in ("all", "any"):
                    return self._each(name, rows)
        return self.leaf(node)

    def _each(self, name: str, comprehension: ast.GeneratorExp | ast.ListComp) -> Condition:
        """Asks for the answers of all rows at once."""
        inner = _Asked(self.names)
        inner.leaves, inner.pures = self.leaves, self.pures
        asked, known = len(self.leaves), len(self.pures)
        condition = inner.condition(comprehension.elt)
        for values, since in ((self.leaves, asked), (self.pures, known)):
            for at in range(since, len(values)):
                values[at] = ast.ListComp(values[at], comprehension.generators)
        self.pinned += [at for at in range(known, len(self.pures)) if not self.names.is_free(self.pures[at])]
        self.called = self.called or inner.called
        return [name, condition, list(range(asked, len(self.leaves))), list(range(known, len(self.pures)))]


class _FunctionRewriter:
    def __init__(
        self,
        name: str,
        function: Function,
        names: FunctionNames,
        numbers: Mapping[int, int],
        bits: Collection[int] | None,
    ) -> None:
        self._name = name
        self._function = function
        self._names = names
        self._numbers = numbers
        self._bits = bits
        self.sites: dict[int, Site] = {}

    def drawn(self) -> ast.stmt:
        """Asks a function of hypothesis first which example it was given."""
        number = self._numbers[id(self._function)]
        given = [each.arg for each in self._function.args.args if each.arg not in ("self", "cls")]
        given += [each.arg for each in self._function.args.kwonlyargs]
        example: list[ast.expr] = [ast.Name(each, ast.Load()) for each in given]
        asked = _Asked(self._names)
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
        for field in ("body", "orelse", "finalbody"):
            if isinstance(getattr(node, field, None), list) and not (field == "body" and _catches(node)):
                setattr(node, field, self.block(getattr(node, field)))
        for handler in [*getattr(node, "handlers", []), *getattr(node, "cases", [])]:
            handler.body = self.block(handler.body)
        return node

    def _changed(self, node: ast.stmt) -> ast.stmt | None:
        if isinstance(node, ast.Assert):
            return self._expression(node, node.test)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            if (expression := as_expression(node.value)) is not None:
                return self._expression(node, expression)
            if (special := as_special(node.value)) is not None:
                return self._special(node, special)
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
        asked = _Asked(self._names)
        eager = any(isinstance(each, _EAGER) for each in ast.walk(expression))
        if self._is_bit(number) or (eager and isinstance(expression, ast.BoolOp)):
            asked.leaves.append(expression)
            return self._asking(number, node, ["leaf", 0], asked)
        condition = asked.condition(expression)
        if eager and asked.lazy:
            asked = _Asked(self._names)
            condition = asked.leaf(expression)
        return self._asking(number, node, condition, asked)

    def _special(self, node: ast.stmt, special: Special) -> ast.stmt:
        number = self._numbers[id(node)]
        if self._is_bit(number):
            return node
        asked = _Asked(self._names)
        if special.kind.startswith("called:"):
            sides = asked.leaf(special.sides[0]), asked.pure(special.sides[1])
        else:
            sides = asked.sides(*special.sides)
        condition: Condition = [special.kind, *sides, *map(asked.pure, special.options)]
        return self._asking(number, node, ["not", condition] if special.negated else condition, asked)

    def _asking(self, number: int, node: ast.stmt, condition: Condition, asked: _Asked) -> ast.stmt:
        name = "__later__" if asked.lazy else "__ask__"
        leaves = [_lambda(each) for each in asked.leaves] if asked.lazy else asked.leaves
        self._add(number, node, condition, asked)
        call = ast.Call(ast.Name(name, ast.Load()), [ast.Constant(number), *leaves], [_key(asked.pures)])
        return ast.copy_location(ast.Expr(call), node)

    def _raising_call(self, node: ast.Expr | ast.Assign, raising: Raising) -> ast.stmt | None:
        number = self._numbers[id(node)]
        if self._is_bit(number):
            return node
        assert isinstance(node.value, ast.Call)
        context = self._context(number, node, raising)
        call = ast.Attribute(context, "call", ast.Load())
        keywords = [each for each in node.value.keywords if each.arg != "match"]
        node.value = ast.Call(call, raising.rest, keywords)
        return node

    def _with(self, node: ast.With | ast.AsyncWith) -> None:
        number = self._numbers[id(node)]
        if self._is_bit(number):
            return
        for item in node.items:
            raising = as_raising(item.context_expr)
            if raising is not None and not raising.rest:
                item.context_expr = self._context(number, node, raising)
                return

    def _context(self, number: int, node: ast.stmt, raising: Raising) -> ast.expr:
        asked = _Asked(self._names)
        condition: Condition = ["raises", 0, asked.pure(raising.error)]
        if raising.match is not None:
            condition.append(asked.pure(raising.match))
        self._add(number, node, condition, asked)
        return ast.Call(ast.Name("__raises__", ast.Load()), [ast.Constant(number)], [_key(asked.pures)])

    def _is_bit(self, number: int) -> bool:
        return self._bits is None or number in self._bits

    def _add(self, number: int, node: ast.stmt, condition: Condition, asked: _Asked) -> None:
        self.sites[number] = Site(
            number=number,
            function=self._name,
            line=getattr(node, "lineno", 0),
            condition=condition,
            pinned=tuple(asked.pinned),
            called=asked.called,
            inputs=asked.inputs(),
        )


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
