"""Arrays and frames compare in the worker as numpy and pandas compare them, and never more laxly."""

import itertools
from contextlib import suppress

import numpy as np
import pandas as pd
import pandas.testing as pdt
import pytest

from orchard.workers.domains.swe.sheets import child
from orchard.workers.domains.swe.sheets.elements import allclose, assert_allclose, assert_array_equal
from orchard.workers.domains.swe.sheets.sheet import held
from orchard.workers.domains.swe.sheets.values import Array, NotHeld

SIDES = [["leaf", 0], ["pure", 0]]
ARRAYS = [
    *(0, 2, 2.0, True, "a", [], [2], [2, 2], [1, 2], [2, 1], [[1, 2]], [[1], [2]], [[1, 2], [2, 1]]),
    *(np.array(2), np.array([2]), np.array([1, 2]), np.array([1.0, 2.0]), np.array([np.nan, 2])),
    *(np.array([[1, 2], [1, 2]]), np.array([[2], [2]]), np.zeros((0,)), np.zeros((0, 2)), np.arange(6)),
    *(np.arange(6).reshape(2, 3), np.arange(6).reshape(3, 2), np.array(["a", "b"]), np.array([1, 2 + 1e-9])),
    *(np.array([1, 2], "datetime64[s]"), np.array([1, 2], "datetime64[ms]"), np.array([True, False])),
]
TABLES = [
    *(pd.DataFrame({"a": [1, 2]}), pd.DataFrame({"a": [1.0, 2.0]}), pd.DataFrame({"a": [1, 3]})),
    *(pd.DataFrame({"b": [1, 2]}), pd.DataFrame({"a": [1, 2]}, index=[1, 2]), pd.DataFrame({"a": [1, None]})),
    *(pd.DataFrame({"a": [1, 2], "b": [1, 2]}), pd.DataFrame({"a": [1, 2]}).rename_axis("x")),
    *(pd.DataFrame({"a": [1, 2]}).rename_axis("x", axis=1), pd.DataFrame({"a": [100_000, 200_000]})),
    *(pd.DataFrame({"a": [100_000, 200_001]}), pd.Series([1, 2]), pd.Series([1.0, 2.0]), pd.Series([2, 2])),
    *(pd.Series([1, 2], name="s"), pd.Series([1, 2], index=["a", "b"]), pd.Series([1, None])),
    *(pd.Series([1, 2]).rename_axis("x"), pd.Series([1, 2, 3]), pd.Index([1, 2]), pd.RangeIndex(1, 3)),
    *(pd.Index([1, 2], name="x"), pd.Index(["a", "b"]), pd.Series(["1", "2"])),
]


def asserts(function, *options):
    def held(one, another):
        function(one, another, *options)
        return True

    return held


def judged(condition, one, another):
    """What the worker says of an answer; None where it cannot say."""
    keys = [child.told(another), *(child.told(each) for each in condition[1:])]
    whole = [condition[0], *SIDES, *(["pure", at + 1] for at in range(len(condition) - 1))]
    return held(whole, keys, [child.told(one)])


def really(function, one, another):
    try:
        return bool(function(one, another))
    except Exception:
        return False


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("condition", "function"),
    [
        (["array_equal", False], np.array_equal),
        (["allclose", 1e-5, 1e-8, False], np.allclose),
        (["assert_allclose", 1e-7, 0, True], np.testing.assert_allclose),
        (["assert_array_equal"], np.testing.assert_array_equal),
    ],
)
def test_arrays(condition, function):
    function = function if function in (np.array_equal, np.allclose) else asserts(function)
    said = []
    for one, another in itertools.product(ARRAYS, ARRAYS):
        found, wanted = judged(condition, one, another), really(function, one, another)
        assert not found or wanted, (one, another)
        said.append(found)
    assert said.count(True) > 30


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("word", ["all", "any"])
@pytest.mark.parametrize("twice", [False, True])
def test_elements(word, twice):
    def function(one, another):
        found = getattr(one == another, word)()
        return getattr(found, word)() if twice else found

    sides = [*ARRAYS[:20], *TABLES] if twice else [*ARRAYS, *TABLES]
    said = []
    for one, another in itertools.product(sides, sides):
        got, key = [child.told(one)], [child.told(another)]
        found = held(["elements", word, twice, "Eq", *SIDES], key, got)
        assert not found or really(function, one, another), (one, another)
        denied = held(["not", ["elements", word, twice, "Eq", *SIDES]], key, got)
        assert not denied or really(lambda a, b: not function(a, b), one, another), (one, another)
        said.append(found)
    assert said.count(True) > 30


@pytest.mark.filterwarnings("ignore")
def test_tables():
    kinds = {pd.DataFrame: pdt.assert_frame_equal, pd.Series: pdt.assert_series_equal}
    same = 0
    for one, another in itertools.product(TABLES, TABLES):
        function = asserts(kinds.get(type(one), pdt.assert_index_equal))
        equal, equals = judged(["assert_frames", {}], one, another), judged(["equals"], one, another)
        assert not equal or really(function, one, another), (one, another)
        assert not equals or really(lambda a, b: a.equals(b), one, another), (one, another)
        assert not really(function, one, another) or equal, (one, another)
        same += bool(equal)
    assert same >= len(TABLES)


@pytest.mark.parametrize(
    "answer", [float("inf"), [], [float("inf")], [float("inf")] * 2, Array("float64", (0,), [])]
)
def test_infinity_and_nothing_are_near_nothing(answer):
    """numpy stretches an empty array, and takes the tolerance from the desired side."""
    for expected in ([3.4711, 9.77], 3.4711, [3.4711]):
        for one, another in ((expected, answer), (answer, expected)):
            for compare in (assert_allclose, allclose):
                with suppress(NotHeld):
                    assert not compare(one, another, 1e-5, 1e-8, True)
            with suppress(NotHeld):
                assert not assert_array_equal(one, another)
    assert assert_allclose([], [], 1e-7, 0, True)
