"""Builds Markdown for the generated pages."""

import re
from collections.abc import Iterable, Sequence

GENERATED = "<!-- Written by `make schemas` from the code: change the docstrings there. -->"


def page(title: str, *parts: str) -> str:
    return "\n\n".join([f"# {title}", GENERATED, *filter(None, parts)]) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Formats a table without the columns that are empty in every row."""
    found = [head, *rows]
    used = [number for number, cells in enumerate(zip(*found, strict=True)) if any(cells[1:])]
    lines = [" | ".join(row[number].replace("|", "\\|") for number in used) for row in found]
    return "\n".join(f"| {line} |" for line in [lines[0], " | ".join("---" for _ in used), *lines[1:]])


def code(text: str) -> str:
    """Formats text as code; empty text stays empty."""
    return f"`{text}`" if text else ""


def anchor(heading: str) -> str:
    """Anchor of a heading, by GitHub's rule."""
    return "#" + re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
