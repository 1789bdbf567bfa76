"""A worker starts a task's services beside the agent's sandbox, and ends them with it."""

from pathlib import Path

import pytest

from orchard.schemas.events import RolloutFinished, payload
from orchard.schemas.tasks import StageChecks, StateCheck, Task, TaskService, TaskStage
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


COUNTS = """
import http.server, itertools
numbers = itertools.count(1)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"%d" % next(numbers))
http.server.HTTPServer(("", 8000), Handler).serve_forever()
"""
ASK = "python3 -c \"import urllib.request as u; print(u.urlopen('http://counts:8000').read().decode())\""


async def test_a_copy_of_the_sandbox_reaches_the_services_that_the_agent_used(
    nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    def stage(name: str, asked: int) -> TaskStage:
        check = StateCheck(
            files={}, command=f"[ $(cat /tmp/said)$({ASK}) = {asked}{asked + 1} ]", check_in="stopped"
        )
        return TaskStage(name=name, statement="Ask.", check=check)

    counts = TaskService(names=("counts",), image="host", argv=("python3", "-c", COUNTS), ports=(8000,))
    task = Task(
        task_id="count",
        source="x",
        repo="x",
        image="host",
        statement="?",
        grading=StageChecks(stages=(stage("one", 1), stage("two", 3))),
        workdir="/tmp",
        setup_commands=("git init -q .",),
        services=(counts,),
    )
    async with (
        tiny_service(tmp_path / "state") as service,
        world(nats_server.url, service.url, tmp_path / "store", (f"{ASK} > said",)) as place,
    ):
        (rollout,) = await place.submit(task)
        async with place.working():
            outcome = payload((await place.outcomes(rollout))[rollout])
        assert isinstance(outcome, RolloutFinished) and outcome.resolved, outcome
