"""Checks the names in a dataset's configuration against the store: a misspelt one gives another dataset."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import duckdb

from orchard.pipelines.datasets.errors import DatasetError
from orchard.pipelines.datasets.settings import DatasetSettings
from orchard.schemas.nearest import meant

_KNOWN: Mapping[str, str] = {
    "campaign": "select distinct campaign from rollouts",
    "harness": "select distinct harness from rollouts",
    "model": "select distinct model from rollouts",
    "task source": "select distinct task_source from rollouts",
    "human label": "select distinct unnest(labels) from reviews",
    "annotator": "select distinct annotator from values",
}
"""Query of the names that there are, by what they name."""
_LISTS = {
    "campaigns": "campaign",
    "harnesses": "harness",
    "models": "model",
    "task_sources": "task source",
    "human_labels": "human label",
}
"""What a key names of which nothing would be left without any of its names."""
_SHOWN = 3


class _Names(NamedTuple):
    key: str
    kind: str
    names: tuple[str, ...]
    chooses: bool = True
    """Whether nothing is taken where none of the names is there."""


def check_names(tables: duckdb.DuckDBPyConnection, settings: DatasetSettings) -> list[str]:
    """Returns a sentence for each key with names that no rollout, review or annotation in the tables has.

    Raises DatasetError for a key that chooses rollouts and has no other names.
    """
    known: dict[str, set[str]] = {}
    found = []
    for key, kind, names, chooses in _named(settings):
        if kind not in known:
            known[kind] = {name for (name,) in tables.execute(_KNOWN[kind]).fetchall()}
        missing = [name for name in names if name not in known[kind]]
        if not missing:
            continue
        each = [f"{name!r} ({meant(name, known[kind])})" for name in missing[:_SHOWN]]
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        sentence = f"{key}: nothing in the store has the {kind} {', '.join(each)}{more}"
        if chooses and len(missing) == len(names):
            raise DatasetError(f"{sentence}: correct the name, or leave {key} out")
        found.append(sentence)
    return found


def _named(settings: DatasetSettings) -> Iterator[_Names]:
    parts = {f"mixture[{at}]": part for at, part in enumerate(settings.mixture, 1)}
    for where, table in {"source": settings.source, "pass_rate": settings.pass_rate, **parts}.items():
        for key, kind in _LISTS.items():
            if names := getattr(table, key, ()):
                yield _Names(f"{where}.{key}", kind, names)
    if settings.source.without_human_labels:
        key = "source.without_human_labels"
        yield _Names(key, "human label", settings.source.without_human_labels, chooses=False)
    if annotator := settings.values.annotator:
        yield _Names("values.annotator", "annotator", (annotator,), chooses=False)
