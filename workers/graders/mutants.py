"""Canaries: copies of hidden tests in which most of the expected values are wrong. Pure.

**The idea.** Code that repairs the defect agrees with the right constants and with no others. Code that forges
(that makes every comparison hold, reads what is expected, ends the process or rewrites the runner) has to
decide which of several equally plausible constants it agrees with. So each test is copied many times, each
expected value is replaced in all copies but one, and where the right one is, nobody in the sandbox knows:
neither the tested code nor the runner. Each assertion draws its own place. Taking over the whole sandbox gains
one guess for each assertion that is forged.

A *slot* is what is replaced together: the constants that an assertion expects, and what parameters and local
names hold for it. A *site* is a statement that asserts something, in a block that counts (`runner.Site`), so
that a failed one does not keep the others from being asked.
"""

import ast
import builtins
import copy
import random
import re
import string
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import msgspec

SITE = "__site__"
LARGEST_SLOT = 400
"""Constants; longer tables are left alone."""

_EQUAL = re.compile(r"assert(Equals?|(List|Dict|Tuple|Set|Count|Sequence|MultiLine|AlmostEqual|Almost)\w*)")
_INVERSE = {
    "assertTrue": "assertFalse",
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
_ERRORS = (
    *("ValueError", "TypeError", "KeyError", "IndexError", "AttributeError", "RuntimeError", "OSError"),
    *("ZeroDivisionError", "AssertionError", "NotImplementedError", "UnicodeError", "RecursionError"),
    *("StopIteration", "LookupError", "ArithmeticError", "OverflowError", "PermissionError", "ImportError"),
    *("FileNotFoundError", "NameError", "EOFError", "BufferError", "MemoryError", "TimeoutError"),
)
_WORDS = (
    "able area back ball bank base bear bell best bird blue boat body book born both bowl call card care case "
    "city club coal coat code cold come cook cool copy corn cost crew dark data date dawn days deal deep desk "
    "door down draw drop dust duty each earn east easy edge face fact fair fall farm fast fear feed feel file "
    "fill film find fine fire firm fish five flat flow food foot form four free full fund gain game gate gift "
    "give goal gold good gray grow hair half hall hand hard harm head hear heat help here hill hold hole home"
).split()


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """One assertion of one test, and in which copies it is as the task has it."""

    test: str
    """`test_x` or `Class::test_x`."""
    genuine: tuple[bool, ...]


class Copies(msgspec.Struct, frozen=True, kw_only=True):
    """A test file many times over."""

    texts: tuple[str, ...]
    sites: dict[str, Site]
    """By the name under which the sandbox reports them, the same in all copies."""
    without: tuple[str, ...]
    """Tests that are not in it: they assert nothing that could be changed."""


def copies(source: str, tests: Collection[str], number: int, dice: random.Random) -> Copies | None:
    """`number` copies of these tests of a file; None where it cannot be read as Python of this version."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None
    words = sorted({word for word in re.findall(r"[A-Za-z]{3,12}", source) if word.islower()})
    draw = _Draw(number, dice, words)
    names: dict[str, str] = {}
    marks: dict[str, list[str]] = {}
    drawn: dict[str, list[_Drawn]] = {}
    sites: dict[str, Site] = {}
    for test, function in _functions(tree):
        found = _found(function) if test in tests else None
        if found is None or not found.sites:
            continue
        names[test] = function.name = f"test_{dice.getrandbits(32):08x}"
        drawn[names[test]] = [draw.slot(slot) for slot in found.slots]
        marks[names[test]] = [f"{dice.getrandbits(48):012x}" for _ in found.sites]
        for mark, (_, slot) in zip(marks[names[test]], found.sites, strict=True):
            sites[mark] = Site(test=test, genuine=drawn[names[test]][slot].genuine)
    _keep(tree, names.values())
    texts = []
    for at in range(number):
        changed = copy.deepcopy(tree)
        for _, function in list(_functions(changed)):
            if function.name in drawn:
                found = _found(function)
                for slot, values in zip(found.slots, drawn[function.name], strict=True):
                    slot.put(values.at(at))
                wrapped = {id(statement): mark for (statement, _), mark in zip(found.sites, marks[function.name])}
                _Wrapped(wrapped).visit(function)
        texts.append(ast.unparse(ast.fix_missing_locations(changed)) + "\n")
    return Copies(
        texts=tuple(texts), sites=sites, without=tuple(test for test in sorted(tests) if test not in names)
    )


# --- what a test expects -------------------------------------------------------------------------

_Function = ast.FunctionDef | ast.AsyncFunctionDef


class _Leaf:
    """A constant, or the name of a builtin exception, in its place in the tree."""

    def __init__(self, node: ast.Constant | ast.Name) -> None:
        self._node = node

    @property
    def is_error(self) -> bool:
        return isinstance(self._node, ast.Name)

    @property
    def value(self) -> object:
        return self._node.id if isinstance(self._node, ast.Name) else self._node.value

    def put(self, value: object) -> None:
        setattr(self._node, "id" if self.is_error else "value", value)


class _Slot:
    """Constants that change together, or one assertion that is turned into its opposite."""

    def __init__(self, leaves: list[_Leaf], turn: ast.AST | None = None) -> None:
        self.leaves = leaves
        self.turn = turn

    def put(self, values: list[object]) -> None:
        if self.turn is None:
            for leaf, value in zip(self.leaves, values, strict=True):
                leaf.put(value)
        elif values[0]:
            _opposite(self.turn)


class _Found:
    """The slots of a test, and its sites, each with the slot that it depends on."""

    def __init__(self) -> None:
        self.slots: list[_Slot] = []
        self.sites: list[tuple[ast.stmt, int]] = []


def _functions(tree: ast.Module) -> Iterator[tuple[str, _Function]]:
    for node in tree.body:
        if isinstance(node, _Function):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for each in node.body:
                if isinstance(each, _Function):
                    yield f"{node.name}::{each.name}", each


def _found(function: _Function) -> _Found:
    """Everything in a test that can be changed, in an order that depends on its text alone.

    A name counts only where it is used for nothing but what is expected: else the tested code gets it too.
    """
    known = _definitions(function)
    asserting = [(each, *expected) for each in _statements(function.body) if (expected := _expected(each))]
    used = Counter(name for _, sides, _ in asserting for side in sides for name in _names(side))
    every = Counter(name for statement in function.body for name in _names(statement))
    known = {name: held for name, held in known.items() if used[name] == every[name]}
    found = _Found()
    of_names: dict[str, int] = {}
    for statement, sides, turn in asserting:
        leaves = [leaf for side in sides for leaf in _leaves(side)]
        names = list(dict.fromkeys(name for side in sides for name in _names(side) if name in known))
        slot = next((of_names[name] for name in names if name in of_names), len(found.slots))
        for name in names:
            if name not in of_names:
                of_names[name] = slot
                leaves += [leaf for held in known[name] for leaf in _leaves(held)]
        if slot < len(found.slots):
            found.slots[slot].leaves += leaves
        elif leaves:
            found.slots.append(_Slot(leaves))
        elif turn is not None:
            found.slots.append(_Slot([], turn))
        else:
            for name in names:
                del of_names[name]
            continue
        found.sites.append((statement, slot))
    for each in found.slots:
        each.leaves = _rich(each.leaves)
    usable = [at for at, each in enumerate(found.slots) if each.turn or 0 < len(each.leaves) <= LARGEST_SLOT]
    found.sites = [(statement, usable.index(slot)) for statement, slot in found.sites if slot in usable]
    found.slots = [found.slots[at] for at in usable]
    return found


def _rich(leaves: list[_Leaf]) -> list[_Leaf]:
    """The constants that have many other values; booleans only where there is nothing else. They have one
    other value, and among many copies the right one would stand out."""
    rich = [leaf for leaf in leaves if leaf.is_error or _is_rich(leaf.value)]
    return rich or [leaf for leaf in leaves if isinstance(leaf.value, bool)]


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        if isinstance(statement, _Function | ast.ClassDef):
            continue
        yield statement
        if not (isinstance(statement, ast.With | ast.AsyncWith) and _raising(statement)):
            for name in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(statement, name, []))


def _definitions(function: _Function) -> dict[str, list[ast.expr]]:
    """What names of a test hold: parameters by decorators, targets of loops over literals, and locals that are
    assigned once."""
    known: dict[str, list[ast.expr]] = {}
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith("parametrize"):
            given = [*decorator.args, *(each.value for each in decorator.keywords if each.arg == "argvalues")]
            if len(given) >= 2:
                names = _parameters(given[0])
                known |= _columns(names, given[1])
    assigned: dict[str, int] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            assigned[node.id] = assigned.get(node.id, 0) + 1
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            if assigned[node.targets[0].id] == 1 and _is_literal(node.value):
                known[node.targets[0].id] = [node.value]
        elif isinstance(node, ast.For):
            targets = node.target.elts if isinstance(node.target, ast.Tuple) else [node.target]
            known |= _columns([each.id if isinstance(each, ast.Name) else "" for each in targets], node.iter)
    return known


def _parameters(node: ast.expr) -> list[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [name.strip() for name in node.value.split(",") if name.strip()]
    if isinstance(node, ast.Tuple | ast.List):
        return [each.value if isinstance(each, ast.Constant) else "" for each in node.elts]  # type: ignore[misc]
    return []


def _columns(names: Sequence[str], rows: ast.expr) -> dict[str, list[ast.expr]]:
    if not isinstance(rows, ast.Tuple | ast.List):
        return {}
    known: dict[str, list[ast.expr]] = {name: [] for name in names if name}
    for row in rows.elts:
        if isinstance(row, ast.Call):  # pytest.param(...)
            row = ast.Tuple(elts=row.args)
        cells = [row] if len(names) == 1 and not isinstance(row, ast.Tuple) else getattr(row, "elts", [])
        if len(names) == 1 and isinstance(row, ast.Tuple) and len(row.elts) != 1:
            cells = [row]
        for name, cell in zip(names, cells, strict=False):
            if name and _is_literal(cell):
                known[name].append(cell)
    return {name: cells for name, cells in known.items() if cells}


def _expected(statement: ast.stmt) -> tuple[list[ast.expr], ast.AST | None] | None:
    """What an assertion expects, and what of it can be turned into the opposite; None for other statements."""
    if isinstance(statement, ast.Assert):
        test = statement.test
        if isinstance(test, ast.Call) and ast.unparse(test.func).endswith(("startswith", "endswith")):
            return list(test.args), statement
        return [side for compare in _compares(test) for side in _sides(compare)], statement
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if _EQUAL.fullmatch(name) and len(call.args) >= 2:
            return _data_side(call.args[0], call.args[1]), None
        if name in _RAISING and len(call.args) >= 2:
            return [call.args[0]], None
        if name in ("assertIn", "assertNotIn", "assertIs", "assertIsNot") and len(call.args) >= 2:
            return [call.args[0 if "In" in name else 1]], call
        return ([], call) if name in _INVERSE else None
    if isinstance(statement, ast.With | ast.AsyncWith) and (call_ := _raising(statement)):
        match = [each.value for each in call_.keywords if each.arg == "match"] or call_.args[1:2]
        return match if any(any(_leaves(each)) for each in match) else call_.args[:1], None
    return None


def _raising(statement: ast.With | ast.AsyncWith) -> ast.Call | None:
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
            return [left] if _is_literal(left) else [right]
        case ast.Is():
            return [right]
    return []


def _data_side(left: ast.expr, right: ast.expr) -> list[ast.expr]:
    """The side of a comparison that says what is expected: the one that calls nothing, else the second."""
    for side in (right, left):
        if _is_literal(side):
            return [side]
    for side in (right, left):
        if isinstance(side, ast.Name):
            return [side]
    return [right]


def _is_literal(node: ast.expr) -> bool:
    """Whether an expression is made of constants alone."""
    return all(isinstance(each, _DATA) for each in ast.walk(node))


_DATA = (ast.Constant, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.UnaryOp, ast.USub, ast.UAdd, ast.Load)


def _is_rich(value: object) -> bool:
    if isinstance(value, bool) or value is None or value is Ellipsis:
        return False
    if isinstance(value, str | bytes):
        text = value if isinstance(value, str) else value.decode("latin-1")
        return any(character.isascii() and character.isalnum() for character in text)
    return isinstance(value, int) or (isinstance(value, float) and abs(value) < 1e15)


def _leaves(node: ast.expr) -> Iterator[_Leaf]:
    """The constants of an expression, those that are arguments of a call included."""
    match node:
        case ast.Constant():
            yield _Leaf(node)
        case ast.Name() if node.id in _ERRORS:
            yield _Leaf(node)
        case ast.List() | ast.Tuple() | ast.Set():
            for each in node.elts:
                yield from _leaves(each)
        case ast.Dict():
            for each in node.values:
                yield from _leaves(each)
        case ast.UnaryOp():
            yield from _leaves(node.operand)
        case ast.BinOp():
            yield from _leaves(node.left)
            yield from _leaves(node.right)
        case ast.Call():
            for each in (*node.args, *(keyword.value for keyword in node.keywords)):
                yield from _leaves(each)
            if isinstance(node.func, ast.Attribute):
                yield from _leaves(node.func.value)


def _names(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load):
            yield each.id


def _opposite(node: ast.AST) -> None:
    if isinstance(node, ast.Assert):
        test = node.test
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and type(test.ops[0]) in _OPPOSITE:
            test.ops = [_OPPOSITE[type(test.ops[0])]()]
        elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            node.test = test.operand
        else:
            node.test = ast.UnaryOp(op=ast.Not(), operand=test)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node.func.attr = _INVERSE[node.func.attr]


# --- other values --------------------------------------------------------------------------------


class _Drawn:
    """One slot's values in every copy."""

    def __init__(self, values: list[list[object]], genuine: tuple[bool, ...]) -> None:
        self.values = values
        self.genuine = genuine

    def at(self, number: int) -> list[object]:
        return self.values[number]


class _Draw:
    """Draws values so that the right one is like the others: of a run of numbers any could be it, and of many
    words. What has two values has each of them in half of the copies."""

    def __init__(self, number: int, dice: random.Random, words: Sequence[str]) -> None:
        self._number = number
        self._dice = dice
        self._words = words

    def slot(self, slot: _Slot) -> _Drawn:
        if slot.turn is not None:
            turned = self._halves()
            return _Drawn([[each] for each in turned], tuple(not each for each in turned))
        if all(isinstance(each.value, bool) for each in slot.leaves):
            turned = self._halves()
            return _Drawn(
                [[bool(each.value) is not turn for each in slot.leaves] for turn in turned],
                tuple(not each for each in turned),
            )
        right = self._dice.randrange(self._number)
        columns = [self._others(leaf) for leaf in slot.leaves]
        for column, leaf in zip(columns, slot.leaves, strict=True):
            self._dice.shuffle(column)
            column.insert(right, leaf.value)
        values = [[column[at] for column in columns] for at in range(self._number)]
        return _Drawn(values, tuple(at == right for at in range(self._number)))

    def _halves(self) -> list[bool]:
        turned = [number % 2 == 0 for number in range(self._number)]
        self._dice.shuffle(turned)
        return turned

    def _others(self, leaf: _Leaf) -> list[object]:
        """As many other values as there are copies but one, all different where there are so many."""
        value = leaf.value
        if leaf.is_error:
            return list(self._errors(str(value)))
        if isinstance(value, int):
            return list(self._run(value))
        if isinstance(value, float):
            digits = len(repr(value).partition("e")[0].partition(".")[2])
            return [number / 10**digits for number in self._run(round(value * 10**digits))]
        if isinstance(value, bytes):
            return [each.encode("latin-1") for each in self._texts(value.decode("latin-1"))]
        assert isinstance(value, str)
        return list(self._texts(value))

    def _run(self, value: int) -> list[int]:
        """Neighbours in a run of equal steps, in which the value may have any place; round numbers stay round,
        and what is not negative does."""
        step = 1
        while value and value % (step * 10) == 0:
            step *= 10
        below = min(self._number - 1, value // step) if value >= 0 else self._number - 1
        first = self._dice.randint(0, below)
        return [value + (at - first) * step for at in range(self._number) if at != first]

    def _texts(self, value: str) -> list[str]:
        """The text with another number, another word, or another letter at one place."""
        if numbers := list(re.finditer(r"(?<![\d.])\d{1,9}(?![\d.])", value)):
            chosen = self._dice.choice(numbers)
            width = len(chosen[0])
            return [
                value[: chosen.start()] + str(number).rjust(width, "0") + value[chosen.end() :]
                for number in self._run(int(chosen[0]))
            ]
        if words := [word for word in re.finditer(r"[A-Za-z]{3,12}", value)]:
            chosen = self._dice.choice(words)
            pool = [word for word in dict.fromkeys((*self._words, *_WORDS)) if word != chosen[0].lower()]
            others = self._dice.sample(pool, min(len(pool), self._number - 1))
            return [value[: chosen.start()] + _cased(each, chosen[0]) + value[chosen.end() :] for each in others]
        places = [at for at, each in enumerate(value) if each.isascii() and each.isalnum()]
        at = self._dice.choice(places)
        alphabet = [each for each in string.ascii_letters + string.digits if each != value[at]]
        return [value[:at] + each + value[at + 1 :] for each in self._dice.sample(alphabet, self._number - 1)]

    def _errors(self, name: str) -> list[str]:
        """Builtin exceptions that are neither above nor below it."""
        right = getattr(builtins, name)
        others = [
            each
            for each in self._dice.sample(_ERRORS, len(_ERRORS))
            if not issubclass(getattr(builtins, each), right) and not issubclass(right, getattr(builtins, each))
        ]
        return [others[at % len(others)] for at in range(self._number - 1)]


def _cased(word: str, like: str) -> str:
    return word.upper() if like.isupper() else word.capitalize() if like[0].isupper() else word


# --- the text of a copy --------------------------------------------------------------------------


class _Wrapped(ast.NodeTransformer):
    """Each site in a block that counts."""

    def __init__(self, names: dict[int, str]) -> None:
        self._names = names

    def visit(self, node: ast.AST) -> Any:
        name = self._names.get(id(node))
        if name is None or not isinstance(node, ast.stmt):
            return super().visit(node)
        call = ast.Call(func=ast.Name(id=SITE, ctx=ast.Load()), args=[ast.Constant(value=name)], keywords=[])
        return ast.With(items=[ast.withitem(context_expr=call)], body=[node])


def _keep(tree: ast.Module, names: Collection[str]) -> None:
    """Take the other tests out."""

    def stays(node: ast.stmt) -> bool:
        is_test = isinstance(node, _Function) and node.name.startswith("test")
        return not is_test or node.name in names  # type: ignore[attr-defined]

    tree.body = [node for node in tree.body if stays(node)]
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            node.body = [each for each in node.body if stays(each)] or [ast.Pass()]
