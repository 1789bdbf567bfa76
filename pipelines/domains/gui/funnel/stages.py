"""The funnel's record of a task, and its stages one to four: they look at one task or count sites. Pure."""

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from orchard.pipelines.tasks.errors import TaskError

LEAST_TASKS = 2
"""Minimum tasks of one site: the tasks of smaller sites are dropped."""
_HOST = re.compile(r"(?:[\w-]+\.)+[a-z][\w-]+", re.IGNORECASE)
_WORD = re.compile(r"\w+")
_NO_HOST = re.compile(r"[^\w.:-]")


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """One task of the pool."""

    id: str
    text: str
    """The request to the agent."""
    site: str
    """Host of its start URL, normalized by `site_of`."""
    split: str = ""
    """Benchmark or data set that it comes from."""
    parent: str = ""
    """Id of the task that it was decomposed from; empty: it was not."""


def site_of(url: str) -> str:
    """The host of a URL, or of a bare name: lower case, without port, `www.` and a last dot. Empty where
    there is none."""
    text = url.strip()
    try:
        host = urlsplit(text if "://" in text else f"//{text}").hostname or ""
    except ValueError:
        return ""
    return "" if _NO_HOST.search(host) else host.rstrip(".").removeprefix("www.")


def normal(text: str) -> str:
    """The normalized intent for comparison: its words, whatever their case, form and punctuation."""
    return " ".join(_WORD.findall(unicodedata.normalize("NFKC", text).casefold()))


class Stage(StrEnum):
    """The stages, in order."""

    EVALUATION = "evaluation"
    """Benchmarks that models are measured on."""
    PARENTS = "parents"
    """Children that tasks were decomposed into."""
    WEBVOYAGER = "webvoyager"
    """Drops the intents of WebVoyager."""
    SITES = "sites"
    """Sites that are in no list of popular ones, or have one task alone."""
    DUPLICATES = "duplicates"
    """Intents nearly the same as one that was kept."""


class DroppedIntent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task that the funnel dropped."""

    id: str
    stage: Stage
    reason: str
    like: str | None = None
    """The kept task that it is nearly the same as."""
    similarity: float | None = None


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules of stages one to four."""

    splits: frozenset[str] = frozenset()
    """The only splits that are kept; empty: all."""
    evaluation: frozenset[str] = frozenset()
    """Normalized intents of evaluation benchmarks."""
    webvoyager: frozenset[str] = frozenset()
    """Normalized intents of WebVoyager."""
    sites: frozenset[str] | None = None
    """Popular sites, normalized by `site_of`; their subdomains count as well. None: all sites are popular."""


def screened(pool: Sequence[Intent], rules: Rules) -> Iterator[tuple[Intent, DroppedIntent | None]]:
    """Each task of the pool in its order, with why it is dropped; None where it passes all four stages."""
    causes = [_cause(intent, rules) for intent in pool]
    counts = Counter(intent.site for intent, cause in zip(pool, causes, strict=True) if cause is None)
    for intent, cause in zip(pool, causes, strict=True):
        if cause is None and counts[intent.site] < LEAST_TASKS:
            cause = (Stage.SITES, f"the only task of {intent.site}")
        yield intent, None if cause is None else DroppedIntent(id=intent.id, stage=cause[0], reason=cause[1])


def _cause(intent: Intent, rules: Rules) -> tuple[Stage, str] | None:
    words = normal(intent.text)
    if rules.splits and intent.split not in rules.splits:
        return Stage.EVALUATION, f"of the split {intent.split or '(none)'}, which is not kept"
    if words in rules.evaluation:
        return Stage.EVALUATION, "its intent is in an evaluation benchmark"
    if intent.parent:
        return Stage.PARENTS, f"decomposed from {intent.parent}"
    if words in rules.webvoyager:
        return Stage.WEBVOYAGER, "its intent is in WebVoyager"
    if not intent.site:
        return Stage.SITES, "it names no site"
    if rules.sites is not None and not is_listed(intent.site, rules.sites):
        return Stage.SITES, f"{intent.site} is in no list of popular sites"
    return None


def is_listed(site: str, listed: Collection[str]) -> bool:
    """Whether a host, or a domain above it, is in a list."""
    parts = site.split(".")
    return any(".".join(parts[start:]) in listed for start in range(len(parts) - 1))


def read_sites(files: Iterable[Path]) -> frozenset[str]:
    """The hosts of site lists: text or CSV, of each line the first word that is a host. Raises TaskError for
    a file without any."""
    found: set[str] = set()
    for file in files:
        try:
            lines = file.read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise TaskError(f"the site list {file} cannot be read: {error}") from error
        hosts = {site_of(match[0]) for line in lines if (match := _HOST.search(line.partition("#")[0]))}
        if not hosts:
            raise TaskError(f"the site list {file} names no host: write one a line, such as example.com")
        found |= hosts
    return frozenset(found)
