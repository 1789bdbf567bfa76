"""The team whose share of the slots a run of reinforcement learning has."""

from pathlib import Path

import msgspec
import pytest

from orchard.actions.session import Session
from orchard.configuration.config import ConfigError
from orchard.pipelines.rl.coordinator import RunError
from orchard.pipelines.rl.settings import RlSettings, TaskPool
from orchard.processes.rl_run import enter
from orchard.schemas.access import Principal
from orchard.schemas.queues import Queue
from orchard.streams import names
from orchard.streams.reading import consumers
from orchard.streams.settings import TeamSettings
from tests.orchard.test_teacher_refused import registered

__all__ = ["registered"]


@pytest.mark.parametrize(("named", "team"), [("", "vision"), ("rl", "rl")])
async def test_a_run_keeps_the_team_that_it_names_or_that_of_who_began_it(
    registered: Session, tmp_path: Path, named: str, team: str
) -> None:
    config = msgspec.structs.replace(
        registered.config, teams={"vision": TeamSettings(), "rl": TeamSettings()}
    )
    ana, ola = Session(config, Principal(user="ana", team="vision")), Session(config, Principal(user="ola"))
    settings = RlSettings(run="mine", model="m", out=str(tmp_path), tasks=TaskPool(unproven=True), team=named)

    begun, _ = await enter(ana, settings)
    continued, _ = await enter(ola, settings)

    assert begun.request(0, 0).queue == continued.request(0, 0).queue == Queue(team=team)
    async with ana.connection("test") as connection:
        assert Queue(team=team).consumer in {one.name for one in await consumers(connection, names.WORK)}


async def test_who_resumes_a_run_declares_its_queue_and_not_their_own(
    registered: Session, tmp_path: Path
) -> None:
    teams = {"vision": TeamSettings(slots=3), "speech": TeamSettings(), "rl": TeamSettings()}
    config = msgspec.structs.replace(registered.config, teams=teams)
    ana, ben = (
        Session(config, Principal(user=user, team=team))
        for user, team in (("ana", "vision"), ("ben", "speech"))
    )
    settings = RlSettings(run="mine", model="m", out=str(tmp_path), tasks=TaskPool(unproven=True))
    await enter(ana, settings)
    queue = Queue(team="vision").consumer
    async with ana.connection("test") as connection:
        await connection.jetstream.delete_consumer(names.WORK, queue)

        plan, _ = await enter(ben, settings)

        found = {one.name: one.config.max_ack_pending for one in await consumers(connection, names.WORK)}
    assert plan.team == "vision"
    assert found[queue] == 3, "with its quota"
    assert Queue(team="speech").consumer not in found
    with pytest.raises(RunError, match="began with team vision and cannot change to rl: leave `team` out"):
        await enter(ben, msgspec.structs.replace(settings, team="rl"))
    alone = Session(msgspec.structs.replace(config, teams={}), Principal(user="ola"))
    with pytest.raises(ConfigError, match=r"add \[teams\.vision\]"):
        await enter(alone, settings)


async def test_a_run_of_a_team_that_is_not_configured_is_refused(registered: Session, tmp_path: Path) -> None:
    settings = RlSettings(run="mine", model="m", out=str(tmp_path), team="none")
    with pytest.raises(ConfigError, match=r"add \[teams\.none\]"):
        await enter(registered, settings)
