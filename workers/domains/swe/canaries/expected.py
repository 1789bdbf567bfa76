"""What a test expects: the constants its assertions compare with, and where these are written. Pure.

A *slot* is what an assertion expects: its constants, and what parameters, loops and local names hold for it.
Of a table (parameters, a loop over literals) each *row* is changed on its own. Where an assertion names no
constant, it can be turned into its opposite.
"""

import ast
from collections import Counter
from collections.abc import Iterator, Sequence

from orchard.workers.domains.swe.canaries.assertions import expected_by, raising, turn_around
from orchard.workers.domains.swe.canaries.constants import Leaf, is_literal, leaves_of, rich_of

LARGEST_SLOT = 400
"""Constants; longer tables are left alone."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


class ValueCell:
    """What a name holds: one of its values, and in which row of which table that stands."""

    def __init__(self, value: ast.expr, table: int, row: int, rows: int) -> None:
        self.value = value
        self.place = table, row, rows


class ValueSlot:
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
            turn_around(self.turn, *values)


class TestSlots:
    """The slots of a test, and its sites, each with the slot that it depends on."""

    def __init__(self) -> None:
        self.slots: list[ValueSlot] = []
        self.sites: list[tuple[ast.stmt, int]] = []


def functions(tree: ast.Module) -> Iterator[tuple[str, Function]]:
    for node in tree.body:
        if isinstance(node, Function):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for each in node.body:
                if isinstance(each, Function):
                    yield f"{node.name}::{each.name}", each


def expected_of(function: Function) -> TestSlots:
    """Everything in a test that can be changed, in an order that depends on its text alone.

    A name counts only where it is used for nothing but what is expected: else the tested code gets it too.
    """
    known = _definitions(function)
    asserting = [(each, *expected) for each in _statements(function.body) if (expected := expected_by(each))]
    used = Counter(name for _, sides, _ in asserting for side in sides for name in _names(side))
    every = Counter(name for statement in function.body for name in _names(statement))
    known = {name: held for name, held in known.items() if used[name] == every[name]}
    straight = not any(isinstance(node, _BRANCHES) for node in ast.walk(function))
    found = TestSlots()
    own: list[list[Leaf]] = []
    held: list[list[ValueCell]] = []
    of_names: dict[str, int] = {}
    for statement, sides, turn in asserting:
        leaves = [leaf for side in sides for leaf in leaves_of(side)]
        names = list(dict.fromkeys(name for side in sides for name in _names(side) if name in known))
        slot = next((of_names[name] for name in names if name in of_names), len(found.slots))
        new = {name: known[name] for name in names if name not in of_names}
        cells = [cell for each in new.values() for cell in each]
        of_names |= dict.fromkeys(new, slot)
        if slot < len(found.slots):
            own[slot] += leaves
            held[slot] += cells
        elif rich_of([*leaves, *(leaf for cell in cells for leaf in leaves_of(cell.value))]):
            found.slots.append(ValueSlot([]))
            own.append(leaves)
            held.append(cells)
        elif turn is not None:
            found.slots.append(ValueSlot([], turn))
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


def _rows(own: list[Leaf], cells: list[ValueCell], *, straight: bool) -> list[list[Leaf]]:
    """The leaves of a slot by the rows of the one table that they are in. In one row where an assertion has
    constants of its own, where there are several tables, and where it may not be met once for each row."""
    leaves = [leaf for cell in cells for leaf in leaves_of(cell.value)]
    rich = {id(leaf.node) for leaf in rich_of([*own, *leaves])}
    tables = {(table, rows) for table, _, rows in (cell.place for cell in cells)}
    if not straight or len(tables) != 1 or any(id(leaf.node) in rich for leaf in own):
        return [[leaf for leaf in [*own, *leaves] if id(leaf.node) in rich]]
    ((_, number),) = tables
    rows: list[list[Leaf]] = [[] for _ in range(number)]
    for cell in cells:
        rows[cell.place[1]] += [leaf for leaf in leaves_of(cell.value) if id(leaf.node) in rich]
    return rows


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        if isinstance(statement, Function | ast.ClassDef):
            continue
        yield statement
        if not (isinstance(statement, ast.With | ast.AsyncWith) and raising(statement)):
            for name in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(statement, name, []))


def _definitions(function: Function) -> dict[str, list[ValueCell]]:
    """What names of a test hold: parameters by decorators, targets of loops over literals, and locals that
    are assigned once."""
    known: dict[str, list[ValueCell]] = {}
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
            if assigned[node.targets[0].id] == 1 and is_literal(node.value):
                known[node.targets[0].id] = [ValueCell(node.value, id(node), 0, 1)]
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


def _columns(names: Sequence[str], rows: ast.expr) -> dict[str, list[ValueCell]]:
    if not isinstance(rows, ast.Tuple | ast.List):
        return {}
    known: dict[str, list[ValueCell]] = {name: [] for name in names if name}
    marked = any(isinstance(row, ast.Call) and row.keywords for row in rows.elts)
    number = 1 if marked else len(rows.elts)  # a marked row may be skipped
    for at, row in enumerate(rows.elts):
        if isinstance(row, ast.Call):  # pytest.param(...)
            row = ast.Tuple(elts=row.args)
        cells = [row] if len(names) == 1 and not isinstance(row, ast.Tuple) else getattr(row, "elts", [])
        if len(names) == 1 and isinstance(row, ast.Tuple) and len(row.elts) != 1:
            cells = [row]
        for name, cell in zip(names, cells, strict=False):
            if name and is_literal(cell):
                known[name].append(ValueCell(cell, id(rows), min(at, number - 1), number))
    return {name: cells for name, cells in known.items() if cells}


def _names(node: ast.AST) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load):
            yield each.id
