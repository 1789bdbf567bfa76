"""Checks the arguments of a call against the JSON Schema of its operation. Pure.

It knows the keywords that declarations use: type, enum, minimum, format date-time, items, properties,
required, additionalProperties. Models write numbers as text and omit empty values; neither is repaired.
"""

import math
from typing import Any

from orchard.schemas.decoding import Unreadable, decode_text
from orchard.workers.domains.claw.times import read_time

_KINDS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}
_DEEPEST = 32
_LARGEST = 2**31


def read_arguments(arguments: str | dict[str, Any]) -> tuple[Any, str]:
    """Parses the arguments of a call; returns the value and what is wrong with it. Arguments nested too deep
    stay text: no grader could read a bundle with them, so an agent could abort its attempt instead of
    failing."""
    given: Any = arguments
    if isinstance(arguments, str):
        try:
            given = decode_text(arguments or "{}")
        except Unreadable as error:
            return arguments, f"the arguments are not JSON: {error}"
    if _too_deep(given):
        wrong = f"the arguments are nested deeper than {_DEEPEST} levels"
        return arguments if isinstance(arguments, str) else f"({wrong})", wrong
    return given, ""


def complaint(value: Any, schema: dict[str, Any], where: str = "arguments", depth: int = 0) -> str:
    """Returns what is wrong with the value in one sentence, or an empty string."""
    kind = schema.get("type", "object")
    known = isinstance(value, _KINDS[kind]) and (kind == "boolean" or not isinstance(value, bool))
    if not known or depth > _DEEPEST:
        return f"{where} must be {_article(kind)}"
    if kind in ("number", "integer") and not (math.isfinite(value) and abs(value) <= _LARGEST):
        return f"{where} must be between {-_LARGEST} and {_LARGEST}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{where} must be one of {', '.join(schema['enum'])}"
    if "minimum" in schema and value < schema["minimum"]:
        return f"{where} must be at least {schema['minimum']}"
    if schema.get("format") == "date-time" and not _is_time(value):
        return f"{where} must be a time as 2026-04-10T09:30:00+00:00"
    if kind == "array":
        items = schema.get("items", {})
        return next(filter(None, (complaint(x, items, f"each of {where}", depth + 1) for x in value)), "")
    if kind == "object" and "properties" in schema:
        return _object(value, schema, depth)
    return ""


def _object(value: dict[str, Any], schema: dict[str, Any], depth: int) -> str:
    known = schema["properties"]
    if missing := [name for name in schema.get("required", ()) if name not in value]:
        return f"the argument {missing[0]} is missing"
    if strange := [name for name in value if name not in known]:
        there = ", ".join(known) or "none"
        return f"there is no argument {strange[0][:60]!r} (there is: {there})"
    return next(filter(None, (complaint(value[name], known[name], name, depth + 1) for name in value)), "")


def _is_time(text: str) -> bool:
    try:
        return 1900 <= read_time(text).year <= 9000
    except (ValueError, OverflowError):
        return False


def _article(kind: str) -> str:
    return {"integer": "a whole number", "object": "an object", "array": "a list"}.get(
        kind, "true or false" if kind == "boolean" else f"a {kind}"
    )


def _too_deep(value: Any) -> bool:
    layer = [value]
    for _ in range(_DEEPEST + 1):
        layer = [
            each
            for held in layer
            if isinstance(held, dict | list)
            for each in (held.values() if isinstance(held, dict) else held)
        ]
    return bool(layer)
