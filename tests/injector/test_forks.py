"""Forks of a sandbox: independent, from one copy, with what is asked for of their own."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from orchard.injector.agent.local.overlay import MAX_LAYERS
from orchard.injector.agent.local.sandbox import OURS
from orchard.injector.errors import SandboxConflict, SandboxError, SandboxFailed, SandboxRequestInvalid
from orchard.schemas.sandboxes import CreateSandbox, ExecRequest, ForkSandbox, Job, SandboxInfo
from tests.injector.direct import Direct

if TYPE_CHECKING:
    from tests.injector.conftest import Service


@pytest.fixture
async def backend(service: "Service") -> AsyncIterator[Direct]:
    """A line to the agent; sandboxes are deleted at the end."""
    made = Direct(service.state, start_agent=False)
    await made.open()
    before = {sandbox.sandbox_id for sandbox in await made.list({})}
    yield made
    for sandbox in await made.list({}):
        if sandbox.sandbox_id not in before:
            await made.delete(sandbox.sandbox_id)
    await made.close()


async def create(backend: Direct, image: str = "host", **fields: object) -> str:
    request = CreateSandbox(image=image, **fields)  # type: ignore[arg-type]
    sandbox = await backend.create(request, None)
    assert (await backend.wait(sandbox.sandbox_id, 60)).ready
    return sandbox.sandbox_id


async def run(backend: Direct, sandbox_id: str, command: str) -> str:
    job = await backend.exec(sandbox_id, ExecRequest(command=command, wait=True))
    assert isinstance(job, Job)
    return job.stdout + job.stderr


def fork_layers(service: "Service") -> list[str]:
    return [path.name for path in (service.state / "layers").glob("fork-*")]


async def fork(backend: Direct, origin: str, key: str | None = None, **fields: object) -> list[SandboxInfo]:
    forks = await backend.fork(origin, ForkSandbox(**fields), key)  # type: ignore[arg-type]
    assert all(made.ready for made in forks), forks
    return forks


async def test_forks_have_the_files_and_not_the_processes(backend: Direct, service: "Service") -> None:
    origin = await create(backend)
    await run(
        backend,
        origin,
        "echo one > a; mkdir -p d/e; ln -s a link; cd /usr/share; rm -r perl5; mv zoneinfo z; cd -;"
        "chmod 4711 a; chown 7:8 d; (sleep 1021 &)",
    )
    forks = await fork(backend, origin, count=3)
    look = "cat a link; stat -c '%a %u %g' a d; ls -d /usr/share/{perl5,zoneinfo,z}"
    expected = await run(backend, origin, look)
    assert "4711 0 0\n755 7 8\n" in expected
    for made in forks:
        assert await run(backend, made.sandbox_id, look) == expected
        assert await run(backend, made.sandbox_id, "cat /proc/[0-9]*/comm | grep sleep") == ""
    assert len(fork_layers(service)) == 1


async def test_forks_and_origin_are_independent(backend: Direct) -> None:
    origin = await create(backend)
    await run(backend, origin, "echo 0 > n")
    first, second = await fork(backend, origin, count=2)
    await run(backend, first.sandbox_id, "echo 1 >> n")
    await run(backend, origin, "rm n")
    assert await run(backend, second.sandbox_id, "cat n") == "0\n"
    assert await run(backend, first.sandbox_id, "cat n") == "0\n1\n"
    await backend.delete(origin)
    assert await run(backend, second.sandbox_id, "cat n") == "0\n"


async def test_forks_of_forks_and_the_end_of_their_layers(backend: Direct, service: "Service") -> None:
    before = len(fork_layers(service))
    line = [await create(backend)]
    for number in range(5):
        await run(backend, line[-1], f"echo {number} >> depth")
        line += [made.sandbox_id for made in await fork(backend, line[-1])]
    assert await run(backend, line[-1], "cat depth") == "0\n1\n2\n3\n4\n"
    for sandbox_id in line[:-1]:
        await backend.delete(sandbox_id)
    assert await run(backend, line[-1], "cat depth") == "0\n1\n2\n3\n4\n"
    assert len(fork_layers(service)) == before + 5
    await backend.delete(line[-1])
    assert len(fork_layers(service)) == before


async def test_a_snapshot_of_a_fork_keeps_what_it_stands_on(backend: Direct) -> None:
    origin = await create(backend)
    await run(backend, origin, "echo kept > a")
    (made,) = await fork(backend, origin)
    await backend.snapshot(made.sandbox_id, "forked:1")
    await backend.delete(made.sandbox_id)
    assert await run(backend, await create(backend, "forked:1"), "cat a") == "kept\n"


async def test_limits_and_labels_are_inherited_or_their_own(backend: Direct) -> None:
    origin = await create(backend, cpu="1", memory="128Mi", labels={"a": "b"}, ttl_seconds=600)
    (same,) = await fork(backend, origin)
    (other,) = await fork(backend, origin, cpu="500m", labels={"c": "d"}, sandbox_ids=["other-fork"])
    assert (same.cpu, same.memory, same.labels, same.image) == ("1", "128Mi", {"a": "b"}, "host")
    assert (other.sandbox_id, other.cpu, other.memory) == ("other-fork", "500m", "128Mi")
    assert other.labels == {"c": "d"}
    eater = ExecRequest(command=["python3", "-c", "x = b'x' * 300_000_000"], wait=True)
    job = await backend.exec(same.sandbox_id, eater)
    assert isinstance(job, Job) and job.oom_killed


async def test_the_same_key_forks_once(backend: Direct) -> None:
    origin = await create(backend)
    asked = [fork(backend, origin, "again", count=2) for _ in range(3)]
    answers = [{made.sandbox_id for made in forks} for forks in await asyncio.gather(*asked)]
    assert answers[0] == answers[1] == answers[2] and len(answers[0]) == 2
    assert {made.sandbox_id for made in await fork(backend, origin, "again", count=2)} == answers[0]
    with pytest.raises(SandboxConflict):
        await fork(backend, origin, "again", count=3)
    assert len(await backend.list({})) >= 3


async def test_forks_that_cannot_be(backend: Direct, service: "Service") -> None:
    origin = await create(backend)
    before = len(await backend.list({})), len(fork_layers(service))
    with pytest.raises(SandboxRequestInvalid, match="2 different"):
        await fork(backend, origin, count=2, sandbox_ids=["same", "same"])
    with pytest.raises(SandboxConflict, match=origin):
        await fork(backend, origin, count=2, sandbox_ids=["free", origin])
    assert (len(await backend.list({})), len(fork_layers(service))) == before
    await backend.delete(origin)
    with pytest.raises(SandboxError):
        await fork(backend, origin)


@pytest.mark.long
async def test_a_failed_sandbox_cannot_be_forked(own_service: "Service") -> None:
    backend = Direct(own_service.state, start_agent=True)
    await backend.open()
    origin = await create(backend)
    await backend.close()
    own_service.kill_agent()
    backend = Direct(own_service.state, start_agent=True)
    await backend.open()
    with pytest.raises(SandboxFailed):
        await fork(backend, origin)
    await backend.close()


async def test_a_tree_that_changes_all_the_time_can_be_forked(backend: Direct) -> None:
    """What was removed between being listed and being copied is left out; nothing fails."""
    origin = await create(backend)
    await run(
        backend,
        origin,
        "mkdir t; echo stays > a;"
        "(while :; do for i in 1 2 3 4 5 6 7 8; do echo x > t/$i; mkdir -p t/d$i; done; rm -rf t/*; done) &",
    )
    for forks in await asyncio.gather(*(fork(backend, origin) for _ in range(5))):
        assert await run(backend, forks[0].sandbox_id, "cat a") == "stays\n"


async def test_a_line_of_forks_ends_with_a_sentence_before_the_kernel_ends_it(
    backend: Direct, service: "Service"
) -> None:
    """An image of as many layers as can be mounted, made by hand."""
    origin = await create(backend)
    await backend.snapshot(origin, "deep:1")
    for path in (service.state / "images").glob("*.json"):
        image = json.loads(path.read_text())
        if image["name"] == "deep:1":
            base = image["layers"]
            for number in range(MAX_LAYERS - OURS - len(base)):
                layer = service.state / "layers" / f"empty-{number}"
                layer.mkdir()
                image["layers"].insert(0, layer.name)
            path.write_text(json.dumps(image))
    deep = await create(backend, "deep:1")
    with pytest.raises(SandboxRequestInvalid, match="fork an earlier one"):
        await fork(backend, deep)
