"""Full-text index of all messages in the state directory, for searches below a second.

It is SQLite's FTS5 without the texts themselves. It is made when somebody first searches, read on from there
with each later search, and stays for the next server. Nobody who does not search pays for it.
"""

import hashlib
import re
import sqlite3
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import duckdb
import numpy as np
import numpy.typing as npt
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from orchard.page.failing_tests import FAILING
from orchard.schemas.messages import Role
from orchard.schemas.positions import STREAM_BITS, Position, own_sequence, sequence_in, stream_of
from orchard.storage.location import Location
from orchard.storage.tables import EVENTS

STEP_SECONDS = 0.3
"""Approximate processor time of one step, for which other queries wait."""
WINDOW = 4_000
"""Sequences of the first and of the shortest step: shorter ones would read a file's rows repeatedly."""
SPAN = 1 << 30
"""Ids of the index are the sequence of a rollout's request times SPAN, plus how much later its message is:
both in the rollout's event stream."""
TURNS = 1_000
"""Turns above which a range of turns must be open."""
FORM = 4
"""Version of the index; one of another version is made anew."""
_ROLE, _TURN, _TOOL = "\ue000", "\ue001", "\ue002"
"""First letters of the words that stand for role, turn and tools of a message: nobody types them."""
_MARKS = str.maketrans(_ROLE + _TURN + _TOOL, "   ")
_CACHE_KB = 12_000
_WORD = re.compile(r"[^\W_]+\*?")
_UNSPACED = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff]"
)
"""Letters of scripts without spaces between words."""

_SCHEMA = """
create virtual table said using fts5(text, content='', columnsize=0, detail=none);
create table called(call integer primary key, tool text);
create table failed(test integer, asked integer, attempt integer, primary key (test, asked, attempt))
    without rowid;
create table progress(store text, upto integer);
"""
_ASKED = f"""
(
    select rollout_id, sequence - $before as asked from indexed.asked
    where sequence // {1 << STREAM_BITS} = $stream
) q using (rollout_id)
"""
_READ = f"""
select q.asked, m.sequence - $before - q.asked as later, m.role, m.turn, m.attempt, m.tool_call_id,
       list_transform(m.tool_calls, lambda c: c.name) as tools,
       concat_ws(' ', m.content, m.reasoning, array_to_string(
           list_transform(m.tool_calls, lambda c: c.name || ' ' || c.arguments), ' ')) as text
from (select * from tables.messages_all where sequence > $after and sequence <= $upto) m join {_ASKED}
"""
_CALLS = f"""
select q.asked, m.attempt, m.turn, m.call.id, m.call.name
from (
    select rollout_id, attempt, turn, unnest(tool_calls) as call from tables.messages_all
    where sequence > $after and sequence <= $upto
) m join {_ASKED}
"""
_FAILED = f"""
select q.asked, w.attempt, map_keys(map_from_entries({FAILING})) as tests
from (select * from tables.rewards_all where sequence > $after and sequence <= $upto) w join {_ASKED}
"""


class WordQuery(NamedTuple):
    """Part of a search that the full-text index answers."""

    words: tuple[str, ...] = ()
    """Words that one message must contain; a word with a final `*` is a prefix."""
    tool: str = ""
    """Tool that the message calls, or whose result it is."""
    role: str = ""
    """Role of that message."""
    turns: tuple[int, int | None] | None = None
    """First and last turn of that message; an open end is None."""
    failing: str = ""
    """Test that the rollout failed, by its whole name."""

    @property
    def asks(self) -> bool:
        return self != WordQuery()

    @property
    def match(self) -> str:
        """The query of the message; empty for none."""
        terms = [_term(word) for word in self.words]
        terms += [f'"{_ROLE}{self.role}"'] if self.role else []
        terms += [f'"{_TOOL}{_digest(self.tool):x}"'] if self.tool else []
        if self.turns is None:
            return " AND ".join(terms)
        first, last = self.turns
        if last is not None:
            return " AND ".join([*terms, _any(f"{_TURN}{turn}" for turn in range(first, last + 1))])
        terms = terms or [_any(f"{_ROLE}{role}" for role in Role)]
        without = f" NOT {_any(f'{_TURN}{turn}' for turn in range(first))}" if first else ""
        return f"({' AND '.join(terms)}){without}"


class Hit(NamedTuple):
    """First message of a rollout that matches, and the number of all."""

    sequence: int
    number: int


def words_of(text: str) -> tuple[str, ...]:
    """Splits a search into words; empty if it must be matched by letters: quoted, without words, or in a
    script without spaces."""
    if text.startswith('"') or _UNSPACED.search(text):
        return ()
    return tuple(_WORD.findall(text))


class SearchIndex:
    """Index of one store, for use by one thread: a file for each event stream."""

    def __init__(self, store: str, file: Path) -> None:
        """The `file` is that of stream 0."""
        self._store, self._file = store, file
        self._streams: list[_StreamIndex] = []

    def share(self, position: Position) -> float:
        """Share of the events up to `position` that were read."""
        return sum(each.upto for each in self._streams) / max(position.events, 1)

    def step(self, tables: duckdb.DuckDBPyConnection, position: Position) -> bool:
        """Indexes for about STEP_SECONDS; returns whether it has reached `position`."""
        for stream in range(len(self._streams), max(len(position), 1)):
            file = self._file.with_stem(f"{self._file.stem}-{stream}") if stream else self._file
            self._streams.append(_StreamIndex(self._store, file, stream))
        ends = time.thread_time() + STEP_SECONDS
        reached = [
            each.step(tables, own_sequence(position.last(stream)), ends)
            for stream, each in enumerate(self._streams)
        ]
        return all(reached)

    def failed(self, test: str) -> list[tuple[int, int]]:
        """Request sequences and attempts that failed a test, as far as rewards are indexed."""
        assert self._streams, "`step` comes first"
        return [found for each in self._streams for found in each.failed(test)]

    def rollouts(self, wanted: WordQuery) -> npt.NDArray[np.int64]:
        """Request sequences of rollouts with a message that matches, as far as messages are indexed."""
        assert self._streams, "`step` comes first"
        return np.concatenate([each.rollouts(wanted) for each in self._streams])

    def hits(self, wanted: WordQuery, asked: Sequence[int]) -> list[Hit]:
        """Hits of the rollouts whose requests have these sequences."""
        return [
            hit
            for stream, each in enumerate(self._streams)
            for hit in each.hits(wanted, [own_sequence(one) for one in asked if stream_of(one) == stream])
        ]

    def close(self) -> None:
        """Closes the index; its files stay."""
        for each in self._streams:
            each.close()


class _StreamIndex:
    """Index of one event stream; sequences in it are the stream's own."""

    def __init__(self, store: str, file: Path, stream: int) -> None:
        self._store, self._file = store, file
        self._before = sequence_in(stream, 0)
        self._index: sqlite3.Connection | None = None
        self._upto = 0
        self._window = float(WINDOW)

    @property
    def upto(self) -> int:
        """Sequence up to which messages are indexed."""
        return self._upto

    def step(self, tables: duckdb.DuckDBPyConnection, position: int, ends: float) -> bool:
        """Indexes until this thread has used `ends` seconds; returns whether it has reached `position`."""
        try:
            return self._step(tables, position, ends)
        except sqlite3.DatabaseError:  # the file is damaged, or another program's: make it anew
            if self._index is None:
                raise
            self.close()
            for end in ("", "-wal", "-shm"):
                Path(f"{self._file}{end}").unlink(missing_ok=True)
            return self._step(tables, position, ends)

    def rollouts(self, wanted: WordQuery) -> npt.NDArray[np.int64]:
        assert self._index is not None, "`step` comes first"
        query = f"select distinct rowid / {SPAN} from said where said match ?"
        found = self._index.execute(query, (wanted.match,))
        return np.fromiter(chain.from_iterable(found), np.int64) + self._before

    def failed(self, test: str) -> list[tuple[int, int]]:
        assert self._index is not None, "`step` comes first"
        found = self._index.execute("select asked, attempt from failed where test = ?", (_digest(test),))
        return [(self._before + asked, attempt) for asked, attempt in found]

    def hits(self, wanted: WordQuery, asked: Sequence[int]) -> list[Hit]:
        """In one query: a prefix of many words is slow to look up."""
        assert self._index is not None, "`step` comes first"
        if not asked:
            return []
        found = self._index.execute(
            "select min(rowid), count(*) from said where said match ? and rowid between ? and ? "
            f"and rowid / {SPAN} in ({', '.join(map(str, asked))}) group by rowid / {SPAN}",
            (wanted.match, min(asked) * SPAN, (max(asked) + 1) * SPAN - 1),
        )
        return [
            Hit(self._before + first // SPAN + first % SPAN, number) for first, number in found.fetchall()
        ]

    def close(self) -> None:
        if self._index is not None:
            self._index.close()
        self._index, self._upto = None, 0

    def _step(self, tables: duckdb.DuckDBPyConnection, position: int, ends: float) -> bool:
        if position < self._upto:  # another store is in its place
            self.close()
        index = self._opened(position)
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
        before = self._before
        window = {"before": before, "after": before + self._upto, "upto": before + last}
        window["stream"] = stream_of(before)
        calls = tables.execute(_CALLS, window).fetchall()
        called = {tuple(call): name for *call, name in calls}
        found = tables.execute(_READ, window)
        while rows := found.fetchmany(200):
            numbered = []
            for asked, later, role, turn, attempt, call, tools, text in rows:
                if call:
                    key = (asked, attempt, turn, call)
                    tool = called.pop(key, None) or _earlier(index, key)
                    tools = [tool] if tool else []
                words = [f"{_TOOL}{_digest(tool):x}" for tool in tools or ()]
                said = " ".join([text.translate(_MARKS), f"{_ROLE}{role} {_TURN}{turn}", *words])
                numbered.append((asked * SPAN + later % SPAN, said))
            index.executemany("insert into said(rowid, text) values (?, ?)", sorted(numbered))
        left = ((_digest(str(key)), name) for key, name in called.items())
        index.executemany("insert or ignore into called values (?, ?)", left)
        for asked, attempt, tests in tables.execute(_FAILED, window).fetchall():
            index.executemany(
                "insert or ignore into failed values (?, ?, ?)",
                [(_digest(test), asked, attempt) for test in tests],
            )

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
            for table in ("said", "used", "called", "counted", "failed", "progress"):
                index.execute(f"drop table if exists {table}")
            for statement in _SCHEMA.split(";"):
                index.execute(statement)
            index.execute("insert into progress values (?, 0)", (store,))


def _term(word: str) -> str:
    return f'"{word.rstrip("*")}"' + ("*" if word.endswith("*") else "")


def _any(words: Iterable[str]) -> str:
    return "(" + " OR ".join(f'"{word}"' for word in words) + ")"


def _earlier(index: sqlite3.Connection, call: tuple[int, int, int, str]) -> str | None:
    """Tool of a call that an earlier window had without its result."""
    found = index.execute("select tool from called where call = ?", (_digest(str(call)),)).fetchone()
    return found[0] if found else None


@lru_cache(10_000)
def _digest(name: str) -> int:
    """Stands for a name of a test, tool or call: names are long, and there are many."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest())


def _name_of(store: str) -> str:
    """Name that distinguishes this store from another one at the same location, and this form of the index
    from others."""
    location = Location.parse(store)
    try:
        table = DeltaTable(location.table_url(EVENTS), storage_options=location.storage_options)
    except TableNotFoundError:
        return f"{FORM} {location.url}"
    return f"{FORM} {location.url} {table.metadata().id}"
