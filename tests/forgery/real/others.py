"""Other implementations, written by hand: another algorithm or structure than the known solution's, right
results and other internals. The tests alone accept each of them.

Those of release tasks are diffs to the known solution (`other_ways/`), those of repair tasks are bodies.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.forgery.real.submissions import Source, applied

DIFFS = Path(__file__).with_name("other_ways")

WAYS: dict[str, tuple[str, ...]] = {
    "sum": (
        "    return sum(({a}, {b}))\n",
        "    import operator\n\n    return operator.add({b}, {a})\n",
    ),
    "difference": (
        "    return {a} + -{b}\n",
        "    left = {a}\n    left -= {b}\n    return left\n",
    ),
    "product": (
        "    import math\n\n    return math.prod(({a}, {b}))\n",
        "    total = 0\n    for _ in range(abs({b})):\n        total += {a}\n"
        "    return total if {b} >= 0 else -total\n",
    ),
    "quotient": (
        "    return divmod({a}, {b})[0]\n",
        "    import fractions\n    import math\n\n    return math.floor(fractions.Fraction({a}, {b}))\n",
    ),
    "even": (
        "    return not {a} & 1\n",
        "    import enum\n\n    class Parity(enum.Enum):\n        EVEN = 0\n        ODD = 1\n\n"
        "    return Parity({a} % 2) is Parity.EVEN\n",
    ),
    "smaller": (
        "    return {a} if {a} < {b} else {b}\n",
        "    return sorted(({a}, {b}))[0]\n",
    ),
    "larger": (
        "    return {b} if {a} < {b} else {a}\n",
        "    return sorted(({a}, {b})).pop()\n",
    ),
    "times": (
        "    total = 0\n    for _ in range({k}):\n        total += {a}\n    return total\n",
        "    return sum([{a}] * {k})\n",
    ),
    "distance": (
        "    return max({a}, {b}) - min({a}, {b})\n",
        "    gap = {a} - {b}\n    return gap if gap >= 0 else -gap\n",
    ),
    "both": (
        "    return min({a}, {b}) > 0\n",
        "    return all(each > 0 for each in ({a}, {b}))\n",
    ),
    "total": (
        "    total = 0\n    for each in {a}:\n        total += each\n    return total\n",
        "    import functools\n    import operator\n\n    return functools.reduce(operator.add, {a}, 0)\n",
    ),
    "count": (
        "    return sum(1 for _ in {a})\n",
        "    number = 0\n    for number, _ in enumerate({a}, 1):\n        pass\n    return number\n",
    ),
    "last": (
        "    *_, last = {a}\n    return last\n",
        "    return list(reversed({a}))[0]\n",
    ),
    "reversed": (
        "    return list(reversed({a}))\n",
        "    found = []\n    for each in {a}:\n        found.insert(0, each)\n    return found\n",
    ),
    "sorted": (
        "    import heapq\n\n    heap = list({a})\n    heapq.heapify(heap)\n"
        "    return [heapq.heappop(heap) for _ in range(len(heap))]\n",
        "    found = []\n    for each in {a}:\n        at = sum(other <= each for other in found)\n"
        "        found.insert(at, each)\n    return found\n",
    ),
}
"""Bodies by kind of bug; `{a}`, `{b}` and `{k}` stand for the arguments and the number."""


def others(source: Source) -> dict[str, str]:
    """Submissions by name."""
    made = _repairs(source) if source.task.source == "repairs" else _releases(source)
    return {f"other way {number}": submission for number, submission in enumerate(made, 1)}


def _releases(source: Source) -> Iterator[str]:
    for path in sorted(DIFFS.glob(f"{source.task.task_id}-*.diff")):
        yield source.changed(applied(source.gold, path.read_bytes().decode()))


def _repairs(source: Source) -> Iterator[str]:
    (path,) = source.modules
    text = source.gold[path]
    function = next(node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef))
    names = [argument.arg for argument in function.args.args]
    constants = [node.value for node in ast.walk(function) if isinstance(node, ast.Constant)]
    number = next((value for value in constants if type(value) is int), 0)
    head = "".join(text.splitlines(keepends=True)[: function.body[0].end_lineno])
    for way in WAYS[source.task.labels["kind"]]:
        yield source.changed({path: head + way.format(a=names[0], b=names[-1], k=number)})
