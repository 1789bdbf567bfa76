"""The pipeline as a user drives it: campaigns submitted, paused, cancelled, resumed, and failing of ours."""

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from orchard.actions.campaigns import submit_campaign
from orchard.actions.endpoint_rests import rest_sentences
from orchard.actions.session import Session
from orchard.configuration.config import ConfigError
from orchard.pipelines.campaigns.commands import CampaignError, Campaigns, requested_event
from orchard.pipelines.evaluation.plan import plan_suite
from orchard.pipelines.evaluation.suite import read_suite
from orchard.pipelines.tasks.registry import needs_of
from orchard.schemas.campaigns import CampaignState, ModelSpec, rollout_requests
from orchard.schemas.events import make_event
from orchard.schemas.tasks import SWETests, Task
from orchard.streams.campaigns import CampaignBook
from orchard.streams.publisher import Publisher
from orchard.workers.attempts.reopen import cancelled
from orchard.workers.llm.settings import EndpointSettings
from tests.orchard.conftest import KEY, Command, Running
from tests.orchard.test_facts import check, jq
from tests.trajectory_log import llm_call

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def until(condition: Callable[[], bool], what: str, seconds: float = 100.0) -> None:
    """Wait for the tables to say something."""
    deadline = time.monotonic() + seconds
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        await asyncio.sleep(0.3)


async def finished(running: Running, campaign: str, count: int) -> list[tuple[object, ...]]:
    """Wait until `count` rollouts have an outcome."""
    await until(lambda: len(running.outcomes(campaign)) >= count, f"{count} outcomes of {campaign}")
    return running.outcomes(campaign)


async def test_a_campaign_ends_with_one_graded_outcome_for_each_rollout(
    running: Running, orchard: Command
) -> None:
    spec = running.spec("plain", samples=4)
    await running.submit(spec)
    outcomes = await finished(running, "plain", spec.size)
    assert len(outcomes) == spec.size
    assert {status for status, _ in outcomes} <= {"completed", "truncated"}
    rows = running.sql("select resolved, model_kind, reward from rollouts where campaign = 'plain'")
    assert {kind for _, kind, _ in rows} == {"oracle"}
    assert all(reward == (1.0 if resolved else -1.0) for resolved, _, reward in rows)
    assert any(resolved for resolved, _, _ in rows), "the oracle's mix resolves some of 12 rollouts"
    assert running.sql(
        "select requested, finished, aborted, open from conservation where campaign = 'plain'"
    ) == [(12, 12, 0, 0)]
    shown = running.sql("select rollout_id from rollouts where campaign = 'plain' and resolved limit 1")[0][0]
    lines = orchard("watch", "plain", "--json", store=running.store).stdout.splitlines()
    check("watch", lines[-1])
    assert jq(".campaign | .state, .size", lines[-1]) == "finished\n12\n"
    text = orchard("show", str(shown)[:12], store=running.store).stdout
    assert "2 of 2 tests passed" in text
    assert "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT" in text
    rates = orchard(
        "sql", "select * from pass_rates where campaign = 'plain'", "--format", "json", store=running.store
    )
    (rate,) = json.loads(rates.stdout)
    assert (rate["rollouts"], rate["graded"], rate["aborted"]) == (12, 12, 0)
    assert "plain" in orchard("status", store=running.store).stdout


@pytest.mark.slow
async def test_an_evaluation_goes_on_and_is_reported_from_the_log_alone(
    running: Running, orchard: Command, tmp_path: Path
) -> None:
    """Its campaign was begun, as by a command that was stopped."""
    source = running.refs[0].source
    suite = tmp_path / "both.toml"
    suite.write_text(
        'name = "both"\nharnesses = ["orchard-bash", "mini-swe-agent-compact"]\nmax_tries = 1\n'
        'models = [{ name = "oracle", endpoint = "oracle", kind = "oracle" }]\n'
        f'task_sets = [{{ source = "{source}", name = "Tiny", unproven = true }}]\n'
    )
    await running.submit(plan_suite(read_suite(suite), running.store).spec)
    shown = orchard("eval", str(suite), "--out", str(tmp_path / "out"), store=running.store).stdout
    suite.unlink()
    counted = "select harness, requested, graded from evaluation_cells where campaign = 'both' order by 1"
    assert running.sql(counted) == [("mini-swe-agent-compact", 3, 3), ("orchard-bash", 3, 3)]
    told = orchard("eval", "report", "both", store=running.store).stdout
    assert "Tiny: pass@1 by model and harness" in told
    facts = orchard("eval", "report", "both", "--json", store=running.store).stdout
    check("eval report", facts)
    assert jq(".cells[] | .harness, .graded", facts) == "mini-swe-agent-compact\n3\norchard-bash\n3\n"
    assert told in shown.replace(shown[shown.index("written: ") :], "")
    assert sorted(file.name for file in (tmp_path / "out").rglob("*.*")) == [
        "cells.csv",
        "matrix.png",
        *(f"oracle--{harness}.0.json" for harness in ("mini-swe-agent-compact", "orchard-bash")),
        "report.md",
    ]


@pytest.mark.slow
async def test_an_evaluation_at_its_cap_goes_on_when_its_file_has_a_higher_one(
    running: Running, orchard: Command, tmp_path: Path
) -> None:
    """The money is made up. Once all outcomes are there, the same command reports them."""
    suite = tmp_path / "costly.toml"
    text = (
        'name = "costly"\nharnesses = ["orchard-bash"]\nmax_tries = 1\nmax_cost_usd = 1.0\n'
        'models = [{ name = "oracle", endpoint = "oracle", kind = "oracle" }]\n'
        f'task_sets = [{{ source = "{running.refs[0].source}", name = "Tiny", unproven = true }}]\n'
    )
    suite.write_text(text)
    async with running.session.connection("test") as connection:
        cost = {"source": "test", "campaign": "costly", "rollout_id": "0" * 24}
        publisher, book = Publisher(connection), CampaignBook(connection)
        await publisher.event(make_event(llm_call(1, cost_usd=1.5), id="costly-1", **cost))
        begun = Campaigns(connection, running.session.blobs).submit(
            plan_suite(read_suite(suite), running.store).spec
        )
        await anext(begun)  # killed before it has offered anything
        await _paused(book, "costly")
        refused = orchard("eval", str(suite), store=running.store)
        assert refused.returncode == 1 and "its cap is 1.00 USD" in " ".join(refused.stderr.split())
        suite.write_text(text.replace("1.0", "2.0"))
        assert orchard("eval", str(suite), store=running.store).returncode == 0
        await publisher.event(make_event(llm_call(2, cost_usd=1.0), id="costly-2", **cost))
        await _paused(book, "costly")
    again = orchard("eval", str(suite), store=running.store)
    assert again.returncode == 0, again.stderr
    assert "Tiny: resolved" in " ".join(again.stdout.split())


@pytest.mark.slow
async def test_a_suite_with_all_outcomes_is_only_reported_whatever_the_state_of_its_campaign(
    running: Running, orchard: Command, tmp_path: Path
) -> None:
    """Its rollouts were aborted; an option tries them again."""
    suite = tmp_path / "over.toml"
    suite.write_text(
        'name = "over"\nharnesses = ["orchard-bash"]\nmax_tries = 1\n'
        'models = [{ name = "oracle", endpoint = "oracle", kind = "oracle" }]\n'
        f'task_sets = [{{ source = "{running.refs[0].source}", name = "Tiny", unproven = true }}]\n'
    )
    spec = plan_suite(read_suite(suite), running.store).spec
    reopened = "select count(*) from reopenings where campaign = 'over'"
    async with running.session.connection("test") as connection:
        campaigns = Campaigns(connection, running.session.blobs)
        await anext(campaigns.submit(spec))  # killed before it has offered anything
        for request in rollout_requests(spec):
            await Publisher(connection).events(
                [requested_event(request), cancelled(request, None, "test")],
            )
        await campaigns.pause("over")
        told = orchard("eval", str(suite), store=running.store)
        assert told.returncode == 1 and "Tiny: resolved" in " ".join(told.stdout.split()), told.stderr
        assert running.sql(reopened) == [(0,)]
    again = orchard("eval", str(suite), "--retry-aborted", store=running.store)
    assert again.returncode == 0, again.stderr
    assert running.sql(reopened) == [(len(running.refs),)]


async def _paused(book: CampaignBook, name: str) -> None:
    async with asyncio.timeout(100):
        while (known := await book.get(name)) and known[0].state is CampaignState.RUNNING:
            await asyncio.sleep(0.1)


@pytest.mark.long
async def test_submitting_again_adds_nothing_and_another_plan_is_refused(running: Running) -> None:
    spec = running.spec("twice")
    await running.submit(spec)
    await running.submit(spec)
    await finished(running, "twice", spec.size)
    for wrong in (
        ModelSpec(name="m", temperature=-1.0),
        ModelSpec(name="m", max_tokens=0),
        ModelSpec(name=""),
    ):
        with pytest.raises(CampaignError, match=r"model\.\w+ is "):
            await running.submit(running.spec("wrong", models=(wrong,)))
    with pytest.raises(CampaignError, match="another plan"):
        await running.submit(running.spec("twice", samples=2))
    requests = "select count(*) from events where type = 'rollout.requested' and campaign = 'twice'"
    assert running.sql(requests) == [(spec.size,)]


@pytest.mark.long
async def test_a_dead_endpoint_aborts_nothing_and_status_says_that_it_rests(
    running: Running, orchard: Command
) -> None:
    spec = running.spec("dead-endpoint", models=(ModelSpec(name="some-model"),))
    await running.submit(spec)

    async with running.session.connection("test") as connection, asyncio.timeout(100):
        while not await rest_sentences(connection):
            await asyncio.sleep(0.1)
    told = " ".join(orchard("status", store=running.store).stdout.split())
    assert "endpoint default rests since" in told and "could not be reached" in told
    assert running.outcomes("dead-endpoint") == []
    cancelled = orchard("cancel", "dead-endpoint", store=running.store)
    assert cancelled.returncode == 0, cancelled.stderr
    outcomes = await finished(running, "dead-endpoint", spec.size)
    assert set(outcomes) == {("aborted", "cancelled")}
    assert running.sql("select count(*) from rewards_all where campaign = 'dead-endpoint'") == [(0,)]
    assert running.sql("select graded, pass_rate from pass_rates where campaign = 'dead-endpoint'") == [
        (0, None)
    ]
    resumed = orchard("resume", "dead-endpoint", store=running.store)
    assert "3 rollouts offered again" in resumed.stdout, resumed.stderr
    assert orchard("cancel", "dead-endpoint", store=running.store).returncode == 0


@pytest.mark.slow
async def test_a_paused_campaign_waits_and_goes_on(running: Running, orchard: Command) -> None:
    spec = running.spec("paused", samples=4)
    async with running.session.connection("test") as connection:
        campaigns = Campaigns(connection, running.session.blobs)
        steps = campaigns.submit(spec)
        await anext(steps)  # the campaign exists, nothing is offered yet
        await campaigns.pause("paused")
        with pytest.raises(CampaignError, match="paused"):
            await running.submit(spec)
    assert running.outcomes("paused") == []
    assert "12 rollouts offered again" in orchard("resume", "paused", store=running.store).stdout
    outcomes = await finished(running, "paused", spec.size)
    assert {status for status, _ in outcomes} <= {"completed", "truncated"}


@pytest.mark.slow
async def test_a_cancelled_campaign_stops_and_resume_brings_it_back(
    running: Running, orchard: Command
) -> None:
    spec = running.spec("cancelled", samples=6)
    await running.submit(spec)
    assert orchard("cancel", "cancelled", store=running.store).returncode == 0
    outcomes = await finished(running, "cancelled", spec.size)
    assert ("aborted", "cancelled") in outcomes
    assert {cause for status, cause in outcomes if status == "aborted"} == {"cancelled"}
    assert orchard("resume", "cancelled", store=running.store).returncode == 0
    await until(
        lambda: len([s for s, _ in running.outcomes("cancelled") if s != "aborted"]) == spec.size,
        "every rollout to be finished after all",
    )


@pytest.mark.long
async def test_an_endpoint_that_cannot_work_is_refused_before_anything_is_queued(running: Running) -> None:
    async def nothing(_: web.Request) -> web.Response:
        return web.json_response({"error": {"message": "no such model"}}, status=404)

    routes = web.Application()
    routes.router.add_post("/v1/chat/completions", nothing)
    runner = web.AppRunner(routes)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    base_url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    endpoints = {"default": EndpointSettings(base_url=base_url)}
    session = Session(msgspec.structs.replace(running.session.config, endpoints=endpoints))
    spec = running.spec("refused", models=(ModelSpec(name="m"),))
    needs = needs_of(running.store, spec.tasks)
    try:
        with pytest.raises(ConfigError, match=r"no such model.*--no-try"):
            await submit_campaign(session, spec, needs, trial=True)
    finally:
        await runner.cleanup()
    async with running.session.connection("test") as connection:
        assert await CampaignBook(connection).get("refused") is None


@pytest.mark.slow
async def test_a_campaign_that_has_cost_its_cap_is_paused_and_goes_on_when_it_is_raised(
    running: Running, orchard: Command
) -> None:
    """The money is made up: a call that is in the log before the campaign is."""
    async with running.session.connection("test") as connection:
        call = make_event(
            llm_call(1, cost_usd=1.5), id="capped-1", source="test", campaign="capped", rollout_id="0" * 24
        )
        await Publisher(connection).event(call)
        submitted = orchard(
            *("submit", "capped", "--model", "oracle", "--endpoint", "oracle", "--unproven"),
            *("--steps", "12", "--max-cost", "1"),
            store=running.store,
        )
        assert submitted.returncode == 0, submitted.stderr
        book = CampaignBook(connection)
        await _paused(book, "capped")
    refused = orchard("resume", "capped", store=running.store)
    assert refused.returncode == 1
    assert "have cost 1.50 USD and its cap is 1.00 USD" in " ".join(refused.stderr.split())
    assert orchard("resume", "capped", "--max-cost", "2", store=running.store).returncode == 0
    assert len(await finished(running, "capped", 3)) == 3
    assert running.sql("select requested, open from conservation where campaign = 'capped'") == [(3, 0)]
    assert ("paused", 1.0) in running.sql(
        "select payload->>'state', (payload->>'max_cost_usd')::double from events "
        "where campaign = 'capped' and type = 'campaign.state_changed'"
    )


async def test_a_missing_image_aborts_at_once_with_its_cause(running: Running) -> None:
    task = msgspec.json.decode(running.session.blobs.get(running.refs[0].blob), type=Task)
    lost = msgspec.structs.replace(task, task_id="no-image", image="nowhere/nothing:1")
    blob = running.session.blobs.put(msgspec.json.encode(lost))
    ref = msgspec.structs.replace(running.refs[0], task_id="no-image", blob=blob)
    await running.submit(running.spec("no-image", tasks=(ref,)))
    assert await finished(running, "no-image", 1) == [("aborted", "image_missing")]
    detail = running.sql("select detail from rollouts where campaign = 'no-image'")[0][0]
    assert "nowhere/nothing:1" in str(detail)


@pytest.mark.slow
async def test_a_sandbox_killed_for_memory_is_tried_again_with_more(running: Running) -> None:
    task = msgspec.json.decode(running.session.blobs.get(running.refs[0].blob), type=Task)
    assert isinstance(task.grading, SWETests)
    hungry = f"python3 -c 'bytearray(160 * 2**20)' && {task.grading.test_command}"
    grading = msgspec.structs.replace(task.grading, test_command=hungry)
    task = msgspec.structs.replace(task, task_id="hungry", memory="128Mi", grading=grading)
    blob = running.session.blobs.put(msgspec.json.encode(task))
    ref = msgspec.structs.replace(running.refs[0], task_id="hungry", blob=blob)
    await running.submit(running.spec("hungry", tasks=(ref,), max_tries=3))
    assert [status for status, _ in await finished(running, "hungry", 1)] != ["aborted"]
    released = "select reason, cause from attempts where campaign = 'hungry' and ending = 'released'"
    assert running.sql(released) == [("infrastructure", "sandbox_out_of_memory")]


async def test_a_corrupt_blob_aborts_the_rollout_and_is_named(running: Running) -> None:
    blobs = running.session.blobs
    blob = blobs.put(b"a task that will be damaged")
    sha = blob.sha256
    path = next(running.session.directory.glob(f"blobs/**/{sha}"))
    path.chmod(0o644)
    path.write_bytes(b"damaged")
    ref = msgspec.structs.replace(running.refs[0], task_id="damaged", blob=blob)
    await running.submit(running.spec("damaged", tasks=(ref,)))
    assert await finished(running, "damaged", 1) == [("aborted", "store_failed")]
    assert sha in str(running.sql("select detail from rollouts where campaign = 'damaged'")[0][0])


@pytest.mark.long
async def test_a_request_that_is_none_becomes_a_dead_letter_that_can_be_looked_at(
    running: Running, orchard: Command
) -> None:
    async with running.session.connection("test") as connection:
        await connection.jetstream.publish("orchard.work.rollout.swe.normal", b'{"not": "a request"}')
    await until(
        lambda: "not a rollout request" in orchard("dead", "list", store=running.store).stdout,
        "it to be dead",
    )
    facts = orchard("dead", "list", "--json", store=running.store).stdout
    check("dead list", facts)
    number = jq('.letters[] | select(.reason | startswith("terminated")) | .sequence', facts).split()[0]
    letter = orchard("dead", "show", number, "--json", store=running.store).stdout
    check("dead show", letter)
    assert "not" in jq(".request | fromjson", letter)


@pytest.mark.long
async def test_a_second_writer_and_a_second_up_are_refused(running: Running, orchard: Command) -> None:
    writer = orchard("writer", store=running.store)
    assert writer.returncode == 1
    assert "error:" in writer.stderr
    assert "writer" in writer.stderr
    up = orchard("up", store=running.store)
    assert up.returncode == 1
    assert "another `orchard up` runs" in up.stderr


@pytest.mark.long
async def test_an_event_of_an_unknown_type_is_kept_and_stops_nothing(running: Running) -> None:
    async with running.session.connection("test") as connection:
        await connection.jetstream.publish("orchard.events.plain.00.weather.changed", b'{"sky": "grey"}')
        await running.session.committed(connection)
    kept = running.sql(
        "select count(*) from events where subject = 'orchard.events.plain.00.weather.changed'"
    )
    assert kept == [(1,)]
    spec = running.spec("after-the-strange-event")
    await running.submit(spec)
    assert len(await finished(running, spec.name, spec.size)) == spec.size


@pytest.mark.long
async def test_the_models_key_reaches_workers_alone_and_is_nowhere_in_the_store(running: Running) -> None:
    record = running.session.up()
    assert record is not None
    holders = {
        name
        for name, pid in record.children.items()
        if KEY.encode() in Path(f"/proc/{pid}/environ").read_bytes()
    }
    assert holders == {"worker-1", "worker-2"}
    assert holding(running.session.directory, KEY.encode()) == []


def holding(store: Path, text: bytes) -> list[Path]:
    """Files that have it; looked for again when compaction has taken one away meanwhile."""
    while True:
        files = [path for path in store.rglob("*") if path.is_file() and "sandboxes" not in path.parts]
        try:
            return [path for path in files if text in path.read_bytes()]
        except FileNotFoundError:
            continue


@pytest.mark.long
async def test_the_store_is_its_owners_alone(running: Running) -> None:
    store = running.session.directory
    for path in (store, store / "run", store / "nats"):
        assert path.stat().st_mode & 0o077 == 0, path
