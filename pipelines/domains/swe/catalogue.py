"""The built-in list of release pairs that are known to make tasks, and its order."""

import itertools
from collections.abc import Collection
from importlib import resources

import msgspec

from orchard.pipelines.domains.swe.releases import ReleasePair
from orchard.pipelines.tasks.errors import TaskError


class _Package(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    pairs: list[tuple[str, str]]
    requires: tuple[str, ...] = ()


class _Catalogue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    package: list[_Package]


def catalogue(packages: Collection[str] = ()) -> list[ReleasePair]:
    """The pairs, those of `packages` only where any are named. Raises TaskError for an unknown package."""
    text = resources.files(__package__).joinpath("catalogue.toml").read_bytes()
    return in_turns(msgspec.toml.decode(text, type=_Catalogue).package, packages)


def in_turns(listed: list[_Package], packages: Collection[str]) -> list[ReleasePair]:
    """The first pair of every package, then the second of every one, and so on."""
    names = {package.name for package in listed}
    for name in packages:
        if name not in names:
            raise TaskError(f"the catalogue has no package {name!r}: it has {', '.join(sorted(names))}")
    columns = [
        [ReleasePair(package=p.name, old=old, new=new, requires=p.requires) for old, new in p.pairs]
        for p in listed
        if not packages or p.name in packages
    ]
    turns = itertools.zip_longest(*columns)
    return [pair for turn in turns for pair in turn if pair is not None]
