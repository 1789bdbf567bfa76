"""Settings from `ORCHARD_*` variables of the environment, and which of those variables are settings at all.

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

from orchard.configuration.faults import members, parts

log = logging.getLogger(__name__)

PREFIX = "ORCHARD_"
FILE_VARIABLE = "ORCHARD_CONFIG"
_OTHERS = {FILE_VARIABLE, "ORCHARD_AGENT_SECRET", "ORCHARD_SANDBOX_DISK", "ORCHARD_SANDBOX_FILES"}
"""Variables that Orchard reads and that are no keys of the configuration."""
_KUBERNETES = re.compile(
    r"ORCHARD(_\w+)?_("
    r"SERVICE_(HOST|PORT(_\w+)?)=.*"
    r"|PORT=(tcp|udp|sctp)://.*"
    r"|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?=.*)",
    re.DOTALL,
)
"""What Kubernetes sets for a Service whose name begins with `orchard`."""
_CLOSE = 0.8


class UnknownVariable(ValueError):
    """A variable that looks like a setting and is none; the text is a sentence that names it."""


def settings(
    environment: Mapping[str, str], shape: type[msgspec.Struct], retired: Container[str] = ()
) -> Iterator[tuple[str, list[str]]]:
    """Name and path of each variable that is a key of `shape`, or `retired` by its dotted path.

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
    """The value that a text is where `shape` wants one at a path: `4` is a number there where a number is
    wanted. The text itself where it is none, for `faults` to name."""
    if path:
        inner = [part for one in members(shape) if (part := parts(one).get(path[0], parts(one).get("*")))]
        return typed(inner[0], path[1:], text) if inner else text
    try:
        return msgspec.to_builtins(msgspec.convert(text, shape, strict=False))
    except msgspec.ValidationError:
        return text


def _admits(kind: Type, path: list[str]) -> bool:
    """Whether values of this type can have something at a path."""
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
    """Raise UnknownVariable for what was meant as a setting, by its two underscores; warn of what may be."""
    keys = {"_".join(path).upper(): "__".join(path).upper() for path in _paths(kind)}
    tables = {key.partition("*")[0] for key in keys if "*" in key}
    own = name.removeprefix(PREFIX)
    close = get_close_matches(own.replace("__", "_"), keys, n=1, cutoff=_CLOSE)
    if not (close or "__" in own or any(own.startswith(table) for table in tables)):
        return
    hint = f"did you mean {PREFIX}{keys[close[0]].replace('*', 'NAME')}? " if close else ""
    sentence = f"the environment variable {name} is no setting: {hint}`orchard config` shows every key"
    if "__" in own:
        raise UnknownVariable(f"{sentence}, and `unset` removes the variable")
    log.warning("%s", sentence)


def _paths(kind: Type, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Path of every value that has no parts; `*` stands for a name that is free."""
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
