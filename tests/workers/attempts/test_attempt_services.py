"""A worker starts a task's services beside the agent's sandbox, and ends them with it."""

from pathlib import Path

import pytest

from orchard.schemas.events import RolloutFinished, payload
from orchard.schemas.outcomes import AbortCause
from orchard.schemas.tasks import StageChecks, StateCheck, Task, TaskService, TaskStage
from orchard.streams.server import EmbeddedServer
from orchard.workers.attempts import retries
from tests.attempts_world import QUICK_RETRIES, world
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


ENDS = """
import http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/crash":
            os._exit(1)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"kept")
http.server.HTTPServer(("", 8000), Handler).serve_forever()
"""
KEPT = "python3 -c \"import urllib.request as u; assert u.urlopen('http://keeps:8000').read() == b'kept'\""


def _keeping() -> Task:
    keeps = TaskService(names=("keeps",), image="host", argv=("python3", "-c", ENDS), ports=(8000,))
    return Task(
        task_id="keep",
        source="x",
        repo="x",
        image="host",
        statement="?",
        grading=StateCheck(files={}, command=f"{KEPT} && [ -e /tmp/done ]", check_in="agent"),
        workdir="/tmp",
        setup_commands=("git init -q .",),
        services=(keeps,),
    )


async def test_a_service_whose_sandbox_is_lost_during_the_agents_work_is_not_the_agents_failure(
    nats_server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "ROLLOUTS", QUICK_RETRIES)
    async with (
        tiny_service(tmp_path / "state") as service,
        world(nats_server.url, service.url, tmp_path / "store", ("touch done",)) as place,
    ):

        async def lose(_: int) -> None:
            del place.model.hooks[2]
            (lost,) = await place.sandboxes.list_sandboxes({"purpose": "rollout-keeps"})
            await place.sandboxes.delete_sandbox(lost.sandbox_id)

        place.model.hooks[2] = lose
        (rollout,) = await place.submit(_keeping())
        async with place.working():
            outcome = payload((await place.outcomes(rollout))[rollout])
        assert [each.cause for each in await place.released()] == [AbortCause.SANDBOX_DIED]
        assert isinstance(outcome, RolloutFinished) and outcome.resolved, outcome


async def test_a_service_that_the_agent_crashes_is_the_agents_doing(
    nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    crash = "python3 -c \"import urllib.request as u; u.urlopen('http://keeps:8000/crash')\"; touch done"
    async with (
        tiny_service(tmp_path / "state") as service,
        world(nats_server.url, service.url, tmp_path / "store", (crash,)) as place,
    ):
        (rollout,) = await place.submit(_keeping())
        async with place.working():
            outcome = payload((await place.outcomes(rollout))[rollout])
        assert isinstance(outcome, RolloutFinished), outcome
        assert (outcome.reward, outcome.resolved) == (-1.0, False)


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
