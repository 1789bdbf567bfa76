"""Plug-ins: what users add from packages of their own, loaded when it is first named.

Each kind is a group of entry points, `orchard.harnesses` for example, which a package declares. The
configuration names others as `module:attribute` in `[plugins.harnesses]`; those win over entry points.
"""

import importlib
import re
import sys
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Annotated, Any

import msgspec

GUIDE = "docs/extending.md"

REFERENCE = r"^[\w.]+:[\w.]+$"
Reference = Annotated[str, msgspec.Meta(pattern=REFERENCE)]
"""`module:attribute`."""


class Kind(StrEnum):
    """What can be added; the value is the key in `[plugins]`, and with `orchard.` before it the group."""

    HARNESS = "harnesses"
    GRADER = "graders"
    WORLD = "worlds"
    TASK_SOURCE = "task_sources"
    EXPORTER = "exporters"
    JUDGE = "judges"
    BACKEND = "backends"
    LOSS = "losses"


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
"""Attributes without which it is none of its kind."""

OWN: dict[Kind, dict[str, str]] = {
    Kind.HARNESS: {
        "claw-react": "orchard.workers.domains.claw.react:ClawReact",
        "browser": "orchard.workers.domains.gui.browser.harness:BrowserHarness",
        "browser-compact": "orchard.workers.domains.gui.browser.harness:CompactBrowser",
    },
    Kind.GRADER: {
        "claw": "orchard.workers.domains.claw.grading:ClawGrader",
        "claw-eval": "orchard.workers.domains.claw.claw_eval.grading:ClawEvalGrader",
        "sites": "orchard.workers.domains.gui.sites.grading:SitesGrader",
        "gui-judge": "orchard.workers.domains.gui.judging:GuiJudgeGrader",
    },
    Kind.WORLD: {
        "browser": "orchard.workers.domains.gui.browser.world:BrowserWorld",
        "claw": "orchard.workers.domains.claw.world:ClawServices",
        "claw-eval": "orchard.workers.domains.claw.claw_eval.world:ClawEvalServices",
    },
}
"""What Orchard's own domains register, as packages of users do: name to `module:attribute`."""


class PluginSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Plug-ins by name (configuration section `[plugins]`), beside those of installed packages."""

    harnesses: dict[str, Reference] = {}
    """Harnesses: name to `module:attribute`."""
    graders: dict[str, Reference] = {}
    """Graders: name to `module:attribute`."""
    worlds: dict[str, Reference] = {}
    """Worlds of tasks: name to `module:attribute`."""
    task_sources: dict[str, Reference] = {}
    """Sources of tasks: name to `module:attribute`."""
    exporters: dict[str, Reference] = {}
    """Exporters of datasets: name to `module:attribute`."""
    judges: dict[str, Reference] = {}
    """Judges of values: name to `module:attribute`."""
    losses: dict[str, Reference] = {}
    """Losses of reinforcement learning: name to `module:attribute`."""


class PluginError(ValueError):
    """A plug-in that is missing or cannot be used, in one sentence."""


_named: dict[Kind, dict[str, str]] = {}
_folder = Path()


def configure(settings: PluginSettings, folder: Path) -> None:
    """Take the plug-ins of a configuration for this process. Their modules may lie in `folder`, which is
    searched last, so that nothing in it can hide an installed module."""
    global _folder
    _folder = folder
    _named.clear()
    _named.update({Kind(kind): names for kind, names in msgspec.structs.asdict(settings).items()})
    if any(_named.values()) and str(folder) not in sys.path:
        sys.path.append(str(folder))
    _load.cache_clear()


def names(kind: Kind) -> list[str]:
    """Names of that kind, sorted; nothing is loaded."""
    return sorted({*_named.get(kind, {}), *OWN.get(kind, {}), *_installed(kind)})


def find(kind: Kind, name: str) -> Any | None:
    """The plug-in of that name, the same object each time; None where there is none. Of several, the
    configuration's counts first, then Orchard's own.

    Raises PluginError for one that cannot be loaded, or lacks what its kind needs.
    """
    reference = _named.get(kind, {}).get(name)
    if reference is not None:
        return _load(kind, name, reference, "the configuration")
    if (own := OWN.get(kind, {}).get(name)) is not None:
        return _load(kind, name, own, "Orchard")
    if (entry := _installed(kind).get(name)) is not None:
        return _load(kind, name, entry.value, f"the package {entry.dist.name}" if entry.dist else "a package")
    return None


def need(kind: Kind, name: str, built_in: Iterable[str] = ()) -> Any:
    """The plug-in of that name, or at that `module:attribute`. Raises PluginError, which lists what there
    is."""
    if re.fullmatch(REFERENCE, name):
        if str(_folder) not in sys.path:
            sys.path.append(str(_folder))
        return _load(kind, name, name, "the run's file")
    if (found := find(kind, name)) is None:
        known = ", ".join([*built_in, *names(kind)]) or "none"
        what = kind.value.replace("_", " ")
        raise PluginError(f"there is no plug-in {name!r} among the {what} ({known}): see {GUIDE}")
    return found


def check(built_in: Mapping[Kind, Iterable[str]]) -> dict[Kind, list[str]]:
    """Load every plug-in of the configuration, and of the packages those that can be loaded.

    Returns the names that can be used. Raises PluginError for one of the configuration that cannot, and for
    one that has the name of something built in.
    """
    usable: dict[Kind, list[str]] = {}
    for kind in Kind:
        taken = set(built_in.get(kind, ()))
        for name in names(kind):
            if name in taken:
                raise PluginError(
                    f"the plug-in {name!r} ({kind.value}) has the name of a built-in one: rename it"
                )
            try:
                find(kind, name)
            except PluginError:
                if name in _named.get(kind, {}):
                    raise
                continue  # whoever names it is told why
            usable.setdefault(kind, []).append(name)
    return usable


@cache
def _installed(kind: Kind) -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=f"orchard.{kind.value}")}


@cache
def _load(kind: Kind, name: str, reference: str, origin: str) -> Any:
    module, _, attributes = reference.partition(":")
    where = f"the plug-in {name!r} ({kind.value}, {reference} of {origin})"
    try:
        found: Any = importlib.import_module(module)
        for attribute in attributes.split("."):
            found = getattr(found, attribute)
        if isinstance(found, type):
            found = found()
    except Exception as error:
        raise PluginError(f"{where} cannot be loaded: {type(error).__name__}: {error}") from error
    if missing := [each for each in NEEDS[kind] if not hasattr(found, each)]:
        raise PluginError(
            f"{where} has no {', '.join(missing)}: {GUIDE} says what a plug-in of its kind needs"
        )
    own = getattr(found, "version" if kind is Kind.JUDGE else "name", name)
    if own != name:
        raise PluginError(f"{where} says that its name is {own!r}: both must be the same")
    return found
