"""Tokenizes lines and words apart, where that gives the tokenizer's own tokens, since both repeat.

A byte-level tokenizer cuts a text into words by a pattern, from left to right, and no token crosses
the border of a word. So a text may be cut at a place that is a border in every text, if no word before
it looks past it. Where that is depends on the pattern. In the form of GPT-2 a run of white space is
one word up to its last character, but wholly one word at the end of a text: a text may be cut only
before the run. In the form of GPT-4 a run that holds a line end is one word up to the last of them,
which punctuation before it may take: a text may be cut only behind it. Lines of ASCII alone are cut
into words here, where the classes of characters leave no doubt. Each token stands for bytes, so
decoding is joining them. Unicode's form NFC, to which tokenizers of Qwen bring a text first, joins
nothing with a line end and leaves ASCII unchanged. `LineCutter.of` compares with the tokenizer itself
before it trusts any of this.
"""

import json
import re
from collections.abc import Sequence
from itertools import product
from typing import Any, Self

from transformers import PreTrainedTokenizerBase

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
OURS = r" ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""The pattern of tokenizers trained here: GPT-2's without its English contractions; digits stand alone. A
word is the same token after a dot, a slash or a bracket, so a small model learns fewer forms of a name."""
_BEFORE_LINE_ENDS = re.compile(r"(?<=\S)(?=\n)")
_BEHIND_LINE_ENDS = re.compile(r"(?<=\n)(?=\S)")
BORDERS = {
    _GPT2: _BEFORE_LINE_ENDS,
    OURS: _BEFORE_LINE_ENDS,
    _GPT4 % "": _BEHIND_LINE_ENDS,
    _GPT4 % "{1,3}": _BEHIND_LINE_ENDS,
}
"""Pattern of a tokenizer to the rule for where a text may be cut."""

_KINDS = (
    "a",
    "S",
    "7",
    ".",
    "/",
    "'s",
    " ",
    "\n",
    "\r",
    "\t",
    "\x1c",
    "\x85",
    "é",
    "e\u0301",
    "\u2028",
    "漢",
)
"""Texts that the patterns tell apart."""
_LONGEST = 3
"""Kinds in a text that is tried."""


class LineCutter:
    """Cuts texts into lines, and gives tokens their bytes."""

    def __init__(self, table: list[bytes], pattern: str) -> None:
        self._table = table
        self._border = BORDERS[pattern]
        self._word = re.compile(ascii_pattern(pattern), re.ASCII)

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> Self | None:
        """A cutter for a tokenizer whose tokens cutting leaves unchanged, else None."""
        backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        pattern = _known_pattern(json.loads(backend.to_str())) if backend is not None else None
        if pattern is None:
            return None
        added = {number: str(token) for token, number in tokenizer.added_tokens_encoder.items()}
        letters = {letter: byte for byte, letter in _alphabet().items()}
        table = []
        for number in range(max(tokenizer.get_vocab().values()) + 1):  # some vocabularies have holes
            if number in added:
                table.append(added[number].encode())
            else:
                token: str = backend.id_to_token(number) or ""
                table.append(bytes(letters[letter] for letter in token))
        cutter = cls(table, pattern)
        return cutter if cutter._agrees(backend, list(added.values())) else None

    def _agrees(self, backend: Any, added: Sequence[str]) -> bool:
        """Whether cutting into lines and words gives the tokenizer's own tokens for short texts of all
        kinds."""
        special = re.compile("|".join(map(re.escape, added)) or "(?!)")
        kinds = (*_KINDS, *added[:2])
        trials = [
            "".join(pieces) for size in range(1, _LONGEST + 1) for pieces in product(kinds, repeat=size)
        ]
        apart = [(text, self.cut(text)) for text in trials]
        for line in {line for _, lines in apart for line in lines if special.search(line) is None}:
            apart.append((line, self.words(line) or [line]))
        texts = list({text for whole, pieces in apart for text in (whole, *pieces)})
        found = backend.encode_batch_fast(texts, add_special_tokens=False)
        ids = {text: encoding.ids for text, encoding in zip(texts, found, strict=True)}
        return all([i for piece in pieces for i in ids[piece]] == ids[text] for text, pieces in apart)

    def cut(self, text: str) -> list[str]:
        """The lines of a text; joined they are the text."""
        return self._border.split(text)

    def words(self, line: str) -> list[str] | None:
        """The words of a line without control tokens, as the tokenizer cuts them; None for non-ASCII text."""
        return self._word.findall(line) if line.isascii() else None

    def bytes_of(self, ids: Sequence[int]) -> bytes:
        """The bytes that the tokens stand for."""
        return b"".join(map(self._table.__getitem__, ids))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens; bytes that are no UTF-8 become replacement characters."""
        return self.bytes_of(ids).decode("utf-8", "replace")


def ascii_pattern(pattern: str) -> str:
    """A known pattern in the syntax of `re`, for texts of ASCII alone."""
    return re.sub(
        r"\[[^\]]*\]|\\p\{[LN]\}",
        lambda found: (
            found[0].replace(r"\p{L}", "A-Za-z").replace(r"\p{N}", "0-9")
            if found[0].startswith("[")
            else {"L": "[A-Za-z]", "N": "[0-9]"}[found[0][3]]
        ),
        pattern,
    )


def _known_pattern(tokenizer: dict[str, Any]) -> str | None:
    """The tokenizer's pattern, where BORDERS has a rule for it."""
    before, decoder = tokenizer.get("pre_tokenizer") or {}, tokenizer.get("decoder") or {}
    normalizer = tokenizer.get("normalizer") or {"type": "NFC"}
    if normalizer not in ({"type": "NFC"}, {"type": "Sequence", "normalizers": []}):
        return None
    if decoder.get("type") != "ByteLevel":
        return None
    for token in tokenizer["added_tokens"]:
        if token["lstrip"] or token["rstrip"] or token["single_word"] or "\n" in token["content"]:
            return None
    steps = before.get("pretokenizers", [before])
    last = steps[-1]
    if last.get("type") != "ByteLevel" or last.get("add_prefix_space"):
        return None
    if len(steps) == 1:
        return _GPT2 if last.get("use_regex") else None
    isolated = steps[0].get("behavior") == "Isolated" and not steps[0].get("invert")
    pattern = steps[0].get("pattern", {}).get("Regex")
    known = len(steps) == 2 and isolated and not last.get("use_regex") and pattern in BORDERS
    return str(pattern) if known else None


def _alphabet() -> dict[int, str]:
    """The letter that stands for each byte of UTF-8 in a byte-level vocabulary.

    Bytes that are printable in Latin-1 stand for themselves, the others for letters from U+0100 on, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    found = {byte: chr(byte) for byte in printable}
    others = [byte for byte in range(0x100) if byte not in found]
    return found | {byte: chr(0x100 + number) for number, byte in enumerate(others)}
