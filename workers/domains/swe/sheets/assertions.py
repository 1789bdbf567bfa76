"""The forms of assertion that a question sheet knows: those of unittest, numpy, pandas and mocks. Pure."""

import ast

from orchard.workers.domains.swe.sheets.parametrized import dotted

_EQUAL = (
    *("assertEqual", "assertEquals", "assertListEqual", "assertDictEqual"),
    *("assertTupleEqual", "assertSetEqual", "assertMultiLineEqual"),
)
_COMPARED: dict[str, type[ast.cmpop]] = {
    **dict.fromkeys(_EQUAL, ast.Eq),
    "assertNotEqual": ast.NotEq,
    "assertIs": ast.Is,
    "assertIsNot": ast.IsNot,
    "assertIn": ast.In,
    "assertNotIn": ast.NotIn,
    "assertGreater": ast.Gt,
    "assertGreaterEqual": ast.GtE,
    "assertLess": ast.Lt,
    "assertLessEqual": ast.LtE,
}
_MOCK = (
    *("assert_called", "assert_called_once", "assert_not_called"),
    *("assert_called_with", "assert_called_once_with", "assert_any_call"),
)


def as_expression(call: ast.Call) -> ast.expr | None:
    """Returns what one of unittest's assertions asserts, as an expression; None for all others."""
    if not (isinstance(call.func, ast.Attribute) and dotted(call.func.value) in ("self", "cls")):
        return None
    name, arguments = call.func.attr, list(call.args)
    arguments += [each.value for each in call.keywords if each.arg in ("first", "second", "expr", "obj")]
    if any(isinstance(each, ast.Starred) for each in arguments):
        return None
    if name in _COMPARED and len(arguments) >= 2:
        return ast.Compare(arguments[0], [_COMPARED[name]()], [arguments[1]])
    if name in ("assertTrue", "assert_", "failUnless") and arguments:
        return arguments[0]
    if name in ("assertFalse", "failIf") and arguments:
        return ast.UnaryOp(ast.Not(), arguments[0])
    if name in ("assertIsNone", "assertIsNotNone") and arguments:
        operator: ast.cmpop = ast.Is() if name == "assertIsNone" else ast.IsNot()
        return ast.Compare(arguments[0], [operator], [ast.Constant(None)])
    if name in ("assertIsInstance", "assertNotIsInstance") and len(arguments) >= 2:
        kind = ast.Call(ast.Name("isinstance", ast.Load()), arguments[:2], [])
        return kind if name == "assertIsInstance" else ast.UnaryOp(ast.Not(), kind)
    return None


class Special:
    """An assertion that is a function of two operands and of options, under the condition's own name."""

    def __init__(
        self, kind: str, sides: tuple[ast.expr, ast.expr], options: list[ast.expr], *, negated: bool = False
    ) -> None:
        self.kind = kind
        self.sides = sides
        self.options = options
        self.negated = negated


def as_special(call: ast.Call) -> Special | None:
    """Returns one of the assertions that no expression of Python says; None for all others."""
    name = dotted(call.func).rpartition(".")[2] or getattr(call.func, "attr", "")
    keywords = {each.arg: each.value for each in call.keywords}
    if None in keywords or any(isinstance(each, ast.Starred) for each in call.args):
        return None
    for make in (_unittest, _numpy, _pandas):
        if (found := make(name, list(call.args), keywords)) is not None:
            return found
    return _mocked(call, name)


def _unittest(name: str, arguments: list[ast.expr], keywords: dict[str | None, ast.expr]) -> Special | None:
    if len(arguments) < 2:
        return None
    sides = arguments[0], arguments[1]
    if name in ("assertAlmostEqual", "assertNotAlmostEqual"):
        places = arguments[2] if len(arguments) > 2 else keywords.get("places", ast.Constant(None))
        options = [places, keywords.get("delta", ast.Constant(None))]
        return Special("almost", sides, options, negated="Not" in name)
    if name == "assertCountEqual":
        return Special("counts", sides, [])
    if name == "assertSequenceEqual":
        return Special("sequence", sides, [])
    if name in ("assertRegex", "assertNotRegex"):
        return Special("search", sides, [], negated="Not" in name)
    return None


def _numpy(name: str, arguments: list[ast.expr], keywords: dict[str | None, ast.expr]) -> Special | None:
    if name not in (
        "assert_allclose",
        "assert_array_equal",
        "assert_almost_equal",
        "assert_array_almost_equal",
    ):
        return None
    given = [*arguments]
    given += [keywords.pop(each) for each in ("actual", "desired", "x", "y") if each in keywords]
    if len(given) < 2:
        return None
    sides = given[0], given[1]
    if name == "assert_allclose":
        relative = keywords.pop("rtol", given[2] if len(given) > 2 else ast.Constant(1e-7))
        absolute = keywords.pop("atol", given[3] if len(given) > 3 else ast.Constant(0))
        nan = keywords.pop("equal_nan", ast.Constant(True))
        return (
            None
            if set(keywords) - {"err_msg", "verbose"}
            else Special("allclose", sides, [relative, absolute, nan])
        )
    if set(keywords) - {"err_msg", "verbose", "decimal"}:
        return None
    if name == "assert_array_equal":
        return Special("arrays", sides, [])
    default = 7 if name == "assert_almost_equal" else 6
    decimal = keywords.get("decimal", given[2] if len(given) > 2 else ast.Constant(default))
    power = ast.BinOp(
        ast.Constant(1.5),
        ast.Mult(),
        ast.BinOp(ast.Constant(10.0), ast.Pow(), ast.UnaryOp(ast.USub(), decimal)),
    )
    return Special("allclose", sides, [ast.Constant(0), power, ast.Constant(True)])


def _pandas(name: str, arguments: list[ast.expr], keywords: dict[str | None, ast.expr]) -> Special | None:
    if name not in ("assert_frame_equal", "assert_series_equal", "assert_index_equal"):
        return None
    given = [*arguments]
    given += [keywords.pop(each) for each in ("left", "right") if each in keywords]
    if len(given) != 2:
        return None
    options = ast.Dict([ast.Constant(each) for each in keywords], list(keywords.values()))
    return Special("frames", (given[0], given[1]), [options])


def _mocked(call: ast.Call, name: str) -> Special | None:
    if (
        name not in _MOCK
        or not isinstance(call.func, ast.Attribute)
        or dotted(call.func.value) in ("self", "cls")
    ):
        return None
    mock = ast.Attribute(call.func.value, "call_args_list", ast.Load())
    calls = ast.Call(ast.Name("__calls__", ast.Load()), [mock], [])
    named = ast.Dict(
        [None if each.arg is None else ast.Constant(each.arg) for each in call.keywords],
        [each.value for each in call.keywords],
    )
    expected = ast.Tuple([ast.Tuple(list(call.args), ast.Load()), named], ast.Load())
    return Special(f"called:{name}", (calls, expected), [])


RAISING = frozenset({"raises", "assertRaises", "assertRaisesRegex"})


class Raising:
    """`raises(error, ...)` as a context or as a call: what is expected, and the rest of its arguments."""

    def __init__(self, error: ast.expr, match: ast.expr | None, rest: list[ast.expr]) -> None:
        self.error = error
        self.match = match
        self.rest = rest


def as_raising(node: ast.expr) -> Raising | None:
    if not isinstance(node, ast.Call):
        return None
    name = dotted(node.func).rpartition(".")[2]
    if name not in RAISING or any(isinstance(each, ast.Starred) for each in node.args[:2]):
        return None
    arguments = list(node.args)
    keywords = {each.arg: each.value for each in node.keywords}
    error = arguments.pop(0) if arguments else keywords.get("expected_exception") or keywords.get("exception")
    match = keywords.get("match")
    if name == "assertRaisesRegex":
        match = arguments.pop(0) if arguments else keywords.get("expected_regex")
    allowed = {"match", "msg", "expected_exception", "exception", "expected_regex"}
    if error is None or (not arguments and set(keywords) - allowed):
        return None
    return Raising(error, match, arguments)
