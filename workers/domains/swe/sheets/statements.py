"""What statements bind, and the blocks that they have. Pure."""

import ast
from collections.abc import Iterator


def bound_in(statement: ast.stmt) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(statement, ast.Assign):
        for target in statement.targets:
            yield target, statement.value
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        yield statement.target, statement.value


def other_targets(statement: ast.stmt) -> Iterator[ast.expr]:
    """Yields what a statement binds to values that nobody can know from its text."""
    match statement:
        case ast.AugAssign():
            yield statement.target
        case ast.Delete():
            yield from statement.targets
        case ast.With() | ast.AsyncWith():
            yield from filter(None, (item.optional_vars for item in statement.items))
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield ast.Name(statement.name, ast.Store())
            for node in ast.walk(statement):
                if isinstance(node, ast.Nonlocal):
                    yield from (ast.Name(name, ast.Store()) for name in node.names)
            return
        case ast.Global() | ast.Nonlocal():
            yield from (ast.Name(name, ast.Store()) for name in statement.names)
        case ast.Try():
            yield from (ast.Name(each.name, ast.Store()) for each in statement.handlers if each.name)
        case ast.Match():
            for node in ast.walk(statement):
                if isinstance(node, ast.MatchAs | ast.MatchStar) and node.name:
                    yield ast.Name(node.name, ast.Store())
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, ast.expr):
            for node in ast.walk(child):
                if isinstance(node, ast.NamedExpr):
                    yield node.target


def bodies_of(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for field in ("body", "orelse", "finalbody"):
        yield getattr(statement, field, [])
    for handler in getattr(statement, "handlers", []):
        yield handler.body
    for case in getattr(statement, "cases", []):
        yield case.body
