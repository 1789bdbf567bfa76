"""Seeded mutations of JSON documents: what a newer version, a flipped byte or an attacker may send.

Half of them damage bytes, half replace, drop, add or repeat parts of the document, so that it stays JSON and
gets further in.
"""

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

DEEP = 3000


class _Text:
    """JSON text that `json.dumps` would not write."""

    def __init__(self, text: str) -> None:
        self.text = text


HOSTILE: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    2**31,
    2**63 - 1,
    2**63,
    -(2**63),
    2**64,
    0.5,
    -0.0,
    1e308,
    -1e308,
    5e-324,
    _Text("1e999"),
    _Text("-1e999"),
    _Text("NaN"),
    _Text("Infinity"),
    _Text("9" * 400),
    _Text("9" * 5000),
    _Text('"\\ud800"'),
    _Text('"\\udc00 \\ud800\\u0041"'),
    _Text("[" * DEEP + "]" * DEEP),
    _Text("[" * DEEP),
    _Text('{"a":' * DEEP + "1" + "}" * DEEP),
    "",
    " ",
    "a\x00b",
    "x" * 3000,
    "\x7f\u2028\uffff\U0001f600",
    "a.b",
    "*",
    ">",
    "orchard.events.>",
    "../../etc/passwd",
    "A B",
    "1e9",
    ".5Gi",
    "1Pi",
    "lots",
    "nan",
    "0001-01-01T00:00:00+23:59",
    "9999-12-31T23:59:59-23:59",
    "2026-01-01",
    "2026-01-01T00:00:00",
    "2026-02-30T00:00:00Z",
    "1" * 24,
    "f" * 64,
    "done",
    "malformed",
    "unreadable",
    "rollout.finished",
    "rollout.aborted",
    "rollout.reopened",
    "policy.updated",
    "group.assembled",
    [],
    {},
    [[]],
    {"": None},
    [1, "a", None],
    [2**64],
)


def mutants(documents: Sequence[bytes], count: int, seed: int) -> Iterator[bytes]:
    """`count` mutants, the same for the same seed."""
    dice = random.Random(seed)
    for _ in range(count):
        document = dice.choice(documents)
        yield _bytes(document, dice) if dice.random() < 0.35 else _parts(document, dice)


def _bytes(document: bytes, dice: random.Random) -> bytes:
    raw = bytearray(document)
    for _ in range(dice.choice((1, 1, 2, 5))):
        at = dice.randrange(len(raw) or 1)
        match dice.randrange(5):
            case 0:
                raw[at : at + 1] = bytes([dice.randrange(256)])
            case 1:
                raw[at:at] = dice.randbytes(dice.choice((1, 4)))
            case 2:
                del raw[at : at + dice.choice((1, 3, 20))]
            case 3:
                del raw[at:]
            case _:
                other = dice.randrange(len(raw) or 1)
                raw[at:at] = raw[other : other + 40]
    return bytes(raw)


def _parts(document: bytes, dice: random.Random) -> bytes:
    value = json.loads(document)
    for _ in range(dice.choice((1, 1, 1, 2, 4))):
        value = _changed(value, dice)
    return _write(value).encode()


def _changed(value: Any, dice: random.Random) -> Any:
    """One part of the document changed, anywhere in it."""
    if isinstance(value, dict) and value and dice.random() < 0.93:
        key = dice.choice(list(value))
        match dice.randrange(12):
            case 0:
                return {name: part for name, part in value.items() if name != key}
            case 1:
                return value | {"added": dice.choice(HOSTILE)}
            case 2:
                return _Text(
                    "{" + _write(value)[1:-1] + f",{_write(key)}:{_write(dice.choice(HOSTILE))}" + "}"
                )
            case 3:
                return {(name if name != key else key + "x"): part for name, part in value.items()}
            case _:
                return value | {key: _changed(value[key], dice)}
    if isinstance(value, list) and value and dice.random() < 0.6:
        at = dice.randrange(len(value))
        return [*value[:at], _changed(value[at], dice), *value[at + 1 :]]
    return dice.choice(HOSTILE)


def _write(value: Any) -> str:
    match value:
        case _Text():
            return value.text
        case dict():
            return "{" + ",".join(f"{json.dumps(key)}:{_write(part)}" for key, part in value.items()) + "}"
        case list():
            return "[" + ",".join(map(_write, value)) + "]"
    return json.dumps(value)
