"""Which expressions of a test file do not depend on tested code. Pure.

An expression is *free* when it is made of constants, names that hold free values, and calls of Python's own
value types and of libraries that only compute (`libraries.py`). All others may be what tested code computed,
or read what it left in a file, or differ from day to day. A name is free when each of its bindings is, none
of them happens under a condition, and no tested code was given what it holds where that could be changed."""

import ast
import builtins
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

from orchard.workers.domains.swe.sheets.libraries import changes, is_computing, is_lasting, reads_the_world
from orchard.workers.domains.swe.sheets.parametrized import Function, cells_of, dotted
from orchard.workers.domains.swe.sheets.statements import bodies_of, bound_in, other_targets

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

_VALUES = frozenset(
    [
        *("str", "int", "float", "complex", "bool", "bytes", "bytearray", "list", "dict"),
        *("set", "frozenset", "tuple", "len", "sorted", "range", "repr", "abs", "min"),
        *("max", "sum", "zip", "enumerate", "reversed", "round", "chr", "ord", "hex"),
        *("oct", "bin", "divmod", "pow", "slice", "ascii", "format", "map", "filter"),
        *("iter", "any", "all", "memoryview"),
    ]
)
_TESTED = 100
"""Calls of libraries that count as one of tested code."""
_CHANGEABLE = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp, ast.Call)
_ASSERTING = ("assert", "raises", "approx", "warns")


def functions_of(tree: ast.Module) -> Iterator[tuple[str, Function, ast.ClassDef | None]]:
    """Yields the functions of a module and of its classes: `name` or `Class::name`, and the class."""
    for node in tree.body:
        if isinstance(node, FUNCTIONS):
            yield node.name, node, None
        elif isinstance(node, ast.ClassDef):
            yield from _methods(node, node.name)


def _methods(owner: ast.ClassDef, prefix: str) -> Iterator[tuple[str, Function, ast.ClassDef | None]]:
    for node in owner.body:
        if isinstance(node, FUNCTIONS):
            yield f"{prefix}::{node.name}", node, owner
        elif isinstance(node, ast.ClassDef):
            yield from _methods(node, f"{prefix}::{node.name}")


def names_in(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


class ModuleNames:
    """What the names of a test module hold."""

    def __init__(self, tree: ast.Module, tested: Callable[[str], bool]) -> None:
        """`tested` says whether a top-level module is in the repository."""
        self.tree = tree
        self.free: set[str] = set()
        self.libraries: dict[str, str] = {}
        """Names that are modules, functions and classes from outside of the repository: what they stand for,
        dotted."""
        self.constants: dict[str, ast.expr] = {}
        self.stored = Counter(
            each.id
            for each in ast.walk(tree)
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
        )
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    root = alias.name.partition(".")[0]
                    if not tested(root):
                        self.libraries[alias.asname or root] = alias.name if alias.asname else root
            elif isinstance(node, ast.ImportFrom) and not (
                node.level or tested((node.module or "").partition(".")[0])
            ):
                for alias in node.names:
                    self.libraries[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        self.given_away: set[str] = set()
        """Names of which some function of the file lets tested code change what they hold."""
        whole = FunctionNames(self, None, None, {})
        for statement in tree.body:
            for target, value in bound_in(statement):
                if isinstance(target, ast.Name) and self.stored[target.id] == 1 and whole.is_free(value):
                    self.constants[target.id] = value
                    self.free.add(target.id)
        self.given_away = {
            name
            for node in ast.walk(tree)
            for each in whole.given_away(node)
            if each is not tree and not isinstance(each, FUNCTIONS)
            for name in names_in(each)
        }
        self._given = self._call_sites()
        self._mentions = Counter(
            each.id if isinstance(each, ast.Name) else each.attr
            for each in ast.walk(tree)
            if isinstance(each, ast.Name | ast.Attribute)
        )

    def _call_sites(self) -> dict[str, list[tuple[ast.Call, Function]]]:
        """Calls of each helper by its name, with the functions they stand in."""
        found: dict[str, list[tuple[ast.Call, Function]]] = {}
        for _, function, _ in functions_of(self.tree):
            for node in ast.walk(function):
                if isinstance(node, ast.Call):
                    name = dotted(node.func).removeprefix("self.")
                    found.setdefault(name, []).append((node, function))
        return found

    def calls_of(self, helper: str) -> list[tuple[ast.Call, Function]]:
        """Returns all calls of a helper; none where it may be called in other ways too."""
        found = self._given.get(helper, [])
        return found if self._mentions[helper] == len(found) else []


def is_given(function: Function) -> bool:
    """Whether hypothesis draws the arguments of a test."""
    return any(
        dotted(each.func if isinstance(each, ast.Call) else each).endswith("given")
        for each in function.decorator_list
    )


class FunctionNames:
    """What the names of one function hold. `cells` are the values that parameters are given, by name."""

    def __init__(
        self,
        module: ModuleNames,
        function: Function | None,
        owner: ast.ClassDef | None,
        cells: dict[str, list[ast.expr]],
        depth: int = 2,
    ) -> None:
        self._module = module
        self._function = function
        self._owner = owner
        self._cells = cells
        self._depth = depth
        self._bindings: dict[str, list[ast.expr | None]] = {}
        self._guards: dict[str, list[ast.expr]] = {}
        """What the loops iterate over in which a name is bound."""
        self._known: dict[str, bool] = {}
        if function is not None:
            self._parameters = [each.arg for each in _arguments(function.args)]
            self._collect(function.body, (), sure=True)

    def is_free(self, node: ast.AST | None, bound: frozenset[str] = frozenset()) -> bool:
        """Whether an expression does not depend on tested code; `bound` are names of comprehensions."""
        match node:
            case None | ast.Constant() | ast.operator() | ast.unaryop() | ast.boolop() | ast.cmpop():
                return True
            case ast.expr_context():
                return True
            case ast.Name():
                return node.id in bound or self._name(node.id)
            case ast.Attribute(value=ast.Name(id="self")):
                return self._attribute(node.attr)
            case ast.Attribute() if library := self._library(node):
                return is_lasting(library)
            case ast.Attribute():
                return self.is_free(node.value, bound)
            case ast.Call():
                given = (*node.args, *(each.value for each in node.keywords))
                return self._callable(node.func, bound) and all(self.is_free(each, bound) for each in given)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                inner = bound
                for generator in node.generators:
                    if not self.is_free(generator.iter, inner):
                        return False
                    inner = inner | names_in(generator.target)
                parts = [*(test for each in node.generators for test in each.ifs)]
                parts += [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
                return all(self.is_free(each, inner) for each in parts)
            case ast.Lambda() | ast.Await() | ast.Yield() | ast.YieldFrom() | ast.NamedExpr():
                return False
            case _:
                return all(self.is_free(each, bound) for each in ast.iter_child_nodes(node))

    def calls(self, node: ast.AST, seen: frozenset[str] = frozenset()) -> int:
        """Number of calls that may run tested code in an expression, those behind its names included. What
        reads the world counts less."""
        found = sum(
            1 if self._is_foreign(each.func) else _TESTED
            for each in ast.walk(node)
            if isinstance(each, ast.Call) and not self._callable(each.func, frozenset())
        )
        for name in names_in(node) - seen:
            for value in self._bindings.get(name, []):
                if value is not None:
                    found += self.calls(value, seen | {name})
        return found

    def reads(self, node: ast.AST, seen: frozenset[str] = frozenset()) -> bool:
        """Whether an expression is read from a file or another place outside of the test."""
        return any(
            isinstance(each, ast.Call)
            and not self._callable(each.func, frozenset())
            and self._is_foreign(each.func)
            for each in ast.walk(node)
        ) or any(
            self.reads(value, seen | {name})
            for name in names_in(node) - seen
            for value in self._bindings.get(name, [])
            if value is not None
        )

    def changes(self, node: ast.AST, seen: frozenset[str] = frozenset()) -> bool:
        """Whether an expression is another one on the next day or in another sandbox."""
        for each in ast.walk(node):
            match each:
                case ast.Attribute(attr="now" | "today" | "utcnow"):
                    return True
                case ast.Attribute() if changes(self._library(each)):
                    return True
                case ast.Name(id=name) if changes(self._module.libraries.get(name, "")):
                    return True
        return any(
            self.changes(value, seen | {name})
            for name in names_in(node) - seen
            for value in self._bindings.get(name, [])
            if value is not None
        )

    def is_made_elsewhere(self, node: ast.AST) -> bool:
        """Whether an expression has a part that a fixture or another method made, perhaps by tested code.
        What hypothesis draws is asked first."""
        for each in ast.walk(node):
            match each:
                case ast.Attribute(value=ast.Name(id="self")):
                    if not self._attribute(each.attr):
                        return True
                case ast.Name(id=name) if self._function is not None and name in self._parameters:
                    if name != "self" and not self._name(name) and not is_given(self._function):
                        return True
        return False

    def _callable(self, node: ast.expr, bound: frozenset[str]) -> bool:
        if isinstance(node, ast.Name):
            name = node.id
            if name in self._bindings or name in self._module.stored:
                return False
            if name in self._module.libraries:
                return is_computing(self._module.libraries[name])
            return name in _VALUES or _is_error(name)
        if isinstance(node, ast.Attribute):
            if library := self._library(node):
                return is_computing(library)
            return not reads_the_world(node.attr) and self.is_free(node.value, bound)
        return False

    def _is_foreign(self, node: ast.expr) -> bool:
        """Whether a function is a library's, or a method of what a library made."""
        if isinstance(node, ast.Name):
            return node.id in self._module.libraries or node.id == "open"
        return isinstance(node, ast.Attribute) and (bool(self._library(node)) or self.is_free(node.value))

    def _library(self, node: ast.expr) -> str:
        """Returns what an attribute of a library stands for, dotted; empty for all else."""
        root, _, rest = dotted(node).partition(".")
        if root in self._bindings or root in self._module.stored or root not in self._module.libraries:
            return ""
        return f"{self._module.libraries[root]}.{rest}"

    def _name(self, name: str) -> bool:
        if name not in self._known:
            self._known[name] = False  # while it is looked into
            self._known[name] = self._look(name)
        return self._known[name]

    def _look(self, name: str) -> bool:
        if self._function is not None and name in self._parameters:
            values = self._cells.get(name)
            if values is None:
                values_free = self._given(name)
            else:
                values_free = all(map(FunctionNames(self._module, None, None, {}).is_free, values))
            changeable = values is None or any(map(_is_changeable, values))
            return values_free and name not in self._bindings and not (changeable and self._escapes(name))
        if name in self._bindings:
            values_ = self._bindings[name]
            if not all(value is not None and self.is_free(value) for value in values_):
                return False
            if not all(map(self.is_free, self._guards.get(name, []))):
                return False
            return not (any(_is_changeable(v) for v in values_ if v) and self._escapes(name))
        if name in self._module.free:
            return not (_is_changeable(self._module.constants[name]) and name in self._module.given_away)
        if name in self._module.libraries:
            return is_lasting(self._module.libraries[name])
        return name not in self._module.stored and (
            name in _VALUES or _is_error(name) or name in ("NotImplemented", "__file__", "__name__")
        )

    def _given(self, name: str) -> bool:
        """Whether all calls of this helper in its module give a free value for a parameter."""
        assert self._function is not None
        sites = self._module.calls_of(self._function.name)
        if not sites or not self._depth or self._function.name.startswith("test"):
            return False
        positional = [each.arg for each in _arguments(self._function.args)]
        if positional[:1] in (["self"], ["cls"]):
            del positional[0]
        for call, function in sites:
            value = next((each.value for each in call.keywords if each.arg == name), None)
            if value is None and name in positional:
                at = positional.index(name)
                value = call.args[at] if at < len(call.args) else None
            if value is None or isinstance(value, ast.Starred):
                return False
            cells = cells_of(function, self._owner)
            if not FunctionNames(self._module, function, self._owner, cells, self._depth - 1).is_free(value):
                return False
        return True

    def _escapes(self, name: str) -> bool:
        """Whether code that may change it is given what a name holds."""
        if self._function is None:
            return False
        return any(
            name in names_in(each) for node in ast.walk(self._function) for each in self.given_away(node)
        )

    def given_away(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yields the parts of a node whose values code may keep or change."""
        match node:
            case ast.Expr(value=ast.Call(func=ast.Attribute() as method)):
                yield method.value
            case ast.Call() if not _asserts(node) and not self._callable(node.func, frozenset()):
                if not self._is_foreign(node.func):
                    yield node
            case ast.Lambda() | ast.FunctionDef() if node is not self._function:
                yield node

    def _attribute(self, name: str) -> bool:
        values = self._attributes.get(name)
        if not values:
            return False
        whole = FunctionNames(self._module, None, None, {})
        return all(
            value is not None and not _is_changeable(value) and whole.is_free(value) for value in values
        )

    @cached_property
    def _attributes(self) -> dict[str, list[ast.expr | None]]:
        """What the attributes of the test class are bound to."""
        found: dict[str, list[ast.expr | None]] = {}
        for statement in self._owner.body if self._owner is not None else ():
            for target, value in bound_in(statement):
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, []).append(value)
        for node in ast.walk(self._owner) if self._owner is not None else ():
            if isinstance(node, ast.stmt):
                for target, value in bound_in(node):
                    if isinstance(target, ast.Attribute) and dotted(target.value) == "self":
                        found.setdefault(target.attr, []).append(value)
        return found

    def _collect(self, body: list[ast.stmt], loops: tuple[ast.expr, ...], *, sure: bool) -> None:
        """Records the bindings of statements: what is bound, or None where a condition decides over it."""
        for statement in body:
            for target, value in bound_in(statement):
                self._bind(target, value if sure else None, loops)
            for target in other_targets(statement):
                self._bind(target, None, ())
            if isinstance(statement, ast.For | ast.AsyncFor):
                free = sure and isinstance(statement, ast.For)
                for name in names_in(statement.target):
                    self._bind(ast.Name(name, ast.Store()), statement.iter if free else None, loops)
                self._collect(statement.body, (*loops, statement.iter), sure=free)
                self._collect(statement.orelse, loops, sure=False)
            elif isinstance(statement, ast.With | ast.AsyncWith):
                self._collect(statement.body, loops, sure=sure)
            elif not isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
                for nested in bodies_of(statement):
                    self._collect(nested, loops, sure=False)

    def _bind(self, target: ast.expr, value: ast.expr | None, loops: tuple[ast.expr, ...]) -> None:
        if isinstance(target, ast.Name):
            self._bindings.setdefault(target.id, []).append(value)
            self._guards.setdefault(target.id, []).extend(loops)
        elif isinstance(target, ast.Tuple | ast.List):
            for number, each in enumerate(target.elts):
                apart = isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts)
                inner: Any = value.elts[number] if apart else value  # type: ignore[union-attr]
                self._bind(each.value if isinstance(each, ast.Starred) else each, inner, loops)
        else:
            for name in names_in(target) - {"self"}:
                self._bindings.setdefault(name, []).append(None)


def _arguments(arguments: ast.arguments) -> list[ast.arg]:
    return [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]


def _is_changeable(node: ast.expr | None) -> bool:
    return node is not None and any(isinstance(each, _CHANGEABLE) for each in ast.walk(node))


def _is_error(name: str) -> bool:
    return isinstance(getattr(builtins, name, None), type)


def _asserts(call: ast.Call) -> bool:
    name = dotted(call.func).rpartition(".")[2]
    return name.startswith(_ASSERTING) or name in ("isinstance", "print", "hasattr")
