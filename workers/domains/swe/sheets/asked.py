"""Splits one assertion into what is asked and what is expected. Pure."""

import ast
from collections.abc import Collection

from orchard.workers.domains.swe.sheets.assertions import as_elements, as_function
from orchard.workers.domains.swe.sheets.conditions import Condition
from orchard.workers.domains.swe.sheets.parametrized import dotted
from orchard.workers.domains.swe.sheets.purity import FunctionNames, names_in


class AskedAssertion:
    """The leaves and expected values of one assertion, as its condition is made."""

    def __init__(self, names: FunctionNames, infos: Collection[str], *, swapped: bool = False) -> None:
        self.names = names
        self.swapped = swapped
        self.infos = infos
        """Names that hold what `raises` caught."""
        self.leaves: list[ast.expr] = []
        self.pures: list[ast.expr] = []
        self.pinned: list[int] = []
        self.called = False
        self.changing = False
        self.lazy = False

    def inputs(self) -> tuple[int, ...]:
        """Returns which expected values are made of what the question is asked about, or read from a file."""
        asked = {name for leaf in self.leaves for name in names_in(leaf)}
        return tuple(
            at
            for at, pure in enumerate(self.pures)
            if (names_in(pure) and names_in(pure) <= asked) or self.names.reads(pure)
        )

    def leaf(self, node: ast.expr) -> Condition:
        self.leaves.append(node)
        return ["leaf", len(self.leaves) - 1]

    def pure(self, node: ast.expr) -> Condition:
        if not self.names.is_free(node):
            self.pinned.append(len(self.pures))
            elsewhere = self.names.calls(node) > 0 or self.names.is_made_elsewhere(node)
            self.called = self.called or elsewhere
            self.changing = self.changing or self.names.changes(node)
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
            asks_left = (left > right or (left == right and not left_first)) != self.swapped
        if asks_left:
            return self.leaf(one), self.pure(another)
        return self.pure(one), self.leaf(another)

    def condition(self, node: ast.expr) -> Condition:
        match node:
            case ast.BoolOp():
                self.lazy = True
                word = "and" if isinstance(node.op, ast.And) else "or"
                return [word, *map(self.condition, node.values)]
            case ast.IfExp():
                self.lazy = True
                known = self.names.is_free(node.test)
                decides = self.pure(node.test) if known else self.condition(node.test)
                return ["if", decides, self.condition(node.body), self.condition(node.orelse)]
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
        if (function := as_function(node)) is not None:
            return [function.kind, *self.sides(*function.sides), *map(self.pure, function.options)]
        if (elements := as_elements(node)) is not None:
            sides = self.sides(*elements.sides)
            return ["elements", elements.word, elements.twice, elements.operator, *sides]
        match node:
            case ast.Call(ast.Attribute(value, "startswith" | "endswith" as kind), [part], []):
                if self.names.is_free(part):
                    return [kind, self.leaf(value), self.pure(part)]
            case ast.Call(ast.Attribute(ast.Name() as info, "match"), [pattern], []):
                if info.id in self.infos:
                    return ["search", self.leaf(_text_of(info)), self.pure(pattern)]
            case ast.Call(args=[ast.GeneratorExp() | ast.ListComp() as rows], keywords=[]):
                if name in ("all", "any"):
                    return self._each(name, rows)
        return self.leaf(node)

    def _each(self, name: str, comprehension: ast.GeneratorExp | ast.ListComp) -> Condition:
        """Asks for the answers of all rows at once."""
        inner = AskedAssertion(self.names, self.infos)
        inner.leaves, inner.pures = self.leaves, self.pures
        asked, known = len(self.leaves), len(self.pures)
        condition = inner.condition(comprehension.elt)
        for values, since in ((self.leaves, asked), (self.pures, known)):
            for at in range(since, len(values)):
                values[at] = ast.ListComp(values[at], comprehension.generators)
        self.pinned += [at for at in range(known, len(self.pures)) if not self.names.is_free(self.pures[at])]
        self.called = self.called or inner.called
        self.changing = self.changing or inner.changing
        return [name, condition, list(range(asked, len(self.leaves))), list(range(known, len(self.pures)))]


def _text_of(info: ast.expr) -> ast.expr:
    return ast.Call(ast.Name("__text__", ast.Load()), [info], [])
