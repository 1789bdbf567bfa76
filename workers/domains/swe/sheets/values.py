"""Reads what `child.py` told: plain ones as Python's own, others as structs that compare by what was told."""

import datetime
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Any

import msgspec


class Unclear(Exception):
    """The worker cannot evaluate this as the test would: the text says why."""


class NotHeld(Exception):
    """An answer with which the assertion does not hold; the text says why."""


def called(names: Sequence[str]) -> str:
    """Returns a class's name; a private one may have any in another solution."""
    return "_" if names[0].startswith("_") else names[0]


class Unhashable(msgspec.Struct, frozen=True, eq=True):
    """A dictionary or set of which an element has no hash here."""

    kind: str
    items: tuple[Any, ...]

    def __hash__(self) -> int:
        return hash(self.kind)


class Member(msgspec.Struct, frozen=True):
    """A member of an enumeration, by its class's name and its own."""

    names: tuple[str, ...]
    name: str
    value: Any = None

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Member):
            return (self.names[0], self.name) == (other.names[0], other.name)
        return bool(other == self.value) if self._is_plain else NotImplemented

    def __hash__(self) -> int:
        return hash(self.value if self._is_plain else self.name)

    @property
    def _is_plain(self) -> bool:
        """Whether its class is one of plain values too, as IntEnum is."""
        return not {"int", "str", "float", "bytes", "tuple"}.isdisjoint(self.names)


class ClassNames(msgspec.Struct, frozen=True):
    """A class, by its name and those of the classes above it."""

    names: tuple[str, ...]

    def __eq__(self, other: object) -> bool:
        return called(self.names) == called(other.names) if isinstance(other, ClassNames) else NotImplemented

    def __hash__(self) -> int:
        return hash(called(self.names))


class Thing(msgspec.Struct, frozen=True):
    """An object of another class."""

    names: tuple[str, ...]
    fields: Any
    shown: str | None = None
    truth: bool = True
    length: int | None = None
    own_equality: bool = False

    def __eq__(self, other: object) -> bool:
        if self.own_equality or (isinstance(other, Thing) and other.own_equality):
            raise Unclear(f"equality of {self.names[0]} is code of its own")
        if not isinstance(other, Thing):
            return NotImplemented
        same = called(self.names) == called(other.names)
        return same and self.fields == other.fields and self.shown == other.shown

    def __hash__(self) -> int:
        return hash(called(self.names))

    def __bool__(self) -> bool:
        return self.truth


class Raised(msgspec.Struct, frozen=True):
    """An exception in place of an answer."""

    names: tuple[str, ...]
    text: str
    message: str = ""
    """Of a group, without the number of its members."""
    members: tuple["Raised", ...] | None = None
    """The exceptions of a group; None for one that is none."""

    @property
    def searched(self) -> str:
        """What pytest's `match` is about, where it knows of groups."""
        return self.text if self.members is None else self.message


class Incomplete(msgspec.Struct, frozen=True):
    """A value too long to be told; equal where length and digest are."""

    what: Any


class Nothing:
    """Equal to everything: `unittest.mock.ANY`."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


class Tolerance:
    """What `pytest.approx` was given, comparing as it does."""

    def __init__(self, expected: Any, relative: Any, absolute: Any, nan_ok: Any) -> None:
        self.expected = expected
        self.relative = 1e-6 if relative is None else relative
        self.absolute = (1e-12 if relative is None else 0.0) if absolute is None else absolute
        if absolute is not None and relative is None:
            self.relative = 0.0
        self.nan_ok = bool(nan_ok)

    def __eq__(self, other: object) -> bool:
        return self._near(self.expected, other)

    __hash__ = None  # type: ignore[assignment]

    def _near(self, expected: Any, found: Any) -> bool:
        if isinstance(expected, Array):
            expected = expected.items
        if isinstance(found, Array):
            found = found.items
        if isinstance(expected, Mapping):
            return (
                isinstance(found, Mapping)
                and expected.keys() == found.keys()
                and all(self._near(expected[key], found[key]) for key in expected)
            )
        if isinstance(expected, list | tuple):
            return (
                isinstance(found, list | tuple)
                and len(expected) == len(found)
                and all(self._near(one, another) for one, another in zip(expected, found, strict=True))
            )
        return near(expected, found, float(self.relative), float(self.absolute), self.nan_ok)


class Array(msgspec.Struct, frozen=True):
    """A numpy array: type of its elements, shape, and nested lists."""

    dtype: str
    shape: tuple[int, ...]
    items: Any

    def __eq__(self, other: object) -> bool:
        raise Unclear("an array compares element by element")

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        if math.prod(self.shape) != 1:
            raise Unclear("an array of several elements has no truth")
        return bool(flat(self.items)[0])

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 0


class PandasFrame(msgspec.Struct, frozen=True):
    """A DataFrame: (label, type, values) of each column, index, and the names of the index and of the
    columns."""

    columns: Any
    index: Any
    names: Any


class PandasSeries(msgspec.Struct, frozen=True):
    """A Series or Index of pandas; `names` are its own and those of its index."""

    kind: str
    dtype: str
    items: Any
    index: Any
    names: Any


def near(expected: Any, found: Any, relative: float, absolute: float, nan_ok: bool = False) -> bool:
    """Whether two numbers differ by at most `absolute` or `relative` times the expected one."""
    if isinstance(expected, bool) or not isinstance(expected, int | float | complex | Decimal | Fraction):
        return bool(expected == found)
    if isinstance(found, bool) or not isinstance(found, int | float | complex | Decimal | Fraction):
        return False
    one, another = (complex(each) if isinstance(each, complex) else float(each) for each in (expected, found))
    if one != one or another != another:
        return nan_ok and one != one and another != another
    if one == another:
        return True
    if math.isinf(abs(one)) or math.isinf(abs(another)):
        return False
    return abs(one - another) <= max(absolute, relative * abs(one))


def flat(items: Any) -> list[Any]:
    return [deep for item in items for deep in flat(item)] if isinstance(items, list) else [items]


def decode(told: Any, *, trusted: bool = True) -> Any:
    """Returns a told value. Raises Unclear for what is none, and in an answer (not `trusted`) for what would
    decide how it is compared."""
    if not trusted and _compares_itself(told):
        raise Unclear("an answer that compares itself")
    if told is None or isinstance(told, bool | int | str):
        return told
    if isinstance(told, dict) and len(told) == 1:
        (kind, body), *_ = told.items()
        read = _READERS.get(kind)
        if read is not None:
            try:
                return read(body)
            except Unclear:
                raise
            except Exception as error:  # what tested code told may be anything
                raise Unclear(f"not an answer: {error}") from error
    raise Unclear("not an answer")


def _compares_itself(told: Any) -> bool:
    if isinstance(told, dict):
        return "any" in told or "approx" in told or any(map(_compares_itself, told.values()))
    return isinstance(told, list) and any(map(_compares_itself, told))


def _all(items: Sequence[Any]) -> list[Any]:
    return [decode(item) for item in items]


def _dict(pairs: Sequence[Any]) -> Any:
    decoded = [(decode(key), decode(value)) for key, value in pairs]
    try:
        return dict(decoded)
    except TypeError:
        return Unhashable("dict", tuple(decoded))


def _set(items: Sequence[Any]) -> Any:
    try:
        return frozenset(_all(items))
    except TypeError:
        return Unhashable("set", tuple(_all(items)))


def _own(body: Sequence[Any]) -> Any:
    """An object of a subclass of a plain type: its content, unless its equality is code of its own."""
    names, plain, own_equality, _ = body
    if own_equality:
        return Thing(tuple(names), decode(plain), own_equality=True)
    return Subclass.of(tuple(names), decode(plain))


_ORDERED: dict[str, Any] = {"Counter": Counter, "OrderedDict": OrderedDict}


class Subclass:
    """Names of the classes of decoded values that are plain but for their class."""

    @staticmethod
    def of(names: tuple[str, ...], plain: Any) -> Any:
        base = _ORDERED.get(names[0], type(plain)) if isinstance(plain, dict) else type(plain)
        if base in (int, float, str, bytes, list, tuple, dict, frozenset, Counter, OrderedDict):
            return type(names[0], (base,), {"told_names": names})(plain)
        return plain


def _thing(body: Sequence[Any]) -> Thing:
    names, fields, shown, own_equality, truth, length = body
    pairs = tuple((name, decode(value)) for name, value in fields)
    return Thing(tuple(names), pairs, shown, bool(truth), length, bool(own_equality))


def _raised(body: Sequence[Any]) -> Raised:
    names, text, *group = body
    if not group:
        return Raised(tuple(names), str(text))
    message, members = group
    return Raised(tuple(names), str(text), str(message), tuple(map(_raised, members)))


def _integer(told: Any) -> int:
    """Returns a whole number; a text of one may be an exponent that fills the memory."""
    if isinstance(told, int):
        return told
    raise Unclear("no whole number")


_READERS: dict[str, Callable[[Any], Any]] = {
    "float": float,
    "complex": lambda body: complex(*map(float, body)),
    "bytes": bytes.fromhex,
    "bytearray": bytes.fromhex,
    "list": _all,
    "tuple": lambda body: tuple(_all(body)),
    "set": _set,
    "frozenset": _set,
    "dict": _dict,
    "own": _own,
    "object": _thing,
    "enum": lambda body: Member(tuple(body[0]), str(body[1]), decode(body[2])),
    "class": lambda body: ClassNames(tuple(body)),
    "named": lambda body: Thing(("function",), (), str(body)),
    "text": lambda body: Thing(tuple(body[0]), (), str(body[1])),
    "error": lambda body: Thing(tuple(body[0]), decode(body[2]), body[1]),
    "view": lambda body: Thing((body[0],), tuple(_all(body[1]))),
    "keys": _set,
    "datetime": datetime.datetime.fromisoformat,
    "date": datetime.date.fromisoformat,
    "time": datetime.time.fromisoformat,
    "timedelta": lambda body: datetime.timedelta(*body),
    "decimal": Decimal,
    "fraction": lambda body: Fraction(*map(_integer, body)),
    "path": PurePosixPath,
    "raised": _raised,
    "approx": lambda body: Tolerance(*_all(body)),
    "any": lambda _: Nothing(),
    "array": lambda body: Array(body[0], tuple(map(_integer, body[1])), decode(body[2])),
    "frame": lambda body: PandasFrame(
        [(decode(label), dtype, decode(values)) for label, dtype, values in body[0]],
        decode(body[1]),
        decode(body[2]),
    ),
    "series": lambda body: PandasSeries(
        body[0], body[1], decode(body[2]), None if body[3] is None else decode(body[3]), decode(body[4])
    ),
    "long": lambda body: Incomplete(tuple(body)),
    "unreadable": lambda body: Raised((str(body),), "it cannot be told"),
}


def class_names(value: Any) -> tuple[str, ...]:
    """Names of a decoded value's class and of those above it, for `isinstance`."""
    told = getattr(type(value), "told_names", None) or getattr(value, "names", None)
    if told is not None and not isinstance(value, PandasFrame):
        return tuple(told)
    special = {
        frozenset: ("set", "frozenset"),
        PurePosixPath: ("PosixPath", "Path", "PurePosixPath", "PurePath"),
        bool: ("bool", "int"),
        type(None): ("NoneType",),
        bytes: ("bytes", "bytearray"),
        datetime.datetime: ("datetime", "date"),
        Array: ("ndarray",),
        PandasFrame: ("DataFrame",),
        ClassNames: ("type",),
    }
    if isinstance(value, PandasSeries):
        return (value.kind,)
    return special.get(type(value), (type(value).__name__,))
