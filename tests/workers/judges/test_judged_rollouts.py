"""Rollouts whose reward a judge gives: real queue, worker and sandboxes, and a judge that is down first."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from orchard.pipelines.domains.gui.judging.again import read_episodes
from orchard.schemas.events import RolloutFinished, payload
from orchard.schemas.gui import GuiSubmission
from orchard.schemas.outcomes import ExitStatus
from orchard.schemas.plugins import PluginSettings
from orchard.schemas.tasks import PluginGrading, Task
from orchard.storage.reader import open_tables
from orchard.streams.server import EmbeddedServer
from orchard.workers.attempts import retries
from orchard.workers.episode.pictures import read_picture
from orchard.workers.episode.settings import JudgeSettings
from orchard.workers.harnesses.interface import Episode, Harness, HarnessResult
from orchard.workers.llm import rest_policy
from orchard.workers.plugins import configure
from tests.attempts_world import QUICK_RETRIES, Script, World, world
from tests.sandbox_service import LocalService

pytestmark = pytest.mark.long

SCREEN = bytes.fromhex("89504e470d0a1a0a0000000d49484452000000020000000108020000007b40e8dd")
JUDGE = JudgeSettings(model="wise", protocol="orchard-1", timeout_seconds=10.0)


class Clicker(Harness):
    """An agent without a model: it sees one screen and is done."""

    name, tools = "clicker", ()

    async def run(self, episode: Episode) -> HarnessResult:
        """See Harness."""
        root = await episode.trace.system("You browse.")
        leaf = await episode.trace.user(root, episode.task.statement, [read_picture(SCREEN)])
        outcome = GuiSubmission(
            start_url="http://a.test/",
            url="http://a.test/",
            title="a",
            ended="finished",
            answer="It is done.",
            first=episode.trace.path(leaf)[-1].images[0],
        )
        return HarnessResult(
            exit_status=ExitStatus.FINISHED, submission=msgspec.json.encode(outcome).decode(), leaf=leaf
        )


class Judge(Script):
    """Down for the first `down` calls."""

    down = 0

    async def chat(self, request: web.Request) -> web.Response:
        """One ruling."""
        asked = msgspec.json.decode(await request.read())
        assert asked["messages"][1]["content"][2]["image_url"]["url"].startswith(
            "data:image/png;base64,iVBOR"
        )
        self.asked[0, 1] += 1
        if self.asked[0, 1] <= self.down:
            return web.json_response({"error": {"message": "out"}}, status=503, headers={"Retry-After": "0"})
        message = {"role": "assistant", "content": "The screen shows it.\nSUCCESS"}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        usage = {"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105}
        return web.json_response({"id": "x", "model": "wise", "choices": [choice], "usage": usage})


@pytest.fixture
async def place(
    nats_server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[World]:
    monkeypatch.setattr(retries, "ROLLOUTS", QUICK_RETRIES)
    configure(PluginSettings(harnesses={"clicker": f"{__name__}:Clicker"}), tmp_path)
    service = LocalService(tmp_path / "state")
    async with (
        world(nats_server.url, service.url, tmp_path / "store", ()) as made,
        Judge(()).served() as made.model,
    ):
        yield made
    service.stop()
    configure(PluginSettings(), tmp_path)


def task(name: str) -> Task:
    return Task(
        task_id=name,
        source="web",
        repo="a.test",
        image="host",
        statement="Click.",
        workdir="/tmp",
        memory="256Mi",
        grading=PluginGrading(grader="gui-judge", settings={"protocol": "orchard-1"}, in_place=True),
    )


async def test_a_judge_that_is_down_is_waited_for_with_the_episode_and_is_never_a_zero(
    place: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot be replayed, and would be played and paid a second time."""
    for name, value in {"HELD_SECONDS": 0.2, "FIRST_PAUSE": 0.1, "LONGEST_PAUSE": 0.2}.items():
        monkeypatch.setattr(rest_policy, name, value)
    assert isinstance(place.model, Judge)
    place.model.down = 6
    (rollout,) = await place.submit(task("late"), harnesses=("clicker",), max_tries=1)
    async with place.working(judge=JUDGE, max_tries=1):
        ended = payload((await place.outcomes(rollout))[rollout])
    assert isinstance(ended, RolloutFinished), ended
    assert (ended.reward, ended.resolved, ended.deliveries) == (1.0, True, 1)
    assert await place.released() == []
    ruled = await place.rows(
        f"select attempt, passed, fault <> '' from judgements_all where rollout_id = '{rollout}' order by 1"
    )
    assert ruled == [(1, True, False)], "of one episode"
    given = await place.rows("select rollout_id, value, grader, judge from rewards_all")
    assert [row[:3] for row in given] == [(rollout, 1.0, "gui-judge")]
    assert given[0][3].startswith("orchard-2 wise ")
    with open_tables(str(place.store)) as tables:
        episodes = read_episodes(tables, "demo", JUDGE)
        other = read_episodes(tables, "demo", msgspec.structs.replace(JUDGE, protocol="webjudge"))
    assert (episodes.open, episodes.judged) == ([], 1), "it has this verdict already"
    assert [one.rollout_id for one in other.open] == [rollout]
