"""Tasks on generated sites, played: the oracle in real Chromium, in real sandboxes, by the real world."""

from collections.abc import AsyncIterator, Iterable
from itertools import product
from pathlib import Path
from typing import get_args

import msgspec
import pytest
import pytest_asyncio

from orchard.injector.client import AsyncSandboxClient
from orchard.pipelines.domains.gui.synthesis import SITES, synthesize
from orchard.pipelines.tasks.validate import Validator
from orchard.schemas.events import TaskRejected, TaskValidated
from orchard.schemas.gui import Fault
from orchard.schemas.tasks import PluginGrading, Task
from orchard.storage.blobs import BlobStore
from orchard.workers.domains.gui.sites.goals import kinds_of
from tests.sandbox_service import LocalService


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalService]:
    made = LocalService(tmp_path_factory.mktemp("gui-tasks") / "state")
    yield made
    made.stop()


async def _verdicts(
    service: LocalService, store: Path, tasks: Iterable[Task]
) -> dict[str, TaskValidated | TaskRejected]:
    async with AsyncSandboxClient(service.url) as client:
        validator = Validator(client, BlobStore(str(store)), play=True)
        return {each.task_id: (await validator.validate(each)).event for each in tasks}


@pytest.mark.long
async def test_a_task_is_proven_by_playing_it_and_one_that_cannot_be_done_is_rejected(
    service: LocalService, tmp_path: Path
) -> None:
    [good] = synthesize(3, 1, sites=("tiny",), kinds=("tiny.two",))
    assert isinstance(good.grading, PluginGrading)
    records = good.grading.settings["records"]
    settings = {**good.grading.settings, "records": {"clicked": [*records["clicked"], "pink elephant"]}}
    bad = msgspec.structs.replace(
        good, task_id="tiny-bad", grading=msgspec.structs.replace(good.grading, settings=settings)
    )
    verdicts = await _verdicts(service, tmp_path / "store", [good, bad])
    assert isinstance(verdicts[good.task_id], TaskValidated), verdicts
    assert isinstance(rejected := verdicts["tiny-bad"], TaskRejected)
    assert rejected.reason == "gold_does_not_resolve" and "pink elephant" in rejected.detail


async def test_a_task_whose_settings_are_of_no_site_is_rejected_and_stops_no_other(tmp_path: Path) -> None:
    [good] = synthesize(3, 1, sites=("tiny",))
    assert isinstance(good.grading, PluginGrading)

    def bad(name: str, **settings: object) -> Task:
        changed = msgspec.structs.replace(good.grading, settings={**good.grading.settings, **settings})
        return msgspec.structs.replace(good, task_id=name, grading=changed)

    wrong = [bad("no-site", site={"name": "nowhere"}), bad("other-records", records={"orders": [1]})]
    async with AsyncSandboxClient("http://127.0.0.1:9") as client:  # records need no sandbox
        validator = Validator(client, BlobStore(str(tmp_path / "store")))
        verdicts = {each.task_id: (await validator.validate(each)).event for each in [*wrong, good]}
    assert isinstance(verdicts[good.task_id], TaskValidated)
    rejected = {name: event.reason for name, event in verdicts.items() if isinstance(event, TaskRejected)}
    assert rejected == {"no-site": "invalid", "other-records": "no_verdict"}


def test_every_site_has_every_fault_in_turn() -> None:
    faults = get_args(Fault)
    tasks = [*synthesize(3, len(SITES) * len(faults), faults=faults)]
    made = {(each.labels["site"], each.labels["fault"]) for each in tasks}
    assert made == {*product(SITES, faults)}


@pytest.mark.slow
@pytest.mark.parametrize("site", SITES)
async def test_every_kind_of_task_is_played_to_its_end(
    site: str, service: LocalService, tmp_path: Path
) -> None:
    """In layouts of both splits, and once on a slow site and under a consent banner."""
    kinds = kinds_of(site)
    tasks = [
        *synthesize(8, len(kinds), sites=(site,)),
        *synthesize(8, len(kinds), sites=(site,), split="held-out"),
        *synthesize(9, 2, sites=(site,), faults=("slow", "consent")),
    ]
    assert {each.labels["goal"] for each in tasks} == {*kinds}
    verdicts = await _verdicts(service, tmp_path / "store", tasks)
    assert not [each for each in verdicts.values() if not isinstance(each, TaskValidated)]
