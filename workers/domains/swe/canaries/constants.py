"""The constants in what a test expects, and which of them have many other values. Pure."""

import ast
from collections.abc import Iterator

ERRORS = (
    *("ValueError", "TypeError", "KeyError", "IndexError", "AttributeError", "RuntimeError", "OSError"),
    *("ZeroDivisionError", "AssertionError", "NotImplementedError", "UnicodeError", "RecursionError"),
    *("StopIteration", "LookupError", "ArithmeticError", "OverflowError", "PermissionError", "ImportError"),
    *("FileNotFoundError", "NameError", "EOFError", "BufferError", "MemoryError", "TimeoutError"),
)


class Leaf:
    """A constant, or the name of a builtin exception, in its place in the tree."""

    def __init__(self, node: ast.Constant | ast.Name) -> None:
        self.node = node

    @property
    def is_error(self) -> bool:
        return isinstance(self.node, ast.Name)

    @property
    def value(self) -> object:
        return self.node.id if isinstance(self.node, ast.Name) else self.node.value

    def put(self, value: object) -> None:
        setattr(self.node, "id" if self.is_error else "value", value)


def leaves_of(node: ast.expr) -> Iterator[Leaf]:
    """The constants of an expression, those that are arguments of a call included."""
    match node:
        case ast.Constant():
            yield Leaf(node)
        case ast.Name() if node.id in ERRORS:
            yield Leaf(node)
        case ast.List() | ast.Tuple() | ast.Set():
            for each in node.elts:
                yield from leaves_of(each)
        case ast.Dict():
            for each in node.values:
                yield from leaves_of(each)
        case ast.UnaryOp():
            yield from leaves_of(node.operand)
        case ast.BinOp():
            yield from leaves_of(node.left)
            yield from leaves_of(node.right)
        case ast.Call():
            for each in (*node.args, *(keyword.value for keyword in node.keywords)):
                yield from leaves_of(each)
            if isinstance(node.func, ast.Attribute):
                yield from leaves_of(node.func.value)


def is_literal(node: ast.expr) -> bool:
    """Whether an expression is made of constants alone."""
    return all(isinstance(each, _DATA) for each in ast.walk(node))


_DATA = (ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.UnaryOp, ast.USub, ast.UAdd, ast.Load)


def rich_of(leaves: list[Leaf]) -> list[Leaf]:
    """The constants that have many other values; booleans only where there is nothing else. They have one
    other value, and among many copies the right one would stand out."""
    rich = [leaf for leaf in leaves if leaf.is_error or _is_rich(leaf.value)]
    return rich or [leaf for leaf in leaves if isinstance(leaf.value, bool)]


def _is_rich(value: object) -> bool:
    if isinstance(value, bool) or value is None or value is Ellipsis:
        return False
    if isinstance(value, str | bytes):
        text = value if isinstance(value, str) else value.decode("latin-1")
        return any(character.isascii() and character.isalnum() for character in text)
    return isinstance(value, int) or (isinstance(value, float) and abs(value) < 1e15)
