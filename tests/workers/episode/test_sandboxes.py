"""The boundary to the sandbox service: what the agent did is an outcome, what the machine did is raised."""

import asyncio
import io
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from aiohttp import web

from orchard.injector.agent.protocol import REASON_HEADER
from orchard.injector.client import AsyncSandboxClient
from orchard.injector.errors import SandboxError, SandboxFailed
from orchard.injector.results import ended_with_sandbox
from orchard.schemas.events import SandboxCreated, SandboxDeleted, SandboxFailure
from orchard.schemas.outcomes import AbortCause
from orchard.schemas.sandboxes import Job, JobEnding, JobStatus
from orchard.workers.episode import sandboxes
from orchard.workers.episode.sandboxes import (
    SandboxFactory,
    SandboxMachine,
    SandboxSettings,
    classified,
)
from orchard.workers.failures import InfrastructureError, LimitExceeded, NotWritable, SandboxEvicted
from orchard.workers.graders.carrying import carry
from tests.injector.conftest import Service
from tests.refusing_service import Refusal, refusing


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A real orchestrator and agent."""
    state = tmp_path_factory.mktemp("sandboxes") / "state"
    service = Service(state, env={"ORCHARD_SANDBOX_DISK": "100Mi"})
    yield service
    service.stop()


@pytest.fixture
async def machine(service: Service) -> AsyncIterator[SandboxMachine]:
    """A machine over a sandbox of its own."""
    async with (
        AsyncSandboxClient(service.url) as client,
        await client.create_sandbox("host", memory="256Mi", cpu="1") as sandbox,
    ):
        yield SandboxMachine(sandbox)


async def test_a_removed_working_directory_is_the_agents_own_doing(machine: SandboxMachine) -> None:
    await machine.run("mkdir /gone && rm -r /gone", timeout=10, cwd="/")
    outcome = await machine.run("ls", timeout=10, cwd="/gone")
    assert outcome.returncode == 127
    assert "/gone" in outcome.output


async def test_a_timeout_is_an_outcome_with_what_was_printed(machine: SandboxMachine) -> None:
    outcome = await machine.run("echo before; sleep 60", timeout=3, cwd="/")
    assert (outcome.output, outcome.returncode, outcome.timed_out) == ("before\n", -1, True)


async def test_output_keeps_its_order_and_files_their_bytes(machine: SandboxMachine) -> None:
    outcome = await machine.run("echo a; echo b >&2; echo c; exit 3", timeout=10, cwd="/")
    assert (outcome.output, outcome.returncode) == ("a\nb\nc\n", 3)
    await machine.write("/workspace/x/y.bin", bytes(range(256)))
    assert await machine.read("/workspace/x/y.bin") == bytes(range(256))
    with pytest.raises(FileNotFoundError):
        await machine.read("/workspace/none")


async def test_a_command_that_eats_all_memory_is_an_outcome(machine: SandboxMachine) -> None:
    eater = await machine.run("python3 -c 'bytearray(2**30)'", timeout=30, cwd="/")
    assert (eater.returncode, eater.out_of_memory) == (137, True)
    survivor = await machine.run("python3 -c 'bytearray(2**30)'; echo later", timeout=30, cwd="/")
    assert (survivor.returncode, survivor.out_of_memory) == (0, True)
    assert survivor.output.endswith("later\n")
    modest = await machine.run("echo fine", timeout=30, cwd="/")
    assert (modest.output, modest.out_of_memory) == ("fine\n", False)


async def test_a_full_disk_of_its_own_is_told_from_a_death(service: Service) -> None:
    async with (
        AsyncSandboxClient(service.url) as client,
        await client.create_sandbox("host", memory="256Mi", cpu="1") as sandbox,
    ):
        machine = SandboxMachine(sandbox)
        with pytest.raises(LimitExceeded) as raised:
            await machine.run("head -c 200M /dev/zero > /workspace/big; sleep 60", timeout=60, cwd="/")
    assert raised.value.cause is AbortCause.SANDBOX_DIED


@pytest.mark.long
async def test_files_that_fit_nowhere_else_are_not_carried(service: Service, machine: SandboxMachine) -> None:
    """A sparse file is as large as its size over there: the agent's doing, and no abort."""
    await machine.run("truncate -s 200M /workspace/sparse", timeout=10, cwd="/")
    async with (
        AsyncSandboxClient(service.url) as client,
        await client.create_sandbox("host", memory="256Mi", cpu="1") as other,
    ):
        there = SandboxMachine(other)
        with pytest.raises((LimitExceeded, NotWritable)):
            await carry(["/workspace"], machine, there, timeout=30)
            await there.run("sleep 90", timeout=100, cwd="/")  # files are counted each minute at least


async def test_a_chain_of_links_costs_no_time_when_files_are_carried(
    service: Service, machine: SandboxMachine
) -> None:
    """To follow each of 600 links to its end takes 180,000 steps; the kernel takes 40 of each."""
    chain = "import os; [os.symlink(f'l{n - 1}' if n else '/etc', f'l{n}') for n in range(600)]"
    text = f'cd /workspace; python3 -c "{chain}"; ln -s l5 good; ln -s /proc/self/fd/1 bad'
    await machine.run(text, timeout=60, cwd="/")
    async with (
        AsyncSandboxClient(service.url) as client,
        await client.create_sandbox("host", memory="256Mi", cpu="1") as other,
    ):
        await carry(["/workspace"], machine, SandboxMachine(other), timeout=120)
        found = await other.exec("cd /workspace; ls | wc -l; readlink good; ls bad l39 l40 l599 2>&1 | wc -l")
    kept, good, named = found.stdout.split()
    assert int(kept) < 60 and good == "l5", "links that the kernel follows stay"
    assert int(named) >= 3


@pytest.mark.parametrize("goes_on", [True, False])
async def test_processes_go_on_after_their_files_were_carried_if_they_are_to(
    service: Service, machine: SandboxMachine, goes_on: bool
) -> None:
    await machine.run("sleep 600 > /dev/null 2>&1 & echo $! > /workspace/pid", timeout=10, cwd="/")
    async with (
        AsyncSandboxClient(service.url) as client,
        await client.create_sandbox("host", memory="256Mi", cpu="1") as other,
    ):
        await carry(["/workspace"], machine, SandboxMachine(other), timeout=30, goes_on=goes_on)
        assert await other.download_content("/workspace/pid") == await machine.read("/workspace/pid")
    assert (await machine.sandbox.status()).paused != goes_on
    if goes_on:
        seen = await machine.run("kill -0 $(cat /workspace/pid)", timeout=10, cwd="/")
        assert seen.returncode == 0


async def test_processes_that_cannot_be_frozen_do_not_prevent_a_copy(
    machine: SandboxMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def endless() -> None:
        raise SandboxError("not every process stopped within 10 s")

    monkeypatch.setattr(machine.sandbox, "pause", endless)
    await machine.freeze()
    await machine.archive("/workspace", io.BytesIO(), limit=1 << 20)


async def test_all_processes_end_and_the_files_stay(machine: SandboxMachine) -> None:
    await machine.run(
        "echo kept > /workspace/x; (exec -a lasting sleep 600) > /dev/null 2>&1 &", timeout=10, cwd="/"
    )
    await machine.end_processes()
    seen = await machine.run("cat /workspace/x; grep -lsa ^lasting /proc/[0-9]*/cmdline", timeout=10, cwd="/")
    assert seen.output == "kept\n"


@asynccontextmanager
async def silent_server() -> AsyncIterator[tuple[int, asyncio.Event]]:
    """Its port, and whether a question came; none is answered."""
    asked = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readline() == b"question\n"
        asked.set()
        with suppress(ConnectionError):
            await reader.read()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1") as server:
        yield server.sockets[0].getsockname()[1], asked


async def ask(machine: SandboxMachine, port: int, asked: asyncio.Event) -> None:
    question = f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo question >&3 && cat <&3"
    await machine.sandbox.start(["bash", "-c", question])
    await asyncio.wait_for(asked.wait(), 30)


@pytest.mark.parametrize("asks_again", [False, True])
async def test_a_line_that_broke_under_a_question_is_raised_unless_its_program_asks_again(
    service: Service, machine: SandboxMachine, asks_again: bool
) -> None:
    async def lost_line() -> None:
        async with (
            silent_server() as (here, asked),
            machine.reverse(here, asks_again=asks_again) as tunnel,
        ):
            await ask(machine, tunnel.port, asked)
            service.kill()
            await asyncio.to_thread(service.start)
            while not tunnel.breaks:
                await machine.run("true", timeout=10, cwd="/")

    if asks_again:
        await lost_line()
        return
    with pytest.raises(InfrastructureError, match="waited for an answer") as raised:
        await lost_line()
    assert (raised.value.cause, raised.value.retryable) == (AbortCause.SANDBOX_UNAVAILABLE, True)


async def test_a_line_that_breaks_under_no_question_or_by_our_own_restore_is_none_that_was_lost(
    service: Service, machine: SandboxMachine
) -> None:
    async with silent_server() as (here, asked), machine.reverse(here) as tunnel:
        await ask(machine, tunnel.port, asked)
        await machine.end_processes()
        assert tunnel.breaks == 1
        service.kill()
        await asyncio.to_thread(service.start)
        while tunnel.breaks < 2:
            await machine.run("true", timeout=10, cwd="/")


async def test_a_line_whose_sandbox_is_lost_is_raised(machine: SandboxMachine) -> None:
    with pytest.raises(InfrastructureError) as reverse:
        async with machine.reverse(8000) as tunnel:
            with pytest.raises(InfrastructureError) as forward:
                async with machine.forward(8000) as url:
                    await machine.sandbox.delete()
                    with suppress(SandboxError):
                        await tunnel.wait()
                    async with asyncio.timeout(30):
                        with pytest.raises(ConnectionRefusedError):  # it listens until it has ended
                            while True:
                                _, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
                                writer.close()
                                await asyncio.sleep(0)
    assert [raised.value.cause for raised in (forward, reverse)] == [AbortCause.SANDBOX_DIED] * 2


async def test_a_sandbox_that_is_gone_is_an_infrastructure_failure(machine: SandboxMachine) -> None:
    await machine.sandbox.delete()
    with pytest.raises(InfrastructureError) as raised:
        await machine.run("true", timeout=10, cwd="/")
    assert raised.value.cause is AbortCause.SANDBOX_DIED


async def test_a_sandbox_that_dies_under_a_command_is_no_observation(
    service: Service, machine: SandboxMachine
) -> None:
    running = asyncio.create_task(machine.run("touch /workspace/begun; sleep 600", timeout=60, cwd="/"))
    while "begun" not in (await machine.run("ls /workspace", timeout=10, cwd="/")).output:
        assert not running.done()
    service.kill_agent()
    with pytest.raises(InfrastructureError) as raised:
        await running
    assert raised.value.cause is AbortCause.SANDBOX_DIED


async def test_a_sandbox_that_is_set_back_under_a_command_is_no_observation(machine: SandboxMachine) -> None:
    await machine.sandbox.take_snapshot("before")
    running = asyncio.create_task(machine.run("touch /workspace/begun; sleep 601", timeout=60, cwd="/"))
    while "begun" not in (await machine.run("ls /workspace", timeout=10, cwd="/")).output:
        assert not running.done()
    await machine.sandbox.restore("before")
    with pytest.raises(InfrastructureError, match="restored") as raised:
        await running
    assert raised.value.cause is AbortCause.SANDBOX_DIED and raised.value.retryable


KILLED = {"exit_code": -9, "error": "of whatever words"}


@pytest.mark.parametrize(
    ("fields", "ended"),
    [
        ({"ending": JobEnding.SANDBOX_RESTORED, "exit_code": -9}, True),
        ({"ending": JobEnding.SANDBOX_DIED}, True),
        ({"ending": JobEnding.EXITED, "exit_code": -9}, False),
        ({"ending": JobEnding.CANCELLED, **KILLED}, False),
        ({"ending": JobEnding.UNKNOWN, **KILLED}, True),
        (KILLED, True),
        ({"exit_code": None, "error": "of whatever words"}, True),
        ({**KILLED, "oom_killed": True}, False),
        ({"exit_code": 124, "timed_out": True, "error": "timeout"}, False),
        ({"exit_code": -9}, False),
        ({"exit_code": 127, "error": "of whatever words"}, False),
        ({"exit_code": 0}, False),
    ],
)
def test_a_job_says_by_fields_whether_its_sandbox_ended_under_it(fields: dict[str, Any], ended: bool) -> None:
    """Without `ending` it is of an agent from before there was that field."""
    job = Job(job_id="s.1", sandbox_id="s", command="true", status=JobStatus.FAILED, **fields)
    assert ended_with_sandbox(job) is ended


@asynccontextmanager
async def held(url: str) -> AsyncIterator[tuple[str, asyncio.Event, asyncio.Event]]:
    """A proxy to the service: its URL, an event that a sandbox has been made, one that lets the answer go."""
    made, answer = asyncio.Event(), asyncio.Event()
    async with aiohttp.ClientSession() as session:

        async def forward(request: web.Request) -> web.Response:
            body = await request.read()
            there = url + request.path_qs
            async with session.request(request.method, there, data=body, headers=request.headers) as reply:
                names = ("Content-Type", REASON_HEADER)
                said = {name: reply.headers[name] for name in names if name in reply.headers}
                status, text = reply.status, await reply.read()
            if (request.method, request.path) == ("POST", "/sandboxes"):
                made.set()
                await answer.wait()
            return web.Response(status=status, body=text, headers=said)

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", forward)
        runner = web.AppRunner(app, shutdown_timeout=1.0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", made, answer
        await runner.cleanup()


PASSING: list[Refusal] = [(503, "quota_exceeded"), (503, "registry_resting"), (410, "image_unavailable")]


async def test_what_only_has_to_be_waited_for_takes_no_try(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quota that is used up, a registry that fails: as many creations as it takes, each by its own key."""
    answers = iter(PASSING * 2)
    monkeypatch.setattr(sandboxes, "LONGEST_PAUSE", 0.01)
    events: list[Any] = []

    async def publish(data: Any) -> None:
        events.append(data)

    async with (
        refusing(service.url, lambda _: next(answers, None)) as (url, keys),
        AsyncSandboxClient(url, retry_seconds=0.0) as client,
    ):
        factory = SandboxFactory(client, SandboxSettings(creation_tries=1), publish, key="waits", labels={})
        async with factory.open("host", purpose="rollout", cpu="1", memory="256Mi", timeout=60):
            pass
    assert len(set(keys)) == 7
    failures = [one for one in events if isinstance(one, SandboxFailure)]
    waits = [AbortCause.SANDBOX_UNAVAILABLE, AbortCause.IMAGE_UNAVAILABLE, AbortCause.IMAGE_UNAVAILABLE]
    assert [one.cause for one in failures] == waits * 2
    assert all(one.will_retry for one in failures)


@pytest.mark.parametrize(
    ("status", "reason", "cause", "rest"),
    [
        (422, "sandbox_refused", AbortCause.SANDBOX_REFUSED, 60.0),
        (410, "image_missing", AbortCause.IMAGE_MISSING, 0.0),
        (410, "image_invalid", AbortCause.INVALID_REQUEST, 0.0),
        (410, "egress_refused", AbortCause.INVALID_REQUEST, 0.0),
        (501, "unsupported", AbortCause.INVALID_REQUEST, 0.0),
    ],
)
async def test_what_would_be_answered_alike_is_asked_once(
    service: Service, status: int, reason: str, cause: AbortCause, rest: float
) -> None:
    async def publish(_: Any) -> None:
        pass

    async with (
        refusing(service.url, lambda _: (status, reason)) as (url, keys),
        AsyncSandboxClient(url) as client,
    ):
        factory = SandboxFactory(client, SandboxSettings(), publish, key="once", labels={})
        with pytest.raises(InfrastructureError, match=f"because of {reason}") as raised:
            async with factory.open("host", purpose="rollout", cpu="1", memory="256Mi", timeout=60):
                pass
    assert (raised.value.cause, raised.value.rest, len(keys)) == (cause, rest, 1)


async def cancelled(factory: SandboxFactory, begun: asyncio.Event, answer: asyncio.Event) -> None:
    """Open a sandbox, cancel that when it has `begun`, and let the service `answer`."""

    async def use() -> None:
        async with factory.open("host", purpose="rollout", cpu="1", memory="256Mi", timeout=60):
            raise AssertionError("cancelled before")

    using = asyncio.create_task(use())
    await asyncio.wait_for(begun.wait(), 60)
    using.cancel()
    answer.set()
    with pytest.raises(asyncio.CancelledError):
        await using


def test_what_a_cluster_takes_away_is_told_from_what_ended_by_itself() -> None:
    with pytest.raises(SandboxEvicted) as evicted, classified():
        raise SandboxFailed("sandbox a failed: drained", reason="evicted")
    assert (evicted.value.cause, evicted.value.retryable) == (AbortCause.SANDBOX_DIED, True)
    with pytest.raises(InfrastructureError) as died, classified():
        raise SandboxFailed("sandbox a failed: its agent ended", reason="died")
    assert not isinstance(died.value, SandboxEvicted)


async def test_cancelled_while_the_service_makes_it_a_sandbox_is_deleted(service: Service) -> None:
    events: list[Any] = []

    async def publish(data: Any) -> None:
        events.append(data)

    labels = {"of": "cancelled"}
    async with (
        held(service.url) as (url, made, answer),
        AsyncSandboxClient(url, auto_cleanup=False) as client,
    ):
        factory = SandboxFactory(client, SandboxSettings(), publish, key="cancelled", labels=labels)
        await cancelled(factory, made, answer)
        assert await client.list_sandboxes(labels) == []
    assert [type(event) for event in events] == [SandboxDeleted]


@pytest.mark.long
async def test_cancelled_while_its_creation_is_published_a_sandbox_is_deleted(service: Service) -> None:
    events: list[Any] = []
    publishing = asyncio.Event()

    async def publish(data: Any) -> None:
        events.append(data)
        if isinstance(data, SandboxCreated):
            publishing.set()
            await asyncio.Event().wait()

    labels = {"of": "published"}
    async with AsyncSandboxClient(service.url, auto_cleanup=False) as client:
        factory = SandboxFactory(client, SandboxSettings(), publish, key="published", labels=labels)
        await cancelled(factory, publishing, asyncio.Event())
        assert await client.list_sandboxes(labels) == []
    assert [type(event) for event in events] == [SandboxCreated, SandboxDeleted]
