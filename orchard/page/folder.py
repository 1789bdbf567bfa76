"""Writes pages as files: addresses become links among the files, and keys of known vendors are masked."""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from html import unescape
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

from orchard.page.pictures import served_type
from orchard.page.rendering import Renderer
from orchard.schemas.blobs import BlobRef
from orchard.storage.blobs import BlobStore
from orchard.storage.errors import BlobCorrupt, BlobMissing
from orchard.workers.masking import masked

T = TypeVar("T")
PICTURES = 10_000_000
"""Maximum bytes of all pictures. Each rollout may use its share and what earlier ones left."""
SHORTEST_KEY = 16
KEY = 8_192
"""Maximum characters of a key. Texts are read this far beyond their cut, so that a key across it is masked
too."""
_ADDRESS = re.compile(r'(href|src|action)="([/#][^"]*)"')
STATIC = ("page.css", "page.js", "icon.svg")
_OTHER_VIEWS = frozenset({"leaf", "as_of", "attempt"})
"""Query parameters that select what the folder does not have."""


@dataclass(frozen=True)
class WrittenReport:
    """Counts of a finished report."""

    rollouts: int
    files: int
    bytes: int
    secrets: Mapping[str, int]
    """Number of masked keys by page."""
    pictures: int = 0
    left_out: int = 0
    """Pictures omitted for their size."""


class Folder:
    """Writes pages into a folder."""

    def __init__(
        self, store: str, out: Path, title: str, nav: Sequence[tuple[str, str]], mask: int | None = None
    ) -> None:
        """Takes the title of the report, and in `nav` names and addresses of its main pages. `mask` decides
        who may read the files; without it, that of the process."""
        self._out, self._title, self._nav = out, title, list(nav)
        self.renderer = Renderer(Path(store).name if "://" not in store else store)
        self.blobs = _MaskedBlobs(store, self)
        self.files: dict[str, str] = {"/secrets": "secrets.txt"}
        """File of each address that is not a rollout's."""
        self.rollouts: list[str] = []
        """Ids of the rollouts that have a page."""
        self.room = 0
        """Remaining bytes for pictures."""
        self._known: frozenset[str] = frozenset()
        self._store = BlobStore(store)
        self._mask = mask
        self._secrets: Counter[str] = Counter()
        self._page = ""
        self._count = self._bytes = 0
        self._pictures: dict[str, str] = {}
        """File of each picture; empty if it is left out."""

    def begin(self, rollouts: Sequence[str]) -> None:
        """Creates the folder with style sheet, script and icon. Raises OSError."""
        self.rollouts, self._known = list(rollouts), frozenset(rollouts)
        for name in STATIC:
            body, _ = self.renderer.static(name) or (b"", "")
            self._put(name, body)

    def save(self, name: str, template: str, path: str, **values: Any) -> None:
        """Renders a page of the address `path` into a file. Its values must be scrubbed."""
        self._page = name
        values |= {"may_change": False, "path": path, "report": self._title, "nav": self._nav, "live": None}
        html = self.renderer.page(template, values)
        html = _ADDRESS.sub(lambda found: self._relative(found[1], unescape(found[2])), html)
        self._put(name, html.encode("utf-8", "replace"))

    def finish(self) -> WrittenReport:
        """Writes the list of masked keys and returns the report's counts."""
        self._page = "secrets"
        lines = [f"{number} in {page}" for page, number in sorted(self._secrets.items())]
        told = "Keys of known vendors that were masked, by page:\n" + ("\n".join(lines) or "none") + "\n"
        there = sum(map(bool, self._pictures.values()))
        left_out = len(self._pictures) - there
        if self._pictures:
            told += f"\nNot searched for keys: {there} pictures. {left_out} had no room.\n"
        self._put("secrets.txt", told.encode())
        secrets = dict(self._secrets)
        return WrittenReport(len(self.rollouts), self._count, self._bytes, secrets, there, left_out)

    def clean(self, text: str) -> str:
        """Masks keys in the text and counts them for the current page."""
        if len(text) < SHORTEST_KEY:
            return text
        found = masked(text)
        if found.text != text:
            self._secrets[self._page] += max(found.keys, 1)
        return found.text

    def scrubbed(self, value: T, page: str = "") -> T:
        """Copies `value` with keys masked in every text, counted for `page` or the last page."""
        self._page = page or self._page
        found: T = self._mapped(value)
        return found

    def _mapped(self, value: Any) -> Any:
        if type(value) is str:
            return self.clean(value)
        if isinstance(value, dict):
            return {self._mapped(key): self._mapped(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            made = [self._mapped(each) for each in value]
            return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
        if is_dataclass(value) and not isinstance(value, type):
            changes = {each.name: self._mapped(getattr(value, each.name)) for each in fields(value)}
            return replace(value, **changes)
        return value

    def _put(self, name: str, body: bytes) -> None:
        self._write(self._out / name, body)

    def _write(self, file: Path, body: bytes) -> None:
        with _masked_by(self._mask):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(body)
        self._count += 1
        self._bytes += len(body)

    def _link(self, file: str, mark: str) -> str:
        """Address of a file, and a mark in it, from the current page."""
        if mark and file == self._page:
            return mark
        return "../" * self._page.count("/") + file + mark

    def _relative(self, attribute: str, address: str) -> str:
        """Link to an address's file; empty if the folder does not have it."""
        if address.startswith("#"):
            return f'{attribute}="{self._link(self._page, address)}"'
        parts = urlsplit(address)
        first, _, rest = unquote(parts.path).lstrip("/").partition("/")
        mark = f"#{parts.fragment}" if parts.fragment else ""
        asked = parse_qs(parts.query)
        file = ""
        if first == "static":
            return f'{attribute}="{self._link(rest, "")}"'
        if first == "rollouts" and "/pictures/" in rest:
            file = self._picture(rest.rpartition("/")[2])
        elif attribute != "href":
            return ""
        elif first == "rollouts" and rest in self._known and not _OTHER_VIEWS & asked.keys():
            file = f"rollouts/{rest}.html"
        else:
            file = self.files.get(address.partition("#")[0], "")
            if not file and not set(asked) - {"campaign"}:
                file = self.files.get(parts.path, "")
        return f'{attribute}="{self._link(file, mark)}"' if file else ""

    def _picture(self, sha256: str) -> str:
        """Writes a picture if there is room and returns its file; empty without room."""
        if sha256 not in self._pictures:
            self._pictures[sha256] = ""
            try:
                data = self._store.get(BlobRef(sha256=sha256, size=0))
            except (BlobMissing, BlobCorrupt):
                return ""
            kind = served_type(data)
            if kind is not None and len(data) <= self.room:
                self.room -= len(data)
                self._pictures[sha256] = f"pictures/{sha256}.{kind.rpartition('/')[2]}"
                self._put(self._pictures[sha256], data)
        return self._pictures[sha256]


@contextmanager
def _masked_by(mask: int | None) -> Iterator[None]:
    """Creates files with this mask instead of the process's."""
    kept = None if mask is None else os.umask(mask)
    try:
        yield
    finally:
        if kept is not None:
            os.umask(kept)


class _MaskedBlobs(BlobStore):
    """Reads text blobs with keys masked."""

    def __init__(self, url: str, folder: Folder) -> None:
        super().__init__(url)
        self._folder = folder

    def get(self, reference: BlobRef) -> bytes:
        """Reads a blob and masks keys."""
        return self._folder.clean(super().get(reference).decode("utf-8", "replace")).encode()
