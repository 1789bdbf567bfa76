"""Parses TOML; a text that is none is refused with the key in whose line the fault is."""

import re
import tomllib
from typing import Any

_LINE = re.compile(r" \(at line (\d+), column \d+\)$")
_TWICE = re.compile(r"^Cannot declare \((.*?),?\) twice")
_BARE = re.compile(r"\s*[A-Za-z_][\w./:-]*\s*")
_REPEATED = "Cannot overwrite a value"


def parsed_toml(text: str) -> dict[str, Any]:
    """Parses a file's text. Raises tomllib.TOMLDecodeError."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise tomllib.TOMLDecodeError(_explained(str(error), text)) from None


def _explained(said: str, text: str) -> str:
    """Adds the key, not the value, which may be a secret."""
    if (twice := _TWICE.match(said)) is not None:
        table = ".".join(part.strip(" '\"") for part in twice[1].split(","))
        return f"the table [{table}] is there twice: put its keys together{_place(said)}"
    place = _LINE.search(said)
    lines = text.splitlines()
    if place is None or int(place[1]) > len(lines):
        return said
    key, sign, value = lines[int(place[1]) - 1].partition("=")
    if not sign:
        return said
    reason = said.removesuffix(place[0])
    if reason == "Invalid value" and _BARE.fullmatch(value.partition("#")[0]):
        reason = "Expected a text in quotes, a number, true or false, got a bare word"
    elif reason == _REPEATED:
        reason = "has a value already: leave one out"
    return f"{key.strip()}: {reason}{place[0]}"


def _place(said: str) -> str:
    place = _LINE.search(said)
    return place[0] if place else ""
