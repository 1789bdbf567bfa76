"""Services beside a task's sandbox: they are reached by name, before the agent and by the check."""

import re
from pathlib import Path

import pytest

from orchard.injector.client import AsyncSandboxClient
from orchard.pipelines.tasks.proving import ProofContext, ValidationSettings
from orchard.schemas.tasks import StateCheck, Task, TaskService
from orchard.storage.blobs import BlobStore
from orchard.workers.failures import InfrastructureError

COUNTER = """
import http.server
class Count(http.server.BaseHTTPRequestHandler):
    number = 0
    def do_GET(self):
        self.answer()
    def do_POST(self):
        Count.number += 1
        self.answer()
    def answer(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"{Count.number}".encode())
http.server.ThreadingHTTPServer(("0.0.0.0", 8080), Count).serve_forever()
"""
ASK = (
    "python3 -c 'import sys, urllib.request as u; print(u.urlopen(*sys.argv[1:2], data=%s).read().decode())'"
)
READ, RAISE = ASK % "None", ASK % 'b""'


def _task(*services: TaskService, check: str, place: str = "agent", solution: str = "") -> Task:
    return Task(
        task_id="beside",
        source="x",
        repo="x",
        image="host",
        statement="?",
        grading=StateCheck(files={}, command=check, check_in=place),  # type: ignore[arg-type]
        workdir="/tmp",
        gold_patch=solution,
        services=services,
    )


def _counter(**changes: object) -> TaskService:
    given = {"names": ("counter", "other"), "image": "host", "argv": ("python3", "-c", COUNTER)}
    return TaskService(**{**given, "ports": (8080,), **changes})  # type: ignore[arg-type]


async def _solved(client: AsyncSandboxClient, task: Task, path: Path) -> bool:
    context = ProofContext(client, BlobStore(str(path / "store")), ValidationSettings(runs=1))
    return (await context.grade(task, task.gold_patch)).resolved


@pytest.mark.long
async def test_agent_check_and_services_reach_them_by_name(
    sandboxes: AsyncSandboxClient, tmp_path: Path
) -> None:
    through = TaskService(
        names=("through",),
        image="host",
        argv=("sh", "-c", f"{RAISE} http://counter:8080 && [ $WORD = there ]"),
        environment={"WORD": "there"},
        ends=True,
    )
    odd = TaskService(  # a name that dash drops
        names=("odd",),
        image="host",
        argv=("python3", "-c", "import os; assert os.environ['discovery.type'] == 'single-node'"),
        environment={"discovery.type": "single-node"},
        ends=True,
    )
    task = _task(
        odd,
        _counter(ports=None, ready=f"until {READ} http://127.0.0.1:8080; do sleep 0.1; done"),
        through,
        check=f"[ $({READ} http://other:8080) = 2 ]",
        solution=f"{RAISE} http://counter:8080\n",
    )
    assert await _solved(sandboxes, task, tmp_path)
    assert not await _solved(
        sandboxes, _task(_counter(), check=f"[ $({READ} http://counter:8080) = 1 ]"), tmp_path
    )


@pytest.mark.long
@pytest.mark.parametrize(("place", "number"), [("stopped", 1), ("fresh", 0)])
async def test_a_check_in_another_sandbox_reaches_services(
    sandboxes: AsyncSandboxClient, tmp_path: Path, place: str, number: int
) -> None:
    """In a fresh one they are fresh, too; in the agent's they are as it left them."""
    check = f"[ $({READ} http://counter:8080) = {number} ]"
    task = _task(_counter(), check=check, place=place, solution=f"{RAISE} http://counter:8080\n")
    assert await _solved(sandboxes, task, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(
    ("services", "said"),
    [
        ([_counter(argv=("sh", "-c", "echo no disk; exit 3"))], "task_broken.*counter.*exited.*no disk"),
        (
            [_counter(ports=(), ready="sleep 60", ready_seconds=1.0)],
            "sandbox_unavailable.*counter, given 1 s, ran out of time",
        ),
        ([_counter(argv=("sh", "-c", "exit 3"), ends=True)], "task_broken.*counter.*exited with 3"),
        (
            [_counter(), _counter(names=("second",))],
            "invalid_request.*counter and second both listen at port",
        ),
    ],
)
async def test_a_service_that_cannot_be_had_is_named(
    sandboxes: AsyncSandboxClient, tmp_path: Path, services: list[TaskService], said: str
) -> None:
    with pytest.raises(InfrastructureError) as raised:
        await _solved(sandboxes, _task(*services, check="true"), tmp_path)
    found = f"{raised.value.cause}: {raised.value.detail}"
    assert re.search(said, found, re.DOTALL), found
