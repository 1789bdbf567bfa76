"""What an attacker tells: nothing raises but what callers expect, and no answer decides how it is
compared."""

import base64
import json
import zlib

import msgspec
import pytest

from orchard.schemas.protection import Protected
from orchard.workers.domains.swe.sheets.answering import answered_run
from orchard.workers.domains.swe.sheets.conditions import holds
from orchard.workers.domains.swe.sheets.drafts import Draft
from orchard.workers.domains.swe.sheets.labels import SheetWords, label_of
from orchard.workers.domains.swe.sheets.making import without_sheet
from orchard.workers.domains.swe.sheets.sheet import ExpectedVisit, SheetTest, wrong
from orchard.workers.domains.swe.sheets.told import Told
from orchard.workers.domains.swe.sheets.values import _READERS, NotHeld, Unclear, decode
from orchard.workers.domains.swe.testing import TestRun
from orchard.workers.domains.swe.verdict import judge

BODIES = [
    *(
        None,
        True,
        -1,
        10**400,
        "",
        "x",
        "nan",
        "sNaN",
        "\ud800",
        "\0",
        [],
        {},
        [[]],
        [[], []],
        [1, 0],
        ["nan"] * 6,
    ),
    *([[], [], None, True, True, None], [["X"], [], None, True, True, None], [["X"], "y", {"any": True}]),
    *([None] * 6, [[], [], []], [{}] * 5, [["\0"], 3, False, None], [["X"], [["a"]], None, 1, 1, 1]),
    *({"list": {"list": []}}, [{"own": []}], [[["a"]], [], []], [["X", "int"], "y", 225]),
]
EQUAL = ["compare", ["leaf", 0], ["Eq"], [["pure", 0]]]
EXPECTED = [
    225,
    "tea",
    {"list": [1, 2]},
    {"float": "2.5"},
    None,
    {"approx": [{"float": "1"}, None, None, False]},
]


def nested(depth):
    found = 1
    for _ in range(depth):
        found = {"list": [found]}
    return found


@pytest.mark.parametrize("kind", [*_READERS, "unknown", ""])
def test_a_malformed_answer_is_a_wrong_one(kind):
    for body in BODIES:
        for told in ({kind: body}, {"list": [{kind: body}]}, {"dict": [[{kind: body}, {kind: body}]]}):
            for expected in EXPECTED:
                assert wrong(EQUAL, [expected], [told]) or _is_it(told, expected), (told, expected)


def _is_it(told, expected):
    """Whether what was told is what is expected."""
    try:
        return bool(decode(told, trusted=False) == decode(expected))
    except Exception:
        return False


@pytest.mark.parametrize(
    "condition",
    [
        EQUAL,
        ["compare", ["leaf", 0], ["Is"], [["pure", 0]]],
        ["compare", ["pure", 0], ["In"], [["leaf", 0]]],
        ["compare", ["leaf", 0], ["Lt"], [["pure", 0]]],
        ["isinstance", ["leaf", 0], ["pure", 0]],
        ["raises", 0, ["pure", 0]],
        ["search", ["leaf", 0], ["pure", 0]],
        ["all", EQUAL, [0], [0]],
        ["counts", ["leaf", 0], ["pure", 0]],
        ["arrays", ["leaf", 0], ["pure", 0]],
        ["called:assert_any_call", ["leaf", 0], ["pure", 0]],
        ["not", ["leaf", 0]],
    ],
)
def test_evaluating_an_answer_raises_only_its_own_exceptions(condition):
    for kind in _READERS:
        for body in BODIES:
            try:
                answer = decode({kind: body}, trusted=False)
                holds(condition, [answer], [decode(EXPECTED[0])])
            except (Unclear, NotHeld):
                pass
            assert isinstance(wrong(condition, [225], [{kind: body}]), str)


@pytest.mark.parametrize("told", [
    {"any": True},
    {"approx": [0, None, {"float": "1e308"}, True]},
    {"list": [{"any": True}]},
    {"dict": [["a", {"any": True}]]},
    {"enum": [["X", "int"], "y", {"any": True}]},
    {"own": [["X"], {"any": True}, False, None]},
    {"object": [["X"], [["a", {"any": True}]], None, False, True, None]},
    {"object": [["X"], [], None, True, True, None]},
    nested(40),
    nested(3000),
    {"deep": "list"},
])  # fmt: skip
def test_no_answer_is_equal_to_what_it_does_not_know(told):
    for expected in (225, {"list": [225]}, {"dict": [["a", 225]]}, {"deep": "list"}):
        assert wrong(EQUAL, [expected], [told])
        assert wrong(["not", EQUAL], [expected], [told]) or "any" not in json.dumps(told)[:400]


def test_answers_that_are_missing_or_too_many():
    assert wrong(EQUAL, [225], [])
    assert not wrong(EQUAL, [225], [225, 226])
    assert wrong(EQUAL, [], [225])


def test_a_plain_enumeration_is_not_its_value():
    member = {"enum": [["Colour", "Enum"], "RED", 225]}
    assert wrong(EQUAL, [225], [member])
    assert not wrong(EQUAL, [225], [{"enum": [["Size", "IntEnum", "int"], "BIG", 225]}])


@pytest.mark.long
def test_a_search_that_does_not_end_is_a_wrong_answer():
    search = ["search", ["leaf", 0], ["pure", 0]]
    assert "does not end" in wrong(search, ["(a|a)+$"], ["a" * 60 + "b"])


@pytest.mark.parametrize("condition", [
    ["compare", ["pure", 0], ["In"], [["leaf", 0]]],
    ["search", ["leaf", 0], ["pure", 0]],
    ["raises", 0, ["pure", 0]],
])  # fmt: skip
def test_a_dictionary_of_words_earns_echo_at_most(condition):
    key = [{"class": ["Refused"]}] if condition[0] == "raises" else ["must be positive"]
    assert label_of(condition, key, SheetWords([])) in (Protected.ECHO, Protected.BIT)
    same = Protected.ECHO if condition[0] == "raises" else Protected.VALUE
    assert label_of(EQUAL, key, SheetWords([])) is same, "a class stands in the repository"


@pytest.mark.parametrize(
    ("condition", "key"),
    [
        (EQUAL, [{"approx": [{"float": "0.0369"}, None, {"float": "0.5"}, False]}]),
        (["almost", ["leaf", 0], ["pure", 0], ["pure", 1], ["pure", 2]], [{"float": "0.0861"}, None, 10]),
        (["compare", ["leaf", 0], ["In"], [["pure", 0]]], ["Unguja, Pemba, Mafia"]),
        (EQUAL, [{"object": [["_Sentinel"], [], None, False, True, None]}]),
        (["search", ["pure", 0], ["leaf", 0]], ["Zanzibar 77"]),
    ],
)
def test_what_a_guess_passes_is_one_bit(condition, key):
    assert label_of(condition, key, SheetWords([])) is Protected.BIT


def test_who_is_asked_about_what_is_expected_may_echo_it():
    assert label_of(EQUAL, [4711], SheetWords([])) is Protected.VALUE
    assert label_of(EQUAL, [4711], SheetWords([]), inputs=(0,)) is Protected.ECHO


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{",
        "[]",
        "3",
        "null",
        '{"ask": "x"}',
        '{"ask": 1, "got": 3, "key": "x"}',
        '{"ask": true}',
        '{"token": []}',
        '{"test": 3, "status": 4}',
        '{"test": "tests/a.py::t", "status": ["PASSED"]}',
        '{"begin": {}}',
        "[" * 100000,
        '{"ask": ' + "9" * 5000 + "}",
        '{"test": "tests/b.py::t", "status": "PASSED"}',
        "\ud800",
        '{"ask": 1e999}',
        '{"ask": NaN, "got": [NaN]}',
        '{"done": []}',
        '{"begin": "tests/b.py::t"}',
    ],
)
def test_a_strange_line_of_a_report_tells_nothing(line):
    good = [{"begin": "tests/a.py::t"}, {"ask": 1, "got": [5]}, {"test": "tests/a.py::t", "status": "PASSED"}]
    text = "\n".join([json.dumps(good[0]), line, *map(json.dumps, good[1:]), ""])
    told = Told()
    told.add(base64.b64encode(zlib.compress(text.encode(errors="surrogatepass"))).decode(), "tests/a.py")
    assert list(told.tests) == ["tests/a.py::t"]
    test = told.tests["tests/a.py::t"]
    assert test.status == "PASSED"
    assert [5] in [visit.got for visit in test.visits]
    assert all(isinstance(visit.ask, int) for visit in test.visits)


def test_a_private_class_may_have_another_name():
    ours, theirs, other = (
        {"object": [[name], [["n", 3]], None, False, True, None]} for name in ("_A", "_B", "C")
    )
    assert wrong(EQUAL, [ours], [theirs]) == ""
    assert wrong(EQUAL, [{"tuple": [{"class": ["_A"]}]}], [{"tuple": [{"class": ["_B"]}]}]) == ""
    assert wrong(EQUAL, [ours], [other])
    same_type = ["isinstance", ["leaf", 0], ["pure", 0]]
    assert (
        wrong(
            same_type, [{"class": ["_A", "tuple"]}], [{"own": [["_B", "tuple"], {"tuple": []}, False, None]}]
        )
        == ""
    )
    assert wrong(same_type, [{"class": ["_A", "tuple"]}], [{"tuple": []}])


@pytest.mark.parametrize("end", ["", " x", "\t", "\n x", " - x", "\u00a0x"])
def test_the_status_of_another_name_is_not_that_of_a_test_without_an_answer(end):
    name = "tests/a.py::t"
    sheet = msgspec.structs.replace(
        without_sheet(""),
        conditions={1: EQUAL},
        lines={1: 1},
        tests={
            name: SheetTest(
                name=name, status="PASSED", visits=(ExpectedVisit(1, [225]),), label=Protected.VALUE
            )
        },
    )
    lines = [{"begin": name + end}, {"ask": 1, "got": [1]}, {"test": name + end, "status": "PASSED"}]
    told = Told()
    text = "\n".join(map(json.dumps, lines))
    told.add(base64.b64encode(zlib.compress(text.encode())).decode(), "tests/a.py")
    statuses = {each: test.status for each, test in told.tests.items()}
    run = answered_run(sheet, TestRun(statuses=statuses, exit_code=0, log="", told=told))
    assert not judge(run.statuses, [name], []).resolved


MODULUS = 2**61 - 1
"""Integers that differ by it have one hash."""
BOMBS = [
    {"fraction": ["1e99999999"]},
    {"set": [MODULUS * number for number in range(60_000)]},
    {"dict": [[MODULUS * number, 0] for number in range(60_000)]},
    {"list": [{"own": [["A"], 1, 0, 0]}] * 300_000},
    {"array": ["f", [3_000_000_000, "x"], []]},
    {"decimal": "1e999999999"},
    {"timedelta": [10**9] * 3},
]


@pytest.mark.long
@pytest.mark.parametrize("answer", [*BOMBS, *({"list": [each]} for each in BOMBS)])
def test_no_answer_keeps_the_worker_busy(answer):
    """They took minutes and gigabytes once."""
    told = Told()
    line = json.dumps({"ask": 1, "got": [answer]})
    text = f'{{"begin": "tests/a.py::t"}}\n{line}'
    told.add(base64.b64encode(zlib.compress(text.encode())).decode(), "tests/a.py")
    (visit,) = told.tests["tests/a.py::t"].visits
    for condition in (EQUAL, ["leaf", 0], ["almost", ["leaf", 0], ["pure", 0], ["pure", 1], ["pure", 1]]):
        assert condition == ["leaf", 0] or wrong(condition, [225, None], visit.got)


@pytest.mark.long
@pytest.mark.parametrize("line", ["", "{}", '{"ask": 1}'])
def test_a_report_of_too_many_lines_is_not_read_to_its_end(line):
    told = Told()
    text = '{"begin": "tests/a.py::t"}\n' + f"{line}\n" * (20 * 2**20 // (len(line) + 1))
    told.add(base64.b64encode(zlib.compress(text.encode(), 1)).decode(), "tests/a.py")
    assert len(told.tests["tests/a.py::t"].visits) <= 200_000


def test_what_is_asked_before_any_test_begins_is_noted():
    told = Told()
    lines = [{"ask": 7, "got": [1]}, {"begin": "tests/a.py::t"}, {"ask": 8, "got": [1]}]
    text = "\n".join(map(json.dumps, lines))
    told.add(base64.b64encode(zlib.compress(text.encode())).decode(), "tests/a.py")
    assert told.outside == {7}


def test_assertions_asked_outside_of_tests_are_left_in_the_tests():
    draft = Draft({"tests/a.py": "def check(x):\n    assert x == 5\n"}, lambda _: False)
    assert "__ask__" in draft.files()["tests/a.py"]
    draft.learn([], set(draft.sites))
    assert "assert x == 5" in draft.files()["tests/a.py"]
