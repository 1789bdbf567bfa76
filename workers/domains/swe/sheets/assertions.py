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
_MOCK = {
    "assert_called": "assert_called",
    "assert_called_once": "assert_called_once",
    "assert_not_called": "assert_not_called",
    "assert_called_with": "assert_called_with",
    "assert_called_once_with": "assert_called_once_with",
    "assert_any_call": "assert_any_call",
    "assert_awaited": "assert_called",
    "assert_awaited_once": "assert_called_once",
    "assert_not_awaited": "assert_not_called",
    "assert_awaited_with": "assert_called_with",
    "assert_awaited_once_with": "assert_called_once_with",
    "assert_any_await": "assert_any_call",
}
"""The assertions of mocks, each with the condition of the same meaning."""


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
    """An assertion that is a function of two operands and of options, under the condition's own name.

    With a `mock` the first operand is asked, and the second is calls that the mock compares as its own.
    """

    def __init__(
        self,
        kind: str,
        sides: tuple[ast.expr, ast.expr],
        options: list[ast.expr],
        *,
        negated: bool = False,
        mock: ast.expr | None = None,
    ) -> None:
        self.kind = kind
        self.sides = sides
        self.options = options
        self.negated = negated
        self.mock = mock


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
            else Special("assert_allclose", sides, [relative, absolute, nan])
        )
    if set(keywords) - {"err_msg", "verbose", "decimal"}:
        return None
    if name == "assert_array_equal":
        return Special("assert_array_equal", sides, [])
    default = 7 if name == "assert_almost_equal" else 6
    decimal = keywords.get("decimal", given[2] if len(given) > 2 else ast.Constant(default))
    power = ast.BinOp(
        ast.Constant(1.5),
        ast.Mult(),
        ast.BinOp(ast.Constant(10.0), ast.Pow(), ast.UnaryOp(ast.USub(), decimal)),
    )
    return Special("assert_allclose", sides, [ast.Constant(0), power, ast.Constant(True)])


_WHOLE = frozenset({"np", "numpy"})


def as_function(call: ast.Call) -> Special | None:
    """Returns a comparison of arrays or frames that says whether it holds; None for all other calls."""
    path, _, name = dotted(call.func).rpartition(".")
    keywords = {each.arg: each.value for each in call.keywords}
    arguments = list(call.args)
    if any(isinstance(each, ast.Starred) for each in arguments):
        return None
    if isinstance(call.func, ast.Attribute) and call.func.attr == "equals" and len(arguments) == 1:
        return None if keywords else Special("equals", (call.func.value, arguments[0]), [])
    if path not in _WHOLE or len(arguments) < 2:
        return None
    sides, rest = (arguments[0], arguments[1]), arguments[2:]
    if name == "array_equal" and not set(keywords) - {"equal_nan"}:
        return Special("array_equal", sides, [*rest, keywords.get("equal_nan", ast.Constant(False))][:1])
    if name == "allclose" and not set(keywords) - {"rtol", "atol", "equal_nan"}:
        defaults = {"rtol": 1e-5, "atol": 1e-8, "equal_nan": False}
        options = [keywords.get(each, ast.Constant(value)) for each, value in defaults.items()]
        return Special("allclose", sides, [*rest, *options[len(rest) :]])
    return None


class Elements:
    """`(a == b).all()`; with `twice` `.all().all()`, which frames need."""

    def __init__(self, word: str, compared: ast.Compare, *, twice: bool = False) -> None:
        self.word = word
        self.sides = compared.left, compared.comparators[0]
        self.operator = type(compared.ops[0]).__name__
        self.twice = twice


def as_elements(call: ast.Call) -> Elements | None:
    """Returns `(a == b).all()`, `numpy.all(a == b)` and the like; None for all other calls."""
    match call:
        case ast.Call(ast.Attribute(ast.Name(path), "all" | "any" as word), [ast.Compare() as compared], []):
            if path in _WHOLE and _is_by_element(compared):
                return Elements(word, compared)
        case ast.Call(ast.Attribute(ast.Compare() as compared, "all" | "any" as word), [], []):
            if _is_by_element(compared):
                return Elements(word, compared)
        case ast.Call(ast.Attribute(ast.Call() as inner, "all" | "any" as word), [], []):
            found = as_elements(inner)
            if found is not None and found.word == word and not (found.twice or inner.args):
                found.twice = True
                return found
    return None


def _is_by_element(compared: ast.Compare) -> bool:
    return len(compared.ops) == 1 and not isinstance(compared.ops[0], ast.In | ast.NotIn | ast.Is | ast.IsNot)


def _pandas(name: str, arguments: list[ast.expr], keywords: dict[str | None, ast.expr]) -> Special | None:
    if name not in ("assert_frame_equal", "assert_series_equal", "assert_index_equal"):
        return None
    given = [*arguments]
    given += [keywords.pop(each) for each in ("left", "right") if each in keywords]
    if len(given) != 2:
        return None
    options = ast.Dict([ast.Constant(each) for each in keywords], list(keywords.values()))
    return Special("assert_frames", (given[0], given[1]), [options])


def _mocked(call: ast.Call, name: str) -> Special | None:
    if not isinstance(call.func, ast.Attribute) or dotted(call.func.value) in ("self", "cls"):
        return None
    mock = call.func.value
    if any(isinstance(each, ast.Call) for each in ast.walk(mock)):
        return None  # it would be called again
    if name in ("assert_has_calls", "assert_has_awaits"):
        keywords = {each.arg: each.value for each in call.keywords}
        given = [*call.args, *(keywords[each] for each in ("calls", "any_order") if each in keywords)]
        if not given or set(keywords) - {"calls", "any_order"}:
            return None
        attribute = "mock_calls" if name == "assert_has_calls" else "await_args_list"
        options = given[1:] or [ast.Constant(False)]
        return Special("has_calls", (_calls(mock, attribute), given[0]), options, mock=mock)
    if name not in _MOCK:
        return None
    names: list[ast.expr | None] = [ast.Constant(each.arg) for each in call.keywords]
    named = ast.Dict(names, [each.value for each in call.keywords])
    expected = ast.Tuple([ast.Tuple(list(call.args), ast.Load()), named], ast.Load())
    found = _calls(mock, "await_args_list" if "await" in name else "call_args_list")
    return Special(f"called:{_MOCK[name]}", (found, ast.List([expected], ast.Load())), [], mock=mock)


def _calls(mock: ast.expr, attribute: str) -> ast.expr:
    return ast.Call(ast.Name("__calls__", ast.Load()), [mock, ast.Constant(attribute)], [])


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


class ExpectedGroup:
    """`RaisesGroup(...)`, or `RaisesExc(...)` and a class among its arguments: these have no `members`."""

    def __init__(
        self,
        error: ast.expr | None,
        match: ast.expr | None,
        members: list["ExpectedGroup"] | None = None,
        *,
        unwrapped: bool = False,
        flattened: bool = False,
    ) -> None:
        self.error = error
        self.match = match
        self.members = members
        self.unwrapped = unwrapped
        self.flattened = flattened


def as_group(node: ast.expr) -> ExpectedGroup | None:
    """Returns the group that `RaisesGroup` expects; None for all else, and where code checks it."""
    if not isinstance(node, ast.Call) or dotted(node.func).rpartition(".")[2] != "RaisesGroup":
        return None
    keywords = {each.arg: each.value for each in node.keywords}
    match = keywords.pop("match", None)
    options = {"allow_unwrapped": False, "flatten_subgroups": False}
    for name, value in keywords.items():
        if name not in options or not isinstance(value, ast.Constant):
            return None
        options[name] = bool(value.value)
    members = [_member(each) for each in node.args]
    known = [each for each in members if each is not None]
    if not known or len(known) < len(members):
        return None
    unwrapped, flattened = options.values()
    return ExpectedGroup(None, match, known, unwrapped=unwrapped, flattened=flattened)


def _member(node: ast.expr) -> ExpectedGroup | None:
    if isinstance(node, ast.Name | ast.Attribute):
        return ExpectedGroup(node, None)
    if not isinstance(node, ast.Call) or dotted(node.func).rpartition(".")[2] != "RaisesExc":
        return as_group(node)
    keywords = {each.arg: each.value for each in node.keywords}
    match = keywords.pop("match", None)
    if keywords or len(node.args) > 1 or any(isinstance(each, ast.Starred) for each in node.args):
        return None
    return ExpectedGroup(node.args[0] if node.args else None, match)


class ExpectedWarning:
    """`pytest.warns(...)` or unittest's as a context: its condition, what is expected, and one that expects
    any warning."""

    def __init__(self, kind: str, category: ast.expr, match: ast.expr | None, whole: ast.Call) -> None:
        self.kind = kind
        self.category = category
        self.match = match
        self.whole = whole


def as_warning(node: ast.expr) -> ExpectedWarning | None:
    if not isinstance(node, ast.Call):
        return None
    path = dotted(node.func)
    name = path.rpartition(".")[2]
    keywords = {each.arg: each.value for each in node.keywords}
    arguments = list(node.args)
    if path in ("pytest.deprecated_call", "deprecated_call") and not arguments:
        return _deprecated(node, keywords)
    of_unittest = path in ("self.assertWarns", "self.assertWarnsRegex")
    if not (of_unittest or path in ("pytest.warns", "warns")):
        return None
    if set(keywords) - {"match", "expected_warning", "expected_regex", "msg"}:
        return None
    anything = ast.Name("Warning", ast.Load())
    category = arguments.pop(0) if arguments else keywords.get("expected_warning", anything)
    match = keywords.get("expected_regex" if of_unittest else "match")
    if name == "assertWarnsRegex" and arguments:
        match = arguments.pop(0)
    if arguments or isinstance(category, ast.Constant | ast.Starred):
        return None
    if of_unittest:
        method = ast.Attribute(ast.Name("self", ast.Load()), "assertWarns", ast.Load())
        return ExpectedWarning("assert_warns", category, match, ast.Call(method, [anything], []))
    return ExpectedWarning("warns", category, match, ast.Call(node.func, [anything], []))


def _deprecated(node: ast.Call, keywords: dict[str | None, ast.expr]) -> ExpectedWarning | None:
    if set(keywords) - {"match"}:
        return None
    names = ("DeprecationWarning", "PendingDeprecationWarning", "FutureWarning")
    category = ast.Tuple([ast.Name(each, ast.Load()) for each in names], ast.Load())
    return ExpectedWarning("warns", category, keywords.get("match"), ast.Call(node.func, [], []))
