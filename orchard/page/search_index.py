"""Full-text index of all messages in the state directory, for searches below a second.

It is SQLite's FTS5 without the texts themselves. It is made when somebody first searches, read on from there
with each later search, and stays for the next server. Nobody who does not search pays for it.
"""

import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import duckdb
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from orchard.storage.location import Location
from orchard.storage.tables import EVENTS

STEP_SECONDS = 0.3
"""Approximate processor time of one step, for which other queries wait."""
WINDOW = 4_000
"""Sequences of the first and of the shortest step: shorter ones would read a file's rows repeatedly."""
AT_ONCE = 10_000
MOST = 1 << 20
"""Maximum number of messages of a rollout with ids of their own."""
_CACHE_KB = 12_000
_WORD = re.compile(r"[^\W_]+\*?")
_UNSPACED = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff]"
)
"""Letters of scripts without spaces between words."""

_SCHEMA = """
create virtual table said using fts5(text, content='', columnsize=0, detail=none);
create table used(tool text, asked integer, primary key (tool, asked)) without rowid;
create table counted(asked integer primary key, messages integer);
create table progress(store text, upto integer);
"""
_READ = """
select q.sequence as asked, list_transform(m.tool_calls, lambda c: c.name) as tools,
       concat_ws(' ', m.content, m.reasoning, array_to_string(
           list_transform(m.tool_calls, lambda c: c.name || ' ' || c.arguments), ' ')) as text
from (select * from tables.messages_all where sequence > $after and sequence <= $upto) m
join indexed.asked q using (rollout_id)
"""


class WordQuery(NamedTuple):
    """Part of a search that the full-text index answers."""

    words: tuple[str, ...] = ()
    """Words that one message must contain; a word with a final `*` is a prefix."""
    tool: str = ""


def words_of(text: str) -> tuple[str, ...]:
    """Splits a search into words; empty if it must be matched by letters: quoted, without words, or in a
    script without spaces."""
    if text.startswith('"') or _UNSPACED.search(text):
        return ()
    return tuple(_WORD.findall(text))


class SearchIndex:
    """Index of one store, for use by one thread."""

    def __init__(self, store: str, file: Path) -> None:
        self._store, self._file = store, file
        self._index: sqlite3.Connection | None = None
        self._upto = 0
        self._window = float(WINDOW)

    @property
    def upto(self) -> int:
        """Sequence up to which messages are indexed."""
        return self._upto

    def step(self, tables: duckdb.DuckDBPyConnection, position: int) -> bool:
        """Indexes for about STEP_SECONDS; returns whether it has reached `position`."""
        try:
            return self._step(tables, position)
        except sqlite3.DatabaseError:  # the file is damaged, or another program's: make it anew
            if self._index is None:
                raise
            self.close()
            for end in ("", "-wal", "-shm"):
                Path(f"{self._file}{end}").unlink(missing_ok=True)
            return self._step(tables, position)

    def rollouts(self, wanted: WordQuery) -> Iterator[list[int]]:
        """Yields request sequences of matching rollouts in lists, as far as messages are indexed."""
        assert self._index is not None, "`step` comes first"
        asked, values = [], []
        if wanted.words:
            asked.append(f"select distinct rowid / {MOST} from said where said match ?")
            values.append(" AND ".join(_term(word) for word in wanted.words))
        if wanted.tool:
            asked.append("select asked from used where tool = ?")
            values.append(wanted.tool)
        found = self._index.execute(" intersect ".join(asked), values)
        while rows := found.fetchmany(AT_ONCE):
            yield [row[0] for row in rows]

    def close(self) -> None:
        """Closes the index; its file stays."""
        if self._index is not None:
            self._index.close()
        self._index, self._upto = None, 0

    def _step(self, tables: duckdb.DuckDBPyConnection, position: int) -> bool:
        if position < self._upto:  # another store is in its place
            self.close()
        index = self._opened(position)
        ends = time.thread_time() + STEP_SECONDS
        while self._upto < position and (began := time.thread_time()) < ends:
            last = min(self._upto + int(self._window), position)
            with index:
                index.execute("begin immediate")
                (upto,) = index.execute("select upto from progress").fetchone()
                if upto == self._upto:  # else another server has read on
                    self._read(index, tables, last)
                    index.execute("update progress set upto = ?", (last,))
                self._upto = max(upto, last)
            took = max(time.thread_time() - began, 0.001)
            self._window = max(self._window * min(max(STEP_SECONDS / took, 0.2), 4.0), WINDOW)
        return self._upto >= position

    def _read(self, index: sqlite3.Connection, tables: duckdb.DuckDBPyConnection, last: int) -> None:
        found = tables.execute(_READ, {"after": self._upto, "upto": last})
        while rows := found.fetchmany(200):
            numbered = []
            for asked, tools, text in rows:
                (number,) = index.execute(
                    "insert into counted values (?, 1) on conflict do update set messages = messages + 1 "
                    "returning messages",
                    (asked,),
                ).fetchone()
                numbered.append((asked * MOST + number % MOST, text))
                if tools:
                    index.executemany(
                        "insert or ignore into used values (?, ?)", [(tool, asked) for tool in tools]
                    )
            index.executemany("insert into said(rowid, text) values (?, ?)", numbered)

    def _opened(self, position: int) -> sqlite3.Connection:
        """Opens the store's file; recreates it if it is another store's or ahead of the tables."""
        if self._index is None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._file.touch(mode=0o600)
            store = _name_of(self._store)
            index = sqlite3.connect(self._file, check_same_thread=False, isolation_level=None, timeout=30.0)
            self._index = index
            for setting in ("journal_mode = wal", "synchronous = normal", f"cache_size = -{_CACHE_KB}"):
                index.execute(f"pragma {setting}")
            known = None
            with suppress(sqlite3.OperationalError):
                known = index.execute("select store, upto from progress").fetchone()
            if known is None or known[0] != store or known[1] > position:
                self._made_anew(index, store)
            (self._upto,) = index.execute("select upto from progress").fetchone()
        return self._index

    def _made_anew(self, index: sqlite3.Connection, store: str) -> None:
        with index:
            index.execute("begin immediate")
            for table in ("said", "used", "counted", "progress"):
                index.execute(f"drop table if exists {table}")
            for statement in _SCHEMA.split(";"):
                index.execute(statement)
            index.execute("insert into progress values (?, 0)", (store,))


def _term(word: str) -> str:
    return f'"{word.rstrip("*")}"' + ("*" if word.endswith("*") else "")


def _name_of(store: str) -> str:
    """Name that distinguishes this store from another one at the same location."""
    location = Location.parse(store)
    try:
        table = DeltaTable(location.table_url(EVENTS), storage_options=location.storage_options)
    except TableNotFoundError:
        return location.url
    return f"{location.url} {table.metadata().id}"
