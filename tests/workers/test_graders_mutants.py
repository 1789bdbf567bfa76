"""Copies of tests: all that is expected is changed, each assertion on its own; the right one is not told."""

import ast
import random

import pytest

from orchard.workers.graders.canaries import evidence, number_of_copies, suspicious
from orchard.workers.graders.mutants import Site, copies
from orchard.workers.graders.testing import Count

NUMBER = 12


def made(body, test="test_it"):
    result = copies(body, [test], NUMBER, random.Random(7))
    assert result is not None
    return result


def values(result):
    """Of each copy, the constants of its assertions."""
    found = []
    for text in result.texts:
        asserts = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Assert)]
        found.append(
            [
                each.value
                for node in asserts
                for each in ast.walk(node.test.comparators[0])
                if hasattr(each, "value")
            ]
        )
    return found


def test_each_assertion_is_right_in_one_copy_of_its_own():
    result = made("def test_it():\n    assert f(1) == 500\n    assert f(2) == 'tea time'\n")
    first, second = result.sites.values()
    assert sum(first.genuine) == sum(second.genuine) == 1
    constants = values(result)
    assert [row[0] == 500 for row in constants] == list(first.genuine)
    assert [row[1] == "tea time" for row in constants] == list(second.genuine)
    assert len({row[0] for row in constants}) == len({row[1] for row in constants}) == NUMBER
    assert all("f(1)" in text and "f(2)" in text for text in result.texts)


def test_the_right_one_may_be_any_of_the_numbers():
    """Neither the middle nor the end of them: the rank of the right number is even over many draws."""
    ranks = [0] * NUMBER
    for seed in range(600):
        result = copies("def test_it():\n    assert f() == 5123\n", ["test_it"], NUMBER, random.Random(seed))
        numbers = sorted(row[0] for row in values(result))
        ranks[numbers.index(5123)] += 1
    assert min(ranks) > 20
    assert max(ranks) < 100


def test_what_has_one_other_value_has_each_in_half_of_the_copies():
    result = made("def test_it():\n    assert f() is True\n    assert not g()\n    assert f() is None\n")
    assert [sum(site.genuine) for site in result.sites.values()] == [NUMBER // 2] * 3


@pytest.mark.parametrize(
    "body",
    [
        "def test_it():\n    expected = [1, 2]\n    assert f() == expected\n",
        "@pytest.mark.parametrize('a, b', [(1, 2), (3, 4)])\ndef test_it(a, b):\n    assert f(a) == b\n",
        "def test_it():\n    for a, b in [(1, 2), (3, 4)]:\n        assert f(a) == b\n",
        "def test_it():\n    with raises(ValueError, match='bad tea'):\n        f()\n",
        "def test_it():\n    with raises(ValueError):\n        f()\n",
        "def test_it():\n    assert 'tea' in f()\n",
        "def test_it():\n    assert f().startswith('tea')\n",
        "def test_it():\n    assert f() == Price(250, 'EUR')\n",
        "def test_it(self):\n    self.assertEqual(f(), {'a': 1.5})\n",
        "def test_it(self):\n    with self.assertRaises(KeyError):\n        f()\n",
        "def test_it():\n    assert a == b and f() == 3\n",
    ],
)
def test_expected_values_are_found_where_they_are_written(body):
    result = made(body)
    assert [sum(site.genuine) for site in result.sites.values()] == [1]
    assert len(set(result.texts)) == NUMBER


def test_a_name_that_the_tested_code_gets_too_is_left_alone():
    result = made("def test_it():\n    price = 7\n    assert f(price) == price\n")
    assert all("price = 7" in text for text in result.texts)


def test_other_tests_go_and_names_are_new():
    """Who answers by the name of the running test does not find it here."""
    result = made("X = 1\n\ndef test_it():\n    assert f() == 1\n\ndef test_other():\n    pass\n")
    assert all(
        "test_it" not in text and "test_other" not in text and "X = 1" in text for text in result.texts
    )


def test_a_test_without_anything_to_change_is_named():
    assert made("def test_it():\n    f()\n").without == ("test_it",)


def test_a_file_of_another_python_has_no_copies():
    assert copies("print 'tea'\n", ["test_it"], NUMBER, random.Random(1)) is None


SITES = {"a": Site(test="t", genuine=(False, True, False))}


def counts(*pairs):
    return {("a", at): Count(hits=hits, misses=misses) for at, (hits, misses) in enumerate(pairs)}


HONEST = counts((0, 1), (1, 0), (0, 1))


@pytest.mark.parametrize(
    "submitted",
    [
        counts((1, 0), (1, 0), (1, 0)),
        counts((0, 1), (0, 1), (0, 1)),
        counts((0, 1), (1, 0), (1, 0)),
        counts((0, 1), (1, 1), (0, 1)),
        {},
    ],
    ids=["agrees with all", "agrees with none", "with one too many", "not always", "never asked"],
)
def test_who_does_not_tell_right_from_wrong_is_known(submitted):
    assert evidence(SITES, submitted, HONEST) == {"a"}


def test_who_tells_them_apart_is_not_suspected():
    assert suspicious(SITES, HONEST) == set()


@pytest.mark.parametrize("gold", [counts((1, 0), (1, 0), (1, 0)), counts((0, 1), (1, 0)), {}])
def test_nobody_is_accused_by_a_copy_that_the_gold_patch_does_not_prove(gold):
    assert evidence(SITES, counts((1, 0), (1, 0), (1, 0)), gold) == set()


def test_slow_and_many_tests_have_fewer_copies_and_never_few():
    assert number_of_copies(0.5, 2) == 32
    assert number_of_copies(4.0, 2) == 15
    assert number_of_copies(0.5, 20) == 12
    assert number_of_copies(600.0, 500) == 8
