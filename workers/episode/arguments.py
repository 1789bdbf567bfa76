"""Arguments of calls where an object is required, which a model need not have written. Pure."""

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
    """Returns the arguments unchanged if they are an object: endpoints and chat templates accept nothing
    else, and who asks again with others gets no answer."""
    value = as_object(arguments)
    return msgspec.json.encode(value).decode() if UNPARSED in value or not arguments else arguments
