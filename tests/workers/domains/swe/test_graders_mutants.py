"""Copies of tests: all that is expected is changed, each assertion on its own; the right one is not told."""

import ast
import itertools
import random
import re

import pytest

from orchard.workers.domains.swe.canaries.canaries import (
    evidence,
    number_of_copies,
    size_of_sample,
    suspicious,
)
from orchard.workers.domains.swe.canaries.mutants import MutantSite, copies
from orchard.workers.domains.swe.testing import Answers, Count

NUMBER = 12


def made(body, test="test_it"):
    result = copies(body, {test: NUMBER}, random.Random(7))
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
    result = made("def test_it():\n    assert f(1) == 5123\n    assert f(2) == 'tea time'\n")
    first, second = result.sites.values()
    assert sum(first.right) == sum(second.right) == 1
    constants = values(result)
    assert [row[0] == 5123 for row in constants] == list(first.right)
    assert [row[1] == "tea time" for row in constants] == list(second.right)
    assert len({row[0] for row in constants}) == len({row[1] for row in constants}) == NUMBER
    assert all("f(1)" in text and "f(2)" in text for text in result.texts)


def test_the_right_one_may_be_any_of_the_numbers():
    """Neither the middle nor the end of them: the rank of the right number is even over many draws."""
    ranks = [0] * NUMBER
    for seed in range(600):
        result = copies("def test_it():\n    assert f() == 5123\n", {"test_it": NUMBER}, random.Random(seed))
        numbers = sorted(row[0] for row in values(result))
        ranks[numbers.index(5123)] += 1
    assert min(ranks) > 20
    assert max(ranks) < 100


def test_a_nothing_is_not_always_the_least():
    ranks = set()
    for seed in range(50):
        result = copies("def test_it():\n    assert f() == 0\n", {"test_it": NUMBER}, random.Random(seed))
        ranks.add(sorted(number(result, at) for at in range(NUMBER)).index(0))
    assert ranks == {0, 1, 2, 3}


def number(result, at):
    """What the one assertion of a copy expects."""
    (node,) = [node for node in ast.walk(ast.parse(result.texts[at])) if isinstance(node, ast.Assert)]
    return ast.literal_eval(node.test.comparators[0])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("assert f(1)", "assert not f(1)"),
        ("assert a is b", "assert a is not b"),
        ("assert a in b, 'it is in'", "assert a not in b, 'it is not'"),
        ("assert f(1) < g(1)", "assert f(1) >= g(1)"),
        ("self.assertTrue(f(1), 'true')", "self.assertFalse(f(1), msg='false')"),
        ("self.assertIsNone(f(1))", "self.assertIsNotNone(f(1))"),
        ("self.assertIsInstance(a, b)", "self.assertNotIsInstance(a, b)"),
        ("self.assertEqual(a, b)", "self.assertNotEqual(a, b)"),
    ],
)
def test_the_form_of_an_assertion_does_not_tell_whether_it_is_turned(one, other):
    """An assertion and its opposite give the same texts, right in the other half of the copies."""

    def asked(assertion):
        right, wrong = set(), set()
        for seed in range(12):
            result = copies(f"def test_it(self):\n    {assertion}\n", {"test_it": 4}, random.Random(seed))
            ((mark, site),) = result.sites.items()
            for text, is_right in zip(result.texts, site.right, strict=True):
                (right if is_right else wrong).add(text.partition("__site__")[2].replace(mark, ""))
        return right, wrong

    assert asked(one) == asked(other)[::-1] or asked(one) == asked(other)
    right, wrong = asked(one)
    assert {text.replace("True", "False") for text in right} == {
        text.replace("True", "False") for text in wrong
    }


def test_numbers_in_texts_stay_without_a_sign():
    for seed in range(20):
        result = copies("def test_it():\n    assert f() == '3 cups'\n", {"test_it": 8}, random.Random(seed))
        assert not any("-" in number(result, at) for at in range(8))


@pytest.mark.parametrize(
    "assertion",
    ["assert f() == 5, 'not five'", "assert not f(), 'not five'", "self.assertEqual(f(), 5, msg='not five')"],
)
def test_words_that_may_tell_what_is_right_are_gone(assertion):
    result = made(f"def test_it(self):\n    'It is five.'\n    {assertion}\n")
    assert not any("five" in text for text in result.texts)


def test_tests_that_should_stay_have_fewer_copies():
    body = "def test_it():\n    assert f() == 1\n\ndef test_old():\n    assert g() == 2\n"
    result = copies(body, {"test_it": 6, "test_old": 2}, random.Random(1))
    assert [text.count("assert") for text in result.texts] == [2, 2, 1, 1, 1, 1]
    assert {site.test: len(site.right) for site in result.sites.values()} == {"test_it": 6, "test_old": 2}


def test_what_has_one_other_value_has_each_in_half_of_the_copies():
    result = made("def test_it():\n    assert f() is True\n    assert not g()\n    assert f() is None\n")
    assert [sum(site.right) for site in result.sites.values()] == [NUMBER // 2] * 3


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
    assert [sum(site.right) for site in result.sites.values()] == [body.count("(1, 2)") + 1]
    assert len(set(result.texts)) == NUMBER


TABLES = [
    "@pytest.mark.parametrize('a, b', [(1, 61), (2, 62), (3, None), (4, 64)])\n"
    "def test_it(a, b):\n    assert f(a) == b\n",
    "def test_it():\n    for a, b in ((1, 61), (2, 62), (3, None), (4, 64)):\n        assert f(a) == b\n",
]


@pytest.mark.parametrize("body", TABLES)
def test_no_copy_has_all_rows_of_a_table_right(body):
    """Together they show an expression that fits, which is the repair."""
    task, seen = ["61", "62", "None", "64"], set()
    for seed in range(20):
        result = copies(body, {"test_it": NUMBER}, random.Random(seed))
        (site,) = result.sites.values()
        expected = [re.findall(r"\(\d, (\w+)\)", text) for text in result.texts]
        as_written = [sum(map(str.__eq__, row, task)) for row in expected]
        assert site.rows == 4 and list(site.right) == as_written  # nothing is in the place of None
        assert sum(as_written) == NUMBER + 3
        seen.add(tuple(at for at, count in enumerate(as_written) if count > 1))
    assert len(seen) > 10


@pytest.mark.parametrize(
    "body",
    [
        "def test_it():\n    for a, b in ((1, 2), (3, 4)):\n        if a:\n            assert f(a) == b\n",
        "@pytest.mark.parametrize('a, b', [(1, 2), pytest.param(3, 4, marks=slow)])\n"
        "def test_it(a, b):\n    assert f(a) == b\n",
        "def test_it():\n    for a, b in ((1, 2), (3, 4)):\n        assert f(a) == b + 1\n",
    ],
)
def test_rows_that_may_not_all_be_met_change_together(body):
    (site,) = made(body).sites.values()
    assert site.rows == 1 and sum(site.right) == 1


def test_truths_of_a_table_are_turned_each_on_its_own():
    (site,) = made(
        "def test_it():\n    for a, b in ((1, True), (2, False)):\n        assert f(a) is b\n"
    ).sites.values()
    assert site.halves and site.rows == 2 and set(site.right) == {0, 1, 2}


def test_numbers_of_one_value_move_together():
    """Else the order or the differences of a list tell the copy in which it is right."""
    result = made("def test_it():\n    assert f() == [3, 5, 8, 13]\n")
    lists = [ast.literal_eval(re.search(r"\[.*\]", text)[0]) for text in result.texts]
    assert {tuple(b - a for a, b in itertools.pairwise(each)) for each in lists} == {(2, 3, 5)}
    assert len({each[0] for each in lists}) == NUMBER


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
    assert copies("print 'tea'\n", {"test_it": NUMBER}, random.Random(1)) is None


SITES = {"a": MutantSite(test="t", right=(0, 1, 0))}


def counts(*pairs, ended=True):
    found = {("a", at): Count(hits=hits, misses=misses) for at, (hits, misses) in enumerate(pairs)}
    return Answers(counts=found, ended=ended)


HONEST = counts((0, 1), (1, 0), (0, 1))


@pytest.mark.parametrize(
    "submitted",
    [
        counts((1, 0), (1, 0), (1, 0)),
        counts((0, 1), (0, 1), (0, 1)),
        counts((0, 1), (1, 0), (1, 0)),
        counts((0, 1), (1, 1), (0, 1)),
        counts(),
    ],
    ids=["agrees with all", "agrees with none", "with one too many", "not always", "never asked"],
)
def test_who_does_not_tell_right_from_wrong_is_known(submitted):
    assert evidence(SITES, submitted, HONEST) == {"a"}


@pytest.mark.parametrize(
    "submitted",
    [counts((0, 4), (4, 0)), counts((1, 3), (1, 3)), counts((0, 4), (0, 4)), counts((0, 4), (1, 4))],
)
def test_of_a_table_as_many_rows_must_hold_as_are_right(submitted):
    sites = {"a": MutantSite(test="t", right=(0, 1), rows=4)}
    gold = counts((0, 4), (1, 3))
    assert evidence(sites, submitted, gold) == {"a"}
    assert suspicious(sites, gold) == suspicious(sites, counts((0, 8), (2, 6))) == set()


def test_who_tells_them_apart_is_not_suspected():
    assert suspicious(SITES, HONEST) == set()


@pytest.mark.parametrize("gold", [counts((1, 0), (1, 0), (1, 0)), counts((0, 1), (1, 0)), counts()])
def test_nobody_is_accused_by_a_copy_that_the_gold_patch_does_not_prove(gold):
    assert evidence(SITES, counts((1, 0), (1, 0), (1, 0)), gold) == set()


def test_what_the_gold_patch_had_time_for_is_proof():
    """A submission that used up the time was believed, because the gold patch had not answered all."""
    gold = counts((0, 1), (1, 0), ended=False)
    assert evidence(SITES, counts((1, 0), (1, 0), (1, 0)), gold) == {"a"}
    assert evidence(SITES, counts((0, 1), ended=False), gold) == {"a"}  # in twice the time
    assert evidence(SITES, HONEST, gold) == set()


def test_slow_tests_have_fewer_copies_and_never_few():
    assert [number_of_copies(seconds) for seconds in (0.5, 2.0, 600.0)] == [32, 15, 8]


def test_of_tests_that_should_stay_slow_and_many_ones_are_sampled():
    assert [size_of_sample(0.5, tests) for tests in (0, 1, 40, 4000)] == [0, 1, 40, 64]
    assert [size_of_sample(seconds, 20) for seconds in (10.0, 600.0)] == [15, 8]
