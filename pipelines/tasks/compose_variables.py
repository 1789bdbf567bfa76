"""Variables in compose files, on a machine that sets none of them. Pure."""

import re
from collections.abc import Mapping, Sequence

Environment = Mapping[str, str | int | float | bool | None] | Sequence[str]

_NAMED = re.compile(r"(?P<name>[A-Za-z_]\w*)(?:(?P<how>:?[-?+])(?P<word>.*))?", re.ASCII | re.DOTALL)
_PLAIN = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def variables(environment: Environment | None) -> dict[str, str]:
    """Variables in either form; one without a value is empty."""
    if not isinstance(environment, Mapping):
        environment = dict(each.partition("=")[::2] for each in environment or ())
    return {name: "" if value is None else _said(value) for name, value in environment.items()}


def _said(value: str | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def interpolated(text: str) -> str:
    """The text as compose reads it. Raises ValueError for a variable that only a machine could set, and for a
    dollar sign that compose refuses."""
    found, rest = "", text
    while rest:
        before, dollar, rest = rest.partition("$")
        found += before
        if not dollar:
            break
        if rest.startswith("$"):
            found, rest = f"{found}$", rest[1:]
        elif rest.startswith("{"):
            end = _end(rest)
            found, rest = found + _value(rest[1:end], text), rest[end + 1 :]
        elif plain := _PLAIN.match(rest):
            raise _of_a_machine(f"${plain[0]}")
        else:
            raise ValueError(f"{text!r} has a $ that names no variable: write $$ for a dollar sign")
    return found


def _value(inner: str, text: str) -> str:
    named = _NAMED.fullmatch(inner)
    if named is None:
        raise ValueError(f"{text!r} has a variable that compose cannot read: ${{{inner}}}")
    match (named["how"] or "").lstrip(":"):
        case "-":
            return interpolated(named["word"])
        case "+":
            return ""
    raise _of_a_machine(f"${{{inner}}}")


def _of_a_machine(variable: str) -> ValueError:
    return ValueError(f"{variable} is taken from the machine that runs it: write a plain value")


def _end(text: str) -> int:
    """Where the brace that begins the text is closed."""
    depth = 0
    for at, sign in enumerate(text):
        depth += (sign == "{" and (at == 0 or text[at - 1] == "$")) - (sign == "}")
        if not depth:
            return at
    raise ValueError(f"'${text}' has a brace that is not closed")
