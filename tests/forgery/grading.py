"""Tricks and honest submissions on the layouts, through the real grader, in real sandboxes."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from orchard.injector.client import AsyncSandboxClient
from orchard.pipelines.tasks.sandboxes import as_ready, open_sandbox
from orchard.schemas.outcomes import Reward
from orchard.storage.blobs import BlobStore
from orchard.workers.failures import InfrastructureError
from orchard.workers.graders import grade
from tests.forgery.layouts import Layout, all_layouts, build_image
from tests.forgery.records import Group, Record, Records, layer
from tests.forgery.trick import Repository, Trick
from tests.sandbox_service import LocalService

GRADING_SECONDS = 300.0
LAYOUT = "layout"


def group_of(trick: Trick) -> Group:
    return Group.HONEST if trick.honest else Group.FORGER


class Bench:
    """Grades submissions of layouts in sandboxes of one service."""

    def __init__(self, client: AsyncSandboxClient, layouts: Iterable[Layout], directory: Path) -> None:
        self._client = client
        self._blobs = BlobStore(str(directory / "store"))
        self._layouts = {layout.name: layout for layout in layouts}
        self._repositories = {
            name: Repository(layout, directory / "repositories" / name)
            for name, layout in self._layouts.items()
        }

    async def one(self, pair: tuple[Trick, str]) -> tuple[Record, Reward | None]:
        """One trick on one layout."""
        trick, name = pair
        task = self._layouts[name].task
        submission = self._repositories[name].submission(trick)
        started = time.monotonic()
        fresh = partial(
            open_sandbox,
            self._client,
            task.image,
            purpose="forgery",
            cpu=task.cpu,
            memory=task.memory,
            timeout=120.0,
        )
        reward: Reward | None = None
        try:
            async with fresh() as machine:
                reward = await grade(
                    task, submission, machine, timeout=GRADING_SECONDS, blobs=self._blobs, pristine=fresh
                )
            became, detail = layer(reward), reward.detail
        except InfrastructureError as error:
            became, detail = f"abort: {error.cause.value}", error.detail
        record = Record(
            task=name,
            kind=LAYOUT,
            group=group_of(trick),
            family=trick.family,
            name=trick.name,
            rewarded=reward is not None and reward.value > 0,
            layer=became,
            detail=detail[:500],
            seconds=time.monotonic() - started,
            sandboxes=1 + ((reward.extra_sandboxes or 0) if reward else 0),
        )
        return record, reward

    async def log(self, reward: Reward | None) -> str:
        """What the grader kept of the run."""
        if reward is None or reward.log is None:
            return ""
        return (await asyncio.to_thread(self._blobs.get, reward.log)).decode(errors="replace")


async def run_layouts(
    directory: Path,
    pairs: Sequence[tuple[Trick, str]],
    records: Records,
    console: Console,
    *,
    concurrency: int,
    logs: bool = False,
) -> None:
    """Grades each submission on the layout beside it, honest ones first, unless it is on record."""
    left = [
        (trick, name)
        for trick, name in sorted(pairs, key=lambda pair: not pair[0].honest)
        if not records.has(f"{name} {group_of(trick)} {trick.family} {trick.name}")
    ]
    layouts = [layout for layout in all_layouts() if any(name == layout.name for _, name in pairs)]
    service = LocalService(directory / "state")
    try:
        async with AsyncSandboxClient(service.url) as client:
            await build_image(client, tuple(layouts))
            bench = Bench(client, layouts, directory)
            with Progress(console=console, transient=True) as bar:
                row = bar.add_task("layouts", total=len(pairs), completed=len(pairs) - len(left))
                async for record, reward in as_ready(left, bench.one, concurrency=concurrency):
                    records.add(record)
                    bar.advance(row)
                    if record.wrong:
                        bar.console.print(f"{record.key}: {record.layer}", highlight=False, markup=False)
                    if logs:
                        bar.console.print(await bench.log(reward), markup=False, highlight=False)
    finally:
        service.stop()
