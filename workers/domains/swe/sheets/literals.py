"""Other values in place of the literals that a test gives to tested code. Pure."""

import ast
import copy
from collections.abc import Collection, Iterator
from typing import Any

from orchard.workers.domains.swe.sheets.parametrized import dotted
from orchard.workers.domains.swe.sheets.purity import FUNCTIONS

_NO_INPUT = frozenset(
    [
        *("open", "getattr", "hasattr", "setattr", "delattr", "import_module", "patch", "object", "sleep"),
        *("Path", "PurePath", "joinpath", "mkdir", "exists", "encode", "decode", "chmod", "chdir", "setenv"),
        *("delenv", "skip", "fail", "xfail", "importorskip", "getfixturevalue", "strftime", "isinstance"),
        *("raises", "warns", "__token__", "compile", "exec", "eval", "dedent", "print", "get_logger"),
    ]
)
"""Functions whose arguments are names, files and modes, not inputs of tested code."""
_NO_KEYWORDS = frozenset(
    [
        *("encoding", "errors", "mode", "newline", "file", "filename"),
        *("dtype", "timeout", "name", "match", "id", "ids"),
    ]
)
_LONG = 2000


class LiteralSlot:
    """A literal, and the field of its parent where another one may stand."""

    def __init__(self, node: ast.expr, parent: ast.AST, field: str, at: int | None) -> None:
        self.node = node
        self._parent, self._field, self._at = parent, field, at

    def put(self, node: ast.expr) -> None:
        if self._at is None:
            setattr(self._parent, self._field, node)
        else:
            getattr(self._parent, self._field)[self._at] = node


def slots_in(root: ast.AST, names: Collection[object]) -> Iterator[LiteralSlot]:
    """Yields the literals below a node that are inputs; `names` are texts that are used as keys elsewhere."""
    for parent, field, at, node in _inputs(root):
        constant = isinstance(node, ast.Constant) and not _is_name(node, parent, names)
        if constant or (isinstance(node, ast.List | ast.Tuple | ast.Dict) and _is_literal(node)):
            yield LiteralSlot(node, parent, field, at)


def _inputs(parent: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, ast.expr]]:
    for field, value in ast.iter_fields(parent):
        if field in ("annotation", "returns", "ops", "op", "decorator_list"):
            continue
        for at, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(node, ast.AST) or _is_no_input(parent, field, at, node):
                continue
            if isinstance(node, ast.expr):
                yield parent, field, at, node
            yield from _inputs(node)


def _is_no_input(parent: ast.AST, field: str, at: int | None, node: ast.AST) -> bool:
    if isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Lambda, ast.JoinedStr, ast.match_case, ast.Raise)):
        return not isinstance(node, ast.Lambda) or bool(node.args.args)
    match parent:
        case ast.Subscript():
            return field == "slice"
        case ast.Call():
            name = dotted(parent.func).rpartition(".")[2] or getattr(parent.func, "attr", "")
            asks = name in ("__ask__", "__later__", "__raises__", "__warns__")
            return (field != "func" and name in _NO_INPUT) or (asks and at == 0)
        case ast.keyword():
            return parent.arg in _NO_KEYWORDS
        case ast.BinOp(op=ast.Div()):
            return isinstance(node, ast.Constant) and isinstance(node.value, str)
        case ast.Attribute() | ast.Expr() | ast.withitem():
            return isinstance(node, ast.Constant)
    return False


def _is_name(node: ast.Constant, parent: ast.AST, names: Collection[object]) -> bool:
    keyed = isinstance(parent, ast.Dict) and any(node is key for key in parent.keys)
    return keyed and node.value in names


def _is_literal(node: ast.AST) -> bool:
    """Whether a display holds literals alone, and at least one."""
    inner = [each for each in ast.walk(node) if isinstance(each, ast.expr)]
    return len(inner) > 1 and all(
        isinstance(each, ast.Constant | ast.List | ast.Tuple | ast.Dict | ast.UnaryOp) for each in inner
    )


def key_names(tree: ast.AST) -> set[object]:
    """Returns the literals of a file by which something is looked up."""
    found: set[object] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            found.add(node.slice.value)
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("get", "pop", "setdefault"):
            found |= {each.value for each in node.args[:1] if isinstance(each, ast.Constant)}
    return found


def other_nodes(node: ast.expr) -> list[ast.expr]:
    """Returns literals to stand in place of one, those near it first."""
    if isinstance(node, ast.Constant):
        return [ast.copy_location(_constant(each), node) for each in others(node.value)]
    made: list[ast.expr] = []
    if isinstance(node, ast.Dict) and node.keys:
        made = [ast.Dict(node.keys[:-1], node.values[:-1])]
    elif isinstance(node, ast.List | ast.Tuple):
        items = node.elts
        orders = [items[:-1], items[::-1], [*items, *items[:1]], items[1:] + items[:1], items + items[::-1]]
        made = [type(node)(each, ast.Load()) for each in orders if each != items]
    return [copy.deepcopy(each) for each in made]


def _constant(value: Any) -> ast.expr:
    if isinstance(value, int | float) and not isinstance(value, bool) and value < 0:
        return ast.UnaryOp(ast.USub(), ast.Constant(-value))
    return ast.Constant(value)


def others(value: object) -> list[Any]:
    """Returns values of the same type, without duplicates."""
    found: list[Any] = []
    if isinstance(value, bool):
        found = [not value]
    elif isinstance(value, int):
        found = [
            value + 1,
            value * 2 + 1,
            value - 1,
            value + 7,
            value // 2,
            value + 10,
            -value,
            0,
            value * 10,
        ]
    elif isinstance(value, float):
        found = [value + 1.0, value / 2, value * 3, -value, value + 0.25, 0.0]
    elif isinstance(value, str) and len(value) <= _LONG:
        found = list(_texts(value))
    elif isinstance(value, bytes) and len(value) <= _LONG:
        found = [each.encode("latin-1") for each in _texts(value.decode("latin-1"))]
    return [each for at, each in enumerate(found) if each != value and each not in found[:at]]


def _texts(text: str) -> Iterator[str]:
    middle = len(text) // 2
    yield "".join(_next(char) if char.isdigit() else char for char in text)
    yield _apart(text[::-1], str.isdigit, _next)[::-1]
    yield "".join(map(_next, text))
    yield text + text[-1:]
    yield _apart(text, lambda char: not char.isalnum(), lambda char: char * 2)
    yield text[: middle + 1] + text[middle:]
    yield _apart(text, str.isdigit, _next)
    yield _apart(text, str.isalpha, str.swapcase)
    yield text[:-1]
    yield " ".join(reversed(text.split(" ")))
    yield text[1:]
    yield f"{text} {text}"
    yield text[:middle] + " " + text[middle:]
    yield text.upper()
    yield text + "a"
    yield text[::-1]
    yield ""


def _apart(text: str, wanted: Any, change: Any) -> str:
    """Changes the first such character."""
    at = next((at for at, char in enumerate(text) if wanted(char)), None)
    return text if at is None else text[:at] + change(text[at]) + text[at + 1 :]


def _next(char: str) -> str:
    if char in "0123456789":
        return "1234567891"[int(char)]
    if "a" <= char <= "z" or "A" <= char <= "Z":
        return chr(ord(char) + 1) if char not in "zZ" else chr(ord(char) - 25)
    return char
