"""The NATS configuration of the cluster on a real server: what each role can do, and what it cannot."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import aiohttp
import msgspec
import pytest
from nats.aio.msg import Msg

from orchard.pipelines.campaigns.archiving import Archiving
from orchard.pipelines.campaigns.breaking import BREAKS_AT, Breaker
from orchard.pipelines.campaigns.commands import Campaigns
from orchard.pipelines.campaigns.reconciling import Reconciler
from orchard.pipelines.campaigns.spending import CostWatch
from orchard.pipelines.domain import request_kinds
from orchard.pipelines.values import requests
from orchard.schemas.blobs import BlobRef
from orchard.schemas.campaigns import (
    CampaignRecord,
    CampaignSpec,
    CampaignState,
    ModelSpec,
    RolloutRequest,
    TaskRef,
)
from orchard.schemas.events import Event, SandboxDeleted, make_event
from orchard.schemas.identity import rollout_id
from orchard.schemas.queues import Queue
from orchard.schemas.replay_pointers import ReplayPointer
from orchard.schemas.rests import CampaignRefused, Rest
from orchard.storage.blobs import BlobStore
from orchard.storage.settings import ArchiveSettings
from orchard.storage.writing.writer import Writer
from orchard.streams import names
from orchard.streams.awaiting import Releases
from orchard.streams.campaigns import CampaignBook
from orchard.streams.claims import Claims
from orchard.streams.connection import Connection, connect
from orchard.streams.endpoints import EndpointBook
from orchard.streams.entries import FIRST, QueueEntry, rollout_entry
from orchard.streams.errors import NatsRefused, StreamsError
from orchard.streams.health import reporting, reports
from orchard.streams.publisher import Publisher
from orchard.streams.reading import bounds
from orchard.streams.replay import replay
from orchard.streams.server import find_binary
from orchard.streams.settings import NatsSettings, queues_in
from orchard.streams.stream_check import StreamGuard
from orchard.streams.stream_state import ExpectedStream
from orchard.streams.tasks import end
from orchard.streams.topology import declare
from orchard.workers.attempts.deadletters import DeadLetters
from orchard.workers.attempts.queue_maintenance import maintain_queues
from tests.entries import named
from tests.infra.conftest import Manifests, Server, password_variables
from tests.infra.scaling import Trigger, jobs_to_create, lag
from tests.trajectory_log import llm_call

QUEUE = Queue()
ANNOTATIONS = requests.QUEUE
RECORD = CampaignRecord(spec=BlobRef(sha256="0" * 64, size=1), spec_hash="h", size=1)
SPEC = CampaignSpec(
    name="demo",
    tasks=(TaskRef(task_id="t", source="s", repo="a/b", blob=BlobRef(sha256="0" * 64, size=1)),),
    harnesses=("h",),
    models=(ModelSpec(name="m"),),
    samples=3,
)

ConnectAs = Callable[[str], AbstractAsyncContextManager[Connection]]


@pytest.fixture
def connect_as(server: Server, secrets: Path, monkeypatch: pytest.MonkeyPatch) -> ConnectAs:
    """A connection as one of the roles, as its Pod would make it."""

    def opened(role: str) -> AbstractAsyncContextManager[Connection]:
        monkeypatch.setenv(f"TEST_{role}", (secrets / "orchard" / "nats-users" / role).read_text())
        settings = NatsSettings(
            url=server.url, user=role, password_env=f"TEST_{role}", tls_ca=str(server.ca), patience=5.0
        )
        return connect(settings, name=role)

    return opened


@pytest.fixture
async def roles(connect_as: ConnectAs) -> AsyncIterator[dict[str, Connection]]:
    """All roles, on a server whose streams the writer has made, and whose queue the operator has."""
    async with (
        connect_as("writer") as writer,
        connect_as("operator") as operator,
        connect_as("steward") as steward,
        connect_as("worker") as worker,
        connect_as("archiver") as archiver,
        connect_as("reader") as reader,
        connect_as("submitter") as submitter,
    ):
        await declare(writer, writer.settings, [])
        await declare(operator, operator.settings, [QUEUE])
        yield {
            "reader": reader,
            "submitter": submitter,
            "writer": writer,
            "operator": operator,
            "steward": steward,
            "worker": worker,
            "archiver": archiver,
        }


def request(sample: int) -> QueueEntry:
    """The entry of a rollout request."""
    wanted = RolloutRequest(
        rollout_id=rollout_id("demo", "t", "h", "m", sample),
        campaign="demo",
        task=TaskRef(task_id="t", source="s", repo="a/b", blob=BlobRef(sha256="0" * 64, size=1)),
        harness="h",
        model=ModelSpec(name="m"),
        sample=sample,
    )
    return rollout_entry(wanted, FIRST)


def fact(name: str) -> Event:
    return make_event(SandboxDeleted(sandbox_id=name), id=name, source="orchard/test", campaign="demo")


@pytest.mark.long
async def test_a_workers_whole_life_is_allowed(roles: dict[str, Connection]) -> None:
    operator, worker = Publisher(roles["operator"]), Publisher(roles["worker"])
    book = CampaignBook(roles["operator"])
    await book.create("demo", RECORD)
    for sample in range(3):
        await operator.offer(request(sample))

    await declare(roles["worker"], roles["worker"].settings, [QUEUE])
    assert await CampaignBook(roles["worker"]).get("demo") is not None
    async with Claims(roles["worker"], QUEUE) as claims:
        for step in ("complete", "later", "reject"):
            claim = await claims.next(timeout=10)
            assert claim is not None, step
            match step:
                case "complete":
                    await worker.event(fact("one"))
                    assert await worker.outcome("none") is None
                    trail = ReplayPointer(attempt=1, replay_key="k", events=(1,))
                    await worker.replay_pointers.leave("none", trail)
                    async with asyncio.timeout(10):  # leaving one is not confirmed
                        while await worker.replay_pointers.find("none") != trail:
                            await asyncio.sleep(0.01)
                    await claim.complete()
                case "later":
                    await claim.retry_later(named(claim.queue, "again", claim.body), 3600.0, "test")
                case "reject":
                    await DeadLetters(roles["worker"]).reject(claim, "poison")

    assert len(await DeadLetters(roles["operator"]).list()) == 1


@pytest.mark.long
@pytest.mark.parametrize("queue", [Queue(priority="high"), ANNOTATIONS])
async def test_a_worker_may_make_the_consumer_of_its_queue(
    roles: dict[str, Connection], queue: Queue
) -> None:
    await declare(roles["worker"], roles["worker"].settings, [queue])

    info = await roles["operator"].jetstream.consumer_info(names.WORK, queue.consumer)
    assert info.name == queue.consumer


async def test_annotations_are_offered_claimed_answered_and_put_off(roles: dict[str, Connection]) -> None:
    """`orchard values annotate` in the console, `orchard values worker` beside it."""
    operator, worker = Publisher(roles["operator"]), Publisher(roles["worker"])
    await declare(roles["operator"], roles["operator"].settings, [ANNOTATIONS])
    for number in range(2):
        await operator.offer(named(ANNOTATIONS, f"annotation-{number}", b"{}"))

    async with Claims(roles["worker"], ANNOTATIONS) as claims:
        for step in ("complete", "later"):
            claim = await claims.next(timeout=10)
            assert claim is not None, step
            if step == "complete":
                await worker.event(fact("annotated"))
                await claim.complete()
            else:
                await claim.retry_later(named(claim.queue, "again", claim.body), 3600.0, "test")


async def test_a_worker_lets_an_endpoint_rest_and_the_steward_releases_what_waits_for_it(
    roles: dict[str, Connection],
) -> None:
    rest = Rest(endpoint="e", model="m", reason="answered 429", seconds=3600.0, prober="test")
    await Publisher(roles["operator"]).offer(request(0))
    of_worker, releases = EndpointBook(roles["worker"]), Releases(roles["steward"])
    async with Claims(roles["worker"], QUEUE) as claims:
        assert await of_worker.put_rest("key", rest, 0)
        claim = await claims.next(timeout=10)
        assert claim is not None
        await claim.await_rest(request(1), "key", 3600.0, "test")
        assert await releases.look() == 0
        (stored,) = (await of_worker.rests()).values()
        assert await of_worker.put_rest("key", msgspec.structs.replace(rest, over=True), stored.revision)
        assert await releases.look() == 1
        again = await claims.next(timeout=10)
        assert again is not None
    assert (await bounds(roles["steward"], names.LATER)).messages == 0


async def test_a_worker_counts_refusals_and_the_steward_breaks(roles: dict[str, Connection]) -> None:
    refused = CampaignRefused(campaign="demo", model="m", endpoint="e", reason="no", count=BREAKS_AT)
    await CampaignBook(roles["operator"]).create("demo", RECORD)
    assert await EndpointBook(roles["worker"]).put_refusal(refused, 0)

    await Breaker(roles["steward"]).look()

    known = await CampaignBook(roles["operator"]).get("demo")
    assert known is not None and known[0].state is CampaignState.PAUSED
    assert [one.refused.count for one in await EndpointBook(roles["operator"]).refusals()] == [0]


async def test_the_steward_forwards_what_is_due_and_buries_what_is_dead(roles: dict[str, Connection]) -> None:
    operator = Publisher(roles["operator"])
    keeping = asyncio.create_task(maintain_queues(roles["steward"]))
    try:
        await operator.offer(request(0), delay=1.0)
        async with Claims(roles["worker"], QUEUE) as claims:
            claim = await claims.next(timeout=20)
            assert claim is not None, "the delayed request was not forwarded"
            await DeadLetters(roles["worker"]).reject(claim, "poison")
        async with asyncio.timeout(20):
            while not [event async for event in replay(roles["writer"])]:
                await asyncio.sleep(0.05)
    finally:
        await end(keeping)

    (letter,) = await DeadLetters(roles["operator"]).list()
    assert "poison" in letter.reason
    assert (await DeadLetters(roles["operator"]).requeue(letter.sequence)).queue == QUEUE


async def test_the_operator_cancels_and_resumes_and_the_steward_reconciles(
    roles: dict[str, Connection], tmp_path: Path
) -> None:
    blobs = BlobStore(str(tmp_path))
    campaigns = Campaigns(roles["operator"], blobs)
    for steps in (campaigns.submit(SPEC), campaigns.cancel("demo"), campaigns.resume("demo")):
        async for _ in steps:
            pass
    async with Claims(roles["worker"], QUEUE) as claims:
        for _ in range(3):
            claim = await claims.next(timeout=10)
            assert claim is not None
            await claim.complete()
    reconciler = Reconciler(roles["steward"], blobs)

    assert [await reconciler.look() for _ in range(2)] == [0, 3]


async def test_the_steward_pauses_a_campaign_that_has_cost_its_cap(
    roles: dict[str, Connection], tmp_path: Path
) -> None:
    async for _ in Campaigns(roles["operator"], BlobStore(str(tmp_path))).submit(
        msgspec.structs.replace(SPEC, max_cost_usd=0.2)
    ):
        pass
    call = make_event(llm_call(1), id="call", source="orchard/test", campaign="demo", rollout_id="0" * 24)
    await Publisher(roles["worker"]).event(call)
    watch = CostWatch(roles["steward"], str(tmp_path))

    for _ in range(2):  # one look writes it into the book, the next one tells the log
        await watch.look()

    known = await CampaignBook(roles["operator"]).get("demo")
    assert known is not None and known[0].state is CampaignState.PAUSED
    told = replay(roles["writer"], subjects="orchard.events.demo.*.campaign.state_changed")
    assert len([one async for one in told]) == 1


async def test_the_writer_reads_the_log(roles: dict[str, Connection]) -> None:
    await Publisher(roles["worker"]).event(fact("one"))

    assert [stored.event.id async for stored in replay(roles["writer"]) if stored.event] == ["one"]


@pytest.mark.long
async def test_the_archiver_moves_a_closed_campaign_out_of_the_stream(
    roles: dict[str, Connection], tmp_path: Path
) -> None:
    """All that `orchard log archive --closed` does, and the writer commits what it says of it."""
    store, stop = str(tmp_path / "store"), asyncio.Event()
    stop.set()
    blobs = BlobStore(store)
    operator = Campaigns(roles["operator"], blobs)
    for steps in (operator.submit(SPEC), operator.cancel("demo")):
        async for _ in steps:
            pass
    await Writer(store, roles["writer"]).run(stop)
    before = await bounds(roles["operator"], names.EVENTS)
    archiving = Archiving(roles["archiver"], store, blobs, ArchiveSettings())
    assert await archiving.closed() == ["demo"]
    async for _ in archiving.archive("demo"):
        pass
    assert (await bounds(roles["operator"], names.EVENTS)).first > before.first
    await Writer(store, roles["writer"]).run(stop)
    assert await archiving.closed() == []


async def test_each_process_tells_how_it_is(roles: dict[str, Connection]) -> None:
    """What `orchard status` shows of them."""
    for role in ("writer", "steward", "worker"):
        async with reporting(roles[role], role, f"the {role}"):
            async with asyncio.timeout(10):
                while f"the {role}" not in {heard.report.name for heard in await reports(roles["operator"])}:
                    await asyncio.sleep(0.01)


FORBIDDEN = {
    "reader": [
        QUEUE.subject,
        "orchard.events.demo.00.command.given",
        "orchard.guard.damaged",
        "orchard.health.worker",
        f"{names.CAMPAIGNS_PREFIX}demo",
        f"$JS.API.CONSUMER.CREATE.{names.EVENTS}.spy",
        f"$JS.API.CONSUMER.MSG.NEXT.{names.WORK}.{QUEUE.consumer}",
        f"$JS.API.STREAM.MSG.DELETE.{names.WORK}",
        f"$JS.API.STREAM.PURGE.{names.EVENTS}",
        f"$JS.ACK.{names.WORK}.{QUEUE.consumer}.1.1.1.1.1",
    ],
    "submitter": [
        "orchard.work.prove.tasks.normal",
        "orchard.later.rollout.swe.normal.demo",
        "orchard.dead.demo",
        "orchard.events.done.0123",
        "orchard.events.started.0123",
        "orchard.events.answered.prove.0123",
        "orchard.events.demo.00.reward.assigned",
        "orchard.events.demo.00.task.validated",
        "orchard.guard.damaged",
        f"{names.ENDPOINTS_PREFIX}key",
        f"$JS.API.CONSUMER.CREATE.{names.WORK}.other",
        f"$JS.API.CONSUMER.MSG.NEXT.{names.WORK}.{QUEUE.consumer}",
        f"$JS.API.STREAM.MSG.DELETE.{names.WORK}",
        f"$JS.API.STREAM.UPDATE.{names.EVENTS}",
        f"$JS.API.STREAM.PURGE.{names.WORK}",
    ],
    "worker": [
        f"$JS.API.STREAM.DELETE.{names.EVENTS}",
        f"$JS.API.STREAM.PURGE.{names.WORK}",
        f"$JS.API.STREAM.UPDATE.{names.EVENTS}",
        "$JS.API.STREAM.CREATE.OTHER",
        f"$JS.API.STREAM.MSG.DELETE.{names.DEAD}",
        f"$JS.API.CONSUMER.DELETE.{names.WORK}.{QUEUE.consumer}",
        f"{names.CAMPAIGNS_PREFIX}demo",
        "orchard.due.rollout.swe.normal",
        f"$JS.API.CONSUMER.MSG.NEXT.{names.LATER}.{names.DUE_CONSUMER}",
        f"$JS.API.CONSUMER.CREATE.{names.EVENTS}.spy",
        f"$JS.API.CONSUMER.MSG.NEXT.{names.ADVISORIES}.{names.ADVISORY_CONSUMER}",
        f"$JS.ACK.{names.LATER}.{names.DUE_CONSUMER}.1.1.1.1.1",
        f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{names.WORK}.x",
        "$JS.API.STREAM.SNAPSHOT.ORCHARD_EVENTS",
        "$SYS.REQ.SERVER.PING",
        *(f"_INBOX.{other}.answer" for other in ("operator", "writer", "steward", "archiver")),
    ],
    "writer": [
        QUEUE.subject,
        "orchard.events.demo.00.sandbox.deleted",
        f"$JS.API.STREAM.PURGE.{names.EVENTS}",
        f"$JS.API.STREAM.DELETE.{names.EVENTS}",
        f"$JS.API.CONSUMER.MSG.NEXT.{names.WORK}.{QUEUE.consumer}",
    ],
    "steward": [
        f"$JS.API.CONSUMER.MSG.NEXT.{names.WORK}.{QUEUE.consumer}",
        f"$JS.API.STREAM.DELETE.{names.WORK}",
        f"$JS.API.STREAM.PURGE.{names.CAMPAIGNS_STREAM}",
    ],
    "archiver": [
        QUEUE.subject,
        f"$JS.API.STREAM.PURGE.{names.WORK}",
        f"$JS.API.STREAM.UPDATE.{names.EVENTS}",
        f"$JS.API.STREAM.DELETE.{names.EVENTS}",
        f"$JS.API.STREAM.MSG.DELETE.{names.EVENTS}",
    ],
}


@pytest.mark.parametrize("role", FORBIDDEN)
async def test_what_a_role_does_not_need_it_may_not(roles: dict[str, Connection], role: str) -> None:
    """Not even what others publish: their answers, their acknowledgements, the server's own notices."""
    connection = roles[role]
    refused: asyncio.Queue[str] = asyncio.Queue()

    async def see(error: Exception) -> None:
        if "permissions violation" in str(error).lower():
            refused.put_nowait(str(error))

    connection.nats._error_cb = see
    for subject in FORBIDDEN[role]:
        await connection.nats.publish(subject, b"{}")
        assert subject.lower() in (await asyncio.wait_for(refused.get(), 10)).lower()


async def test_the_writer_lets_workers_publish_and_a_worker_may_hold_all(
    roles: dict[str, Connection],
) -> None:
    async def nothing_known() -> ExpectedStream:
        return ExpectedStream()

    writer, worker = roles["writer"], roles["worker"]
    of_writer = StreamGuard(writer, writer.settings, nothing_known, settle=0.0)
    of_worker = StreamGuard(worker, worker.settings, nothing_known, settle=60.0)
    await Publisher(roles["operator"]).event(fact("one"))

    await of_worker.check()
    assert "until the writer has compared" in worker.waiting
    await of_writer.check()
    await of_worker.check()
    assert worker.trusted

    worker.saw(2, b"an event that the server has lost")
    await of_worker.check()
    await of_writer.check()
    assert "event 2 was confirmed" in writer.held


async def test_without_a_name_and_password_nobody_comes_in(server: Server) -> None:
    with pytest.raises(NatsRefused):
        async with connect(NatsSettings(url=server.url, tls_ca=str(server.ca)), name="nobody"):
            pass


async def test_a_server_with_another_certificate_is_not_trusted(
    server: Server, secrets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_worker", (secrets / "orchard" / "nats-users" / "worker").read_text())
    settings = NatsSettings(url=server.url, user="worker", password_env="TEST_worker")

    with pytest.raises(StreamsError):
        async with connect(settings, name="worker"):
            pass


async def test_keda_asks_for_a_worker_of_every_kind_while_a_request_waits_or_is_in_work(
    roles: dict[str, Connection], server: Server, built: dict[str, Manifests]
) -> None:
    """By the metadata of the manifests, on the account that they name; its worker may claim and settle it."""
    settings = built["cloud"].one("ConfigMap", "settings")["data"]
    queues = queues_in(settings["ORCHARD_NATS__QUEUES"])
    await declare(roles["writer"], roles["writer"].settings, queues)
    assert {queue.kind for queue in queues} == {"rollout", "annotate", *request_kinds(), "dataset"}
    async with aiohttp.ClientSession() as http, asyncio.timeout(100):
        for queue in queues:
            metadata = built["cloud"].one("ScaledJob", queue.consumer)["spec"]["triggers"][0]["metadata"]
            trigger = Trigger.of_metadata({**metadata, "natsServerMonitoringEndpoint": server.monitoring})

            async def settled(jobs: int, trigger: Trigger = trigger) -> None:
                """The server tells its consumers after it has acknowledged."""
                while True:
                    async with http.get(trigger.url) as reply:
                        seen = lag(await reply.read(), trigger)
                    if jobs_to_create(seen, trigger=trigger, running=0, pending=0, max_replicas=20) == jobs:
                        return
                    await asyncio.sleep(0.02)

            await settled(0)
            await Publisher(roles["operator"]).offer(named(queue, queue.kind + queue.priority, b"{}"))
            await settled(1)
            async with Claims(roles["worker"], queue) as claims:
                claim = await claims.next(timeout=10)
                assert claim is not None and claim.queue == queue
                await settled(1)
                await claim.complete()
            await settled(0)


def test_the_servers_configuration_is_valid(
    built: dict[str, Manifests], secrets: Path, tmp_path: Path
) -> None:
    data = built["cloud"].one("ConfigMap", "nats")["data"]
    tls = secrets / "orchard" / "nats-tls"
    (tmp_path / "accounts.conf").write_text(data["accounts.conf"])
    (tmp_path / "nats.conf").write_text(
        data["nats.conf"].replace("/etc/nats/tls", str(tls)).replace("/data", str(tmp_path))
    )

    checked = subprocess.run(
        [str(find_binary()), "-t", "-c", str(tmp_path / "nats.conf")],
        env={
            **os.environ,
            **password_variables(secrets),
            "POD_NAME": "nats-0",
            "CLIENT_ADVERTISE": "nats-0.nats.orchard.svc.cluster.local:4222",
        },
        capture_output=True,
        text=True,
        check=False,
    )

    assert checked.returncode == 0, checked.stderr


async def test_no_role_hears_the_answers_to_another(roles: dict[str, Connection]) -> None:
    """A worker that listened to all inboxes read what the operator was told, and answered in its place."""
    for role, connection in roles.items():
        for inbox in ("_INBOX.>", ">", *(f"_INBOX.{other}.>" for other in roles if other != role)):
            heard: list[str] = []

            async def hear(message: Msg, heard: list[str] = heard) -> None:
                heard.append(message.subject)

            await connection.nats.subscribe(inbox, cb=hear)
            await connection.nats.flush()
            for other in roles.values():
                await other.ask("$JS.API.INFO")
            await connection.nats.flush()
            assert heard == [], (role, inbox)
