"""How a job ended is a word for programs; the sentence beside it is for people."""

import asyncio

import msgspec
import pytest

from orchard.injector.agent.protocol import SENTENCES, CommandEnding
from orchard.injector.client import AsyncSandbox, AsyncSandboxClient
from orchard.injector.following import Exit
from orchard.injector.results import JobResult
from orchard.schemas.sandboxes import ENDED_WITH_SANDBOX, Job, JobEnding


def test_the_agents_words_are_the_contracts() -> None:
    assert {word.value for word in CommandEnding} == {word.value for word in JobEnding} - {"unknown"}
    assert {word.value for word in ENDED_WITH_SANDBOX} <= {word.value for word in SENTENCES}


def test_a_word_of_a_later_agent_is_unknown_and_none_is_of_an_earlier_one() -> None:
    record = {"job_id": "s.1", "sandbox_id": "s", "command": "true", "status": "failed"}
    for word, read in ((None, None), ("moved", JobEnding.UNKNOWN), ("exited", JobEnding.EXITED)):
        job = msgspec.json.decode(msgspec.json.encode({**record, "ending": word}), type=Job)
        assert job.ending is read


@pytest.mark.parametrize(
    ("command", "options", "ending"),
    [
        ("true", {}, JobEnding.EXITED),
        ("exit 3", {}, JobEnding.EXITED),
        ("kill -KILL $$", {}, JobEnding.EXITED),
        ("no-such-program", {}, JobEnding.EXITED),
        (["no-such-program"], {}, JobEnding.NOT_FOUND),
        (["/etc/passwd"], {}, JobEnding.NOT_PERMITTED),
        ("true", {"cwd": "/no/such/place"}, JobEnding.NOT_STARTED),
        ("sleep 1044", {"timeout_seconds": 0.1}, JobEnding.TIMEOUT),
    ],
)
async def test_a_finished_job_says_how(
    sandbox: AsyncSandbox, command: str | list[str], options: dict[str, object], ending: JobEnding
) -> None:
    job = await sandbox.exec(command, **options)  # type: ignore[call-overload]
    assert isinstance(job, JobResult) and job.ending is ending
    assert (await sandbox.get_job(job.job_id)).ending is ending


async def test_a_job_that_somebody_ends_says_who(client: AsyncSandboxClient) -> None:
    sandbox = await client.create_sandbox("host", memory="64Mi")
    cancelled = await sandbox.start("sleep 1045", timeout_seconds=2000)
    assert (await sandbox.get_job(cancelled)).ending is None
    await sandbox.cancel_job(cancelled)
    assert (await sandbox.wait_job(cancelled)).ending is JobEnding.CANCELLED
    eater = await sandbox.exec(["python3", "-c", "bytearray(2**30)"])
    assert eater.ending is JobEnding.OUT_OF_MEMORY
    await sandbox.take_snapshot("before")
    running = await sandbox.start("sleep 1046", timeout_seconds=2000)
    await sandbox.restore("before")
    assert (await sandbox.wait_job(running)).ending is JobEnding.SANDBOX_RESTORED
    job = await sandbox.exec("echo begun; sleep 1047", wait=False)
    async for event in sandbox.follow(job.job_id):
        if isinstance(event, Exit):
            assert event.ending is JobEnding.SANDBOX_DELETED
        else:
            await sandbox.delete()


async def test_a_job_whose_sandbox_is_restored_before_it_begins_ended_with_it(
    client: AsyncSandboxClient,
) -> None:
    """Its process found no sandbox to enter: that is not the command's failure."""
    sandbox = await client.create_sandbox("host", memory="64Mi")
    await sandbox.take_snapshot("before")
    for _ in range(10):
        *started, _ = await asyncio.gather(
            *(sandbox.start("sleep 1048", timeout_seconds=2000) for _ in range(8)),
            sandbox.restore("before"),
            return_exceptions=True,
        )
        jobs = [job for job in started if isinstance(job, str)]  # the others were refused meanwhile
        for job in jobs:
            if (
                await sandbox.get_job(job)
            ).status == "running":  # it came after, and runs in what was restored
                await sandbox.cancel_job(job)
                assert (await sandbox.wait_job(job)).ending is JobEnding.CANCELLED
            else:
                assert (await sandbox.get_job(job)).ending is JobEnding.SANDBOX_RESTORED


async def test_a_sandbox_that_ends_before_the_output_of_a_command_has_ended_with_it(
    client: AsyncSandboxClient,
) -> None:
    """What its output passed through was killed with the sandbox: status 0 would be half of the truth."""
    sandbox = await client.create_sandbox("host", memory="64Mi")
    await sandbox.take_snapshot("before")
    busy = "import sys; sys.stdin.read(); open('begun', 'w')\nwhile True: pass"
    job = await sandbox.start(f'exec > >(exec python3 -c "{busy}"); echo one')
    await sandbox.exec("until [ -e begun ]; do sleep 0.01; done")
    await sandbox.restore("before")
    ended = await sandbox.wait_job(job)
    assert (ended.ending, ended.exit_code) == (JobEnding.SANDBOX_RESTORED, None)
