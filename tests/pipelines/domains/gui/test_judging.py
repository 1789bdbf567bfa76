"""`orchard judge`: 200 rollouts judged again over the real wire, and judges measured against the truth."""

import asyncio
import base64
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from aiohttp import web

from orchard.actions.session import Session
from orchard.configuration.config import Config, ConfigError
from orchard.domains.gui.judging import judge_campaign, show_agreement
from orchard.pipelines.domains.gui.judging.again import QUEUE, OutcomeJudge, read_episodes
from orchard.pipelines.domains.gui.judging.agreement import VerdictPair, agreement, read_pairs
from orchard.schemas import events as e
from orchard.schemas.campaigns import ModelSpec, RolloutRequest, TaskRef
from orchard.schemas.events import payload
from orchard.schemas.gui import GuiStep, GuiSubmission
from orchard.schemas.identity import rollout_id
from orchard.schemas.llm_calls import ModelKind
from orchard.schemas.messages import Image
from orchard.schemas.outcomes import ExitStatus, Reward
from orchard.schemas.requests import JudgeRequest
from orchard.schemas.tasks import PluginGrading, Task
from orchard.storage.blobs import BlobStore
from orchard.storage.reader import open_tables
from orchard.storage.writing.writer import Writer, WriterSettings
from orchard.streams import names
from orchard.streams.claims import Claims
from orchard.streams.connection import Connection, connect
from orchard.streams.consumer import Consumer
from orchard.streams.entries import FIRST
from orchard.streams.publish import OutgoingMessage, store_all
from orchard.streams.publisher import Publisher
from orchard.streams.reading import bounds
from orchard.streams.replay import replay
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare
from orchard.workers.attempts.deadletters import DeadLetters
from orchard.workers.episode.settings import JudgeSettings
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.settings import EndpointSettings, Price
from tests.killing import killed_in_the_middle
from tests.orchard.test_facts import check, jq
from tests.trajectory_log import TIME

TASKS, SAMPLES = 50, 4
CAMPAIGN = "shop"
WANTED = JudgeSettings(model="wise", protocol="orchard", timeout_seconds=20.0)
SETTINGS = NatsSettings(ack_wait=2.0, heartbeat=0.5)
Truth = dict[tuple[int, int], tuple[bool, bool]]
"""By task and sample: what the site's records say, and what the judge will say."""


def truths() -> Truth:
    dice = random.Random(20)
    found: Truth = {}
    for task in range(TASKS):
        easy = dice.random()
        for sample in range(SAMPLES):
            resolved = dice.random() < easy
            found[task, sample] = (resolved, resolved if dice.random() < 0.85 else not resolved)
    return found


def episode(blobs: BlobStore, task: int, sample: int, resolved: bool, passes: bool) -> list[e.Event]:
    """The log of one rollout: request, start, the reward of a state grader, outcome."""
    stored = Task(
        task_id=f"buy-{task}",
        source="sites",
        repo="shop",
        image="host",
        statement=f"Buy article {task}.",
        grading=PluginGrading(grader="sites"),
    )
    blob = blobs.put(msgspec.json.encode(stored))
    ref = TaskRef(task_id=stored.task_id, source="sites", repo="shop", blob=blob)
    rollout = rollout_id(CAMPAIGN, stored.task_id, "browser", "m", sample)
    screens = [
        Image(
            blob=blobs.put(b"screen %d %d %d" % (task, sample, number)),
            media_type="image/png",
            width=1280,
            height=1000,
        )
        for number in range(5)
    ]
    outcome = GuiSubmission(
        start_url="http://shop.test/",
        url="http://shop.test/done",
        title="Thank you",
        ended="finished",
        answer=f"Article {task} is {'bought' if passes else 'gone'}.",
        records={"orders": [task]},
        first=screens[0],
        steps=tuple(
            GuiStep(calls=(("click", '{"x": 5, "y": 7}'),), results=("Succeed: click",), screenshot=screen)
            for screen in screens[1:]
        ),
    )
    submission = msgspec.json.encode(outcome)
    inline = sample % 2 == 0
    facts: dict[str, Any] = {
        "task_id": stored.task_id,
        "task_source": "sites",
        "repo": "shop",
        "harness": "browser",
        "model": "m",
        "model_kind": ModelKind.MODEL,
        "sample": sample,
        "worker": "w",
        "started_at": TIME,
        "seconds": 1.0,
    }
    finished = e.RolloutFinished(
        **facts,
        status=ExitStatus.FINISHED.status,
        exit_status=ExitStatus.FINISHED,
        reward=float(resolved),
        resolved=resolved,
        submission=submission.decode() if inline else "",
        submission_blob=None if inline else blobs.put(submission),
    )
    request = RolloutRequest(
        rollout_id=rollout,
        campaign=CAMPAIGN,
        task=ref,
        harness="browser",
        model=ModelSpec(name="m"),
        sample=sample,
    )
    parts: list[msgspec.Struct] = [
        request,
        e.RolloutStarted(worker="w", request_sequence=1, deliveries=1),
        Reward(value=float(resolved), resolved=resolved, grader="sites"),
        finished,
    ]
    return [
        e.make_event(
            data,
            id=f"{rollout}.{number}",
            source="test",
            campaign=CAMPAIGN,
            rollout_id=rollout,
            attempt=1 if number else None,
            time=TIME,
        )
        for number, data in enumerate(parts)
    ]


class ScriptedJudge:
    """A chat endpoint that believes the answer it is shown, refuses all from its `refuses`-th call on, and is
    down from its `ends`-th on. When it has been asked `called` times it calls `then`."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[dict[str, Any]] = []
        self.ends = self.refuses = float("inf")
        self.down = asyncio.Event()
        """Somebody has met it while it is down."""
        self.called, self.then = 0, lambda: True
        self.holds: asyncio.Event | None = None
        """What each answer waits for."""

    async def chat(self, request: web.Request) -> web.Response:
        if len(self.asked) >= self.refuses:
            return web.json_response({"error": {"message": "of this I judge nothing"}}, status=400)
        if len(self.asked) >= self.ends:
            self.down.set()
            return web.json_response({"error": {"message": "out"}}, status=503, headers={"Retry-After": "0"})
        asked = msgspec.json.decode(await request.read())
        if len(asked["messages"]) == 1:
            return web.json_response(_completion("yes"))  # whether it answers again
        self.asked.append(asked)
        if len(self.asked) == self.called:
            self.then()
        if self.holds is not None:
            await self.holds.wait()
        text = asked["messages"][1]["content"][0]["text"]
        said = "It is there.\nSUCCESS" if " is bought." in text else "It is not there.\nNOT SUCCESS"
        if len(asked["messages"]) == 2 and len(self.asked) % 9 == 0:
            said = "SUCCESS, I would say."  # has not the form
        return web.json_response(_completion(said))


def _completion(said: str) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": said}}
    usage = {"prompt_tokens": 1000, "completion_tokens": 10, "total_tokens": 1010}
    return {"id": "x", "model": "wise", "choices": [choice], "usage": usage}


@pytest.fixture
async def scripted() -> AsyncIterator[ScriptedJudge]:
    judge = ScriptedJudge()
    app = web.Application(client_max_size=2**26)
    app.router.add_post("/v1/chat/completions", judge.chat)
    runner = web.AppRunner(app, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    judge.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    yield judge
    await runner.cleanup()


@pytest.fixture
async def session(
    connection: Connection, nats_server: Any, tmp_path: Path, scripted: ScriptedJudge
) -> AsyncIterator[Session]:
    """The pipeline with 200 rollouts in its log, whose tables are being written."""
    store = str(tmp_path / "store")
    blobs = BlobStore(store)
    for (task, sample), (resolved, passes) in truths().items():
        await Publisher(connection).events(episode(blobs, task, sample, resolved, passes))
    stop = asyncio.Event()
    writer = Writer(store, connection, WriterSettings(commit_seconds=0.1))
    writing = asyncio.create_task(writer.run(stop))
    endpoint = EndpointSettings(
        base_url=scripted.url, max_tries=1, prices={"wise": Price(prompt=1.0, completion=1.0)}
    )
    opened = Session(
        Config(store=store, nats=NatsSettings(url=nats_server.url), endpoints={"default": endpoint})
    )
    await opened.committed(connection)
    yield opened
    stop.set()
    await writing


def rows(session: Session, query: str) -> list[tuple[Any, ...]]:
    with open_tables(session.config.store, views=query) as tables:
        return tables.sql(query).fetchall()


@pytest.mark.long
async def test_a_campaign_is_judged_again_once_through_a_stop_a_cap_refusals_and_an_outage(
    session: Session, scripted: ScriptedJudge, capsys: pytest.CaptureFixture[str]
) -> None:
    rewards = rows(session, "from rewards order by sequence")
    stopped = asyncio.create_task(judge_campaign(session, CAMPAIGN, WANTED, 4))
    scripted.called, scripted.then = 20, stopped.cancel
    with pytest.raises(asyncio.CancelledError):
        await stopped
    assert "stopped: run the same command again" in capsys.readouterr().out
    lost = 4  # at most: asked, and cut off before their answers were stored

    before = len(scripted.asked)
    assert not await judge_campaign(session, CAMPAIGN, WANTED, 4, max_cost=0.03)
    assert "the cap is 0.03 USD" in capsys.readouterr().out
    assert 30 <= len(scripted.asked) - before <= 40  # 0.00101 USD each, and what was under way

    scripted.refuses = 90
    assert not await judge_campaign(session, CAMPAIGN, WANTED, 4)
    assert "10 judgements in a row gave no verdict" in capsys.readouterr().out
    failed = rows(session, "select score, passed, fault from judgements_all where score is null")
    assert len(failed) >= 10 and all(passed is None and "400" in fault for _, passed, fault in failed)

    scripted.refuses, scripted.ends = float("inf"), 120
    waiting = asyncio.create_task(judge_campaign(session, CAMPAIGN, WANTED, 4))
    await scripted.down.wait()
    scripted.ends = float("inf")
    assert await waiting
    assert not rows(session, "from judgements_all where fault like '%503%'"), "it waits for its judge"
    assert await judge_campaign(session, CAMPAIGN, WANTED, 4)
    assert "nothing to judge" in capsys.readouterr().out
    ruled = rows(
        session,
        "select rollout_id, passed, protocol, prompt_hash from judgements "
        "where score is not null and name = 'outcome'",
    )
    assert len(ruled) == len({row[0] for row in ruled}) == TASKS * SAMPLES
    assert Counter(row[1] for row in ruled) == Counter(passes for _, passes in truths().values())
    assert {row[2] for row in ruled} == {"orchard-2"} and len({row[3] for row in ruled}) == 1
    ((calls, paid),) = rows(session, "select count(*), sum(cost_usd) from judge_calls_all")
    assert len(scripted.asked) - lost <= calls <= len(scripted.asked)
    assert paid == pytest.approx(0.00101 * calls)
    assert rows(session, "from rewards order by sequence") == rewards
    assert rows(session, "select count(*) from rollouts") == [(TASKS * SAMPLES,)]

    first = next(each for each in scripted.asked if len(each["messages"]) == 2)
    pictures = [each for each in first["messages"][1]["content"] if each["type"] == "image_url"]
    shown = [base64.b64decode(each["image_url"]["url"].partition(",")[2]) for each in pictures]
    assert [name.split()[-1] for name in shown] == [b"2", b"3", b"4"] and first["seed"] == 42

    with open_tables(session.config.store) as tables:
        (pairs,) = read_pairs(tables, CAMPAIGN).values()
    found = agreement(pairs)
    expected = Counter(truths().values())
    assert (found.both, found.grader_only, found.judge_only, found.neither) == tuple(
        expected[truth] for truth in ((True, True), (True, False), (False, True), (False, False))
    )
    assert found.kappa == pytest.approx(float(kappa_by_hand(expected)))
    show_agreement(session, CAMPAIGN)
    assert f"{found.kappa:.3f}" in capsys.readouterr().out
    show_agreement(session, CAMPAIGN, as_json=True)
    facts = capsys.readouterr().out
    check("judge", facts)
    assert float(jq(".judges[0].agreement.kappa", facts)) == pytest.approx(found.kappa)


def request(session: Session) -> JudgeRequest:
    """The first rollout of the campaign, to be judged."""
    with open_tables(session.config.store) as tables:
        return read_episodes(tables, CAMPAIGN, WANTED).open[0]


async def rulings(connection: Connection) -> list[tuple[Any, ...]]:
    """What is the accepted answer to a request."""
    found = replay(connection, subjects="orchard.events.answered.judge.>")
    return [payload(stored.event) async for stored in found if stored.event]


@pytest.fixture
async def queue(session: Session) -> AsyncIterator[Connection]:
    """A connection with short leases."""
    async with connect(SETTINGS, name="judges", url=session.nats_url()) as opened:
        await declare(opened, SETTINGS, [QUEUE])
        yield opened


@asynccontextmanager
async def judging(session: Session, connection: Connection) -> AsyncIterator[OutcomeJudge]:
    """Until the queue is empty."""
    async with (
        ModelClient(session.endpoints()) as models,
        Claims(connection, QUEUE) as claims,
        asyncio.timeout(100),
        asyncio.TaskGroup() as group,
    ):
        judge = OutcomeJudge(Publisher(connection), session.blobs, models)
        consumer = Consumer(claims, DeadLetters(connection), {QUEUE.kind: judge}, slots=2)
        group.create_task(consumer.run())
        yield judge
        while (await bounds(connection, names.WORK)).messages:
            await asyncio.sleep(0.02)
        consumer.drain()


@pytest.mark.long
async def test_a_judging_worker_that_is_killed_costs_nothing(
    session: Session, queue: Connection, scripted: ScriptedJudge
) -> None:
    begun, scripted.holds = asyncio.Event(), asyncio.Event()
    scripted.called, scripted.then = 1, begun.set
    entry = OutcomeJudge(Publisher(queue), session.blobs, ModelClient({})).entry
    await Publisher(queue).offer(entry(request(session), FIRST))
    environment = {
        "ORCHARD_STORE": session.config.store,
        "ORCHARD_NATS__URL": session.nats_url(),
        "ORCHARD_NATS__ACK_WAIT": str(SETTINGS.ack_wait),
        "ORCHARD_NATS__HEARTBEAT": str(SETTINGS.heartbeat),
        "ORCHARD_SANDBOX__URL": "http://127.0.0.1:9",
        "ORCHARD_ENDPOINTS__DEFAULT__BASE_URL": scripted.url,
    }
    await killed_in_the_middle(("worker", "--kinds", "judge"), environment, begun.wait())
    scripted.holds.set()
    assert await rulings(queue) == []
    async with judging(session, queue):
        pass
    assert len(await rulings(queue)) == 1 and len(scripted.asked) == 2


@pytest.mark.long
async def test_of_two_verdicts_on_one_request_the_first_is_accepted(
    session: Session, queue: Connection, scripted: ScriptedJudge
) -> None:
    """Both deliveries were asked about; the request is offered once more, and nobody is asked again."""
    wanted = request(session)
    async with judging(session, queue):
        scripted.holds = asyncio.Event()
        body = msgspec.json.encode(wanted)  # without a place of its own, so that it is there twice
        await store_all(queue, [OutgoingMessage(QUEUE.subject, body, name) for name in ("first", "again")])
        while len(scripted.asked) < 2:
            await asyncio.sleep(0.02)
        scripted.holds.set()
    assert len(await rulings(queue)) == 1
    async with judging(session, queue) as judge:
        await Publisher(queue).offer(judge.entry(wanted, FIRST))
    assert len(await rulings(queue)) == 1 and len(scripted.asked) == 2


@pytest.mark.long
async def test_mistakes_are_sentences(session: Session) -> None:
    with pytest.raises(ConfigError, match="no model judges"):
        await judge_campaign(session, CAMPAIGN, JudgeSettings())
    with pytest.raises(ConfigError, match=r"needs the price of dear: add \[endpoints.default.prices"):
        await judge_campaign(session, CAMPAIGN, JudgeSettings(model="dear"), max_cost=1.0)
    with pytest.raises(ConfigError, match="no rollout of 'nosuch' has an outcome"):
        await judge_campaign(session, "nosuch", WANTED)
    with pytest.raises(ConfigError, match="both a verdict and a reward that no judge gave"):
        show_agreement(session, CAMPAIGN)


def kappa_by_hand(counts: Counter[tuple[bool, bool]]) -> Fraction:
    """Cohen's kappa from its definition, in fractions."""
    total = counts.total()
    observed = Fraction(counts[True, True] + counts[False, False], total)
    chance = Fraction(0)
    for word in (True, False):
        graded = sum(count for (truth, _), count in counts.items() if truth is word)
        judged = sum(count for (_, said), count in counts.items() if said is word)
        chance += Fraction(graded, total) * Fraction(judged, total)
    return (observed - chance) / (1 - chance)


def analytic_half_width(counts: Counter[tuple[bool, bool]]) -> float:
    """1.96 standard errors of kappa by Fleiss, Cohen and Everitt (1969), for independent rollouts."""
    total = counts.total()
    share = {key: counts[key] / total for key in ((True, True), (True, False), (False, True), (False, False))}
    row = {a: share[a, True] + share[a, False] for a in (True, False)}
    column = {b: share[True, b] + share[False, b] for b in (True, False)}
    kappa = float(kappa_by_hand(counts))
    chance = sum(row[a] * column[a] for a in (True, False))
    same = sum(share[a, a] * (1 - (row[a] + column[a]) * (1 - kappa)) ** 2 for a in (True, False))
    crossed = sum(share[a, not a] * (column[a] + row[not a]) ** 2 for a in (True, False))
    spread = same + (1 - kappa) ** 2 * crossed - (kappa - chance * (1 - kappa)) ** 2
    return float(1.96 * np.sqrt(spread / total) / (1 - chance))


def test_the_interval_of_kappa_is_that_of_the_formula_where_rollouts_are_independent() -> None:
    dice = random.Random(4)
    pairs = []
    for number in range(600):
        resolved = dice.random() < 0.6
        pairs.append(VerdictPair(str(number), resolved, resolved if dice.random() < 0.8 else not resolved))
    counts = Counter((pair.resolved, pair.passed) for pair in pairs)
    found = agreement(pairs)
    assert found.kappa == pytest.approx(float(kappa_by_hand(counts)))
    assert found.low is not None and found.high is not None
    assert (found.high - found.low) / 2 == pytest.approx(analytic_half_width(counts), rel=0.1)
    ordered = sorted(pairs, key=lambda pair: (pair.resolved, pair.passed))
    alike = [pair._replace(task_id=str(place // 60)) for place, pair in enumerate(ordered)]
    wider = agreement(alike)
    assert wider.low is not None and wider.high is not None
    assert wider.high - wider.low > 1.5 * (found.high - found.low)


def test_where_both_always_say_the_same_there_is_no_kappa() -> None:
    found = agreement([VerdictPair("a", True, True), VerdictPair("b", True, True)])
    assert (found.both, found.kappa, found.low, found.agreed) == (2, None, None, 1.0)
    assert agreement([VerdictPair("a", True, False), VerdictPair("b", False, True)]).kappa == pytest.approx(
        -1.0
    )
