"""Reads settings from `ORCHARD_*` variables, and tells them from variables that are not settings.

`ORCHARD_WORKER__SLOTS` is the key `worker.slots`. Other programs use the prefix too: Kubernetes sets
`ORCHARD_PORT` in every pod beside a Service named `orchard`. Those are left alone. One whose name is nearly
that of a setting gets a warning, and one with the two underscores of a setting that is none is an error.
"""

import logging
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import msgspec
from msgspec.inspect import DictType, StructType, Type, UnionType

from orchard.schemas.faults import members, parts

log = logging.getLogger(__name__)

PREFIX = "ORCHARD_"
FILE_VARIABLE = "ORCHARD_CONFIG"
LOG_VARIABLE = "ORCHARD_LOG"
"""Variable by which child processes log as much as their parent: `quiet`, `verbose`, or empty."""
_OTHERS = {
    FILE_VARIABLE,
    LOG_VARIABLE,
    "ORCHARD_AGENT_SECRET",
    "ORCHARD_SANDBOX_DISK",
    "ORCHARD_SANDBOX_COUNT",
    "ORCHARD_SANDBOX_FILES",
}
"""Variables that Orchard reads but that are not keys of the configuration."""
_KUBERNETES = re.compile(
    r"ORCHARD(_\w+)?_("
    r"SERVICE_(HOST|PORT(_\w+)?)=.*"
    r"|PORT=(tcp|udp|sctp)://.*"
    r"|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?=.*)",
    re.DOTALL,
)
"""Variables that Kubernetes sets for a Service whose name begins with `orchard`."""
_CLOSE = 0.8


class UnknownVariable(ValueError):
    """A variable looks like a setting but names no key; the text is a sentence with its name."""


def settings(
    environment: Mapping[str, str], shape: type[msgspec.Struct], retired: Container[str] = ()
) -> Iterator[tuple[str, list[str]]]:
    """Finds the variables that are keys of `shape`, or `retired` by their dotted paths, as name and path.

    Raises UnknownVariable.
    """
    kind = msgspec.inspect.type_info(shape)
    for name, value in sorted(environment.items()):
        if not name.startswith(PREFIX) or name in _OTHERS:
            continue
        path = name.removeprefix(PREFIX).lower().split("__")
        if _admits(kind, path) or ".".join(path) in retired:
            yield name, path
        elif not _KUBERNETES.fullmatch(f"{name}={value}"):
            _check(name, kind)


def typed(shape: Any, path: Sequence[str], text: str) -> Any:
    """Converts a text to the type that `shape` has at a path: `4` becomes a number for a numeric key. A
    text that does not convert is returned unchanged, for `faults` to name."""
    if path:
        inner = [part for one in members(shape) if (part := parts(one).get(path[0], parts(one).get("*")))]
        return typed(inner[0], path[1:], text) if inner else text
    try:
        return msgspec.to_builtins(msgspec.convert(text, shape, strict=False))
    except msgspec.ValidationError:
        return text


def _admits(kind: Type, path: list[str]) -> bool:
    """Whether values of this type have the path."""
    if not path:
        return True
    match kind:
        case StructType(fields=fields):
            return any(field.encode_name == path[0] and _admits(field.type, path[1:]) for field in fields)
        case DictType(value_type=value):
            return bool(path[0]) and _admits(value, path[1:])
        case UnionType(types=types):
            return any(_admits(one, path) for one in types)
        case _:
            return False


def _check(name: str, kind: Type) -> None:
    """Raises UnknownVariable for a variable with two underscores that is no setting; warns of ones that
    resemble a setting."""
    keys = {"_".join(path).upper(): "__".join(path).upper() for path in _paths(kind)}
    tables = {key.partition("*")[0] for key in keys if "*" in key}
    own = name.removeprefix(PREFIX)
    close = get_close_matches(own.replace("__", "_"), keys, n=1, cutoff=_CLOSE)
    close = close or [key for key, path in keys.items() if own.startswith(f"{path}__")]
    if not (close or "__" in own or any(own.startswith(table) for table in tables)):
        return
    hint = f"did you mean {PREFIX}{keys[close[0]].replace('*', 'NAME')}? " if close else ""
    sentence = f"the environment variable {name} is no setting: {hint}`orchard config` shows every key"
    if "__" in own:
        raise UnknownVariable(f"{sentence}, and `unset` removes the variable")
    log.warning("%s", sentence)


def _paths(kind: Type, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yields the path of every plain value; `*` stands for a free name."""
    match kind:
        case StructType(fields=fields):
            for field in fields:
                yield from _paths(field.type, (*path, field.encode_name))
        case DictType(value_type=value):
            yield from _paths(value, (*path, "*"))
        case UnionType(types=types) if any(isinstance(one, StructType | DictType) for one in types):
            for one in types:
                yield from _paths(one, path)
        case _:
            yield path
