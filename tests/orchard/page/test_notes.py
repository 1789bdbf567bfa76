"""Notes of people: events with a name, which filter rollouts and change no reward."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import aiohttp
import msgspec
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from orchard.actions.campaign_status import PipelineView, recorded
from orchard.actions.notes import checked, labels_of
from orchard.actions.rollout_index import RolloutIndex
from orchard.actions.session import Session
from orchard.cli import note as command
from orchard.configuration.config import Config, ConfigError
from orchard.page.rollouts import Query, page_of
from orchard.schemas import events as e
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import CampaignRecord
from orchard.schemas.notes import RolloutNoted
from orchard.storage.derive import derivation
from orchard.storage.reader import open_tables, position, refresh, rows
from orchard.storage.writing.writer import Writer
from orchard.streams.campaigns import CampaignBook
from orchard.streams.connection import connect
from orchard.streams.publisher import Publisher
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare
from orchard.terminal.campaign_tables import status_table
from tests.orchard.page.conftest import TOKEN, served, stored
from tests.trajectory_log import Author

HOSTILE = "<img src=x onerror=window.pwned=1>"


def noted(author: Author, rollout: str, by: str, **said: object) -> e.Event:
    return author.event(RolloutNoted(author=by, **said), rollout, None)  # type: ignore[arg-type]


@asynccontextmanager
async def running(place: Path, events: list[e.Event]) -> AsyncIterator[Session]:
    """A pipeline of a server and a writer, which has these events."""
    async with EmbeddedServer(place / "nats") as server:
        settings = NatsSettings(url=server.url)
        async with connect(settings, name="test", url=server.url) as connection:
            await declare(connection, settings, [])
            await Publisher(connection).events(events)
            stop = asyncio.Event()
            session = Session(Config(store=str(place / "store"), nats=settings))
            writing = asyncio.create_task(Writer(str(place / "store"), connection).run(stop))
            try:
                while not (place / "store").exists():
                    await asyncio.sleep(0.05)
                await session.committed(connection)
                yield session
            finally:
                stop.set()
                await writing


@pytest.mark.long
async def test_a_note_of_the_page_and_of_the_command(tmp_path: Path) -> None:
    author = Author()
    made = author.rollout(0, ["ls"], resolved=False)
    other = author.rollout(1, ["ls"], resolved=True)
    name = made[0].rollout_id or ""
    form = {"author": "Ada", "text": HOSTILE, "labels": "lazy, good-plan", "score": "0.25", "turn": "1"}
    async with (
        running(tmp_path, [*made, *other]) as session,
        served(tmp_path / "store", session=session) as url,
        aiohttp.ClientSession(url) as http,
    ):
        cookie, mine = f"orchard-page-{url.rpartition(':')[2]}={TOKEN}", {"Origin": url}
        post = f"/rollouts/{name}/notes"
        for headers in ({}, mine, {"Cookie": cookie}, {"Cookie": cookie, "Origin": "https://pages.example"}):
            async with http.post(post, data=form, headers=headers) as reply:
                assert reply.status == 403
        async with http.get(f"/rollouts/{name}") as reply:
            assert "Add the note" not in await reply.text()
        known = {"Cookie": cookie, **mine}
        for wrong in ({"score": "2"}, {"score": "much"}, {"labels": "a<b"}, {"author": " "}, {"turn": "-1"}):
            async with http.post(post, data=form | wrong, headers=known) as reply:
                assert reply.status == 400, wrong
        async with http.post(post, data=form, headers=known) as reply:
            assert reply.url.path == f"/rollouts/{name}" and "orchard-author" in str(reply.history[0].cookies)
            html = await reply.text()
        assert "<b>Ada</b>" in html and HOSTILE not in html and "&lt;img src=x" in html
        app = typer.Typer()
        command.register(app)
        words = [name[:8], "saw it too", "--label", "seen", "--remove-label", "lazy", "--as", "Bob"]
        done = await asyncio.to_thread(CliRunner().invoke, app, words, obj=session)
        assert (done.exit_code, done.output) == (0, f"noted on {name}\n")
        ask = partial(CliRunner().invoke, app, ["-", "--label", "checked", "--as", "Bob"], obj=session)
        listed = f"rollout_id\n{name}\n{(other[0].rollout_id or '')[:12]}\n"
        done = await asyncio.to_thread(ask, input=listed)
        assert (done.exit_code, done.output) == (0, "noted on 2 rollouts\n")
        done = await asyncio.to_thread(ask, input="\n")
        assert "no rollout is named" in str(done.exception)
        done = await asyncio.to_thread(
            CliRunner().invoke, app, [f"{name},nonesuch", "--label", "half"], obj=session
        )
        assert "no rollout starts with 'nonesuch'" in str(done.exception), "and nothing is written"
        for wrong_words, why in (
            ([name[:3], "x"], "at least 4 characters"),
            ([name, "x", "--turn", "99"], "the rollout has no turn 99: its last is"),
        ):
            done = await asyncio.to_thread(CliRunner().invoke, app, wrong_words, obj=session)
            assert isinstance(done.exception, ConfigError) and why in str(done.exception)
        for query, found in (
            ("label=good-plan", 1),
            ("label=lazy", 0),
            ("note=SAW", 1),
            ("human_score=..0.3", 1),
        ):
            async with http.get(f"/rollouts?{query}") as reply:
                assert f"<b>{found}</b> match" in await reply.text(), query
    with open_tables(str(tmp_path / "store")) as tables:
        query = (
            "select labels, human_score, notes, authors, reward "
            "from reviews join rollouts using (rollout_id) order by reward"
        )
        assert rows(tables, query) == [
            {
                "labels": ["checked", "good-plan", "seen"],
                "human_score": 0.25,
                "notes": 3,
                "authors": ["Ada", "Bob"],
                "reward": -1.0,
            },
            {"labels": ["checked"], "human_score": None, "notes": 1, "authors": ["Bob"], "reward": 1.0},
        ]


PLAN = e.CampaignSubmitted(
    spec=BlobRef(sha256="0" * 64, size=0),
    spec_hash="h",
    size=1,
    tasks=1,
    harnesses=("text",),
    models=("small",),
    samples=1,
)


@pytest.mark.long
async def test_tags_of_the_page_and_of_the_command(tmp_path: Path) -> None:
    author = Author("first")
    events = [author.event(PLAN, "", None), *author.rollout(0, ["ls"], resolved=True)]
    async with (
        running(tmp_path, events) as session,
        session.connection("test") as connection,
        served(tmp_path / "store", session=session) as url,
        aiohttp.ClientSession(url) as http,
    ):
        record = CampaignRecord(spec=PLAN.spec, spec_hash="h", size=1)
        await CampaignBook(connection).create("first", record)
        post, form = "/campaigns/first/tags", {"author": "Ada", "tags": "baseline, nightly"}
        async with http.post(post, data=form) as reply:
            assert reply.status == 403
        known = {"Cookie": f"orchard-page-{url.rpartition(':')[2]}={TOKEN}", "Origin": url}
        for wrong in ({"tags": "a<b"}, {"tags": ""}, {"author": " "}):
            async with http.post(post, data=form | wrong, headers=known) as reply:
                assert reply.status == 400, wrong
        async with http.post("/campaigns/second/tags", data=form, headers=known) as reply:
            assert reply.status == 400 and "no campaign" in await reply.text()
        async with http.post(post, data=form, headers=known) as reply:
            html = await reply.text()
            assert reply.url.path == "/campaigns/first" and 'href="/?tag=nightly"' in html
            assert 'name="removed" value="nightly"' in html
        app = typer.Typer()
        command.register(app)
        words = ["first", "--tag", "kept", "--remove-tag", "nightly", "--as", "Bob"]
        done = await asyncio.to_thread(CliRunner().invoke, app, words, obj=session)
        assert (done.exit_code, done.output) == (0, "tagged first\n")
        done = await asyncio.to_thread(CliRunner().invoke, app, [*words, "--score", "1"], obj=session)
        assert isinstance(done.exception, ConfigError)
        for refused, why in (
            (["first", "a note"], "first is a campaign: notes go on rollouts; a campaign takes --tag"),
            (["first", "--remove-tag", "nothere"], "first has no tag nothere; its tags: baseline, kept"),
        ):
            done = await asyncio.to_thread(CliRunner().invoke, app, refused, obj=session)
            assert isinstance(done.exception, ConfigError) and str(done.exception) == why
        for query, shown in (("", True), ("?tag=kept", True), ("?tag=nightly", False)):
            async with http.get(f"/{query}") as reply:
                html = await reply.text()
                assert ('href="/campaigns/first"' in html) == shown, query
    with open_tables(str(tmp_path / "store")) as tables:
        assert rows(tables, "select tags from campaigns") == [{"tags": ["baseline", "kept"]}]
        (view,) = recorded(tables)
    assert view.tags == ("baseline", "kept")
    assert json.loads(msgspec.json.encode(view))["tags"] == ["baseline", "kept"], "status --json has them"
    screen = Console(width=80, record=True, file=io.StringIO())
    screen.print(status_table([view], PipelineView(), 80))
    assert "first: tagged baseline, kept" in screen.export_text()


@pytest.mark.long
async def test_the_newest_word_on_a_label_and_of_an_author_counts(tmp_path: Path) -> None:
    """Also in the page's index, whenever it looked."""
    author = Author()
    made = author.rollout(0, ["ls"], resolved=False)
    name = made[0].rollout_id or ""
    first = [noted(author, name, "Ada", labels=("a", "b"), score=0.0), noted(author, name, "Bob", score=1.0)]
    store = await stored(tmp_path, [*made, *first])
    with open_tables(str(store)) as tables:
        index = RolloutIndex(tables)
        index.follow(position(str(store)))
        (row,) = page_of(tables, Query.of({"label": "a"})).rows
        assert (row["labels"], row["human_score"]) == (["a", "b"], 0.5)
        later = [noted(author, name, "Bob", removed_labels=("a",)), noted(author, name, "Ada", score=0.5)]
        await stored(tmp_path, later)
        refresh(tables, str(store))
        index.follow(position(str(store)))
        (row,) = page_of(tables, Query.of({"human_score": "0.7.."})).rows
        assert row["labels"] == ["b"] and row["human_score"] == 0.75
        assert rows(tables, "select * from indexed.reviews") == rows(tables, "select * from reviews")
        index.close()


@pytest.mark.long
async def test_notes_that_an_earlier_version_stored_get_their_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    author = Author()
    made = author.rollout(0, ["ls"], resolved=False)
    told = noted(author, made[0].rollout_id or "", "Ada", text="so it is")
    with monkeypatch.context() as earlier:
        for name in ("EVENT_TYPES", "_DECODERS"):  # copies, because reference pages rely on the order
            known = {kind: value for kind, value in getattr(e, name).items() if kind != "rollout.noted"}
            earlier.setattr(e, name, known)
        derivation.cache_clear()
        assert isinstance(e.payload(told), e.UnknownPayload)
        store = await stored(tmp_path, [*made, told])
    derivation.cache_clear()
    await stored(tmp_path, [noted(author, made[0].rollout_id or "", "Bob", text="indeed")])
    with open_tables(str(store)) as tables:
        assert [row["text"] for row in rows(tables, "select text from notes order by sequence")] == [
            "so it is",
            "indeed",
        ]


def test_keys_are_masked_in_notes() -> None:
    said = checked(RolloutNoted(author="Ada", text="it used sk-ant-api03-" + "A1b2" * 24))
    assert "A1b2A1b2" not in said.text and "masked" in said.text
    with pytest.raises(ConfigError, match="empty"):
        checked(RolloutNoted(author="Ada"))
    assert labels_of(["a,b", "b c"]) == ("a", "b", "c")
