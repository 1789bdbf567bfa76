"""A domain in a package of its own, found by entry points, goes from its task source to a dataset's rows."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchard.injector.client import AsyncSandboxClient
from orchard.pipelines import domain as pipeline_domain
from orchard.pipelines.datasets import version
from orchard.pipelines.datasets.build import build
from orchard.pipelines.datasets.exporters.write import export
from orchard.pipelines.datasets.foreign import read_layout
from orchard.pipelines.datasets.rows import read_rows
from orchard.pipelines.datasets.settings import read_settings
from orchard.pipelines.datasets.tokenizer import train_tokenizer
from orchard.pipelines.evaluation.suite import published, read_suite
from orchard.pipelines.tasks.registry import TaskRegistry, read_task_refs, stored_tasks
from orchard.pipelines.tasks.sources import task_source, tasks_of
from orchard.pipelines.tasks.validate import Validator
from orchard.schemas.events import RolloutFinished, payload
from orchard.schemas.queues import Queue
from orchard.storage.blobs import BlobStore
from orchard.streams.publisher import Publisher
from orchard.streams.server import EmbeddedServer
from orchard.workers import discovery, plugins
from orchard.workers import domain as worker_domain
from tests import attempts_world
from tests.attempts_world import world

METADATA = {
    "METADATA": "Metadata-Version: 2.1\nName: sums\nVersion: 1.0\n",
    "entry_points.txt": "[orchard.worker_domains]\nsums = sums:WORKER\n"
    "[orchard.pipeline_domains]\nsums = sums:PIPELINE\n",
}


@pytest.fixture
def sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The package, installed for this test; its folder."""
    site = tmp_path / "site"
    shutil.copytree(Path(__file__).parent / "sums", site / "sums")
    (site / "sums-1.0.dist-info").mkdir()
    for name, text in METADATA.items():
        (site / "sums-1.0.dist-info" / name).write_text(text)
    monkeypatch.syspath_prepend(site)
    _forget()
    yield site / "sums"
    _forget()


def _forget() -> None:
    """Let records be found, and the package be imported, anew."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "sums"]:
        del sys.modules[name]
    for cached in (
        discovery.installed,
        worker_domain.domains,
        pipeline_domain.domains,
        plugins._load,
        version.code_version,
    ):
        cached.cache_clear()


@pytest.mark.long
async def test_a_fourth_domain_goes_from_its_source_to_a_dataset(
    sums: Path,
    nats_server: EmbeddedServer,
    sandboxes: AsyncSandboxClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attempts_world, "QUEUE", Queue(domain="sums"))
    found, left_out = tasks_of(task_source("sums"), "sums", {"numbers": "5,-1"})
    assert (len(found), left_out) == (2, [])
    store = tmp_path / "store"
    commands = ("add 2", "add 3", "done")
    async with world(nats_server.url, str(sandboxes.base_url), store, commands) as place:
        registry = TaskRegistry(Publisher(place.connection), place.blobs)
        await registry.register(found)
        for task in found:
            await registry.record(await Validator(place.sandboxes, place.blobs).validate(task))
        rollouts = await place.submit(found[0], domain="sums", harnesses=("sums-loop",), samples=2)
        async with place.working():
            outcomes = [payload(event) for event in (await place.outcomes(*rollouts)).values()]
        await place.rows("select 1")
    done = [one for one in outcomes if isinstance(one, RolloutFinished)]
    assert [(one.reward, one.submission, one.protected) for one in done] == [(1.0, "5", "value")] * 2
    states = {task.ref.task_id: (task.state, task.protected) for task in stored_tasks(str(store))}
    assert states == {"sum-5": ("valid", "value"), "sum--1": ("rejected", None)}
    assert [ref.task_id for ref in read_task_refs(str(store))] == ["sum-5"]

    train_tokenizer(["Add up to the number. The sum is 5. Step 1. add 2"] * 5, 400, tmp_path / "tokenizer")
    file = tmp_path / "dataset.toml"
    file.write_text(f'name = "sums"\npreset = "sums"\ntokenizer = "{tmp_path / "tokenizer"}"\n')
    settings = read_settings(file)
    assert settings.filters.max_tokens == 1000
    build(str(store), settings, tmp_path / "dataset")
    rows = list(read_rows(tmp_path / "dataset"))
    assert [(row.task_id, row.trained_turns, row.tools) for row in rows] == [("sum-5", (0, 1, 2), "[]")] * 2
    assert [row.protected for row in rows] == ["value", "value"]
    written = export(tmp_path / "dataset", "sums-lines", tmp_path / "out")
    lines = [json.loads(line)["said"] for line in written.file.read_text().splitlines()]
    assert lines[0][0] == (sums / "prompts/system.md").read_text() and "The sum is 5." in lines[0]
    again = list(read_layout("sums-lines", [written.file], BlobStore(str(store)), "sums-loop"))
    assert [len(one.nodes) for one in again] == [len(line) for line in lines]
    assert read_suite(published()["sums-small"]).domain == "sums"


@pytest.mark.parametrize(
    "file", ["worker.py", "prompts/system.md", "__init__.py", "../sums-1.0.dist-info/METADATA"]
)
def test_the_code_of_a_dataset_covers_the_files_and_the_version_of_a_domain(sums: Path, file: str) -> None:
    before = version.code_version()
    changed = (sums / file).read_text().replace("Version: 1.0", "Version: 1.1") + "\n"
    (sums / file).write_text(changed)
    _forget()
    assert version.code_version() != before
