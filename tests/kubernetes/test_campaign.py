"""The pipeline with its sandboxes in real Pods, while workers are killed and the orchestrator is replaced."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from orchard.actions.session import Session
from orchard.configuration.config import load
from orchard.configuration.run_files import UpRecord, running
from orchard.pipelines.campaigns.commands import Campaigns
from orchard.pipelines.tasks.registry import TaskRegistry
from orchard.streams.publisher import Publisher
from orchard.streams.topology import declare
from tests.chaos import checks
from tests.chaos.run import spec_of
from tests.chaos.world import CAMPAIGN, QUICK, Outcomes, pipeline
from tests.kubernetes.conftest import KEY, Cluster, Service, no_pod_left
from tests.kubernetes.images import TINY_TASKS
from tests.tiny_tasks import tiny_task

ROLLOUTS = 20
WORKER, ORCHESTRATOR = "worker", "orchestrator"
PLAN = {3: WORKER, 7: ORCHESTRATOR, 10: WORKER, 13: ORCHESTRATOR, 15: WORKER}
"""What ends, by how many rollouts have an outcome."""


@pytest.mark.timeout(900)
async def test_a_campaign_in_pods_loses_nothing_and_doubles_nothing(
    cluster: Cluster,
    namespace: str,
    orchestrator: Callable[..., Service],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Pods of tiny tasks need next to nothing, and all of them have to find room on the node.
    sizes = {"cpu_request_share": 0.02, "memory_request_share": 0.1, "ephemeral_storage_request": "16Mi"}
    service = orchestrator(**sizes)
    quick = {**QUICK, "ORCHARD_SANDBOX__URL": service.url, "SANDBOX_API_KEY": KEY}
    for name, value in quick.items():
        monkeypatch.setenv(name, value)
    store = tmp_path / "store"
    session, kills, resumed = Session(load({"store": str(store)})), Counter[str](), 0
    plan = dict(PLAN)
    async with (
        pipeline(store, workers=3, slots=2),
        session.connection("campaign in Pods") as connection,
    ):
        await declare(connection, session.config.nats, [])  # the writer does so too, when it gets to it
        registry = TaskRegistry(Publisher(connection), session.blobs)
        tasks = [tiny_task(number, image=cluster.images.full) for number in range(TINY_TASKS)]
        refs = await registry.register(tasks)
        await session.committed(connection)  # the oracle reads tasks from the tables
        async for _ in Campaigns(connection, session.blobs).submit(spec_of(refs, ROLLOUTS)):
            pass
        outcomes = Outcomes()
        following = asyncio.create_task(outcomes.follow(session))
        while len(outcomes.finished) < ROLLOUTS:
            assert not following.done(), following.exception()
            settled = len(outcomes.finished) + len(outcomes.aborted)
            for due in [number for number in plan if number <= settled]:
                assert cluster.sandboxes(namespace), "nothing was running that could have been lost"
                if (what := plan.pop(due)) == WORKER:
                    kill_worker(store, due)
                else:
                    service.stop(signal.SIGKILL)
                    service = orchestrator(port=service.port, **sizes)
                kills[what] += 1
            if outcomes.aborted and settled == ROLLOUTS:
                resumed += len(outcomes.aborted)
                async for _ in Campaigns(connection, session.blobs).resume(CAMPAIGN):
                    pass
            await asyncio.sleep(0.05)
        following.cancel()
    # Workers that were killed left sandboxes: these go when nobody has asked for them for their time to live.
    await asyncio.to_thread(no_pod_left, cluster, namespace)
    assert checks.tables_hold(store, ROLLOUTS) == []
    assert await checks.rebuilds_equal(session, store) == []
    assert kills == {WORKER: 3, ORCHESTRATOR: 2}
    assert outcomes.terminal == ROLLOUTS + resumed


def kill_worker(store: Path, which: int) -> None:
    """SIGKILL one of the workers of `orchard up`."""
    record = running(store)
    assert isinstance(record, UpRecord)
    workers = sorted(name for name in record.children if name.startswith("worker-"))
    os.kill(record.children[workers[which % len(workers)]], signal.SIGKILL)
