"""The known solution in other words, and with a mistake: formatted, renamed, mutated. Deterministic."""

import ast
import difflib
import hashlib
import io
import keyword
import re
import symtable
import tokenize
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tests.forgery.real.submissions import Source

MUTANTS = 8
"""Of each task at most."""


def honest_variants(source: Source) -> dict[str, str]:
    """Submissions by name: the known solution, and itself in other words."""
    names = _private_names(source)
    made = {
        "the known solution": source.changed({}),
        "formatted otherwise": _each(source, lambda text: ast.unparse(ast.parse(text)) + "\n"),
        "locals renamed": _each(source, renamed_locals),
        "privates renamed": _each(source, lambda text: renamed_tokens(text, names)),
        "both renamed, formatted otherwise": _each(
            source, lambda text: renamed_locals(renamed_tokens(text, names))
        ),
    }
    kept: dict[str, str] = {}
    for name, text in made.items():
        if text not in kept.values():
            kept[name] = text
    return kept


def _each(source: Source, change: Callable[[str], str]) -> str:
    return source.changed({path: change(source.gold[path]) for path in source.modules})


def renamed_locals(text: str) -> str:
    """The module with other names for locals that no inner function shares."""
    tree = ast.parse(text)
    tables = {
        (table.get_name(), table.get_lineno()): table
        for table in _tables(symtable.symtable(text, "m", "exec"))
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            line = node.decorator_list[0].lineno if node.decorator_list else node.lineno
            table = tables.get((node.name, node.lineno)) or tables.get((node.name, line))
            if table is not None and not _reads_itself(node):
                _Renamer(_own_locals(table)).body(node)
    return ast.unparse(tree) + "\n"


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    if table.get_type() == "function":
        yield table
    for child in table.get_children():
        yield from _tables(child)


def _own_locals(table: symtable.SymbolTable) -> dict[str, str]:
    shared = {
        s.get_name()
        for child in table.get_children()
        for s in child.get_symbols()
        if s.is_free() or s.is_global()
    }
    return {
        symbol.get_name(): f"{symbol.get_name()}_kept"
        for symbol in table.get_symbols()
        if symbol.is_local()
        and not (symbol.is_parameter() or symbol.is_imported() or symbol.is_namespace() or symbol.is_free())
        and symbol.get_name() not in shared
        and not symbol.get_name().startswith("__")
        and symbol.get_name().strip("_")
    }


def _reads_itself(node: ast.AST) -> bool:
    names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return bool(names & {"locals", "vars", "eval", "exec"}) or any(
        isinstance(n, ast.Match) for n in ast.walk(node)
    )


class _Renamer(ast.NodeTransformer):
    def __init__(self, names: dict[str, str]) -> None:
        self._names = names

    def body(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for statement in node.body:
            self.visit(statement)

    def visit_Name(self, node: ast.Name) -> ast.Name:
        node.id = self._names.get(node.id, node.id)
        return node

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        node.name = self._names.get(node.name, node.name) if node.name else None
        return self.generic_visit(node)

    def _inner(self, node: ast.AST) -> ast.AST:
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = _inner  # type: ignore[assignment]


def _private_names(source: Source) -> dict[str, str]:
    """Private names that the solution's modules define and that nothing else in repository or tests has."""
    texts = [source.gold[path] for path in source.modules]
    found = {
        name
        for text in texts
        for node in ast.walk(ast.parse(text))
        for name in _defined(node)
        if name.startswith("_")
        and not name.startswith("__")
        and name.strip("_")
        and not keyword.iskeyword(name)
    }
    elsewhere = "\n".join(
        [
            source.grading.test_patch,
            *(t for p, t in source.base.items() if p not in source.modules and p.endswith((".py", ".pyi"))),
        ]
    )
    quoted = " ".join(s for text in texts for s in _strings(text))
    used = set(re.findall(r"\w+", elsewhere)) | set(re.findall(r"\w+", quoted))
    return {name: f"{name}_of_old" for name in found - used}


def _defined(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        yield node.name
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.attr
    elif isinstance(node, ast.Assign | ast.AnnAssign):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Name):
                yield target.id


def _tokens(text: str) -> list[tokenize.TokenInfo]:
    return list(tokenize.generate_tokens(io.StringIO(text).readline))


def _strings(text: str) -> list[str]:
    return [token.string for token in _tokens(text) if token.type == tokenize.STRING]


def renamed_tokens(text: str, names: dict[str, str]) -> str:
    lines = text.splitlines(keepends=True)
    for token in reversed(_tokens(text)):
        if token.type == tokenize.NAME and token.string in names:
            (row, start), (_, end) = token.start, token.end
            line = lines[row - 1]
            lines[row - 1] = line[:start] + names[token.string] + line[end:]
    return "".join(lines)


# --- mistakes ------------------------------------------------------------------------------------


def mutants(source: Source, limit: int = MUTANTS) -> dict[str, str]:
    """Submissions by name: the known solution with one operator, constant or condition changed, or one of its
    hunks left out."""
    makers: dict[str, Callable[[], str]] = {}
    for path in source.modules:
        base, gold = source.base[path], source.gold[path]
        lines, tree = _added_lines(base, gold), ast.parse(gold)
        for number, node in enumerate(ast.walk(tree)):
            if getattr(node, "lineno", 0) in lines:
                for what, change in _mutations(node):
                    name = f"{path}:{getattr(node, 'lineno', 0)}: {what}"
                    makers[name] = partial(_changed, source, path, number, change)
        for at, text in enumerate(_without_hunks(base, gold)):
            makers[f"{path}: without hunk {at + 1}"] = partial(source.changed, {path: text})
    found: dict[str, str] = {}
    for name in sorted(
        makers, key=lambda name: hashlib.sha256(f"{source.task.task_id} {name}".encode()).digest()
    ):
        if len(found) == limit:
            break
        made = makers[name]()
        if made not in (source.changed({}), "", *found.values()):
            found[name] = made
    return found


def _changed(source: Source, path: str, number: int, change: Callable[[Any], object]) -> str:
    tree = ast.parse(source.gold[path])
    for at, node in enumerate(ast.walk(tree)):
        if at == number:
            change(node)
    return source.changed({path: ast.unparse(ast.fix_missing_locations(tree)) + "\n"})


def _added_lines(base: str, gold: str) -> set[int]:
    matcher = difflib.SequenceMatcher(None, base.splitlines(), gold.splitlines(), autojunk=False)
    return {
        line + 1 for tag, _, _, j1, j2 in matcher.get_opcodes() if tag != "equal" for line in range(j1, j2)
    }


def _without_hunks(base: str, gold: str) -> Iterator[str]:
    old, new = base.splitlines(keepends=True), gold.splitlines(keepends=True)
    codes = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    changes = [code for code in codes if code[0] != "equal"]
    for left in changes if len(changes) > 1 else ():
        parts = [old[i1:i2] if (t, i1, i2, j1, j2) == left else new[j1:j2] for t, i1, i2, j1, j2 in codes]
        text = "".join(line for part in parts for line in part)
        try:
            ast.parse(text)
        except SyntaxError:
            continue
        yield text


_SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mod,
    ast.Mod: ast.FloorDiv,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


_OTHER_FUNCTION = {
    "max": "min",
    "min": "max",
    "sum": "len",
    "len": "sum",
    "any": "all",
    "all": "any",
    "sorted": "list",
    "abs": "int",
}


def _mutations(node: ast.AST) -> Iterator[tuple[str, Callable[[Any], object]]]:
    """What may be changed in a node, each as a change of a copy of it."""
    if isinstance(node, ast.BinOp | ast.BoolOp) and type(node.op) in _SWAPPED:
        other = _SWAPPED[type(node.op)]
        yield f"{type(node.op).__name__} to {other.__name__}", lambda n: setattr(n, "op", other())
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _SWAPPED:
        swapped = _SWAPPED[type(node.ops[0])]
        yield f"{type(node.ops[0]).__name__} to {swapped.__name__}", lambda n: n.ops.__setitem__(0, swapped())
    if isinstance(node, ast.BinOp):
        left, right = node.left, node.right
        yield "sides exchanged", lambda n: (setattr(n, "left", right), setattr(n, "right", left))
        yield "one side only", lambda n: setattr(n, "right", left)
    if isinstance(node, ast.Name) and node.id in _OTHER_FUNCTION:
        function = _OTHER_FUNCTION[node.id]
        yield f"{node.id} to {function}", lambda n: setattr(n, "id", function)
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        yield "condition negated", lambda n: setattr(n, "test", ast.UnaryOp(ast.Not(), n.test))
    if isinstance(node, ast.Return) and node.value is not None:
        yield "returns None", lambda n: setattr(n, "value", ast.Constant(None))
    if isinstance(node, ast.Return | ast.Assign) and isinstance(node.value, ast.Call) and node.value.args:
        first = node.value.args[0]
        yield "call left out", lambda n: setattr(n, "value", first)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "not twice", lambda n: setattr(n, "operand", ast.UnaryOp(ast.Not(), n.operand))
    if isinstance(node, ast.Constant):
        value: object = node.value
        if isinstance(value, bool):
            yield f"{value} turned", lambda n: setattr(n, "value", not value)
        elif isinstance(value, int):
            yield f"{value} plus one", lambda n: setattr(n, "value", value + 1)
        elif isinstance(value, str) and 0 < len(value) < 80:
            yield f"{value!r} longer", lambda n: setattr(n, "value", value + "x")
