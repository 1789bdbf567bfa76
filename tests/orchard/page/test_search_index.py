"""Searches for words find what SQL finds letter by letter, however the log came to be read."""

from collections.abc import Iterator
from pathlib import Path

import aiohttp
import duckdb
import pytest

from orchard.actions.rollout_index import RolloutIndex
from orchard.page.rollouts import Query
from orchard.page.search_index import SearchIndex, words_of
from orchard.page.searching import SearchAnswer, answer
from orchard.schemas import events as e
from orchard.schemas.identity import rollout_stream
from orchard.schemas.messages import MessageNode
from orchard.schemas.positions import Position
from orchard.storage.reader import open_tables, position, refresh, rows
from tests.benchmarks.million import Plan, fill_store
from tests.orchard.page.conftest import Serve, stored
from tests.trajectory_log import Author

STEPS = 5


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("history") / "store"
    fill_store(Plan(rollouts=300, campaigns=2, samples=2, turns=2, open_share=0.2), str(store))
    return store


@pytest.fixture(scope="module")
def searched(
    history: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[duckdb.DuckDBPyConnection, SearchIndex, int]]:
    """The tables and the index of their words, which both came to be in steps."""
    end = position(str(history)).last(0)
    words = SearchIndex(str(history), tmp_path_factory.mktemp("words") / "words.sqlite")
    with open_tables(str(history), as_of=Position()) as tables:
        index = RolloutIndex(tables)
        for upto in range(end // STEPS, end + end // STEPS, end // STEPS):
            refresh(tables, str(history), as_of=Position.of(min(upto, end)))
            index.follow(Position.of(min(upto, end)))
            while not words.step(tables, Position.of(min(upto, end))):
                pass
        yield tables, words, end
    index.close()
    words.close()


def _has(*words: str) -> str:
    """A condition: messages with all of these, each as a word or, with `*`, the beginning of one."""
    patterns = [
        f"(^|[^a-z0-9]){word.rstrip('*')}" + ("" if "*" in word else "($|[^a-z0-9])") for word in words
    ]
    return " and ".join(f"regexp_matches(said, '{pattern}')" for pattern in patterns)


_SQL = """
select rollout_id from rollouts semi join (
    select rollout_id, lower(concat_ws(' ', content, reasoning, tool_calls::varchar)) as said
    from tables.messages_all where {}
) using (rollout_id) order by 1
"""


def _word(tables: duckdb.DuckDBPyConnection, length: int) -> str:
    """One that some, but not all, rollouts have."""
    found = tables.execute(
        "select word, count(distinct rollout_id) as n from (select rollout_id, "
        f"unnest(string_split(content, ' ')) as word from tables.messages_all) where length(word) = {length} "
        "group by 1 having n between 5 and 100 order by n desc, word limit 1"
    ).fetchone()
    assert found is not None
    return str(found[0])


def _asked(searched: tuple[duckdb.DuckDBPyConnection, SearchIndex, int], **filters: str) -> SearchAnswer:
    tables, words, end = searched
    return answer(tables, words, Query.of(filters), Position.of(end))


@pytest.mark.long
def test_rollouts_with_words_are_those_of_sql(
    searched: tuple[duckdb.DuckDBPyConnection, SearchIndex, int],
) -> None:
    tables, _, _ = searched
    long, short = _word(tables, 6), _word(tables, 3)
    for asked in (
        (long,),
        (short,),
        (f"{long[:4]}*",),
        (short, f"{long[:3]}*"),
        ("git", "diff"),
        ("nowhere",),
    ):
        expected = [row["rollout_id"] for row in rows(tables, _SQL.format(_has(*asked)))]
        found = _asked(searched, text=" ".join(asked).upper())
        assert (found.summary.total, found.read) == (len(expected), 1.0), asked
        assert {row["rollout_id"] for row in found.page.rows} <= set(expected)
    assert _asked(searched, text=f"{short} git").summary.total <= _asked(searched, text=short).summary.total


@pytest.mark.long
def test_rollouts_that_used_a_tool(searched: tuple[duckdb.DuckDBPyConnection, SearchIndex, int]) -> None:
    tables, _, _ = searched
    said = len(rows(tables, _SQL.format("len(tool_calls) > 0")))
    assert _asked(searched, tool="bash").summary.total == said > 0
    assert _asked(searched, tool="bas").summary.total == 0
    both = _asked(searched, tool="bash", text="git", outcome="resolved").summary
    assert both.total == both.resolved == _asked(searched, outcome="resolved", text="git").summary.total


@pytest.mark.long
@pytest.mark.parametrize("quoted", ["", '"'])
async def test_a_tool_chooses_its_calls_and_their_results(tmp_path: Path, quoted: str) -> None:
    """Also where a result is indexed after its call."""
    author = Author()
    made = [
        *author.rollout(0, ["pears"], resolved=True, observation=lambda _: "apples", tool="python"),
        *author.rollout(1, ["apples"], resolved=True, observation=lambda _: "pears"),
    ]
    results = [
        event for event in made if isinstance(node := e.payload(event), MessageNode) and node.tool_call_id
    ]
    store = await stored(tmp_path, [event for event in made if event not in results])
    with open_tables(str(store)) as tables:
        index, words = RolloutIndex(tables), SearchIndex(str(store), tmp_path / "words")
        index.follow(position(str(store)))
        assert words.step(tables, position(str(store)))
        await stored(tmp_path, results)
        refresh(tables, str(store))
        index.follow(position(str(store)))
        at = position(str(store))
        for tool, text, role in (
            ("python", "pears", "assistant"),
            ("python", "apples", "tool"),
            ("bash", "pears", "tool"),
        ):
            asked = Query.of({"tool": tool, "text": f"{quoted}{text}{quoted}"})
            (hit,) = answer(tables, words, asked, at).hits.values()
            assert hit.role == role, (tool, text)
        nothing = Query.of({"tool": "python", "text": f"{quoted}pears{quoted}", "role": "tool"})
        assert answer(tables, words, nothing, at).summary.total == 0
        index.close()
        words.close()


MESSAGES = [
    ({"role": "tool"}, "role = 'tool'"),
    ({"turn": "1"}, "turn = 1"),
    ({"turn": "2.."}, "turn >= 2"),
    ({"turn": "..1", "role": "assistant"}, "turn <= 1 and role = 'assistant'"),
]


@pytest.mark.parametrize("words", ["word", "quoted", ""])
@pytest.mark.parametrize(("filters", "where"), MESSAGES)
def test_messages_are_chosen_by_role_and_turn(
    searched: tuple[duckdb.DuckDBPyConnection, SearchIndex, int],
    filters: dict[str, str],
    where: str,
    words: str,
) -> None:
    """The hit in each row is one of them, and what was looked for is marked in it."""
    tables, _, _ = searched
    word = _word(tables, 3)
    text = {"word": word, "quoted": f'"{word}"', "": ""}[words]
    has = f"contains(said, '{word}')" if words == "quoted" else _has(word) if words else "true"
    expected = rows(tables, _SQL.format(f"{where} and {has}"))
    found = _asked(searched, **filters, **({"text": text} if text else {}))
    assert found.summary.total == len(expected)
    assert len(found.hits) == (len(found.page.rows) if words else 0)
    for hit in found.hits.values():
        assert rows(
            tables, f"select 1 from tables.messages_all where node_id = '{hit.node}' and {where}"
        ) and f"<mark>{word}</mark>" in str(hit.snippet)


def test_what_is_in_quotes_is_taken_letter_by_letter(
    searched: tuple[duckdb.DuckDBPyConnection, SearchIndex, int],
) -> None:
    tables, _, _ = searched
    expected = rows(tables, _SQL.format("contains(said, 'd\": \"git di')"))
    assert _asked(searched, text='"d": "git di"').summary.total == len(expected) > 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("foo_bar(x)", ("foo", "bar", "x")),
        ("Err* NEAR(a)", ("Err*", "NEAR", "a")),
        ('"foo bar"', ()),
        ("==>", ()),
        ("错误", ()),
        ("schön", ("schön",)),
    ],
)
def test_words_of_a_search(text: str, words: tuple[str, ...]) -> None:
    assert words_of(text) == words


@pytest.mark.long
async def test_the_index_stays_and_goes_on(tmp_path: Path, serve: Serve) -> None:
    """For the next server, beside what another one has read meanwhile; a damaged file is made anew."""
    author = Author("words")
    file = tmp_path / "store" / "run" / "words.sqlite"

    async def total(text: str) -> int:
        async with serve(store) as url, aiohttp.ClientSession(url) as http:
            for _ in range(2):
                async with http.get("/rollouts", params={"text": text}) as reply:
                    assert reply.status == 200
                    html = await reply.text()
            return int(html.partition(" match")[0].rpartition("<b>")[2].rstrip("</b>"))

    store = await stored(tmp_path, author.rollout(0, ["pear"], resolved=True))
    assert await total("pear") == 1
    first = file.stat()
    store = await stored(tmp_path, author.rollout(1, ["pear plum"], resolved=True))
    assert (await total("pear"), await total("plum"), await total("schön ''")) == (2, 1, 0)
    assert file.stat().st_ino == first.st_ino
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_bytes(b"SQLite format 3\0" + b"damaged" * 2000)
    assert await total("pear plum") == 1
    other = await stored(tmp_path / "other", Author("other").rollout(0, ["apple"], resolved=True))
    file.parent.joinpath("words.sqlite").replace(tmp_path / "words.sqlite")
    (other / "run").mkdir(exist_ok=True)
    (tmp_path / "words.sqlite").replace(other / "run" / "words.sqlite")
    store = other
    assert (await total("pear"), await total("apple")) == (0, 1)


@pytest.mark.parametrize("streams", [2, 4])
async def test_words_are_found_in_every_event_stream(tmp_path: Path, streams: int) -> None:
    """Of a store that had one stream when its index was made, and gets events in all of them afterwards."""
    narrow, wide = Author("narrow"), Author("wide", streams)
    failing = {"test_fruit": "FAILED"}
    store = await stored(tmp_path, narrow.rollout(0, ["pear plum"], resolved=False, tests=failing))
    words = SearchIndex(str(store), tmp_path / "words.sqlite")
    with open_tables(str(store)) as tables:
        index = RolloutIndex(tables)

        def found(**filters: str) -> SearchAnswer:
            refresh(tables, str(store))
            index.follow(position(str(store)))
            return answer(tables, words, Query.of(filters), position(str(store)))

        assert found(text="pear").summary.total == 1
        for part in range(2):
            made = {
                f"fig{sample}": wide.rollout(sample, [f"pear fig{sample}"], resolved=False, tests=failing)
                for sample in range(8 * part, 8 * part + 8)
            }
            await stored(tmp_path, [event for events in made.values() for event in events], streams=streams)
            everywhere = found(text="pear")
            assert (everywhere.summary.total, everywhere.read) == (1 + 8 * (part + 1), 1.0)
            assert {rollout_stream(rollout) for rollout in everywhere.hits} == set(range(streams))
            assert all("<mark>pear</mark>" in str(hit.snippet) for hit in everywhere.hits.values())
            assert found(text="pear", failing="test_fruit").summary.total == everywhere.summary.total
            for fruit, events in made.items():
                assert list(found(text=fruit).hits) == [events[0].rollout_id]
        again = SearchIndex(str(store), tmp_path / "words.sqlite")
        assert again.step(tables, position(str(store))) and again.share(position(str(store))) == 1.0
        again.close()
        index.close()
        words.close()
