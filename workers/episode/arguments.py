"""Arguments of calls where an object is required, which a model need not have written. Pure."""

import json
from typing import Any

import msgspec

from orchard.schemas.decoding import Unreadable, decode_text

UNPARSED = "unparsed_arguments"


def as_object(arguments: str) -> dict[str, Any]:
    """Parses a call's arguments; what is no JSON object is stored under UNPARSED."""
    try:
        value = decode_text(arguments or "{}")
    except Unreadable:
        value = None
    return value if isinstance(value, dict) else {UNPARSED: arguments}


def readable(arguments: str) -> str:
    """Returns the arguments unchanged if Python's `json` reads an object in them, as servers do: who sends
    others in a history gets no answer."""
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        return arguments or "{}"
    return msgspec.json.encode({UNPARSED: arguments}).decode()
