"""Reads an annotator's reply: a strict reader of untrusted text, whose refusals name the broken rule.

`Fault` has the rules. Two need a word: a trajectory shorter than three steps needs a key step for each
of its steps; and the base, asked for as step -1, counts among the points that must not be constant or
only rise when the annotator gave it.
"""

import json
import math
import re
from enum import StrEnum
from itertools import pairwise
from typing import Any, NoReturn

import msgspec

from orchard.pipelines.values.curves import DEFAULT_BASE, TOLERANCE, interpolate
from orchard.schemas.values import KeyStep

FINAL_LIMIT = 0.2
"""Limit of p at the end of a failed trajectory; after the last try it is set to this and flagged."""
MIN_KEY_STEPS = 3
KEY_STEP_SHARE = 0.1
REPLY_LIMIT = 1_000_000
"""Maximum characters of a reply."""
REASONING_LIMIT = 500
"""Characters that are kept of each reason."""

_THINKING = re.compile(r"\A.*</(?:think|thinking|reasoning)>", re.DOTALL | re.IGNORECASE)
"""All up to the end of the last thought; greedy, so that hostile text costs no more than its length."""
_ARRAY = re.compile(r"\[\s*\{")
"""The possible beginning of an array of objects."""
STARTS = 100
"""Places at which an array is tried: so hostile text costs a hundred times its length at most."""


class Fault(StrEnum):
    """The rule that a reply broke."""

    TOO_LONG = "too_long"
    NOT_JSON_ARRAY = "not_json_array"
    NOT_OBJECT = "not_object"
    STEP_NOT_INTEGER = "step_not_integer"
    STEP_OUT_OF_RANGE = "step_out_of_range"
    STEP_REPEATED = "step_repeated"
    P_NOT_NUMBER = "p_not_number"
    P_OUT_OF_RANGE = "p_out_of_range"
    REASONING_NOT_TEXT = "reasoning_not_text"
    TOO_FEW_KEY_STEPS = "too_few_key_steps"
    CONSTANT = "constant"
    MONOTONE_RISING = "monotone_rising"
    FINAL_TOO_HIGH = "final_too_high"
    BAD_CRITERION = "bad_criterion"
    """A criterion of a rubric, or one that a score names, is not as asked for."""
    BAD_SCORE = "bad_score"


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """An accepted reply."""

    base: float
    key_steps: tuple[KeyStep, ...]
    """Key steps by step, all in 0 .. steps - 1."""
    curve: tuple[float, ...]
    flags: tuple[str, ...] = ()
    turn_rewards: tuple[float, ...] = ()


class BadReply(Exception):
    """A reply is not accepted; the message tells the annotator what is wrong, for its next try."""

    def __init__(self, fault: Fault, detail: str, clamped: Reading | None = None) -> None:
        super().__init__(detail)
        self.fault = fault
        self.clamped = clamped
        """After FINAL_TOO_HIGH alone: the reading with its end set to FINAL_LIMIT, for after the last try."""


def read_reply(text: str, steps: int) -> Reading:
    """The curve that a reply states for a trajectory of `steps` >= 1 steps. Raises BadReply, nothing else."""
    entries = [_entry(item) for item in array_of(text, "p_resolve")]
    seen: set[int] = set()
    for step, _, _ in entries:
        if not -1 <= step < steps:
            refuse(
                Fault.STEP_OUT_OF_RANGE,
                f"step {quoted(step)} does not exist: steps are 0 to {steps - 1}, and -1 for the base rate",
            )
        if step in seen:
            refuse(Fault.STEP_REPEATED, f"step {step} is there more than once: give each step one entry")
        seen.add(step)
    scale, flags = _scale([p for _, p, _ in entries])
    points = {step: p * scale for step, p, _ in sorted(entries, key=lambda entry: entry[0])}
    reasons = {step: reasoning[:REASONING_LIMIT] for step, _, reasoning in entries}
    _check_form(points, steps)
    base = points.pop(-1, None)
    if base is None:
        base, flags = DEFAULT_BASE, [*flags, "base_default"]
    final = max(points)
    high = points[final] >= FINAL_LIMIT
    if high:
        stated = points[final]
        points[final], flags = FINAL_LIMIT, [*flags, "final_clamped"]
    reading = Reading(
        base=base,
        key_steps=tuple(
            KeyStep(step=step, p_resolve=p, reasoning=reasons[step]) for step, p in points.items()
        ),
        curve=interpolate(base, points, steps),
        flags=tuple(flags),
    )
    if high:
        raise BadReply(
            Fault.FINAL_TOO_HIGH,
            f"p_resolve is {stated:g} at the end, but the trajectory failed: it must end below {FINAL_LIMIT}",
            reading,
        )
    return reading


def needed_key_steps(steps: int) -> int:
    """How many distinct steps of a trajectory must have a value."""
    return min(steps, max(MIN_KEY_STEPS, math.ceil(KEY_STEP_SHARE * steps - TOLERANCE)))


def array_of(text: str, key: str) -> list[Any]:
    """The one JSON array of a reply. Each of its entries has `key` once, so an array has all entries of a
    reply that has no more of these. Raises BadReply."""
    if len(text) > REPLY_LIMIT:
        refuse(Fault.TOO_LONG, f"the reply has {len(text)} characters: answer with the JSON array alone")
    text = text.strip()
    if not text.startswith("["):
        text = _THINKING.sub("", text).strip()
    try:
        found = _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        found = _inside(text, re.compile(rf'"{key}"\s*:'), error)
    if not isinstance(found, list):
        refuse(Fault.NOT_JSON_ARRAY, "the reply is JSON, but not an array: answer with one JSON array")
    return found


def _inside(text: str, entry: re.Pattern[str], reason: Exception) -> list[Any]:
    """The one array with entries among sentences and fences, which may quote other arrays; `reason` is why
    the text is not JSON."""
    total = len(entry.findall(text))
    end = 0
    for _ in range(STARTS):
        if (place := _ARRAY.search(text, end)) is None:
            break
        start, end = place.span()
        try:
            _, end = _QUOTED.raw_decode(text, start)
            entries = len(entry.findall(text, start, end))
            if entries == total:
                found: list[Any] = _DECODER.raw_decode(text, start)[0]
                return found
        except (ValueError, RecursionError) as error:
            reason = error
            continue
        if entries:
            refuse(
                Fault.NOT_JSON_ARRAY,
                "not all entries are in one JSON array: answer with the JSON array alone",
            )
    raise BadReply(
        Fault.NOT_JSON_ARRAY,
        f"the reply is not JSON ({str(reason)[:200]}): answer with the JSON array alone",
    ) from reason


def _not_finite(constant: str) -> NoReturn:
    refuse(Fault.P_OUT_OF_RANGE, f"{constant} is no probability: give numbers from 0 to 1")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        refuse(
            Fault.NOT_OBJECT, f"an object names {quoted([name for name, _ in pairs])}: each name only once"
        )
    return found


_DECODER = json.JSONDecoder(parse_constant=_not_finite, object_pairs_hook=_object)
_QUOTED = json.JSONDecoder()
"""A decoder for arrays that need not be the annotator's."""


def _entry(item: Any) -> tuple[int, float, str]:
    if not isinstance(item, dict):
        refuse(
            Fault.NOT_OBJECT,
            f'{quoted(item)} is not an object: entries are {{"step", "p_resolve", "reasoning"}}',
        )
    step, p, reasoning = item.get("step"), item.get("p_resolve"), item.get("reasoning", "")
    if not isinstance(step, int) or isinstance(step, bool):
        refuse(Fault.STEP_NOT_INTEGER, f"step {quoted(step)} is not an integer")
    if not isinstance(p, int | float) or isinstance(p, bool):
        refuse(Fault.P_NOT_NUMBER, f"p_resolve {quoted(p)} of step {quoted(step)} is not a number")
    if not 0 <= p <= 100:  # also where it is infinite, as 1e999 is, or an integer too large for a float
        refuse(Fault.P_OUT_OF_RANGE, f"p_resolve {quoted(p)} of step {quoted(step)} is not from 0 to 1")
    if not isinstance(reasoning, str) or not encodable(reasoning):
        refuse(Fault.REASONING_NOT_TEXT, f"the reasoning of step {quoted(step)} is not text")
    return step, float(p), reasoning


def encodable(text: str) -> bool:
    """Whether the text has a UTF-8 form: JSON can spell half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def quoted(value: Any) -> str:
    """At most 60 characters of any value, for a message."""
    try:
        return ascii(value)[:60]
    except (ValueError, RecursionError):  # an integer of too many digits, or lists in lists
        return "(a value too large to show)"


def _scale(values: list[float]) -> tuple[float, list[str]]:
    """Rescale percents, but only when all values are: 0.4 beside 40 is neither."""
    if all(p <= 1 for p in values):
        return 1.0, []
    odd = next((p for p in values if 0 < p < 1), None)
    if odd is not None:
        refuse(
            Fault.P_OUT_OF_RANGE,
            f"p_resolve {max(values):g} is over 1 and {odd:g} is not a percentage: give numbers from 0 to 1",
        )
    return 0.01, ["percent"]


def _check_form(points: dict[int, float], steps: int) -> None:
    """Check the rules for all points together, given by rising step."""
    needed, given = needed_key_steps(steps), sum(step >= 0 for step in points)
    if given < needed:
        refuse(
            Fault.TOO_FEW_KEY_STEPS,
            f"only {given} of {steps} steps have a value: give at least {needed}",
        )
    values = list(points.values())
    if all(abs(p - values[0]) <= TOLERANCE for p in values):
        refuse(Fault.CONSTANT, "p_resolve is the same everywhere: it must fall where the mistake was made")
    if all(after >= before - TOLERANCE for before, after in pairwise(values)):
        refuse(
            Fault.MONOTONE_RISING,
            "p_resolve never falls, but the trajectory failed: it must fall at or before the mistake",
        )


def refuse(fault: Fault, detail: str) -> NoReturn:
    """Raises BadReply."""
    raise BadReply(fault, detail)
