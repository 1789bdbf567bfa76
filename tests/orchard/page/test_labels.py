"""What protects rewards is seen wherever they are: tasks, rollouts, campaigns and steps of training."""

import re
from pathlib import Path

import aiohttp
import msgspec
import pytest

from orchard.pipelines.tasks.registry import imported
from orchard.schemas.blobs import BlobRef
from orchard.schemas.events import CampaignSubmitted, TaskValidated
from orchard.schemas.protection import Protected
from orchard.schemas.tasks import SWETests, Task, task_hash
from orchard.schemas.training import PolicyStep
from orchard.storage.blobs import BlobStore
from tests.orchard.page.conftest import Serve, stored
from tests.trajectory_log import Author

pytestmark = pytest.mark.long

TASK = Task(
    task_id="labelled-1",
    source="tests",
    repo="a/b",
    image="i",
    statement="Repair it.",
    grading=SWETests(test_patch="", test_command="true", fail_to_pass=("test_sum", "test_true")),
)
NOTHING = BlobRef(sha256="0" * 64, size=1)


async def test_labels_are_seen_on_every_page_of_a_reward(tmp_path: Path, serve: Serve) -> None:
    author = Author("graded")
    blob = BlobStore(str(tmp_path / "store")).put(msgspec.json.encode(TASK), "application/json")
    verdict = TaskValidated(
        task_id=TASK.task_id,
        task_hash=task_hash(TASK),
        runs=3,
        seconds=1.0,
        protected=Protected.ECHO,
        protected_tests={"test_sum": Protected.ECHO, "test_true": Protected.BIT},
        protected_why="test_sum answers with its inputs",
    )
    rest = {"resolved": True, "task": TASK.task_id, "tests": {"test_sum": "PASSED"}}
    rollouts = [
        author.rollout(sample, ["ls"], protected=label, **rest)  # type: ignore[arg-type]
        for sample, label in enumerate((Protected.ECHO, Protected.ECHO, None))
    ]
    plan = CampaignSubmitted(
        spec=NOTHING, spec_hash="x", size=3, tasks=1, harnesses=("h",), models=("m",), samples=3
    )
    facts = dict.fromkeys(PolicyStep.__struct_fields__, 0) | {"run": "graded", "unprotected": 0.25}
    steps = [PolicyStep(**{**facts, "step": step, "version": step}) for step in (1, 2)]  # type: ignore[arg-type]
    events = [author.event(data, "", None) for data in (imported(TASK, blob), verdict, plan, *steps)]
    store = await stored(tmp_path, [*events, *(event for rollout in rollouts for event in rollout)])

    async with serve(store) as url, aiohttp.ClientSession(url) as http:

        async def page(path: str) -> str:
            async with http.get(path) as reply:
                assert reply.status == 200, path
                return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", await reply.text()))

        task = await page(f"/tasks/{TASK.task_id}")
        for said in ("protected echo", "test_sum answers with its inputs", "test_sum echo", "test_true bit"):
            assert said in task, said
        assert "labelled-1 a/b 3 of 3 3 resolved 100.0 % 0 echo" in await page("/tasks?sort=name")
        assert "protected: echo 2 protected: without a label 1" in await page("/campaigns/graded")
        assert "2 match" in await page("/rollouts?protected=echo")
        assert "Score Protected" in await page("/rollouts?columns=reward,protected")
        labels = [
            "protected echo" in await page(f"/rollouts/{rollout[0].rollout_id}") for rollout in rollouts
        ]
        assert labels == [True, True, False]
        assert "unprotected share of rewards" in await page("/runs?run=graded")
