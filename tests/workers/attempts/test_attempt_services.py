"""A worker starts a task's services beside the agent's sandbox, and ends them with it."""

from pathlib import Path

import pytest

from orchard.schemas.events import RolloutFinished, payload
from orchard.schemas.tasks import StateCheck, Task, TaskService
from orchard.streams.server import EmbeddedServer
from tests.attempts_world import world
from tests.tiny_tasks import tiny_service

pytestmark = pytest.mark.long

FETCH = "import urllib.request as u; u.urlretrieve('http://site:8000/debian_version', 'page')"


async def test_the_agent_reaches_services_by_name(nats_server: EmbeddedServer, tmp_path: Path) -> None:
    site = TaskService(
        names=("site",),
        image="host",
        argv=("python3", "-m", "http.server", "8000", "--directory", "/etc"),
        ports=(8000,),
    )
    task = Task(
        task_id="fetch",
        source="x",
        repo="x",
        image="host",
        statement="?",
        grading=StateCheck(files={}, command="cmp /tmp/page /etc/debian_version", check_in="stopped"),
        workdir="/tmp",
        setup_commands=("git init -q .",),
        services=(site,),
    )
    async with (
        tiny_service(tmp_path / "state") as service,
        world(nats_server.url, service.url, tmp_path / "store", (f'python3 -c "{FETCH}"',)) as place,
    ):
        (rollout,) = await place.submit(task)
        async with place.working():
            outcome = payload((await place.outcomes(rollout))[rollout])
        assert isinstance(outcome, RolloutFinished) and outcome.resolved, outcome
        assert not await place.sandboxes.list_sandboxes()
