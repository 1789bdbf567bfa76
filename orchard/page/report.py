"""A campaign as a folder of files: the page's own pages, which open from disk and can be mailed."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from html import unescape
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

import duckdb
import msgspec

from orchard.page import rollout as one_rollout
from orchard.page.compare import compare, matrix, tallied
from orchard.page.failures import failures
from orchard.page.index import STANDING, Index
from orchard.page.pictures import served_type
from orchard.page.rendering import Renderer
from orchard.page.rollouts import Query, page_of, summary_of
from orchard.page.tables import SETTINGS
from orchard.page.tasks import listed
from orchard.schemas.blobs import BlobRef
from orchard.standing import CampaignView, recorded
from orchard.storage.blobs import BlobStore
from orchard.storage.errors import BlobCorrupt, BlobMissing, StorageError
from orchard.storage.reader import open_tables, position
from orchard.workers.masking import masked

T = TypeVar("T")
BYTES = 36_000_000
"""Of all pages of rollouts, about: what can be mailed."""
PICTURES = 10_000_000
"""Bytes of all pictures, of which each rollout has its share and what those before it left."""
SHORTEST_KEY = 16
_MARKUP = 1_600
"""Bytes of a turn's markup."""
_COPIED = ("messages_all", "llm_calls_all", "rewards_all", "rollouts_all", "requests_all", "values_all")
_ADDRESS = re.compile(r'(href|src|action)="(/[^"]*)"')


class UnknownCampaign(StorageError):
    """A campaign that the tables do not have."""


@dataclass(frozen=True)
class Written:
    """What a report has."""

    rollouts: int
    files: int
    bytes: int
    secrets: Mapping[str, int]
    """Keys that were masked, by the page they were found on."""
    pictures: int = 0
    """Pictures that are in it."""
    left_out: int = 0
    """Pictures that had no room."""


def write_report(
    store: str, campaign: str, out: Path, progress: Callable[[int, int], object] | None = None
) -> Written:
    """Writes the pages of a campaign into `out`, with keys of known vendors masked.

    Raises UnknownCampaign, StorageError, and OSError where the folder cannot be written.
    """
    with open_tables(store) as tables:
        for setting in SETTINGS:
            tables.execute(setting)
        index = Index(tables)
        try:
            index.follow(position(store))
            return _Report(tables, store, campaign, out).write(progress)
        finally:
            index.close()


class _Report:
    def __init__(self, tables: duckdb.DuckDBPyConnection, store: str, campaign: str, out: Path) -> None:
        self._tables, self._campaign, self._out = tables, campaign, out
        self._renderer = Renderer(Path(store).name if "://" not in store else store)
        self._secrets: Counter[str] = Counter()
        self._page = ""
        self._blobs = _MaskedBlobs(store, self._clean)
        self._ids: list[str] = []
        self._known: set[str] = set()
        self._files = self._bytes = 0
        self._store = BlobStore(store)
        self._pictures: dict[str, str] = {}
        """File of each picture; empty for one that is left out."""
        self._room = 0

    def write(self, progress: Callable[[int, int], object] | None) -> Written:
        views = [view for view in recorded(self._tables, STANDING) if view.name == self._campaign]
        if not views:
            raise UnknownCampaign(
                f"the tables have no campaign {self._campaign!r}: `orchard status` lists them"
            )
        self._copy()
        query = Query.of({"campaign": self._campaign})
        pages = list(self._rows(query))
        self._ids = [row["rollout_id"] for page in pages for row in page]
        self._known = set(self._ids)
        self._out.mkdir(parents=True, exist_ok=True)
        for name in ("page.css", "page.js", "icon.svg"):
            body, _ = self._renderer.static(name) or (b"", "")
            self._put(self._out / name, body)
        self._front(views[0])
        summary = summary_of(self._tables, query)
        for number, page in enumerate(pages or [[]]):
            shown = {
                "rows": page,
                "number": number,
                "pages": len(pages),
                "summary": summary,
                "query": None,
            }
            self._save(_listing(number), "report_rollouts.html", "/rollouts", **self._scrubbed(shown))
        room = BYTES // max(len(self._ids), 1)
        for done, rollout in enumerate(self._ids):
            self._room += PICTURES // len(self._ids)
            self._rollout(rollout, room)
            if progress is not None:
                progress(done + 1, len(self._ids))
        self._page = "secrets"
        lines = [f"{number} in {page}" for page, number in sorted(self._secrets.items())]
        told = "Keys of known vendors that were masked, by page:\n" + ("\n".join(lines) or "none") + "\n"
        there = sum(map(bool, self._pictures.values()))
        if self._pictures:
            told += f"\nNot searched for keys: {there} pictures. {len(self._pictures) - there} had no room.\n"
        self._put(self._out / "secrets.txt", told.encode())
        left_out = len(self._pictures) - there
        return Written(len(self._ids), self._files, self._bytes, dict(self._secrets), there, left_out)

    def _copy(self) -> None:
        """Tables of this campaign alone, by rollout: a thousand rollouts are read one by one."""
        for name in _COPIED:
            self._tables.execute(
                f"create table page.{name} as select * from tables.{name} where campaign = $campaign "
                "order by rollout_id, sequence",
                {"campaign": self._campaign},
            )
            self._tables.execute(f"create or replace view tables.{name} as select * from page.{name}")

    def _rows(self, query: Query) -> Iterator[list[dict[str, Any]]]:
        while True:
            page = page_of(self._tables, query)
            if page.rows:
                yield page.rows
            if page.next is None:
                return
            query = replace(query, after=tuple(msgspec.json.decode(page.next)))

    def _front(self, view: CampaignView) -> None:
        entries = matrix(self._tables, self._campaign)
        arms = [entry.arm for entry in entries]
        result = None
        if len(arms) > 1:
            result = compare(*(tallied(self._tables, arm) for arm in arms[1::-1]))
        self._save("index.html", "report.html", "/", view=self._scrubbed(view))
        shown = {
            "entries": entries,
            "arms": arms[:2],
            "chosen": arms[1::-1] if result else [],
            "result": result,
        }
        self._save(
            "compare.html", "compare.html", "/compare", campaign=self._campaign, **self._scrubbed(shown)
        )
        found = failures(self._tables, self._campaign)
        self._save(
            "failures.html",
            "failures.html",
            "/failures",
            found=self._scrubbed(found),
            campaign=self._campaign,
        )
        tasks = listed(self._tables, self._campaign, "", "hardest", 0, limit=10_000)
        shown = {"found": tasks, "part": "", "sort": "hardest", "skip": 0, "campaign": self._campaign}
        self._save("tasks.html", "tasks.html", "/tasks", **self._scrubbed(shown))

    def _rollout(self, rollout: str, room: int) -> None:
        self._page = f"rollouts/{rollout}.html"
        sight = one_rollout.Sight(window=100_000)
        (turns,) = self._tables.execute(
            "select count(*) from tables.messages_all where rollout_id = $id", {"id": rollout}
        ).fetchone() or (0,)
        each = (room - _MARKUP * (turns // 2 + 4)) // max(2 * turns, 1)
        found = one_rollout.read(
            self._tables, rollout, replace(sight, text=min(max(each, 240), one_rollout.TEXT))
        )
        if found is None:
            return
        shown = self._renderer.rollout(self._scrubbed(found), sight, self._blobs, room // 4)
        self._save(self._page, "rollout.html", f"/rollouts/{rollout}", **shown)

    def _save(self, name: str, template: str, path: str, **values: Any) -> None:
        self._page = name
        values |= {"may_change": False, "path": path, "report": self._campaign}
        html = self._renderer.page(template, values)
        up = "../" * name.count("/")
        html = _ADDRESS.sub(lambda found: self._relative(found[1], unescape(found[2]), up), html)
        self._put(self._out / name, html.encode("utf-8", "replace"))

    def _put(self, file: Path, body: bytes) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(body)
        self._files += 1
        self._bytes += len(body)

    def _relative(self, attribute: str, address: str, up: str) -> str:
        """The same address among the files; nothing where the folder does not have it."""
        parts = urlsplit(address)
        first, _, rest = unquote(parts.path).lstrip("/").partition("/")
        mark = f"#{parts.fragment}" if parts.fragment else ""
        asked = parse_qs(parts.query)
        if first == "static":
            return f'{attribute}="{up}{rest}"'
        if first == "rollouts" and "/pictures/" in rest:
            file = self._picture(rest.rpartition("/")[2])
            return f'{attribute}="{up}{file}"' if file else ""
        if attribute == "href":
            if first == "page":
                return f'href="{up}{_listing(int(rest))}"'
            if (
                first == "rollouts"
                and rest in self._known
                and not {"leaf", "as_of", "attempt"} & asked.keys()
            ):
                return f'href="{up}rollouts/{rest}.html{mark}"'
            plain = {"": "index.html", "compare": "compare.html", "failures": "failures.html"}
            plain |= {"tasks": "tasks.html", "rollouts": _listing(0)}
            if not rest and first in plain and not set(asked) - {"campaign"}:
                return f'href="{up}{plain[first]}"'
        return ""

    def _picture(self, sha256: str) -> str:
        """The file of a picture, written where there is room for it; empty where there is none."""
        if sha256 not in self._pictures:
            self._pictures[sha256] = ""
            try:
                data = self._store.get(BlobRef(sha256=sha256, size=0))
            except (BlobMissing, BlobCorrupt):
                return ""
            kind = served_type(data)
            if kind is not None and len(data) <= self._room:
                self._room -= len(data)
                self._pictures[sha256] = f"pictures/{sha256}.{kind.rpartition('/')[2]}"
                self._put(self._out / self._pictures[sha256], data)
        return self._pictures[sha256]

    def _clean(self, text: str) -> str:
        if len(text) < SHORTEST_KEY:
            return text
        found = masked(text)
        if found.text != text:
            self._secrets[self._page] += max(found.keys, 1)
        return found.text

    def _scrubbed(self, value: T) -> T:
        """The same with keys masked in each text of it."""
        found: T = _mapped(value, self._clean)
        return found


def _listing(number: int) -> str:
    return "rollouts.html" if number == 0 else f"rollouts-{number + 1}.html"


def _mapped(value: Any, clean: Callable[[str], str]) -> Any:
    if type(value) is str:
        return clean(value)
    if isinstance(value, dict):
        return {_mapped(key, clean): _mapped(each, clean) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_mapped(each, clean) for each in value)
    if is_dataclass(value) and not isinstance(value, type):
        changes = {each.name: _mapped(getattr(value, each.name), clean) for each in fields(value)}
        return replace(value, **changes)
    return value


class _MaskedBlobs(BlobStore):
    """Blobs that are texts, with keys masked."""

    def __init__(self, url: str, clean: Callable[[str], str]) -> None:
        super().__init__(url)
        self._clean = clean

    def get(self, reference: BlobRef) -> bytes:
        """As the store has it but for keys."""
        return self._clean(super().get(reference).decode("utf-8", "replace")).encode()
