"""Finds the records of domains, and loads what they and plug-ins name as `module:attribute`.

Each domain has one record, named `DOMAIN`, in its package. Orchard's own packages are found by listing a
folder, others by their entry points.
"""

import ast
import hashlib
import logging
import pkgutil
import re
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Protocol, TypeVar


class Named(Protocol):
    @property
    def name(self) -> str: ...


D = TypeVar("D", bound=Named)

log = logging.getLogger(__name__)


def load(reference: str) -> Any:
    """Returns the object at `module:attribute`, or an instance if that is a class. Raises what the import
    does."""
    found = pkgutil.resolve_name(reference)
    return found() if isinstance(found, type) else found


@cache
def installed(group: str) -> dict[str, EntryPoint]:
    """Returns a group's entry points in installed packages, by name; nothing is loaded."""
    return {entry.name: entry for entry in entry_points(group=group)}


def records(package: str, group: str, kind: type[D]) -> dict[str, D]:
    """Returns the records of all domains by name: of each package directly below `package`, then of the entry
    points of `group`.

    An installed one that cannot be loaded, has another type or a name that is taken is left out with a
    warning.
    """
    folder = import_module(package).__path__
    own = [load(f"{package}.{each.name}:DOMAIN") for each in pkgutil.iter_modules(folder) if each.ispkg]
    found = {record.name: record for record in own}
    for name, entry in installed(group).items():
        try:
            record = load(entry.value)
            if not isinstance(record, kind):
                raise TypeError(f"it is no {kind.__name__}")
            if record.name in found:
                raise ValueError(f"the name {record.name!r} is taken")
        except Exception as error:
            log.warning("the domain %r (%s) is left out: %r", name, entry.value, error)
        else:
            found[record.name] = record
    return found


def declared(package: str, name: str) -> dict[str, dict[str, str]]:
    """Returns the dictionary of texts that a module of the package assigns to `name`, of each that does, by
    module. Reads the sources and imports none of them. Raises TypeError where it is written otherwise."""
    found = {}
    assigned = re.compile(rf"^{name}\b(?: = (\{{.*?\}})$)?", re.M | re.S)
    for file in matching(package, ["**/*.py"]):
        if value := assigned.search(file.read_text(encoding="utf-8")):
            if value[1] is None:
                raise TypeError(f"{file}: write {name} as a dictionary of texts, `{name} = {{...}}`")
            parts = file.relative_to(_folder(package)).with_suffix("").parts
            module = ".".join((package, *parts)).removesuffix(".__init__")
            found[module] = ast.literal_eval(value[1])
    return found


def components_in(package: str, name: str) -> dict[str, str]:
    """Maps the keys of those dictionaries to `module:attribute`; the values are the attributes."""
    return {
        key: f"{module}:{attribute}"
        for module, found in declared(package, name).items()
        for key, attribute in found.items()
    }


def matching(package: str, patterns: Iterable[str]) -> list[Path]:
    return sorted({file for pattern in patterns for file in _folder(package).glob(pattern)})


def code_of(package: str, patterns: Iterable[str], group: str) -> list[str]:
    """Returns a version of a package's files: path and SHA-256 of each file that matches, and the
    distribution with its version, if that declares an entry point of `group`."""
    top, folder = package.partition(".")[0], _folder(package)
    entries = [entry for entry in installed(group).values() if entry.module.partition(".")[0] == top]
    return distributions(entries) + [
        f"{package}/{file.relative_to(folder).as_posix()} {hashlib.sha256(file.read_bytes()).hexdigest()}"
        for file in matching(package, patterns)
    ]


def distributions(entries: Iterable[EntryPoint]) -> list[str]:
    return [f"{entry.dist.name} {entry.dist.version}" for entry in entries if entry.dist is not None]


def _folder(package: str) -> Path:
    return Path(str(import_module(package).__file__)).parent
