"""Services beside a sandbox: which lost sandbox ends the attempt, and which end is the agent's own."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

import pytest

from orchard.injector.client import AsyncSandboxClient
from orchard.injector.errors import SandboxError
from orchard.schemas.outcomes import AbortCause
from orchard.schemas.tasks import StateCheck, Task, TaskService
from orchard.workers.episode.machine import Machine
from orchard.workers.episode.sandboxes import SandboxMachine
from orchard.workers.episode.services import beside
from orchard.workers.failures import InfrastructureError
from tests.injector.conftest import Service

SITE = TaskService(
    names=("site",), image="host", argv=("python3", "-m", "http.server", "8000"), ports=(8000,)
)
TASK = Task(
    task_id="t",
    source="x",
    repo="x",
    image="host",
    statement="?",
    grading=StateCheck(files={}, command="true"),
    services=(SITE,),
)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    made = Service(tmp_path_factory.mktemp("services") / "state")
    yield made
    made.stop()


@pytest.fixture
async def client(service: Service) -> AsyncIterator[AsyncSandboxClient]:
    async with AsyncSandboxClient(service.url) as made:
        yield made


@pytest.fixture
async def machine(client: AsyncSandboxClient) -> AsyncIterator[SandboxMachine]:
    async with await client.create_sandbox("host", memory="256Mi", cpu="1") as sandbox:
        yield SandboxMachine(sandbox)


def running(client: AsyncSandboxClient, machine: Machine) -> AbstractAsyncContextManager[None]:
    @asynccontextmanager
    async def opened(_: TaskService) -> AsyncIterator[Machine]:
        async with await client.create_sandbox("host", memory="256Mi", cpu="1") as sandbox:
            yield SandboxMachine(sandbox)

    return beside(TASK, machine, opened)


async def lose(machine: Machine | None) -> None:
    assert isinstance(machine, SandboxMachine)
    tunnels = list(machine._reverse)
    await machine.sandbox.delete()
    for tunnel in tunnels:
        with suppress(SandboxError):
            await tunnel.wait()


async def test_the_end_of_the_agents_own_sandbox_is_told_by_whoever_uses_that(
    client: AsyncSandboxClient, machine: SandboxMachine
) -> None:
    async with running(client, machine):
        await lose(machine)
        with pytest.raises(InfrastructureError):
            await machine.run("true", timeout=10, cwd="/")


@pytest.mark.parametrize("end", [None, AbortCause.TASK_BROKEN])
async def test_a_lost_service_is_what_is_raised_whatever_the_block_has_found_out(
    client: AsyncSandboxClient, machine: SandboxMachine, end: AbortCause | None
) -> None:
    with pytest.raises(InfrastructureError) as raised:
        async with running(client, machine):
            assert machine.services is not None
            await lose(machine.services.sandbox("site"))
            if end is not None:
                raise InfrastructureError(end, "the check reaches no verdict")
    assert raised.value.cause is AbortCause.SANDBOX_DIED


async def test_what_the_block_has_found_out_is_raised_where_the_services_live(
    client: AsyncSandboxClient, machine: SandboxMachine
) -> None:
    with pytest.raises(InfrastructureError) as raised:
        async with running(client, machine):
            raise InfrastructureError(AbortCause.TASK_BROKEN, "the check reaches no verdict")
    assert raised.value.cause is AbortCause.TASK_BROKEN
