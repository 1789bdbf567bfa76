"""Masks keys in what is to be stored: an agent prints what it finds; trajectories are kept, shared and
trained on.

Masked are keys of a known form (`key_forms`), also if colours or line ends cut them, and the operator's own:
the values of all variables that the configuration names. A text without a distinctive form (a password in a
sentence, forty hexadecimal digits) stays, as commits and digests look so. A mask names the kind and has a
digest of the key, so that equal keys stay equal; all else stays as it is.
"""

import hashlib
import json
import re
from bisect import bisect_right
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple
from urllib.parse import quote

from orchard.workers.key_forms import FRAMED, PREFIXED, SHORTEST, Prefixed


class Masked(NamedTuple):
    text: str
    keys: int


_SHORTEST_OWN = 8
"""Least characters of an operator's secret: shorter ones would be found in words."""
_own: dict[str, str] = {}
"""The operator's secrets, in each possible spelling, with the masks that replace them."""


def learn(secrets: Mapping[str, str]) -> None:
    """Masks these values from now on, in this process: secrets by the names of their variables. Values that
    are too short or plain to be told from words are left out."""
    for name, value in secrets.items():
        if len(value) >= _SHORTEST_OWN and not value.isalpha():
            for spelled in (value, quote(value, safe=""), json.dumps(value)[1:-1]):
                _own[spelled] = f"[masked {name}]"
    longest_first = sorted(_own.items(), key=lambda one: -len(one[0]))
    _own.clear()  # one that begins with another is found before it
    _own.update(longest_first)


def masked(text: str) -> Masked:
    """Replaces every known key in the text by `[masked KIND DIGEST]` or `[masked VARIABLE]`."""
    keys = 0
    for secret, mask in _own.items():
        if secret in text:
            keys += text.count(secret)
            text = text.replace(secret, mask)
    for kind in _possible(text):
        text, found = _cut(text, [_span(kind, match) for match in kind.found(text, whole=True)])
        keys += found
    text, found = _split(text)
    keys += found
    small = text.lower()
    for frame in FRAMED:
        for hint in frame.hints:  # a generator for each form would take longer than the searches
            if hint in small:
                text, found = frame.pattern.subn(partial(_framed, frame.name), text)
                keys += found
                break
    return Masked(text, keys)


def _possible(text: str) -> list[Prefixed]:
    """Returns the forms whose hint is in a word that is long enough for a key, in their order."""
    words = "\n".join(word for word in text.split() if len(word) >= SHORTEST)
    return [kind for hint, kind in _HINTS if hint in words] if words else []


_HINTS = tuple((kind.hint, kind) for kind in PREFIXED)


class _Span(NamedTuple):
    start: int
    end: int
    mask: str


def _span(kind: Prefixed, match: re.Match[str]) -> _Span:
    return _Span(match.start(), match.end(), _mask(kind.name, match[0]))


def _cut(text: str, spans: list[_Span]) -> Masked:
    pieces, reached, keys = [], 0, 0
    for span in spans:
        if span.start >= reached:
            pieces += [text[reached : span.start], span.mask]
            reached, keys = span.end, keys + 1
    return Masked("".join((*pieces, text[reached:])), keys)


_CUTS = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))"
    r"|\\(?:(?:u001[bB]|x1[bB]|033|e)\[[0-9;]*[A-Za-z]|r\\n|n|\r?\n[ \t]*)"
    r"|\n[ \t]*|\r\n[ \t]*|\r"
)
"""Matches what a terminal's colours or line breaks put inside of a key, plain or as JSON spells it."""


_BEFORE = 8
"""Characters that say whether a key begins after them."""


def _split(text: str) -> Masked:
    """Masks keys with such cuts in them. Those without are masked already."""
    joined = _CUTS.sub("", text)
    if len(joined) == len(text):
        return Masked(text, 0)
    spans: list[_Span] = []
    place: _Places | None = None
    for secret, mask in _own.items():
        at = joined.find(secret)
        while at >= 0:
            place = place or _Places(text)
            spans.append(_Span(place.of(at), place.end_of(at + len(secret)), mask))
            at = joined.find(secret, at + len(secret))
    for kind in _possible(joined):
        for match in kind.found(joined, whole=False):
            place = place or _Places(text)
            start, end = place.of(match.start()), place.end_of(match.end())
            before = text[max(start - _BEFORE, 0) : start]
            cut = end - start > len(match[0]) and not _continues(text, end)
            if cut and kind.begins(before, match[0]):
                spans.append(_Span(start, end, _mask(kind.name, match[0])))
    return _cut(text, sorted(spans))


def _continues(text: str, end: int) -> bool:
    return end < len(text) and (text[end].isalnum() or text[end] == "_")


class _Places:
    """Maps positions in a text without its cuts to positions in the text."""

    def __init__(self, text: str) -> None:
        self._joined, self._removed, removed = [0], [0], 0
        for cut in _CUTS.finditer(text):
            removed += cut.end() - cut.start()
            self._joined.append(cut.end() - removed)
            self._removed.append(removed)

    def of(self, at: int) -> int:
        return at + self._removed[bisect_right(self._joined, at) - 1]

    def end_of(self, at: int) -> int:
        """Returns the position after the character before `at`."""
        return self.of(at - 1) + 1


def _framed(name: str, match: re.Match[str]) -> str:
    group = match.lastindex or 0
    begin, end = match.start(group) - match.start(), match.end(group) - match.start()
    return f"{match[0][:begin]}{_mask(name, match[group])}{match[0][end:]}"


def _mask(name: str, key: str) -> str:
    digest = hashlib.sha256(key.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"[masked {name} {digest}]"
