"""Adds to a question sheet variants of its test functions: the same questions about other inputs. Pure.

A variant `test_x__fresh_3` is a copy of `test_x` in which one literal of each assertion, of each row of a
table and of one other statement is another one. Its assertions keep their numbers, and are asked lazily, so
that an exception is an answer too. `child.py` limits its time, and the runner runs it after all tests.
"""

import ast
import copy
import re
from collections.abc import Collection, Iterator, Mapping

import msgspec

from orchard.workers.domains.swe.sheets.literals import LiteralSlot, key_names, other_nodes, slots_in
from orchard.workers.domains.swe.sheets.parametrized import Function, dotted, table_of
from orchard.workers.domains.swe.sheets.purity import FUNCTIONS, functions_of

_ASKING = ("__ask__", "__later__", "__raises__", "__warns__")
_NAME = re.compile(r"__fresh_\d+$")
_EAGER = (ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """One copy of a test function."""

    function: str
    """`test_x` or `Class::test_x`, of which it is a copy."""
    name: str
    """Its own."""
    asked: dict[int, str]
    """By assertion: which literal of its own is another one."""
    table: str
    """Which literals of a table, on which all assertions depend; empty for none."""
    other: str
    """Which literal of another statement; empty for none."""
    strange: frozenset[int | None] = frozenset()
    """Assertions whose own literal is now a text that may be no valid one; None if all are."""

    def is_strange(self, ask: int) -> bool:
        return not self.strange.isdisjoint((ask, None))

    def change_of(self, ask: int) -> str:
        return ", ".join(filter(None, (self.asked.get(ask), self.table, self.other)))


def original_of(function: str) -> str:
    """Returns the test function of a variant's name; the name itself of all others."""
    return _NAME.sub("", function)


def number_of_variant(name: str) -> int:
    return int(name.rpartition("_")[2])


def with_variants(
    source: str, numbers: Mapping[str, Collection[int]], *, trial: bool = False
) -> tuple[str, list[Variant]]:
    """Returns a sheet's text with variants of these functions, by the numbers of each function's variants.

    In a `trial` they have less time. Variants in which no literal could be replaced are left out.
    """
    tree = ast.parse(source)
    names = key_names(tree)
    literals = _module_literals(tree)
    made: list[Variant] = []
    for name, function, owner in list(functions_of(tree)):
        body = tree.body if owner is None else owner.body
        for number in numbers.get(name, ()):
            twin = _with_constants(copy.deepcopy(function), literals)
            twin.name = f"{function.name}__fresh_{number}"
            full = name.removesuffix(function.name) + twin.name
            variant = _changed(twin, name, full, names, number)
            if variant.asked or variant.table or variant.other:
                _ask_lazily(twin)
                _limit(twin, trial=trial)
                body.append(twin)
                made.append(variant)
    ast.fix_missing_locations(tree)
    return (ast.unparse(tree) + "\n", made) if made else (source, [])


# --- literals of the module ----------------------------------------------------------------------


def _module_literals(tree: ast.Module) -> dict[str, ast.expr]:
    """Returns the plain values that names of the module hold for good."""
    stored = [n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    return {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and stored.count(target.id) == 1 and _is_plain(node.value)
    }


def _is_plain(node: ast.expr) -> bool:
    plain = (ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.UnaryOp, ast.unaryop, ast.expr_context)
    return all(isinstance(each, plain) for each in ast.walk(node))


def _with_constants(function: Function, literals: Mapping[str, ast.expr]) -> Function:
    """Binds the module's literals that a function reads to copies of its own."""
    arguments = {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)}
    used = {
        node.id
        for statement in function.body
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    for name in sorted(used & set(literals) - arguments):
        value = copy.deepcopy(literals[name])
        function.body.insert(0, ast.Assign([ast.Name(name, ast.Store())], value))
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and dotted(decorator.func).endswith("parametrize"):
            decorator.args = [
                copy.deepcopy(literals.get(each.id, each)) if isinstance(each, ast.Name) else each
                for each in decorator.args
            ]
    return function


# --- replacing -----------------------------------------------------------------------------------


class _Group(msgspec.Struct, frozen=True):
    """Literals of which one is replaced."""

    slots: list[LiteralSlot]
    ask: int | None = None
    """The assertion that they are part of."""
    table: bool = False
    """Whether they are a row of a table."""


def _changed(function: Function, original: str, name: str, names: Collection[object], number: int) -> Variant:
    """Replaces one literal in each assertion and row, and in one other statement."""
    groups = [each for each in _groups(function, names) if each.slots]
    others = [each for each in groups if each.ask is None and not each.table]
    asked: dict[int, str] = {}
    table, other = [], ""
    strange: set[int | None] = set()

    def replaced(group: _Group, number: int) -> str:
        said, is_strange = _replace_one(group.slots, number)
        if is_strange:
            strange.add(group.ask)
        return said

    for group in groups:
        if group.ask is not None:
            asked[group.ask] = replaced(group, number)
        elif group.table:
            table.append(replaced(group, number))
    if others:
        turn, at = divmod(number, len(others))
        other = replaced(others[at], turn)
    asked = {ask: change for ask, change in asked.items() if change}
    return Variant(
        function=original,
        name=name,
        asked=asked,
        table=", ".join(filter(None, table)),
        other=other,
        strange=frozenset(strange),
    )


def _replace_one(slots: list[LiteralSlot], number: int) -> tuple[str, bool]:
    """Returns what was replaced by what (empty where nothing could be), and whether it may be no valid
    text."""
    choices = [(slot, nodes) for slot in slots for nodes in [other_nodes(slot.node)] if nodes]
    if not choices:
        return "", False
    turn, at = divmod(number, len(choices))
    slot, nodes = choices[at]
    node = nodes[turn % len(nodes)]
    slot.put(node)
    return f"{ast.unparse(node)} for {ast.unparse(slot.node)}", _shape(node) != _shape(slot.node)


def _shape(node: ast.expr) -> object:
    """What a text is but for its digits; nothing for other literals."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
        return re.sub(r"\d", "0", str(node.value))
    return None


def _groups(function: Function, names: Collection[object]) -> Iterator[_Group]:
    for decorator in function.decorator_list:
        if (table := table_of(decorator)) is not None and isinstance(decorator, ast.Call):
            given = [
                *decorator.args[1:2],
                *(each.value for each in decorator.keywords if each.arg == "argvalues"),
            ]
            for rows in given:
                yield from _rows(rows, names, whole=len(table[0]) == 1)
    yield from _block(function.body, names)


def _rows(table: ast.expr, names: Collection[object], *, whole: bool) -> Iterator[_Group]:
    """Groups each row of a table; `whole` rows are inputs themselves."""
    if isinstance(table, ast.List | ast.Tuple):
        for at, row in enumerate(table.elts):
            itself = whole and not isinstance(row, ast.Call)
            own = [LiteralSlot(row, table, "elts", at)] if itself else []
            yield _Group([*own, *slots_in(row, names)], table=True)


def _block(body: list[ast.stmt], names: Collection[object]) -> Iterator[_Group]:
    for statement in body:
        number = number_of(statement)
        if isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
            continue
        if isinstance(statement, ast.For):
            yield from _rows(statement.iter, names, whole=isinstance(statement.target, ast.Name))
            yield from _block(statement.body, names)
        elif isinstance(statement, ast.With | ast.AsyncWith):
            for group in _block(statement.body, names):
                yield group if number is None or group.ask is not None else _Group(group.slots, number)
        elif isinstance(statement, ast.If | ast.Try | ast.While):
            for field in ("body", "orelse", "finalbody"):
                yield from _block(getattr(statement, field, []), names)
        else:
            yield _Group(list(slots_in(statement, names)), number)


def number_of(statement: ast.stmt) -> int | None:
    """Returns the number of the assertion that a statement asks."""
    calls = [statement.value] if isinstance(statement, ast.Expr | ast.Assign) else []
    if isinstance(statement, ast.With | ast.AsyncWith):
        calls = [item.context_expr for item in statement.items]
    for call in calls:
        while isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
            call = call.func.value  # `__raises__(1).call(...)`
        if isinstance(call, ast.Call) and dotted(call.func) in _ASKING:
            first = call.args[0]
            return first.value if isinstance(first, ast.Constant) and isinstance(first.value, int) else None
    return None


def _ask_lazily(function: Function) -> None:
    """Makes an answer of each exception."""
    for node in ast.walk(function):
        if not isinstance(node, ast.Call) or dotted(node.func) != "__ask__":
            continue
        if not any(isinstance(each, _EAGER) for leaf in node.args[1:] for each in ast.walk(leaf)):
            node.func = ast.Name("__later__", ast.Load())
            nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
            node.args[1:] = [ast.Lambda(nothing, leaf) for leaf in node.args[1:]]


def _limit(function: Function, *, trial: bool) -> None:
    call = ast.Call(ast.Name("__within__", ast.Load()), [ast.Constant(True)] if trial else [], [])
    function.body = [ast.With([ast.withitem(call)], function.body)]
