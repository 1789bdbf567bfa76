"""Plug-ins: components from users' packages, loaded when they are first named.

Each kind is a group of entry points, such as `orchard.harnesses`, which a package declares. The configuration
names others as `module:attribute` in `[plugins.harnesses]`; those win over entry points. Components of
domains (`workers/domain.py`) are found by the same names.
"""

import re
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from orchard.schemas.plugins import GUIDE, REFERENCE, Kind, PluginError, PluginSettings
from orchard.workers.discovery import installed, load
from orchard.workers.domain import components

NEEDS: dict[Kind, tuple[str, ...]] = {
    Kind.HARNESS: ("name", "tools", "replayable", "run", "execute"),
    Kind.GRADER: ("name", "in_place", "settings", "grade"),
    Kind.WORLD: ("name", "settings", "open"),
    Kind.TASK_SOURCE: ("tasks",),
    Kind.EXPORTER: ("name", "consumer", "schema", "project", "losses", "format"),
    Kind.JUDGE: ("version",),
    Kind.BACKEND: ("__call__",),
    Kind.LOSS: ("__call__",),
}

_named: dict[Kind, dict[str, str]] = {}
_folder = Path()


def configure(settings: PluginSettings, folder: Path) -> None:
    """Takes over the plug-ins of a configuration for this process. Their modules may lie in `folder`, which
    is searched last, so that nothing in it can hide an installed module."""
    global _folder
    _folder = folder
    _named.clear()
    _named.update({Kind(kind): names for kind, names in msgspec.structs.asdict(settings).items()})
    if any(_named.values()):
        _search(folder)
    _load.cache_clear()


def names(kind: Kind) -> list[str]:
    """Returns the names of a kind's plug-ins, sorted; nothing is loaded."""
    return sorted({*_named.get(kind, {}), *components(kind), *_installed(kind)})


def find(kind: Kind, name: str) -> Any | None:
    """Returns the plug-in of that name, the same object each time; None if there is none. Of several, the
    configuration's counts first, then a domain's.

    Raises PluginError for one that cannot be loaded, or lacks what its kind needs.
    """
    if (reference := _named.get(kind, {}).get(name)) is not None:
        return _load(kind, name, reference, "the configuration")
    if (reference := components(kind).get(name)) is not None:
        return _load(kind, name, reference, "a domain")
    if (entry := _installed(kind).get(name)) is not None:
        return _load(kind, name, entry.value, f"the package {entry.dist.name}" if entry.dist else "a package")
    return None


def need(kind: Kind, name: str, built_in: Iterable[str] = ()) -> Any:
    """Returns the plug-in of that name, or at that `module:attribute`. Raises PluginError, which lists the
    known names."""
    if re.fullmatch(REFERENCE, name):
        _search(_folder)
        return _load(kind, name, name, "the run's file")
    if (found := find(kind, name)) is None:
        known = ", ".join([*built_in, *names(kind)]) or "none"
        what = kind.value.replace("_", " ")
        raise PluginError(f"there is no plug-in {name!r} among the {what} ({known}): see {GUIDE}")
    return found


def check(built_in: Mapping[Kind, Iterable[str]]) -> dict[Kind, list[str]]:
    """Loads every plug-in of the configuration, and those of packages that can be loaded.

    Returns the usable names. Raises PluginError for one of the configuration that cannot be loaded, and for
    one that has the name of something built in.
    """
    usable: dict[Kind, list[str]] = {}
    for kind in Kind:
        taken = {*built_in.get(kind, ()), *components(kind)}
        if hidden := sorted(taken & {*_named.get(kind, {}), *_installed(kind)}):
            raise PluginError(
                f"the plug-in {hidden[0]!r} ({kind.value}) has the name of a built-in one: rename it"
            )
        bundled = components(kind, bundled=True)
        for name in names(kind):
            try:
                if name not in bundled:
                    find(kind, name)
            except PluginError:
                if name in _named.get(kind, {}):
                    raise
                continue  # whoever names it is told why
            usable.setdefault(kind, []).append(name)
    return usable


def _search(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _installed(kind: Kind) -> Mapping[str, Any]:
    return installed(f"orchard.{kind.value}")


@cache
def _load(kind: Kind, name: str, reference: str, origin: str) -> Any:
    where = f"the plug-in {name!r} ({kind.value}, {reference} of {origin})"
    try:
        found = load(reference)
    except PluginError:
        raise
    except Exception as error:
        raise PluginError(f"{where} cannot be loaded: {type(error).__name__}: {error}") from error
    if missing := [each for each in NEEDS[kind] if not hasattr(found, each)]:
        raise PluginError(
            f"{where} has no {', '.join(missing)}: {GUIDE} says what a plug-in of its kind needs"
        )
    said = getattr(found, "version" if kind is Kind.JUDGE else "name", name)
    if said != name:
        raise PluginError(f"{where} says that its name is {said!r}: both must be the same")
    return found
