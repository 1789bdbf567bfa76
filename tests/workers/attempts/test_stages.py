"""A worker takes an agent through the stages of a task: one sandbox, a conversation and a check for each."""

from pathlib import Path

import pytest

from orchard.schemas.events import RolloutFinished, payload
from orchard.schemas.tasks import StageChecks, StateCheck, Task, TaskStage
from orchard.streams.server import EmbeddedServer
from tests.attempts_world import world
from tests.tiny_tasks import tiny_service

pytestmark = pytest.mark.long

COMMANDS = ("echo x >> turns; mv given given-$(wc -l < turns)",)


def _stage(name: str, check: str, place: str, **more: object) -> TaskStage:
    found = StateCheck(files={f"/tmp/secret-{name}": "x"}, command=f"cd /tmp; {check}", check_in=place)  # type: ignore[arg-type]
    return TaskStage(name=name, statement=f"Do {name}.", check=found, prepare=f"echo {name} > given", **more)  # type: ignore[arg-type]


async def test_each_stage_is_a_conversation_and_ends_with_its_check(
    nats_server: EmbeddedServer, tmp_path: Path
) -> None:
    stages = (
        _stage("one", "grep -qx one given-1 && test -e secret-one", "stopped"),
        _stage("two", "grep -qx two given-2 && test ! -e secret-one", "agent", clear="rm /tmp/secret-two"),
        _stage("three", "test -e given-3 && test ! -e secret-two", "fresh"),
    )
    task = Task(
        task_id="three",
        source="x",
        repo="x",
        image="host",
        statement="?",
        grading=StageChecks(stages=stages),
        workdir="/tmp",
        setup_commands=("git init -q .",),
    )
    async with (
        tiny_service(tmp_path / "state") as service,
        world(nats_server.url, service.url, tmp_path / "store", COMMANDS) as place,
    ):
        (rollout,) = await place.submit(task)
        async with place.working():
            outcome = payload((await place.outcomes(rollout))[rollout])
        assert isinstance(outcome, RolloutFinished), outcome
        asked = "select content from messages where role = 'user' order by turn"
        assert len([row for row in await place.rows(asked) if "Do " in row[0]]) == 3
        rows = await place.rows("select parts, resolved, detail from rewards")
        assert outcome.resolved and outcome.turns == 6, (outcome, rows)
