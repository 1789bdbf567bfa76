"""Words of an endpoint that may repeat the key that it was given, as they can be kept."""

import re

_PART = 4
"""Characters of a key that a word may not have in a row."""
_HIDDEN = re.compile(r"\*\*|••|\.\.\.\S")
"""How a word shows that a part of it is left out."""


def without_key(text: str, key: str) -> str:
    """The text without words that hold a part of the key, as endpoints write `sk-abc***wxyz`."""
    parts = {key[at : at + _PART] for at in range(len(key) - _PART + 1)}

    def kept(word: re.Match[str]) -> str:
        holds = bool(key) and (any(part in word[0] for part in parts) or bool(_HIDDEN.search(word[0])))
        return "***" if holds else word[0]

    return re.sub(r"\S+", kept, text)
