"""What a test expects: the constants its assertions compare with, and where these are written. Pure.

A *slot* is what an assertion expects: its constants, and what parameters, loops and local names hold for it.
Of a table (parameters, a loop over literals) each *row* is changed on its own. Where an assertion names no
constant, it can be turned into its opposite.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator, Sequence

LARGEST_SLOT = 400
"""Constants; longer tables are left alone."""

_EQUAL = re.compile(r"assert(Equals?|(List|Dict|Tuple|Set|Count|Sequence|MultiLine|AlmostEqual|Almost)\w*)")
_INVERSE = {
    "assertTrue": "assertFalse",
    "assertEqual": "assertNotEqual",
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
ERRORS = (
    *("ValueError", "TypeError", "KeyError", "IndexError", "AttributeError", "RuntimeError", "OSError"),
    *("ZeroDivisionError", "AssertionError", "NotImplementedError", "UnicodeError", "RecursionError"),
    *("StopIteration", "LookupError", "ArithmeticError", "OverflowError", "PermissionError", "ImportError"),
    *("FileNotFoundError", "NameError", "EOFError", "BufferError", "MemoryError", "TimeoutError"),
)


Function = ast.FunctionDef | ast.AsyncFunctionDef


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


class Cell:
    """What a name holds: one of its values, and in which row of which table that stands."""

    def __init__(self, value: ast.expr, table: int, row: int, rows: int) -> None:
        self.value = value
        self.place = table, row, rows


class Slot:
    """Rows of constants, those of a row changing together, or one assertion that is turned around."""

    def __init__(self, rows: list[list[Leaf]], turn: ast.AST | None = None) -> None:
        self.rows = rows
        """A row without leaves has nothing that could be changed."""
        self.turn = turn

    @property
    def leaves(self) -> list[Leaf]:
        return [leaf for row in self.rows for leaf in row]

    def put(self, values: list[object]) -> None:
        """New values: of all leaves, or how to turn it."""
        if self.turn is None:
            for leaf, value in zip(self.leaves, values, strict=True):
                leaf.put(value)
        else:
            _turn(self.turn, *values)


class Found:
    """The slots of a test, and its sites, each with the slot that it depends on."""

    def __init__(self) -> None:
        self.slots: list[Slot] = []
        self.sites: list[tuple[ast.stmt, int]] = []


def functions(tree: ast.Module) -> Iterator[tuple[str, Function]]:
    for node in tree.body:
        if isinstance(node, Function):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for each in node.body:
                if isinstance(each, Function):
                    yield f"{node.name}::{each.name}", each


def expected_of(function: Function) -> Found:
    """Everything in a test that can be changed, in an order that depends on its text alone.

    A name counts only where it is used for nothing but what is expected: else the tested code gets it too.
    """
    known = _definitions(function)
    asserting = [(each, *expected) for each in _statements(function.body) if (expected := _expected(each))]
    used = Counter(name for _, sides, _ in asserting for side in sides for name in _names(side))
    every = Counter(name for statement in function.body for name in _names(statement))
    known = {name: held for name, held in known.items() if used[name] == every[name]}
    straight = not any(isinstance(node, _BRANCHES) for node in ast.walk(function))
    found = Found()
    own: list[list[Leaf]] = []
    held: list[list[Cell]] = []
    of_names: dict[str, int] = {}
    for statement, sides, turn in asserting:
        leaves = [leaf for side in sides for leaf in _leaves(side)]
        names = list(dict.fromkeys(name for side in sides for name in _names(side) if name in known))
        slot = next((of_names[name] for name in names if name in of_names), len(found.slots))
        new = {name: known[name] for name in names if name not in of_names}
        cells = [cell for each in new.values() for cell in each]
        of_names |= dict.fromkeys(new, slot)
        if slot < len(found.slots):
            own[slot] += leaves
            held[slot] += cells
        elif _rich([*leaves, *(leaf for cell in cells for leaf in _leaves(cell.value))]):
            found.slots.append(Slot([]))
            own.append(leaves)
            held.append(cells)
        elif turn is not None:
            found.slots.append(Slot([], turn))
            own.append([])
            held.append([])
        else:
            for name in new:
                del of_names[name]
            continue
        found.sites.append((statement, slot))
    for each, leaves, cells in zip(found.slots, own, held, strict=True):
        each.rows = _rows(leaves, cells, straight=straight)
    usable = [at for at, each in enumerate(found.slots) if each.turn or 0 < len(each.leaves) <= LARGEST_SLOT]
    found.sites = [(statement, usable.index(slot)) for statement, slot in found.sites if slot in usable]
    found.slots = [found.slots[at] for at in usable]
    return found


_BRANCHES = (ast.If, ast.IfExp, ast.Continue, ast.Break, ast.Return, ast.Try, ast.While, ast.Match)


def _rows(own: list[Leaf], cells: list[Cell], *, straight: bool) -> list[list[Leaf]]:
    """The leaves of a slot by the rows of the one table that they are in. In one row where an assertion has
    constants of its own, where there are several tables, and where it may not be met once for each row."""
    leaves = [leaf for cell in cells for leaf in _leaves(cell.value)]
    rich = {id(leaf.node) for leaf in _rich([*own, *leaves])}
    tables = {(table, rows) for table, _, rows in (cell.place for cell in cells)}
    if not straight or len(tables) != 1 or any(id(leaf.node) in rich for leaf in own):
        return [[leaf for leaf in [*own, *leaves] if id(leaf.node) in rich]]
    ((_, number),) = tables
    rows: list[list[Leaf]] = [[] for _ in range(number)]
    for cell in cells:
        rows[cell.place[1]] += [leaf for leaf in _leaves(cell.value) if id(leaf.node) in rich]
    return rows


def _rich(leaves: list[Leaf]) -> list[Leaf]:
    """The constants that have many other values; booleans only where there is nothing else. They have one
    other value, and among many copies the right one would stand out."""
    rich = [leaf for leaf in leaves if leaf.is_error or _is_rich(leaf.value)]
    return rich or [leaf for leaf in leaves if isinstance(leaf.value, bool)]


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        if isinstance(statement, Function | ast.ClassDef):
            continue
        yield statement
        if not (isinstance(statement, ast.With | ast.AsyncWith) and _raising(statement)):
            for name in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(statement, name, []))


def _definitions(function: Function) -> dict[str, list[Cell]]:
    """What names of a test hold: parameters by decorators, targets of loops over literals, and locals that
    are assigned once."""
    known: dict[str, list[Cell]] = {}
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
                known[node.targets[0].id] = [Cell(node.value, id(node), 0, 1)]
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


def _columns(names: Sequence[str], rows: ast.expr) -> dict[str, list[Cell]]:
    if not isinstance(rows, ast.Tuple | ast.List):
        return {}
    known: dict[str, list[Cell]] = {name: [] for name in names if name}
    marked = any(isinstance(row, ast.Call) and row.keywords for row in rows.elts)
    number = 1 if marked else len(rows.elts)  # a marked row may be skipped
    for at, row in enumerate(rows.elts):
        if isinstance(row, ast.Call):  # pytest.param(...)
            row = ast.Tuple(elts=row.args)
        cells = [row] if len(names) == 1 and not isinstance(row, ast.Tuple) else getattr(row, "elts", [])
        if len(names) == 1 and isinstance(row, ast.Tuple) and len(row.elts) != 1:
            cells = [row]
        for name, cell in zip(names, cells, strict=False):
            if name and _is_literal(cell):
                known[name].append(Cell(cell, id(rows), min(at, number - 1), number))
    return {name: cells for name, cells in known.items() if cells}


def _expected(statement: ast.stmt) -> tuple[list[ast.expr], ast.AST | None] | None:
    """What an assertion expects, and what of it can be turned around; None for other statements."""
    if isinstance(statement, ast.Assert):
        test = statement.test
        if isinstance(test, ast.Call) and ast.unparse(test.func).endswith(("startswith", "endswith")):
            return list(test.args), statement
        return [side for compare in _compares(test) for side in _sides(compare)], statement
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if _EQUAL.fullmatch(name) and len(call.args) >= 2:
            return _data_side(call.args[0], call.args[1]), call if name in _INVERSE else None
        if name in _RAISING and len(call.args) >= 2:
            return [call.args[0]], None
        if name in ("assertIn", "assertNotIn", "assertIs", "assertIsNot") and len(call.args) >= 2:
            return [call.args[0 if "In" in name else 1]], call
        return ([], call) if name in _INVERSE and call.args else None
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


def _leaves(node: ast.expr) -> Iterator[Leaf]:
    """The constants of an expression, those that are arguments of a call included."""
    match node:
        case ast.Constant():
            yield Leaf(node)
        case ast.Name() if node.id in ERRORS:
            yield Leaf(node)
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


def _turn(node: ast.AST, other_form: object, turned: object) -> None:
    """Make an assertion ask whether something is True or False, in one form whichever is right: `assert f()`
    and `assert not f()` become `assert (not f()) is False` and `... is True`. Of a comparison and its
    opposite `other_form` takes the one that is not written."""
    assert isinstance(node, ast.Assert | ast.Call)
    asked, wanted = (node.test, True) if isinstance(node, ast.Assert) else _asked(node)
    while isinstance(asked, ast.UnaryOp) and isinstance(asked.op, ast.Not):
        asked, wanted = asked.operand, not wanted
    if (
        isinstance(asked, ast.Compare)
        and len(asked.ops) == 1
        and type(asked.ops[0]) in _OPPOSITE
        and other_form
    ):
        opposite = _OPPOSITE[type(asked.ops[0])]()
        asked, wanted = ast.Compare(asked.left, [opposite], asked.comparators), not wanted
    is_not = ast.UnaryOp(op=ast.Not(), operand=asked)
    answer = ast.Constant(value=not wanted if not turned else wanted)
    if isinstance(node, ast.Assert):
        node.test, node.msg = ast.Compare(is_not, [ast.Is()], [answer]), None
    else:
        assert isinstance(node.func, ast.Attribute)
        node.func.attr, node.args, node.keywords = "assertIs", [is_not, answer], []


_METHODS: dict[str, type[ast.cmpop]] = {"Equal": ast.Eq, "In": ast.In, "Is": ast.Is}


def _asked(call: ast.Call) -> tuple[ast.expr, bool]:
    """What an assertion of unittest asks, and whether it wants it to be so."""
    assert isinstance(call.func, ast.Attribute)
    name = call.func.attr.removeprefix("assert")
    if name in ("True", "False"):
        return call.args[0], name == "True"
    wanted, kind = "Not" not in name, name.replace("Not", "")
    if kind == "IsNone":
        return ast.Compare(call.args[0], [ast.Is()], [ast.Constant(value=None)]), wanted
    if kind == "IsInstance":
        return ast.Call(ast.Name("isinstance", ast.Load()), call.args[:2], []), wanted
    return ast.Compare(call.args[0], [_METHODS[kind]()], [call.args[1]]), wanted


def without_words(statement: ast.stmt) -> None:
    """Take out what an assertion says when it fails: it may tell what is right."""
    if isinstance(statement, ast.Assert):
        statement.msg = None
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        call.keywords = [each for each in call.keywords if each.arg != "msg"]
