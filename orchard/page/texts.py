"""Renders stored text as safe HTML: texts of models, sandboxes and web pages are shown and never interpreted.

Characters that cannot be seen or that reorder others are spelled out. ANSI colours become classes; any other
terminal sequence is shown as text. Everything returned as Markup is escaped.
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from markdown_it import MarkdownIt
from markupsafe import Markup, escape
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name

from orchard.workers.episode.diffs import FileDiff, split_diff

HIGHLIGHTED_CHARACTERS = 60_000
"""Maximum characters of coloured code: a lexer takes seconds for megabytes."""
MARKDOWN_CHARACTERS = 30_000
"""Maximum characters of formatted Markdown: hostile texts take a parser long."""
SNIPPET = 240
"""Characters of a text around what was looked for."""
_HIDDEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb]"
)
_SGR = re.compile(r"\x1b\[([0-9;]{0,40})m")
_STACKED = re.compile(
    r"([\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]{4})[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]+"
)
"""Combining marks on one letter above which they are spelled out: they would cover the lines above."""
_FORMATTER = HtmlFormatter(nowrap=True, classprefix="s-")


def visible(text: str) -> str:
    """Spells out invisible characters: control characters as pictures, others by code."""
    text = _STACKED.sub(r"\1", text.replace("\r\n", "\n"))
    return _HIDDEN.sub(_spelled, text)


def _spelled(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else f"‹U+{code:04X}›"


def cut(text: str, limit: int) -> tuple[str, int]:
    """Cuts a text to about `limit` characters at both ends; also returns the number left out between."""
    if len(text) <= limit + limit // 10:
        return text, 0
    return text[: limit * 2 // 3] + "\n⋯\n" + text[-limit // 3 :], len(text) - limit


def plain(text: str) -> Markup:
    """Escapes text."""
    return escape(visible(text))


def terminal(text: str) -> Markup:
    """Renders a program's output: ANSI colours as classes `a31`, `ab` (bold) and so on."""
    if "\x1b[" not in text:
        return plain(text)
    parts: list[Markup] = []
    style: frozenset[str] = frozenset()
    at = 0
    for found in _SGR.finditer(text):
        parts.append(_styled(text[at : found.start()], style))
        style = _after(style, found[1])
        at = found.end()
    parts.append(_styled(text[at:], style))
    return Markup("").join(parts)


def _styled(text: str, style: frozenset[str]) -> Markup:
    if not text or not style:
        return plain(text)
    return Markup('<span class="{}">{}</span>').format(" ".join(sorted(style)), plain(text))


_ATTRIBUTES = {"1": "ab", "2": "af", "3": "ai", "4": "au"}


def _after(style: frozenset[str], codes: str) -> frozenset[str]:
    """Classes after one escape sequence; 256 and 24-bit colours are ignored."""
    found = set(style)
    words = iter((codes or "0").split(";"))
    for word in words:
        word = word.lstrip("0") or "0"
        if word == "0":
            found.clear()
        elif word in _ATTRIBUTES:
            found.add(_ATTRIBUTES[word])
        elif word in ("38", "48"):
            for _ in range({"5": 1, "2": 3}.get(next(words, ""), 0)):
                next(words, None)
        elif re.fullmatch("[39][0-7]|39", word):
            found = {name for name in found if not re.fullmatch(r"a\d+", name)}
            found |= set() if word == "39" else {f"a{word}"}
    return frozenset(found)


def code(text: str, language: str) -> Markup:
    """Renders source code with Pygments' classes."""
    text = visible(text)
    if len(text) > HIGHLIGHTED_CHARACTERS:
        return escape(text)
    return Markup(highlight(text, get_lexer_by_name(language, stripnl=False, ensurenl=False), _FORMATTER))


class _Parser(MarkdownIt):
    """Markdown without HTML and pictures; links lead to web addresses alone. All else is shown as text."""

    def __init__(self) -> None:
        super().__init__("js-default", {"breaks": True, "maxNesting": 20})
        self.disable("image")

    def validateLink(self, url: str) -> bool:
        return url.startswith(("https://", "http://"))


_PARSER = _Parser()


class ShownMarkdown(NamedTuple):
    html: Markup
    title: str
    """The first heading or paragraph as plain text."""
    characters: int


def markdown(text: str) -> ShownMarkdown:
    """Formats Markdown. Its headings are no headings of the page; texts above MARKDOWN_CHARACTERS are not
    formatted."""
    text = visible(text)
    if len(text) > MARKDOWN_CHARACTERS:
        return ShownMarkdown(Markup("<pre>{}</pre>").format(text), _title(text), len(text))
    tokens, title = _PARSER.parse(text), ""
    for token in tokens:
        if token.type.startswith("heading_"):
            token.tag, token.attrs = "p", {"class": "heading"} if token.type == "heading_open" else {}
        token.attrs.pop("style", None)  # of a column's side; the page's policy forbids it
        for child in token.children or ():
            if child.type == "link_open":
                address = str(child.attrs["href"])  # empty for a link without an address
                child.attrs = {"href": address, "rel": "noreferrer", "title": address} if address else {}
        if not title and token.type == "inline":
            parts = (" " if "break" in child.type else child.content for child in token.children or ())
            title = " ".join("".join(parts).split())
    html = _PARSER.renderer.render(tokens, _PARSER.options, {})
    return ShownMarkdown(Markup(html), title or _title(text), len(text))


class ShownText(NamedTuple):
    """Renders the arguments of a tool call."""

    html: Markup
    title: str
    """First line of the arguments, shortened."""


def arguments(text: str) -> ShownText:
    """Formats a lone command as shell, other JSON indented, anything else unchanged."""
    try:
        known = json.loads(text)
    except ValueError:
        return ShownText(plain(text), _title(text))
    except RecursionError:
        return ShownText(plain(text), _title(text))
    if isinstance(known, dict):
        for key in ("command", "cmd", "script"):
            value = known.get(key)
            if isinstance(value, list) and value and all(isinstance(word, str) for word in value):
                value = value[-1] if value[0] in ("bash", "sh") else " ".join(value)
            if isinstance(value, str) and len(known) == 1:
                return ShownText(code(value, "bash"), _title(value))
            if isinstance(value, str):
                return ShownText(code(json.dumps(known, indent=2, ensure_ascii=False), "json"), _title(value))
    return ShownText(code(json.dumps(known, indent=2, ensure_ascii=False), "json"), _title(text))


def _title(text: str) -> str:
    return visible(text.strip().partition("\n")[0])[:120]


class ShownDiff(NamedTuple):
    """Changes of a patch to one file."""

    name: str
    added: int
    removed: int
    html: Markup


_CLASS = {"+": "add", "-": "del", "@": "hunk"}


def diff(text: str) -> list[ShownDiff]:
    """Splits a unified diff by file; text that is no diff becomes one file without a name."""
    return [_shown(file, lines) for file, lines in split_diff(text) if any(lines)]


def _shown(file: FileDiff | None, lines: list[str]) -> ShownDiff:
    parts, body = [], False
    for line in lines:
        body = body or line.startswith("@@")
        kind = _CLASS.get(line[:1], "") if body else "meta"
        parts.append(Markup('<span class="d {}">{}</span>').format(kind, plain(line)))
    hunks = file.hunks if file else ()
    added, removed = sum(len(hunk.added) for hunk in hunks), sum(len(hunk.removed) for hunk in hunks)
    return ShownDiff(visible(file.path if file else "")[:300], added, removed, Markup("").join(parts))


class TreeRow(NamedTuple):
    """A line of the tree of changed files: a directory, or a file with its number in the diff."""

    depth: int
    name: str
    number: int = 0
    file: ShownDiff | None = None


def diff_tree(files: Sequence[ShownDiff]) -> list[TreeRow]:
    """Directories and files of a diff; a directory that has one directory alone shares its line."""
    root: dict[str, Any] = {}
    for number, file in enumerate(files, 1):
        *folders, name = file.name.split("/")
        below = root
        for folder in folders:
            below = below.setdefault(f"{folder}/", {})
        below[f"{name}\0{number}"] = (number, file)
    return list(_tree_rows(root, 0))


def _tree_rows(folder: dict[str, Any], depth: int) -> Iterator[TreeRow]:
    for name, below in sorted(folder.items()):
        if isinstance(below, tuple):
            yield TreeRow(depth, name.partition("\0")[0] or "submission", *below)
            continue
        while len(below) == 1 and isinstance(only := next(iter(below.values())), dict):
            name, below = name + next(iter(below)), only
        yield TreeRow(depth, name)
        yield from _tree_rows(below, depth + 1)


def marked(text: str, wanted: re.Pattern[str]) -> Markup:
    """Escapes text and marks what matches."""
    parts, at = [], 0
    for found in wanted.finditer(text):
        parts += [plain(text[at : found.start()]), Markup("<mark>{}</mark>").format(plain(found[0]))]
        at = found.end()
    return Markup("").join([*parts, plain(text[at:])])


def snippet(text: str, wanted: re.Pattern[str]) -> Markup:
    """The first line or two around the first match, with all matches in it marked."""
    found = wanted.search(text)
    at = found.start() if found else 0
    start = max(at - SNIPPET // 3, 0)
    end = start + SNIPPET
    cut = " ".join(text[start:end].split())
    left, right = "…" if start else "", "…" if end < len(text) else ""
    return Markup("{}{}{}").format(left, marked(cut, wanted), right)
