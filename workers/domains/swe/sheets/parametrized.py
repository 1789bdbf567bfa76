"""The tables of pytest's `parametrize`, where they are written. Pure."""

import ast

Function = ast.FunctionDef | ast.AsyncFunctionDef


def dotted(node: ast.AST) -> str:
    """`a.b.c` of a name or of attributes of one; empty for all else."""
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return node.id if isinstance(node, ast.Name) else ""


def cells_of(function: Function, owner: ast.ClassDef | None) -> dict[str, list[ast.expr]]:
    """Returns the values that pytest's `parametrize` gives each parameter, where they are written."""
    found: dict[str, list[ast.expr]] = {}
    decorators = [*function.decorator_list, *(owner.decorator_list if owner else [])]
    for table in filter(None, map(table_of, decorators)):
        names, rows = table
        for row in rows:
            row_cells = row_of(row, len(names))
            for name, cell in zip(names, row_cells or [row] * len(names), strict=False):
                found.setdefault(name, []).append(cell)
    return found


def table_of(decorator: ast.expr) -> tuple[list[str], list[ast.expr]] | None:
    """Returns names and rows of a `parametrize`; a single row, the expression, where it is no list."""
    if not isinstance(decorator, ast.Call) or not dotted(decorator.func).endswith("parametrize"):
        return None
    given = dict(zip(("argnames", "argvalues"), decorator.args, strict=False))
    given |= {each.arg: each.value for each in decorator.keywords if each.arg in ("argnames", "argvalues")}
    if len(given) < 2:
        return None
    names = argument_names(given["argnames"])
    if names is None:
        return None
    values = given["argvalues"]
    return names, list(values.elts) if isinstance(values, ast.List | ast.Tuple) else [values]


def argument_names(node: ast.expr) -> list[str] | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [name.strip() for name in node.value.split(",") if name.strip()]
    if isinstance(node, ast.List | ast.Tuple):
        names = [each.value for each in node.elts if isinstance(each, ast.Constant)]
        return [str(name) for name in names] if len(names) == len(node.elts) else None
    return None


def row_of(row: ast.expr, names: int) -> list[ast.expr] | None:
    """Returns the cells of a table's row; None where they cannot be told apart."""
    if isinstance(row, ast.Call) and dotted(row.func).endswith("param"):
        return list(row.args) if len(row.args) == names else None
    if names == 1:
        return [row]
    if isinstance(row, ast.Tuple | ast.List) and len(row.elts) == names:
        return list(row.elts)
    return None
