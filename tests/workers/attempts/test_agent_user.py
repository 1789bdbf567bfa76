"""The agent's commands run as the user that its task names, and the check as the one that the check names."""

from pathlib import Path

import pytest

from orchard.schemas.events import RolloutFinished, payload
from orchard.schemas.tasks import StateCheck, Task
from orchard.streams.server import EmbeddedServer
from tests.attempts_world import world
from tests.tiny_tasks import tiny_service

pytestmark = pytest.mark.long

WHO = "sh -c '[ $(stat -c %U /tmp/made) = daemon ] && [ $(id -un) = nobody ] && [ $HOME != /root ]'"


async def test_agent_and_check_have_users_of_their_own(nats_server: EmbeddedServer, tmp_path: Path) -> None:
    check = StateCheck(files={}, command=WHO, prepare="[ $(id -un) = root ]", user="nobody", check_in="agent")
    task = Task(
        task_id="who",
        source="x",
        repo="x",
        image="host",
        statement="?",
        grading=check,
        workdir="/tmp",
        user="daemon",
    )
    async with (
        tiny_service(tmp_path / "state") as service,
        world(nats_server.url, service.url, tmp_path / "store", ("touch /tmp/made",)) as place,
    ):
        (rollout,) = await place.submit(task)
        async with place.working():
            outcome = payload((await place.outcomes(rollout))[rollout])
        assert isinstance(outcome, RolloutFinished) and outcome.resolved, outcome
        assert await place.rows("select score, resolved from rewards") == [(None, True)]
