"""Drills for a tiny model before its first errand: to copy words and to find a value beside a name.

From nothing, a model of 0.2 million parameters learns the forms of calls long before it copies a name
that it has not seen. Short texts teach that soonest: most drills have a word or two, and some have
ten. Once it copies, drills of two calls teach it to take a value out of a result. They are of the
words of errands, but no errand, world, tool or test script is among them.
"""

import json
import random
from collections.abc import Iterator
from typing import Any

from orchard.pipelines.domains.claw.errands import HANDLES, MONTHS
from orchard.pipelines.domains.claw.templates import FIRST, LAST, THINGS, WORKS

SOURCE = "drills"
_WORDS = (*FIRST, *LAST, *THINGS, *WORKS, *HANDLES, *MONTHS)
_NUMBERS = 0.15
"""Share of the words that are numbers."""
_TOOLS = ("note_add", "list_add", "find", "tag_set", "log_put")
_VALUES = (
    *(("email", "to", "{0}@example.com"), ("email", "to", "{1}.{2}@example.com")),
    *(("id", "item", "p{0}"), ("place", "item", "{1}-{2}"), ("place", "item", "{0}-{2}")),
)
"""Field of a record, argument that takes its value, and form of the value: of a word or number, and the two
words of the name."""
_KEYS = ("query", "text", "to", "subject", "count", "day")

Messages = list[dict[str, Any]]


def drills(seed: int, count: int, *, long: bool = False) -> Iterator[tuple[int, dict[str, Any]]]:
    """Conversations with their numbers, in the layout that `importing.released` reads. Of the `long` ones
    two in five look something up with a call and use it in another."""
    kinds = _LONG if long else _SHORT
    for number in range(count):
        name = f"{'long-' if long else ''}drill-{seed}-{number}"
        dice = random.Random(name)
        messages = dice.choice(kinds)(dice)
        named = {call["function"]["name"] for each in messages for call in each.get("tool_calls", ())}
        tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in sorted(named)]
        metadata = {
            "instance_id": name,
            "source": SOURCE,
            "model": SOURCE,
            "verify_status": "resolved",
        }
        yield (
            number,
            {"messages": messages, "tools": json.dumps(tools), "metadata": json.dumps(metadata)},
        )


def _few(dice: random.Random, most: int) -> int:
    """A number from 1 to `most`, small ones more often."""
    return min(dice.randint(1, most), dice.randint(1, most))


def _words(dice: random.Random, most: int) -> str:
    return " ".join(
        str(dice.randrange(1, 100)) if dice.random() < _NUMBERS else dice.choice(_WORDS)
        for _ in range(_few(dice, most))
    )


def _repeated(dice: random.Random) -> Messages:
    """Some words, once or a few times."""
    text = _words(dice, 10)
    return [_user(f"Repeat: {text}"), _said("\n".join([text] * dice.randint(1, 3)))]


def _looked_up(dice: random.Random) -> Messages:
    """Records, and a value beside a name in one of them."""
    count = _few(dice, 6)
    names = list(map(" ".join, zip(dice.sample(_WORDS, count), dice.sample(_WORDS, count), strict=True)))
    field, form = dice.choice((("email", "{}@example.com"), ("code", "{}"), ("place", "{}"), ("id", "p{}")))
    values = dice.sample(range(10, 100) if field == "id" else _WORDS, count)
    told = [form.format(value) for value in values]
    shown = "".join(
        json.dumps({"name": name, field: value}, separators=(",", ":"))
        for name, value in zip(names, told, strict=True)
    )
    messages: Messages = []
    for at in dice.sample(range(count), min(count, 3)):
        messages += [_user(names[at] if messages else f"{shown}\n{names[at]}"), _said(told[at])]
    return messages


def _called(dice: random.Random) -> Messages:
    """A call with the arguments that are given."""
    tool = dice.choice(_TOOLS)
    arguments = {key: _words(dice, 4) for key in dice.sample(_KEYS, _few(dice, 3))}
    text = ", ".join(f"{key} is {value}" for key, value in arguments.items())
    return [_user(f"{tool}: {text}"), *_call(0, tool, arguments, "ok"), _said("Done.")]


def _fetched(dice: random.Random) -> Messages:
    """A record is looked up by its name; a value in it, and words of the request, go into a second call."""
    ask, act = dice.sample(_TOOLS, 2)
    words = dice.sample(_WORDS, 2)
    name = " ".join(words)
    field, key, form = dice.choice(_VALUES)
    free = dice.randrange(10, 100) if field == "id" else dice.choice(_WORDS).lower()
    value = form.format(free, *(word.lower() for word in words))
    others = [("number", f"c{dice.randrange(1, 9)}"), ("left", dice.randrange(10)), ("tags", [])]
    fields = [("name", name), (field, value), *dice.sample(others, dice.randrange(3))]
    found = {"items": [dict(dice.sample(fields, len(fields)))], "total": 1}
    text, count = _words(dice, 2), dice.randrange(1, 100)
    day = f"{dice.randrange(1, 32)} {dice.choice(_WORDS)}"
    told, given = str(count), dict[str, Any](count=count)
    if dice.random() < 0.5:
        told, given = f"{text} for {day}", {"subject": text, "body": f"The {text} for {day}."}
    sent = {key: [value] if key == "to" else value, **given}
    return [
        _user(f"{ask} {name}, then {act} the {told}."),
        *_call(0, ask, {"query": name}, json.dumps(found, separators=(",", ":"))),
        *_call(1, act, sent, json.dumps({"id": "x", **sent}, separators=(",", ":"))),
        _said("Done."),
    ]


def _call(number: int, tool: str, arguments: dict[str, Any], result: str) -> Messages:
    """A call and its result."""
    function = {"name": tool, "arguments": json.dumps(arguments)}
    call = {"id": f"call-{number}", "type": "function", "function": function}
    return [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": result},
    ]


_SHORT = (_repeated, _repeated, _looked_up, _called)
_LONG = (_repeated, _looked_up, _called, _fetched, _fetched)


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}
