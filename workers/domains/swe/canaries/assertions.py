"""What an assertion expects, how it is turned into its opposite, and what it says when it fails. Pure."""

import ast
import re
from collections.abc import Iterator

from orchard.workers.domains.swe.canaries.constants import is_literal, leaves_of

_EQUAL = re.compile(r"assert(Equals?|(List|Dict|Tuple|Set|Count|Sequence|MultiLine|AlmostEqual|Almost)\w*)")

_INVERSE = {
    "assertTrue": "assertFalse",
    "assertEqual": "assertNotEqual",
    "assertIsNone": "assertIsNotNone",
    "assertIn": "assertNotIn",
    "assertIs": "assertIsNot",
    "assertIsInstance": "assertNotIsInstance",
}
_INVERSE |= {after: before for before, after in _INVERSE.items()}

_RAISING = frozenset({"raises", "assertRaises", "assertRaisesRegex", "warns", "assertWarns"})

_OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Is: ast.IsNot,
    ast.In: ast.NotIn,
    ast.Eq: ast.NotEq,
    ast.Lt: ast.GtE,
    ast.Gt: ast.LtE,
}
_OPPOSITE |= {after: before for before, after in _OPPOSITE.items()}


def expected_by(statement: ast.stmt) -> tuple[list[ast.expr], ast.AST | None] | None:
    """What an assertion expects, and what of it can be turned around; None for other statements."""
    if isinstance(statement, ast.Assert):
        test = statement.test
        if isinstance(test, ast.Call) and ast.unparse(test.func).endswith(("startswith", "endswith")):
            return list(test.args), statement
        return [side for compare in _compares(test) for side in _sides(compare)], statement
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if _EQUAL.fullmatch(name) and len(call.args) >= 2:
            return _data_side(call.args[0], call.args[1]), call if name in _INVERSE else None
        if name in _RAISING and len(call.args) >= 2:
            return [call.args[0]], None
        if name in ("assertIn", "assertNotIn", "assertIs", "assertIsNot") and len(call.args) >= 2:
            return [call.args[0 if "In" in name else 1]], call
        return ([], call) if name in _INVERSE and call.args else None
    if isinstance(statement, ast.With | ast.AsyncWith) and (call_ := raising(statement)):
        match = [each.value for each in call_.keywords if each.arg == "match"] or call_.args[1:2]
        return match if any(any(leaves_of(each)) for each in match) else call_.args[:1], None
    return None


def raising(statement: ast.With | ast.AsyncWith) -> ast.Call | None:
    for item in statement.items:
        call = item.context_expr
        if isinstance(call, ast.Call) and ast.unparse(call.func).rpartition(".")[2] in _RAISING:
            return call
    return None


def _compares(test: ast.expr) -> Iterator[ast.Compare]:
    if isinstance(test, ast.Compare):
        yield test
    elif isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        for each in test.values:
            yield from _compares(each)


def _sides(compare: ast.Compare) -> list[ast.expr]:
    if len(compare.ops) != 1:
        return []
    left, right = compare.left, compare.comparators[0]
    match compare.ops[0]:
        case ast.Eq():
            return _data_side(left, right)
        case ast.In():
            return [left] if is_literal(left) else [right]
        case ast.Is():
            return [right]
    return []


def _data_side(left: ast.expr, right: ast.expr) -> list[ast.expr]:
    """The side of a comparison that says what is expected: the one that calls nothing, else the second."""
    for side in (right, left):
        if is_literal(side):
            return [side]
    for side in (right, left):
        if isinstance(side, ast.Name):
            return [side]
    return [right]


def turn_around(node: ast.AST, other_form: object, turned: object) -> None:
    """Make an assertion ask whether something is True or False, in one form whichever is right: `assert f()`
    and `assert not f()` become `assert (not f()) is False` and `... is True`. Of a comparison and its
    opposite `other_form` takes the one that is not written."""
    assert isinstance(node, ast.Assert | ast.Call)
    asked, wanted = (node.test, True) if isinstance(node, ast.Assert) else _asked(node)
    while isinstance(asked, ast.UnaryOp) and isinstance(asked.op, ast.Not):
        asked, wanted = asked.operand, not wanted
    if (
        isinstance(asked, ast.Compare)
        and len(asked.ops) == 1
        and type(asked.ops[0]) in _OPPOSITE
        and other_form
    ):
        opposite = _OPPOSITE[type(asked.ops[0])]()
        asked, wanted = ast.Compare(asked.left, [opposite], asked.comparators), not wanted
    is_not = ast.UnaryOp(op=ast.Not(), operand=asked)
    answer = ast.Constant(value=not wanted if not turned else wanted)
    if isinstance(node, ast.Assert):
        node.test, node.msg = ast.Compare(is_not, [ast.Is()], [answer]), None
    else:
        assert isinstance(node.func, ast.Attribute)
        node.func.attr, node.args, node.keywords = "assertIs", [is_not, answer], []


_METHODS: dict[str, type[ast.cmpop]] = {"Equal": ast.Eq, "In": ast.In, "Is": ast.Is}


def _asked(call: ast.Call) -> tuple[ast.expr, bool]:
    """What an assertion of unittest asks, and whether it wants it to be so."""
    assert isinstance(call.func, ast.Attribute)
    name = call.func.attr.removeprefix("assert")
    if name in ("True", "False"):
        return call.args[0], name == "True"
    wanted, kind = "Not" not in name, name.replace("Not", "")
    if kind == "IsNone":
        return ast.Compare(call.args[0], [ast.Is()], [ast.Constant(value=None)]), wanted
    if kind == "IsInstance":
        return ast.Call(ast.Name("isinstance", ast.Load()), call.args[:2], []), wanted
    return ast.Compare(call.args[0], [_METHODS[kind]()], [call.args[1]]), wanted


def without_words(statement: ast.stmt) -> None:
    """Take out what an assertion says when it fails: it may tell what is right."""
    if isinstance(statement, ast.Assert):
        statement.msg = None
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        call.keywords = [each for each in call.keywords if each.arg != "msg"]
