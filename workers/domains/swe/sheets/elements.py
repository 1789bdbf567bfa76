"""How numpy and pandas compare: element by element, from what was told. Pure."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from orchard.workers.domains.swe.sheets.values import (
    Array,
    NotHeld,
    PandasFrame,
    PandasSeries,
    Unclear,
    flat,
    near,
)

Shape = tuple[int, ...]
_MOST = 200_000
"""Pairs of elements that one comparison may have, stretched to one shape."""
_INDEXES = frozenset({"Index", "RangeIndex", "Int64Index", "Float64Index"})
"""Kinds of pandas indexes that may take each other's place."""


def elementwise(
    word: str, compare: Callable[[Any, Any], Any], one: Any, another: Any, *, frames: bool
) -> bool:
    """`(one == another).all()` or `.any()`; that of `frames` is asked twice.

    Over no elements at all it is refused, though numpy says True: an empty array is no answer.
    """
    if isinstance(one, PandasFrame) or isinstance(another, PandasFrame):
        if not frames:
            raise NotHeld("a frame has no truth")
        pairs = _pairs_of_frames(one, another)
    elif isinstance(one, PandasSeries) or isinstance(another, PandasSeries):
        pairs = _pairs_of_series(one, another)
    elif isinstance(one, Array) or isinstance(another, Array):
        pairs = _pairs(one, another, _broadcast(shape_of(one), shape_of(another)))
    else:
        raise Unclear("no array")
    if not pairs:
        raise NotHeld("nothing was compared")
    found = [bool(compare(left, right)) for left, right in pairs]
    return all(found) if word == "all" else any(found)


def array_equal(one: Any, another: Any, equal_nan: Any) -> bool:
    """`numpy.array_equal`: nothing is stretched."""
    shape = shape_of(one)
    return shape == shape_of(another) and all(
        left == right or (bool(equal_nan) and left != left and right != right)
        for left, right in _pairs(one, another, shape)
    )


def allclose(one: Any, another: Any, relative: Any, absolute: Any, equal_nan: Any) -> bool:
    """`numpy.allclose`, which stretches both to one shape."""
    _need_numbers(one, another)
    shape = _broadcast(shape_of(one), shape_of(another))
    return _close(_pairs(one, another, shape), relative, absolute, equal_nan)


def assert_allclose(one: Any, another: Any, relative: Any, absolute: Any, equal_nan: Any) -> bool:
    """`numpy.testing.assert_allclose`, which stretches single numbers only."""
    _need_numbers(one, another)
    return _close(_asserted_pairs(one, another), relative, absolute, equal_nan)


def assert_array_equal(one: Any, another: Any) -> bool:
    return _close(_asserted_pairs(one, another), 0, 0, True)


def _asserted_pairs(one: Any, another: Any) -> list[tuple[Any, Any]]:
    left, right = shape_of(one), shape_of(another)
    if left and right and left != right:
        raise NotHeld("the shapes differ")
    return _pairs(one, another, left or right)


def _need_numbers(*sides: Any) -> None:
    if not all(isinstance(each, bool | int | float | complex) for side in sides for each in _items(side)):
        raise Unclear("other elements than numbers")


def shape_of(value: Any) -> Shape:
    if isinstance(value, Array):
        return value.shape
    if isinstance(value, PandasSeries):
        return (len(value.items),)
    if isinstance(value, list | tuple):
        inner = {shape_of(each) for each in value}
        if len(inner) > 1:
            raise Unclear("rows of different lengths")
        return (len(value), *(inner.pop() if inner else ()))
    if isinstance(value, bool | int | float | complex | str | bytes):
        return ()
    raise Unclear("no array")


def _broadcast(one: Shape, another: Shape) -> Shape:
    width = max(len(one), len(another))
    left, right = ((1,) * (width - len(each)) + each for each in (one, another))
    if any(a != b and 1 not in (a, b) for a, b in zip(left, right, strict=True)):
        raise NotHeld("the shapes do not fit together")
    return tuple(b if a == 1 else a for a, b in zip(left, right, strict=True))


def _pairs(one: Any, another: Any, shape: Shape) -> list[tuple[Any, Any]]:
    """Pairs the elements of both; nothing is no answer where something is expected, though numpy stretches
    it."""
    if not math.prod(shape) and math.prod(shape_of(one)) + math.prod(shape_of(another)):
        raise NotHeld("nothing was compared")
    kinds = {each.dtype if isinstance(each, Array) else "" for each in (one, another)}
    if len(kinds) > 1 and any(kind.startswith(("datetime64", "timedelta64")) for kind in kinds):
        raise Unclear("times of different kinds")
    if math.prod(shape) > _MOST:
        raise Unclear("too many elements")
    return list(zip(_stretched(one, shape), _stretched(another, shape), strict=True))


def _stretched(value: Any, shape: Shape) -> list[Any]:
    own = shape_of(value)
    items = _items(value)
    if math.prod(own) != len(items):
        raise Unclear("an array of another shape than it says")
    places = [0]
    for size, wanted in zip((1,) * (len(shape) - len(own)) + own, shape, strict=True):
        places = [place * size + (at if size > 1 else 0) for place in places for at in range(wanted)]
    return [items[place] for place in places]


def _items(value: Any) -> list[Any]:
    return flat(_listed(value))


def _listed(value: Any) -> Any:
    if isinstance(value, Array | PandasSeries):
        return value.items
    return [_listed(each) for each in value] if isinstance(value, list | tuple) else value


def _close(pairs: list[tuple[Any, Any]], relative: Any, absolute: Any, equal_nan: Any) -> bool:
    limits = float(relative), float(absolute), bool(equal_nan)
    return all(
        _numpy_near(found, expected, *limits)
        if isinstance(expected, float | int) and not isinstance(expected, bool)
        else near(expected, found, *limits)
        for found, expected in pairs
    )


def _numpy_near(found: Any, expected: Any, relative: float, absolute: float, equal_nan: bool) -> bool:
    if found != found or expected != expected:
        return equal_nan and found != found and expected != expected
    if math.isinf(abs(found)) or math.isinf(abs(expected)):
        return bool(found == expected)
    return bool(abs(found - expected) <= absolute + relative * abs(expected))


# --- pandas --------------------------------------------------------------------------------------


def _pairs_of_frames(one: Any, another: Any) -> list[tuple[Any, Any]]:
    if isinstance(one, PandasFrame) and isinstance(another, PandasFrame):
        if not _labelled_alike(one, another):
            raise NotHeld("the labels differ")
        columns = zip(one.columns, another.columns, strict=True)
        return [pair for left, right in columns for pair in zip(left[2], right[2], strict=True)]
    frame, other = (one, another) if isinstance(one, PandasFrame) else (another, one)
    if shape_of(other) != ():
        raise Unclear("a frame compared with an array")
    found = [item for column in frame.columns for item in column[2]]
    return [(item, other) if frame is one else (other, item) for item in found]


def _pairs_of_series(one: Any, another: Any) -> list[tuple[Any, Any]]:
    left, right = shape_of(one), shape_of(another)
    if left and right and left != right:
        raise NotHeld("the lengths differ")
    if _is_series(one) and _is_series(another) and one.index != another.index:
        raise NotHeld("the labels differ")
    return _pairs(one, another, left or right)


def _is_series(value: Any) -> bool:
    return isinstance(value, PandasSeries) and value.kind == "Series"


def _labelled_alike(one: PandasFrame, another: PandasFrame) -> bool:
    return one.index == another.index and [each[0] for each in one.columns] == [
        each[0] for each in another.columns
    ]


def equals(one: Any, another: Any) -> bool:
    """The method `equals` of pandas, for which NaN is NaN and names do not matter."""
    if isinstance(one, PandasFrame) and isinstance(another, PandasFrame):
        return _labelled_alike(one, another) and all(
            left[1] == right[1] and array_equal(left[2], right[2], True)
            for left, right in zip(one.columns, another.columns, strict=True)
        )
    if not (isinstance(one, PandasSeries) and isinstance(another, PandasSeries)):
        raise Unclear("neither frames nor series")
    if _is_series(one) != _is_series(another):
        return False
    if _is_series(one) and (one.dtype != another.dtype or one.index != another.index):
        return False
    return array_equal(list(one.items), list(another.items), True)


_OPTIONS = frozenset({"check_dtype", "check_exact", "rtol", "atol", "check_names", "check_index_type"})


def assert_frames(one: Any, another: Any, options: Mapping[str, Any]) -> bool:
    """`pandas.testing.assert_frame_equal`, `assert_series_equal` and `assert_index_equal`."""
    if set(options) - _OPTIONS:
        raise Unclear("options of the comparison")
    exact = options.get("check_exact", False)
    limits = (0, 0) if exact else (options.get("rtol", 1e-5), options.get("atol", 1e-8))
    types, names = options.get("check_dtype", True), options.get("check_names", True)
    if isinstance(one, PandasFrame) and isinstance(another, PandasFrame):
        return (
            _labelled_alike(one, another)
            and (one.names == another.names or not names)
            and all(
                (left[1] == right[1] or not types) and _close_columns(left[2], right[2], *limits)
                for left, right in zip(one.columns, another.columns, strict=True)
            )
        )
    if isinstance(one, PandasSeries) and isinstance(another, PandasSeries):
        return (
            (one.kind == another.kind or {one.kind, another.kind} <= _INDEXES)
            and (one.dtype == another.dtype or not types)
            and one.index == another.index
            and (one.names == another.names or not names)
            and _close_columns(one.items, another.items, *limits)
        )
    raise Unclear("no frames")


def _close_columns(one: list[Any], another: list[Any], relative: Any, absolute: Any) -> bool:
    """Whether two columns are near; whole numbers must be the same."""
    pairs = list(zip(one, another, strict=False))
    exact = all(isinstance(each, int) for pair in pairs for each in pair)
    if exact:
        relative = absolute = 0
    return len(one) == len(another) and _close(pairs, relative, absolute, True)
