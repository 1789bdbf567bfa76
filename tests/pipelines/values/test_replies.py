"""What an annotator may answer: rules by example, and ten thousand malformed replies."""

import json
import math
import random
from itertools import pairwise
from typing import Any

import pytest

from orchard.pipelines.values.curves import DEFAULT_BASE
from orchard.pipelines.values.replies import (
    FINAL_LIMIT,
    BadReply,
    Fault,
    Reading,
    needed_key_steps,
    read_reply,
)

STEPS = 40
GOOD: list[dict[str, Any]] = [
    {"step": -1, "p_resolve": 0.35, "reasoning": "base"},
    {"step": 0, "p_resolve": 0.4, "reasoning": "looks around"},
    {"step": 9, "p_resolve": 0.7, "reasoning": "finds the file"},
    {"step": 20, "p_resolve": 0.3, "reasoning": "edits the wrong line"},
    {"step": 39, "p_resolve": 0.05, "reasoning": "submits it"},
]


def changed(at: int, **fields: Any) -> list[dict[str, Any]]:
    return [{**entry, **(fields if index == at else {})} for index, entry in enumerate(GOOD)]


def fault_of(reply: Any, steps: int = STEPS) -> Fault:
    with pytest.raises(BadReply) as refused:
        read_reply(reply if isinstance(reply, str) else json.dumps(reply), steps)
    return refused.value.fault


def test_a_good_reply_is_read() -> None:
    reading = read_reply(json.dumps(GOOD), STEPS)
    assert reading.base == 0.35
    assert [key.step for key in reading.key_steps] == [0, 9, 20, 39]
    assert reading.key_steps[1].reasoning == "finds the file"
    assert len(reading.curve) == STEPS
    assert reading.flags == ()


@pytest.mark.parametrize(
    "wrapping",
    [
        "{}",
        "  \n{}\n",
        "```json\n{}\n```",
        "```\n{}```",
        "<think>[1, 2] let me see</think>\n{}",
        "no opening tag</think>```json\r\n{}\r\n```",
        "<thinking>a</thinking><THINK>b</THINK>{}",
    ],
)
def test_thoughts_and_fences_are_stripped(wrapping: str) -> None:
    text = wrapping.replace("{}", json.dumps(GOOD))
    assert read_reply(text, STEPS) == read_reply(json.dumps(GOOD), STEPS)


def test_the_base_is_assumed_and_flagged_when_left_out() -> None:
    reading = read_reply(json.dumps(GOOD[1:]), STEPS)
    assert reading.base == DEFAULT_BASE
    assert reading.flags == ("base_default",)


def test_the_order_of_entries_does_not_matter() -> None:
    assert read_reply(json.dumps(GOOD[::-1]), STEPS) == read_reply(json.dumps(GOOD), STEPS)


def test_percents_are_rescaled_only_when_all_are() -> None:
    percents = [{**entry, "p_resolve": round(entry["p_resolve"] * 100)} for entry in GOOD]
    reading = read_reply(json.dumps(percents), STEPS)
    assert reading.flags == ("percent",)
    assert reading.curve == pytest.approx(read_reply(json.dumps(GOOD), STEPS).curve)
    assert fault_of(changed(2, p_resolve=70)) is Fault.P_OUT_OF_RANGE


@pytest.mark.parametrize(
    ("reply", "fault"),
    [
        ("", Fault.NOT_JSON_ARRAY),
        ("I cannot do that.", Fault.NOT_JSON_ARRAY),
        (json.dumps(GOOD) + json.dumps(GOOD), Fault.NOT_JSON_ARRAY),
        (f"For example {json.dumps(GOOD[:1])}, here: {json.dumps(GOOD)}", Fault.NOT_JSON_ARRAY),
        (json.dumps(GOOD[:4]) + ", " + json.dumps(GOOD[4]) + "]", Fault.NOT_JSON_ARRAY),
        (f'From [{{"a": 1}}]: {json.dumps(GOOD[:4])}, {json.dumps(GOOD[4:])}', Fault.NOT_JSON_ARRAY),
        ('[{"a":' * 100_000, Fault.NOT_JSON_ARRAY),
        ({"steps": GOOD}, Fault.NOT_JSON_ARRAY),
        ("[" * 100_000, Fault.NOT_JSON_ARRAY),
        ("[" + "9" * 5000 + "]", Fault.NOT_JSON_ARRAY),
        (" " * 1_000_001, Fault.TOO_LONG),
        ([*GOOD, 3], Fault.NOT_OBJECT),
        ('[{"step": 1, "step": 2, "p_resolve": 0.1}]', Fault.NOT_OBJECT),
        (changed(1, step=1.0), Fault.STEP_NOT_INTEGER),
        (changed(1, step=True), Fault.STEP_NOT_INTEGER),
        (changed(1, step="1"), Fault.STEP_NOT_INTEGER),
        ([{"p_resolve": 0.5}], Fault.STEP_NOT_INTEGER),
        (changed(4, step=STEPS), Fault.STEP_OUT_OF_RANGE),
        (changed(0, step=-2), Fault.STEP_OUT_OF_RANGE),
        (changed(1, step=10**4000), Fault.STEP_OUT_OF_RANGE),
        (changed(2, step=0), Fault.STEP_REPEATED),
        (changed(2, p_resolve="0.7"), Fault.P_NOT_NUMBER),
        (changed(2, p_resolve=None), Fault.P_NOT_NUMBER),
        (changed(2, p_resolve=False), Fault.P_NOT_NUMBER),
        (changed(2, p_resolve=-0.1), Fault.P_OUT_OF_RANGE),
        (changed(2, p_resolve=101), Fault.P_OUT_OF_RANGE),
        (changed(2, p_resolve=math.nan), Fault.P_OUT_OF_RANGE),
        (changed(2, p_resolve=math.inf), Fault.P_OUT_OF_RANGE),
        (json.dumps(GOOD).replace("0.7", "1e999"), Fault.P_OUT_OF_RANGE),
        (changed(2, reasoning=7), Fault.REASONING_NOT_TEXT),
        (changed(2, reasoning="\ud800"), Fault.REASONING_NOT_TEXT),
        (GOOD[:3], Fault.TOO_FEW_KEY_STEPS),
        ([], Fault.TOO_FEW_KEY_STEPS),
        ([{**entry, "p_resolve": 0.1} for entry in GOOD], Fault.CONSTANT),
        ([{**entry, "p_resolve": i / 100} for i, entry in enumerate(GOOD)], Fault.MONOTONE_RISING),
        (changed(4, p_resolve=0.2), Fault.FINAL_TOO_HIGH),
    ],
)
def test_each_broken_rule_is_refused_by_its_name(reply: Any, fault: Fault) -> None:
    assert fault_of(reply) is fault


def test_long_trajectories_need_a_tenth_of_their_steps_and_short_ones_all() -> None:
    assert [needed_key_steps(steps) for steps in (1, 2, 3, 30, 31, 100, 250)] == [1, 2, 3, 3, 4, 10, 25]
    assert fault_of(GOOD, 50) is Fault.TOO_FEW_KEY_STEPS


def test_an_end_that_stays_high_comes_with_its_clamped_reading() -> None:
    with pytest.raises(BadReply) as refused:
        read_reply(json.dumps(changed(4, p_resolve=0.28)), STEPS)
    reading = refused.value.clamped
    assert reading is not None
    assert reading.curve[-1] == FINAL_LIMIT
    assert reading.flags == ("final_clamped",)


def test_refusals_are_short_whatever_the_reply() -> None:
    for reply in (changed(1, step=10**4000), changed(2, p_resolve=[[]] * 9999), [["x" * 10**5]]):
        with pytest.raises(BadReply) as refused:
            read_reply(json.dumps(reply), STEPS)
        assert len(str(refused.value)) < 400


ATOMS: list[Any] = [
    *(None, True, False, -1, 0, 1, 2, 39, 40, 10**30, 0.0, 0.5, 1.0, 1.5, 50, 100, 101, -0.0, -3.5),
    *(math.nan, math.inf, "", "0.5", "\ud800", "</think>", "```", [], {}, [[]], {"step": 1}),
]


def mutant(rng: random.Random) -> str:
    """A good reply with one to four things done to it, as data and then as text."""
    entries: list[Any] = [dict(entry) for entry in GOOD]
    for _ in range(rng.randint(1, 4)):
        index = rng.randrange(len(entries)) if entries else 0
        match rng.randrange(7):
            case 0 if entries and isinstance(entries[index], dict):
                entries[index][rng.choice(["step", "p_resolve", "reasoning", "extra"])] = rng.choice(ATOMS)
            case 1 if entries and isinstance(entries[index], dict):
                entries[index].pop(rng.choice(["step", "p_resolve", "reasoning"]), None)
            case 2 if entries:
                del entries[index]
            case 3:
                entries.insert(index, rng.choice(ATOMS))
            case 4 if entries:
                entries.append(entries[index])
            case 5 if entries and isinstance(entries[index], dict):
                entries[index]["p_resolve"] = rng.choice(
                    [rng.random(), rng.random() * 100, rng.randint(-5, 105)]
                )
            case _:
                rng.shuffle(entries)
    text = json.dumps(rng.choice([entries] * 9 + [{"entries": entries}]))
    for _ in range(rng.choice([0, 0, 0, 1, 2, 5])):
        at = rng.randrange(len(text) + 1)
        junk = rng.choice(
            ["[", "]", "{", "}", ",", '"', "\\", "\\u12", "0", "1e", "-", "\x00", "é", "<think>", "NaN"]
        )
        match rng.randrange(4):
            case 0:
                text = text[:at]
            case 1:
                text = text[:at] + junk + text[at:]
            case 2:
                text = text[:at] + text[at + rng.randint(1, 9) :]
            case _:
                text = junk + text
    return text


def lawful(reading: Reading, steps: int) -> bool:
    """Every rule of the replies, said again."""
    keys = [key.step for key in reading.key_steps]
    points = [reading.base] * ("base_default" not in reading.flags) + [
        key.p_resolve for key in reading.key_steps
    ]
    return (
        all(type(step) is int and 0 <= step < steps for step in keys)
        and keys == sorted(set(keys))
        and len(keys) >= max(3, math.ceil(steps / 10))
        and all(type(p) is float and math.isfinite(p) and 0 <= p <= 1 for p in (*points, *reading.curve))
        and any(after < before for before, after in pairwise(points))
        and len(reading.curve) == steps
        and reading.curve[-1] < FINAL_LIMIT
        and all(abs(reading.curve[key.step] - key.p_resolve) < 1e-12 for key in reading.key_steps)
    )


def test_ten_thousand_malformed_replies_crash_nothing_and_break_no_rule() -> None:
    rng = random.Random(4)
    accepted = 0
    for number in range(10_000):
        text = mutant(rng)
        try:
            reading = read_reply(text, STEPS)
        except BadReply as refused:
            assert refused.fault in Fault
            assert (refused.clamped is not None) == (refused.fault is Fault.FINAL_TOO_HIGH)
            continue
        assert lawful(reading, STEPS), (number, text)
        accepted += 1
    assert 200 < accepted < 5000, "the mutants are neither all harmless nor all garbage"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("Here are the key steps:\n", ""),
        ("The array of steps (as asked), p in per cent: ", ""),
        ("Sure!\n```json\n", "\n```"),
        ("```json\n", "\n```\nLet me know."),
        ("", '\n\n"p_resolve" drops at step 3 [the edit].'),
        ("Key steps [0, 3, 5] matter, p[3] most, as {step, p_resolve}:\n", ""),
        ("word " * 1000, ""),
        ('The edit wrote [{"a": 1}] into the file.\n', ""),
        ('It read [{"a": NaN, "a": 2}]. ', ' Then it wrote [{"b": []}].'),
        (f"It wrote {json.dumps([{'a': [{}]}] * 200)}.\n", ""),
    ],
)
def test_sentences_around_the_array_are_read_past(before: str, after: str) -> None:
    array = json.dumps(
        [{"step": step, "p_resolve": p, "reasoning": ""} for step, p in enumerate((0.4, 0.7, 0.1))]
    )
    assert read_reply(before + array + after, 3) == read_reply(array, 3)


@pytest.mark.parametrize("text", ["[note] [{}]", "{} [{}]", "Steps [0, 1]: []", "none"])
def test_what_is_no_sentence_is_not_read_past(text: str) -> None:
    with pytest.raises(BadReply):
        read_reply(text, 3)
