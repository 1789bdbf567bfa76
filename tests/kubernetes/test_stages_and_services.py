"""Tasks of several stages, and with services beside them, in Pods: proven, and worked on by an agent."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchard.pipelines.tasks.proving import ValidationSettings
from orchard.pipelines.tasks.validate import Validator
from orchard.schemas.events import RolloutFinished, TaskValidated, payload
from orchard.schemas.tasks import (
    CheckSandbox,
    CollectHook,
    ServiceArtifact,
    StageChecks,
    StateCheck,
    Task,
    TaskService,
    TaskStage,
    checks_of,
)
from orchard.storage.blobs import BlobStore
from orchard.streams.server import EmbeddedServer
from tests.attempts_world import world
from tests.kubernetes.conftest import KEY, Cluster, Service

SIZES = {"cpu_request_share": 0.02, "memory_request_share": 0.1, "ephemeral_storage_request": "1Mi"}
FETCH = "import urllib.request as u; u.urlretrieve('http://site:8000/page', '/workspace/page')"
COMMANDS = (
    "[ -e pid ] || { sleep 1012 > /dev/null 2>&1 & echo $! > pid; }\n"
    "kill -0 $(cat pid) && echo x >> turns && mv given given-$(wc -l < turns)",
)


def _stage(name: str, number: int, **check: Any) -> TaskStage:
    found = f"cd /workspace; grep -qx {name} given-{number} && ! grep -lsa ^sleep.1012 /proc/[0-9]*/cmdline"
    return TaskStage(
        name=name,
        statement=f"Do {name}.",
        check=StateCheck(files={}, command=found, **check),
        prepare=f"echo {name} > given",
        gold_patch=COMMANDS[0],
    )


def _task(image: str, **fields: Any) -> Task:
    return Task(
        task_id="it",
        source="x",
        repo="x",
        image=image,
        statement="?",
        workdir="/workspace",
        setup_commands=("git init -q .",),
        **fields,
    )


async def test_a_stage_is_judged_in_another_pod_while_the_agents_goes_on(
    cluster: Cluster,
    nats_server: EmbeddedServer,
    orchestrator: Callable[..., Service],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SANDBOX_API_KEY", KEY)
    service, image = orchestrator(**SIZES), cluster.images.full
    own = CheckSandbox(image=image, artifacts=("/workspace",), memory="256Mi")
    stages = (_stage("one", 1), _stage("two", 2, sandbox=own), _stage("three", 3))
    task = _task(image, memory="256Mi", grading=StageChecks(stages=stages), gold_patch="true")
    async with world(nats_server.url, service.url, tmp_path / "store", COMMANDS) as place:
        assert (await place.sandboxes.health()).copies is False
        validator = Validator(place.sandboxes, place.blobs, ValidationSettings(runs=1))
        proven = await validator.validate(task)
        assert isinstance(proven.event, TaskValidated), proven.event
        assert [check.check_in for check in checks_of(proven.task.grading)][::2] == ["fresh", "fresh"]
        (rollout,) = await place.submit(proven.task, max_tries=1)
        async with place.working():
            data = payload((await place.outcomes(rollout))[rollout])
        assert isinstance(data, RolloutFinished) and data.resolved, data
        assert data.turns == 6


async def test_a_check_gets_what_a_service_has(
    cluster: Cluster,
    orchestrator: Callable[..., Service],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SANDBOX_API_KEY", KEY)
    full, index = cluster.images.full, "http://127.0.0.1:8000/index.html"
    db = TaskService(
        names=("db", "rows"),
        image=cluster.images.bare,
        argv=("busybox", "httpd", "-f", "-p", "8000", "-h", "/workspace"),
        ready=f"echo asked > /workspace/index.html; until busybox wget -q -O - {index}; do sleep 0.2; done",
    )
    check = StateCheck(
        files={},
        command="grep -qx kept /workspace/rows && grep -qx asked /workspace/said",
        collect=(CollectHook(command="echo kept > /workspace/rows", service="db"),),
        sandbox=CheckSandbox(
            image=full,
            artifacts=("/workspace/said", ServiceArtifact(service="db", path="/workspace/rows")),
            memory="256Mi",
        ),
    )
    ask = "import urllib.request as u; print(u.urlopen('http://rows:8000/index.html').read().decode())"
    gold = f'python3 -c "{ask}" > said'
    task = _task(full, memory="256Mi", grading=check, gold_patch=gold, services=(db,))
    async with orchestrator(**SIZES).client() as client:
        blobs = BlobStore(str(tmp_path / "store"))
        proven = await Validator(client, blobs, ValidationSettings(runs=1)).validate(task)
    assert isinstance(proven.event, TaskValidated), proven.event


async def test_services_are_reached_by_name_from_the_agents_pod_and_the_checks(
    cluster: Cluster,
    nats_server: EmbeddedServer,
    orchestrator: Callable[..., Service],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SANDBOX_API_KEY", KEY)
    service, image = orchestrator(**SIZES), cluster.images.full
    site = TaskService(
        names=("site",),
        image=image,
        argv=("sh", "-c", "cp /etc/debian_version page; exec python3 -m http.server 8000"),
        workdir="/workspace",
        ports=(8000,),
    )
    check = f'cp page before; python3 -c "{FETCH}" && cmp page before && cmp page /etc/debian_version'
    task = _task(
        image,
        memory="256Mi",
        grading=StateCheck(files={}, command=f"cd /workspace && {check}"),
        gold_patch=f'python3 -c "{FETCH}"',
        services=(site,),
    )
    async with world(nats_server.url, service.url, tmp_path / "store", (f'python3 -c "{FETCH}"',)) as place:
        validator = Validator(place.sandboxes, place.blobs, ValidationSettings(runs=1))
        proven = await validator.validate(task)
        assert isinstance(proven.event, TaskValidated), proven.event
        assert checks_of(proven.task.grading)[0].check_in == "fresh"
        (rollout,) = await place.submit(proven.task, max_tries=1)
        async with place.working():
            data = payload((await place.outcomes(rollout))[rollout])
        assert isinstance(data, RolloutFinished) and data.resolved, data
