"""Users and teams end to end: who submitted what, who may do what, and the audit trail of commands."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from orchard.actions.audit import NotAllowed
from orchard.actions.campaigns import (
    all_campaigns,
    cancel_campaign,
    pause_campaign,
    resume_campaign,
    submit_campaign,
)
from orchard.actions.notes import tag_campaign
from orchard.actions.session import Session
from orchard.actions.submission import how_to_serve
from orchard.cli.campaign_facts import status_facts
from orchard.configuration.access import AccessError, AccessSettings, People, caller, login_name
from orchard.configuration.config import Config
from orchard.schemas.access import Principal, TeamHold, UserRole
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import CampaignSpec, ModelSpec, TaskRef
from orchard.schemas.queues import Queue
from orchard.storage.reader import open_tables
from orchard.storage.writing.writer import Writer
from orchard.streams import names
from orchard.streams.claims import Claims
from orchard.streams.connection import Connection, connect
from orchard.streams.reading import subjects
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings, TeamSettings
from orchard.streams.team_holds import TeamHolds
from orchard.streams.topology import declare

ANA = Principal(user="ana", team="vision", role=UserRole.SUBMIT)
BEN = Principal(user="ben", team="speech", role=UserRole.SUBMIT)
REA = Principal(user="rea", role=UserRole.READ)
OLA = Principal(user="ola", role=UserRole.OPERATE)
SPEC = CampaignSpec(
    name="first",
    tasks=(TaskRef(task_id="t", source="s", repo="a/b", blob=BlobRef(sha256="0" * 64, size=1)),),
    harnesses=("orchard-bash",),
    models=(ModelSpec(name="m"),),
    samples=3,
)
As = Callable[[Principal], Session]


@pytest.fixture
async def connection(tmp_path: Path) -> AsyncIterator[Connection]:
    async with (
        EmbeddedServer(tmp_path / "nats") as server,
        connect(NatsSettings(), name="test", url=server.url) as opened,
    ):
        await declare(opened, NatsSettings(), [])
        yield opened


@pytest.fixture
def config(tmp_path: Path, connection: Connection) -> Config:
    return Config(
        store=str(tmp_path / "store"),
        nats=NatsSettings(url=connection.url),
        teams={"vision": TeamSettings(slots=1), "speech": TeamSettings()},
    )


async def written(config: Config, connection: Connection) -> None:
    stop = asyncio.Event()
    stop.set()
    await Writer(config.store, connection).run(stop)


async def test_what_a_user_submits_carries_user_and_team(config: Config, connection: Connection) -> None:
    await submit_campaign(Session(config, ANA), SPEC)
    await submit_campaign(
        Session(config, BEN), SPEC
    )  # the same plan again: it stays that of its first submitter
    queued = await subjects(connection, names.WORK, names.WORK_SUBJECTS)
    assert len(queued) == 3
    assert {subject.split(".first.")[0] for subject in queued} == {"orchard.work.rollout.swe.normal:vision"}
    consumer = await connection.jetstream.consumer_info(names.WORK, "rollout-swe-normal:vision")
    assert consumer.config.max_ack_pending == 1
    await written(config, connection)
    with open_tables(config.store) as tables:
        assert tables.sql("select campaign, submitter, team from campaigns").fetchall() == [
            ("first", "ana", "vision")
        ]
        of_campaign = "from events where campaign = 'first'"
        assert tables.sql(f"select distinct submitter, team {of_campaign}").fetchall() == [("ana", "vision")]
        assert tables.sql(f"select count(distinct type) {of_campaign}").fetchall() == [(3,)]


async def test_roles_decide_and_every_command_is_in_the_trail(config: Config, connection: Connection) -> None:
    with pytest.raises(NotAllowed, match="rea has the role `read`, and submit needs `submit`"):
        await submit_campaign(Session(config, REA), SPEC)
    with pytest.raises(NotAllowed, match="rea has the role `read`, and note needs `submit`"):
        await tag_campaign(Session(config, REA), "first", "Rea", ("odd",), ())
    await submit_campaign(Session(config, ANA), SPEC)
    with pytest.raises(NotAllowed, match="ben has the role `submit`, and cancel needs `operate`"):
        await cancel_campaign(Session(config, BEN), "first")
    await pause_campaign(Session(config, ANA), "first")
    await resume_campaign(Session(config, OLA, via="page"), "first", max_cost_usd=2.0)
    await written(config, connection)
    with open_tables(config.store) as tables:
        trail = tables.sql(
            "select \"user\", command, campaign, refused <> '' from commands order by sequence"
        )
        assert trail.fetchall() == [
            ("rea", "submit", "commands", True),
            ("rea", "note", "commands", True),
            ("ana", "submit", "first", False),
            ("ben", "cancel", "first", True),
            ("ana", "pause", "first", False),
            ("ola", "resume", "first", False),
        ]
        assert tables.sql(
            "select options['max_cost'], source from commands join events on id = event_id "
            "where \"user\" = 'ola'"
        ).fetchall() == [("2", "orchard/page")]
        assert tables.sql("select state from campaigns").fetchall() == [("running",)]


def test_the_team_of_a_login_name_is_the_configured_one_or_that_of_its_name() -> None:
    name = login_name()
    assert caller(AccessSettings(), ["vision"]).team == ""
    assert caller(AccessSettings(), ["vision", name]).team == name
    assert caller(AccessSettings(team="vision"), ["vision", name]).team == "vision"


def test_a_caller_is_the_login_name_or_the_owner_of_a_key(tmp_path: Path) -> None:
    assert caller(AccessSettings(), []).role is UserRole.OPERATE and caller(AccessSettings(), []).user
    path = tmp_path / "people.toml"
    digest = hashlib.sha256(b"secret").hexdigest()
    path.write_text(f'[[people]]\nuser = "ana"\nteam = "vision"\nrole = "submit"\nkey_sha256 = "{digest}"\n')
    settings = AccessSettings(people=str(path))
    assert caller(settings, ["vision"], {"OPERATOR_KEY": "secret"}) == ANA
    for variables, said in (({}, "set OPERATOR_KEY"), ({"OPERATOR_KEY": "x"}, "is not in")):
        with pytest.raises(AccessError, match=said):
            caller(settings, ["vision"], variables)
    with pytest.raises(AccessError, match=r"add \[teams.vision\]"):
        People(str(path), [])
    for entry, said in (
        ('role = "king"', "role"),
        ('key_sha256 = "secret"', "not the key"),
        ('[[people]]\nuser = "ana"', "a user twice"),
        (f'key_sha256 = "{digest}"\n[[people]]\nuser = "ben"\nkey_sha256 = "{digest}"', "a key twice"),
    ):
        path.write_text(f'[[people]]\nuser = "ana"\n{entry}\n')
        with pytest.raises(AccessError, match=said):
            People(str(path), [])


async def test_status_says_which_quota_is_used_up(config: Config, connection: Connection) -> None:
    session = Session(config, ANA)
    await submit_campaign(session, SPEC)
    async with Claims(connection, Queue(team="vision")) as claims:
        claim = await claims.next(10.0)
        assert claim is not None
        found = await all_campaigns(session)
        assert found.pipeline is not None
        vision, speech = found.pipeline.teams
        assert (vision.running, vision.waiting, vision.slots, speech.waiting) == (1, 2, 1, 0)
        hints = status_facts(found).hints
        assert "team vision uses its quota of 1 slot, so its other rollouts wait" in " ".join(hints)
        midnight = datetime.now(UTC) + timedelta(hours=1)
        await TeamHolds(connection).put(
            TeamHold(team="speech", reason="team speech has spent it", until=midnight)
        )
        hints = status_facts(await all_campaigns(session)).hints
        assert any(hint.startswith("team speech has spent it: its rollouts wait until") for hint in hints)
        await claim.complete()


def test_a_proxy_is_known_by_its_address_also_on_a_socket_for_both_families() -> None:
    settings = AccessSettings(people="people.toml", user_header="X-User", proxies=("10.1.0.0/16", "fd00::1"))
    known = {address: settings.from_proxy(address) for address in ("::ffff:10.1.2.3", "fd00::1", "10.2.0.1")}
    assert known == {"::ffff:10.1.2.3": True, "fd00::1": True, "10.2.0.1": False}


def test_who_waits_for_a_team_without_workers_is_told_what_is_missing() -> None:
    assert "[teams.vision]" in how_to_serve("rollout-swe-normal:vision")
