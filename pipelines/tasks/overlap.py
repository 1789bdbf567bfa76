"""Which training tasks are nearly the same as held-out ones, by statement and by gold patch. Pure and exact.

A text is the set of its shingles: runs of words of a statement (of characters, where a script has no spaces),
runs of code tokens of the lines that a patch changes, without context, line numbers, file names, comments and
white space. An inverted index over the held-out tasks finds every pair that shares a shingle, so nothing is
estimated: held-out sets are small.
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import NamedTuple

from orchard.workers.episode.diffs import parse_diff

WORDS = 3
"""Words of a statement in one shingle: a change of every tenth word leaves three quarters of them."""
TOKENS = 5
"""Tokens of a patch in one shingle."""
ENOUGH = 20
"""Shingles of a text that may lie inside a longer one by more than chance: a release holds many repairs."""
SHORT = 8
"""A text of fewer shingles is compared within its repository only, where chance does not make it twice."""
BOILERPLATE_REPOS = 5
"""A shingle in tasks of so many repositories says nothing about one of them."""
_MOST_BOILERPLATE = 0.8
"""Share of boilerplate above which a text is compared whole: then boilerplate itself was copied."""

_UNSPACED = "\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff"
"""Han characters and kana, as ranges of a character class. Korean has spaces."""
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}]+")
_CODE = re.compile(r"\w+|[^\w\s]")
_HASH = (
    "bash bzl cfg cmake conf coffee cr ex exs fish gd graphql jl ksh mk nim nix pl pm ps1 py pyi pyx r rake "
    "rb sh tcl tf toml yaml yml zsh"
)
_SLASHES = (
    "c cc cjs cpp cs cu cuh cxx dart fs glsl go gradle groovy h hh hpp hxx java js jsx kt kts less m mjs mm "
    "mts php proto rs sass scala scss sol swift ts tsx v vue zig"
)
_COMMENTS = (
    {suffix: re.compile(r"\s*#") for suffix in ("", *_HASH.split())}
    | {suffix: re.compile(r"\s*(//|/\*|\*+(/|\s|$))") for suffix in _SLASHES.split()}
    | {"css": re.compile(r"\s*(/\*|\*+(/|\s|$))")}
    | {suffix: re.compile(r"\s*--") for suffix in ("elm", "hs", "lua", "sql")}
    | {suffix: re.compile(r"\s*;") for suffix in ("clj", "cljs", "el", "lisp", "scm")}
    | {suffix: re.compile(r"\s*%") for suffix in ("erl", "hrl", "tex")}
)
"""Pattern of a line that is a comment alone, by a file's suffix. Other files are compared with comments."""
_NO_COMMENT = re.compile(r"(?!)")

Shingles = frozenset[str]


@dataclass(frozen=True)
class TaskText:
    """The texts of a task that are compared."""

    task_id: str
    repo: str
    statement: Shingles
    patch: Shingles

    def of_kind(self, by: str) -> Shingles:
        """The statement's or the patch's shingles."""
        return self.statement if by == "statement" else self.patch

    @classmethod
    def of(cls, task_id: str, repo: str, statement: str, gold_patch: str = "") -> "TaskText":
        """The shingles of a task; a known solution that is no diff is compared as text."""
        return cls(task_id, repo_name(repo), statement_shingles(statement), patch_shingles(gold_patch))


class Match(NamedTuple):
    """The held-out task that a training task is most like."""

    held_out: str
    similarity: float
    by: str
    """Text that matched: `statement` or `patch`."""


def repo_name(repo: str) -> str:
    """The last part of a repository's name, as forks and package indexes write it alike: `psf/Requests.git`
    and `requests` are one."""
    name = repo.rstrip("/").rpartition("/")[2].lower().removesuffix(".git")
    return re.sub(r"[-_.]+", "-", name)


def statement_shingles(text: str) -> Shingles:
    """Runs of words, whatever their case, form and punctuation; of characters in Chinese and Japanese."""
    return _shingles(_WORD.findall(unicodedata.normalize("NFKC", text).casefold()), WORDS)


def patch_shingles(patch: str) -> Shingles:
    """Runs of tokens of added lines, and of removed ones."""
    files = [file for file in parse_diff(patch) if file.hunks]
    if not files:
        return _shingles(_CODE.findall(patch), TOKENS)
    found: set[str] = set()
    for file in files:
        comment = _COMMENTS.get(PurePosixPath(file.path).suffix[1:].lower(), _NO_COMMENT)
        for hunk in file.hunks:
            for sign, run in (("+", hunk.added), ("-", hunk.removed)):
                tokens = [token for line in run if not comment.match(line) for token in _CODE.findall(line)]
                found |= {f"{sign}{each}" for each in _shingles(tokens, TOKENS)}
    return frozenset(found)


def _shingles(parts: Sequence[str], size: int) -> Shingles:
    if not parts:
        return frozenset()
    runs = range(max(len(parts) - size + 1, 1))
    return frozenset("\0".join(parts[start : start + size]) for start in runs)


def near(held_out: Sequence[TaskText], training: Iterable[TaskText], least: float) -> dict[str, Match]:
    """For each training task that is like a held-out one, by at least `least` of 1, the most alike.

    Likeness of two texts is the larger of the share of shingles that they share among all that they
    have, and, where the smaller has ENOUGH, the share of its shingles that stand in the larger one.
    """
    indexes = {by: _Index(held_out, by) for by in ("statement", "patch")}
    for one in training:  # of a training set there may be too many to hold all their shingles
        for index in indexes.values():
            index.add(one)
    found: dict[str, Match] = {}
    for by, index in indexes.items():
        for task_id, place, score in index.scores():
            before = found.get(task_id)
            if score >= least and (before is None or score > before.similarity):
                found[task_id] = Match(held_out[place].task_id, score, by)
    return found


class _Reduced(NamedTuple):
    """The shingles of a text that the index has, and how many it has in all."""

    task_id: str
    repo: str
    size: int
    shared: Shingles


class _Index:
    """The held-out texts of one kind by shingle, compared with training texts."""

    def __init__(self, held_out: Sequence[TaskText], by: str) -> None:
        self._by = by
        self._held = [
            _Reduced(one.task_id, one.repo, len(one.of_kind(by)), one.of_kind(by)) for one in held_out
        ]
        self._places: dict[str, list[int]] = defaultdict(list)
        self._repos: dict[str, set[str]] = defaultdict(set)
        for place, one in enumerate(self._held):
            for shingle in one.shared:
                self._places[shingle].append(place)
                self._repos[shingle].add(one.repo)
        self._added: list[_Reduced] = []

    def add(self, one: TaskText) -> None:
        text = one.of_kind(self._by)
        shared = text & self._places.keys()
        if not shared:
            return
        self._added.append(_Reduced(one.task_id, one.repo, len(text), frozenset(shared)))
        for shingle in shared:
            self._repos[shingle].add(one.repo)

    def scores(self) -> Iterator[tuple[str, int, float]]:
        """Training task, index of the held-out one, likeness; pairs that share next to nothing are left
        out."""
        plain = {shingle for shingle, repos in self._repos.items() if len(repos) >= BOILERPLATE_REPOS}
        held = [_telling(one, plain) for one in self._held]
        for one in self._added:
            told = _telling(one, plain)
            places = {place for shingle in told.shared for place in self._places[shingle]}
            for place in places:
                yield one.task_id, place, _likeness(one, told, self._held[place], held[place])


def _likeness(one: _Reduced, told: _Reduced, other: _Reduced, other_told: _Reduced) -> float:
    same_repo = one.repo == other.repo
    if one.size == other.size and one.shared == other.shared and (one.size >= SHORT or same_repo):
        return 1.0
    least = min(told.size, other_told.size)
    if least < SHORT and not same_repo:
        return 0.0
    common = len(told.shared & other_told.shared)
    contained = common / least if least >= ENOUGH else 0.0
    return max(common / (told.size + other_told.size - common), contained)


def _telling(text: _Reduced, plain: set[str]) -> _Reduced:
    """Drop the boilerplate from a text."""
    kept = text.shared - plain
    size = text.size - len(text.shared) + len(kept)
    return text._replace(size=size, shared=kept) if size > (1 - _MOST_BOILERPLATE) * text.size else text
