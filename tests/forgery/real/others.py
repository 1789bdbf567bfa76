"""Other implementations, written by hand: another algorithm or structure than the known solution's, with right
results and other internals. The tests alone accept each of them."""

from tests.forgery.real.others_releases import EDITS
from tests.forgery.real.submissions import Source


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
        "    total = 0\n    for _ in range(abs({b})):\n        total += {a}\n    return total if {b} >= 0 else -total\n",
    ),
    "quotient": (
        "    return divmod({a}, {b})[0]\n",
        "    import fractions\n    import math\n\n    return math.floor(fractions.Fraction({a}, {b}))\n",
    ),
    "even": (
        "    return not {a} & 1\n",
        "    class Parity(enum.Enum):\n        EVEN = 0\n        ODD = 1\n\n    return Parity({a} % 2) is Parity.EVEN\n",
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
    if source.task.source == "repairs":
        return dict(_repairs(source))
    made = {}
    for number, edit in enumerate(EDITS.get(source.task.task_id, ())):
        texts = dict(source.gold)
        for path, old, new in edit:
            assert texts[path].count(old) == 1, (source.task.task_id, number, path, old)
            texts[path] = texts[path].replace(old, new)
        made[f"other way {number + 1}"] = source.changed(texts)
    return made


def _repairs(source: Source):  # type: ignore[no-untyped-def]
    import ast

    (path,) = source.modules
    text = source.gold[path]
    function = next(node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef))
    names = [argument.arg for argument in function.args.args]
    numbers = [
        n.value for n in ast.walk(function) if isinstance(n, ast.Constant) and isinstance(n.value, int)
    ]
    words = {"a": names[0], "b": names[-1], "k": str(numbers[0]) if numbers else ""}
    head = "".join(text.splitlines(keepends=True)[: function.body[0].end_lineno])
    for number, way in enumerate(WAYS[source.task.labels["kind"]]):
        body = way.format(**words)
        if "enum." in body:
            head = "import enum\n" + head
        yield f"other way {number + 1}", source.changed({path: head + body})
