"""Takes out of a sheet what nothing reads any more, and holds back literals that answers contain. Pure.

What goes: names, class attributes and columns of tables whose values are free and that no code reads,
parameters of helpers and their arguments, docstrings, ids of parameters (numbers take their place). What is
left of an answer in the file, such as an entry of a dictionary, becomes a *token*: an object of which any use
is told, so that a trial with the gold patch shows which literals the tests need."""

import ast
from collections.abc import Collection, Iterator
from contextlib import suppress

from orchard.workers.domains.swe.sheets.doctests import has_examples, only_examples
from orchard.workers.domains.swe.sheets.parametrized import (
    Function,
    argument_names,
    cells_of,
    dotted,
    row_of,
    table_of,
)
from orchard.workers.domains.swe.sheets.purity import FUNCTIONS, FunctionNames, ModuleNames, functions_of

_ROUNDS = 8
_COLUMNS = 1000


def trim(tree: ast.Module, kept: Collection[str], module: ModuleNames) -> None:
    """Trims all functions of a sheet but those in `kept`, and what belongs to none of them, in place.

    `module` describes the file as it was.
    """
    for _ in range(_ROUNDS):
        before = ast.dump(tree)
        for name, function, owner in list(functions_of(tree)):
            if name not in kept:
                _trim_function(tree, function, owner, module)
        if not kept:
            _trim_module(tree, module)
        if ast.dump(tree) == before:
            break
    if not kept:
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef):
                _without_words(node)
    for name, function, owner in functions_of(tree):
        if name not in kept:
            _without_words(function)
            _number_ids(function.decorator_list)
            if owner is not None:
                _number_ids(owner.decorator_list)
    ast.fix_missing_locations(tree)


def _loads(*nodes: ast.AST) -> set[str]:
    return {
        each.id
        for node in nodes
        for each in ast.walk(node)
        if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Store)
    }


def _trim_function(
    tree: ast.Module, function: Function, owner: ast.ClassDef | None, module: ModuleNames
) -> None:
    loads = _loads(*function.body)
    names = FunctionNames(module, function, owner, cells_of(function, owner))
    for parent in ast.walk(function):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(parent, field, None)
            if isinstance(block, list):
                left = [each for each in block if not _is_dead(each, loads, names)]
                setattr(parent, field, left or ([ast.Pass()] if block and field == "body" else []))
        if isinstance(parent, ast.For):
            _trim_loop(parent, loads)
    users = [function] if owner is None else [each for each in owner.body if isinstance(each, FUNCTIONS)]
    _trim_tables(function.decorator_list, [function], loads)
    if owner is not None:
        _trim_tables(owner.decorator_list, users, _loads(*(part for each in users for part in each.body)))
    if not function.name.startswith("test") and not function.decorator_list:
        _trim_parameters(tree, function, loads)


def _is_dead(statement: ast.stmt, loads: set[str], names: FunctionNames) -> bool:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        printed = dotted(statement.value.func) == "print"
        return printed and all(map(names.is_free, statement.value.args))
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        targets = [statement.target]
    else:
        return False
    stored = [each for target in targets for each in ast.walk(target) if isinstance(each, ast.expr)]
    plain = all(isinstance(each, ast.Name | ast.Tuple | ast.List | ast.Starred) for each in stored)
    bound = {each.id for each in stored if isinstance(each, ast.Name)}
    assert statement.value is not None
    return plain and not bound & loads and names.is_free(statement.value)


def _trim_loop(loop: ast.For, loads: set[str]) -> None:
    """Takes out columns of a literal table that a loop goes over and that nothing reads."""
    if not isinstance(loop.target, ast.Tuple) or not isinstance(loop.iter, ast.List | ast.Tuple):
        return
    width = len(loop.target.elts)
    rows = [row_of(each, width) for each in loop.iter.elts]
    dead = [
        at
        for at, target in enumerate(loop.target.elts)
        if isinstance(target, ast.Name) and target.id not in loads
    ]
    if not dead or len(dead) == width or any(row is None for row in rows):
        return
    loop.target = ast.Tuple(_without(loop.target.elts, dead), ast.Store())
    loop.iter = ast.List([ast.Tuple(_without(row or [], dead), ast.Load()) for row in rows], ast.Load())


def _without(items: list[ast.expr], places: Collection[int]) -> list[ast.expr]:
    return [item for at, item in enumerate(items) if at not in places]


def _trim_tables(decorators: list[ast.expr], users: list[Function], loads: set[str]) -> None:
    for decorator in decorators:
        if not isinstance(decorator, ast.Call) or not dotted(decorator.func).endswith("parametrize"):
            continue
        if len(decorator.args) < 2 or any(each.arg == "indirect" for each in decorator.keywords):
            continue
        names = argument_names(decorator.args[0])
        rows = decorator.args[1]
        if not names or not isinstance(rows, ast.List | ast.Tuple):
            continue
        dead = [at for at, name in enumerate(names) if name not in loads]
        cells = [row_of(row, len(names)) for row in rows.elts]
        if not dead or any(cell is None for cell in cells):
            continue
        if len(dead) == len(names):
            dead = dead[1:]  # the table still says how many tests there are
            _blank(rows.elts, names)
        if not dead:
            continue
        left = [name for at, name in enumerate(names) if at not in dead]
        decorator.args[0] = ast.Constant(",".join(left))
        for row in rows.elts:
            if isinstance(row, ast.Call):
                row.args = _without(row.args, dead)
        rows.elts = [
            row if isinstance(row, ast.Call) else _packed(_without(row_of(row, len(names)) or [], dead))
            for row in rows.elts
        ]
        gone = {names[at] for at in dead}
        for function in users:
            function.args.args = [each for each in function.args.args if each.arg not in gone]


def _packed(cells: list[ast.expr]) -> ast.expr:
    return cells[0] if len(cells) == 1 else ast.Tuple(cells, ast.Load())


def _blank(rows: list[ast.expr], names: list[str]) -> None:
    for at, row in enumerate(rows):
        if isinstance(row, ast.Call):
            row.args[0] = ast.Constant(at)
        elif len(names) == 1:
            rows[at] = ast.Constant(at)
        elif isinstance(row, ast.Tuple | ast.List):
            row.elts[0] = ast.Constant(at)


def _trim_parameters(tree: ast.Module, function: Function, loads: set[str]) -> None:
    """Takes out parameters of a helper that nothing reads, where all its uses are plain calls."""
    uses = [
        each
        for each in ast.walk(tree)
        if (isinstance(each, ast.Name) and each.id == function.name)
        or (isinstance(each, ast.Attribute) and each.attr == function.name)
    ]
    calls = [
        each
        for each in ast.walk(tree)
        if isinstance(each, ast.Call) and dotted(each.func).rpartition(".")[2] == function.name
    ]
    plain = all(
        not any(isinstance(given, ast.Starred) for given in each.args)
        and all(keyword.arg is not None for keyword in each.keywords)
        for each in calls
    )
    arguments = function.args
    alone = sum(each.name == function.name for _, each, _ in functions_of(tree)) == 1
    if (
        not (alone and calls and plain)
        or len(uses) != len(calls)
        or arguments.vararg
        or arguments.posonlyargs
    ):
        return
    method = arguments.args[:1] and arguments.args[0].arg in ("self", "cls")
    names = [each.arg for each in arguments.args][1 if method else 0 :]
    for name in [each for each in names if each not in loads]:
        at = names.index(name)
        for call in calls:
            if at < len(call.args):
                del call.args[at]
            call.keywords = [each for each in call.keywords if each.arg != name]
        place = at + (1 if method else 0)
        since = len(arguments.args) - len(arguments.defaults)
        if place >= since:
            del arguments.defaults[place - since]
        del arguments.args[place]
        names.remove(name)


def _trim_module(tree: ast.Module, module: ModuleNames) -> None:
    loads = _loads(tree)
    whole = FunctionNames(module, None, None, {})
    exported = {
        each.value
        for each in ast.walk(tree)
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    }
    tree.body = [each for each in tree.body if not _is_dead(each, loads | exported, whole)] or [ast.Pass()]
    attributes = {each.attr for each in ast.walk(tree) if isinstance(each, ast.Attribute)}
    for owner in [each for each in ast.walk(tree) if isinstance(each, ast.ClassDef)]:
        if owner.name.startswith("Test") or any("Test" in dotted(base) for base in owner.bases):
            read = attributes | loads | {"pytestmark", "maxDiff", "longMessage"}
            owner.body = [each for each in owner.body if not _is_dead(each, read, whole)] or [ast.Pass()]


def _without_words(node: Function | ast.ClassDef | ast.Module) -> None:
    first = node.body[0] if node.body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
        if has_examples(first.value.value):
            with suppress(ValueError):  # doctest does not read it either
                first.value.value = only_examples(str(first.value.value))
            return
        node.body[:1] = [ast.Pass()] if len(node.body) == 1 else []


def _number_ids(decorators: list[ast.expr]) -> None:
    """Numbers take the place of all ids of parameters, which pytest makes of their values."""
    for decorator in decorators:
        if isinstance(decorator, ast.Call) and dotted(decorator.func).endswith("parametrize"):
            decorator.keywords = [each for each in decorator.keywords if each.arg != "ids"]
            numbers = ast.Call(ast.Name("__numbers__", ast.Load()), [], [])
            decorator.keywords.append(ast.keyword("ids", numbers))
            for node in ast.walk(decorator):
                if isinstance(node, ast.Call) and dotted(node.func).endswith("param"):
                    node.keywords = [each for each in node.keywords if each.arg != "id"]


# --- tokens --------------------------------------------------------------------------------------


def hold_back(
    tree: ast.Module, answers: Collection[object], kept: Collection[str], needed: Collection[int], first: int
) -> dict[int, str]:
    """Replaces literals that answers contain by tokens, in place; `needed` are tokens that proved necessary.

    Returns, by the number of each token in the file, the function that it stands in; empty for the module.
    """
    found: dict[int, str] = {}
    numbers = _numbered(tree, kept, first)
    replaced: dict[int, ast.expr] = {}
    for node, number, function in numbers:
        if _is_answer(node.value, answers) and number not in needed:
            found[number] = function
            replaced[id(node)] = ast.Call(ast.Name("__token__", ast.Load()), [ast.Constant(number)], [])
    _Replacing(replaced).visit(tree)
    ast.fix_missing_locations(tree)
    return found


def _is_answer(value: object, answers: Collection[object]) -> bool:
    if isinstance(value, bool) or value is None or value is Ellipsis:
        return False
    if isinstance(value, str | bytes):
        return len(value) > 1 and value in answers
    return isinstance(value, int | float) and abs(value) > 2 and value in answers


def _numbered(tree: ast.Module, kept: Collection[str], first: int) -> Iterator[tuple[ast.Constant, int, str]]:
    """Yields the literals that a token may take the place of, each with its function and a number, which it
    has from its place in the file as it was."""
    owners = {id(function): name for name, function, _ in functions_of(tree)}
    rows = {id(each) for call in ast.walk(tree) if isinstance(call, ast.Call) for each in _rows_of(call)}

    def walk(node: ast.AST, function: str) -> Iterator[tuple[ast.Constant, int, str]]:
        function = owners.get(id(node), function)
        if isinstance(node, ast.JoinedStr | ast.match_case | ast.Import | ast.ImportFrom):
            return
        if isinstance(node, ast.Call) and not _is_table(node):
            return  # an argument is an input
        if isinstance(node, ast.Dict | ast.Set | ast.List | ast.Tuple) and id(node) not in rows:
            return  # tested code may be given all of it, and look at more of it than the gold patch does
        if isinstance(node, ast.Constant) and function not in kept:
            yield node, first + node.lineno * _COLUMNS + node.col_offset, function
        for child in _replaceable(node):
            yield from walk(child, function)

    yield from walk(tree, "")


def _rows_of(call: ast.Call) -> Iterator[ast.expr]:
    """Yields the list of a table, and its rows that are made of cells."""
    table = table_of(call)
    if table is not None:
        names, rows = table
        yield from call.args[1:2]
        if len(names) > 1:
            yield from (row for row in rows if row_of(row, len(names)) is not None)


def _is_table(call: ast.Call) -> bool:
    return dotted(call.func).endswith(("parametrize", "param"))


def _replaceable(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the children of a node in which a literal may be any object."""
    if isinstance(node, ast.Call):
        name = dotted(node.func)
        if name.endswith("parametrize"):
            yield from node.args[1:2]
            return
        if name.startswith("pytest.mark"):
            return
    for field, value in ast.iter_fields(node):
        if field not in ("annotation", "returns", "type_comment"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield child


class _Replacing(ast.NodeTransformer):
    def __init__(self, replaced: dict[int, ast.expr]) -> None:
        self._replaced = replaced

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        return self._replaced.get(id(node), node)
