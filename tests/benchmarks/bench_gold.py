"""The gold patch of every task through the grader: how many are refused, and what a +1 costs.

`python -m tests.benchmarks.bench_gold --repairs 200 --releases 20 --directory DIR`: repair tasks, and tasks
of the catalogue, made as the quick start makes them. Each is graded by the rules of published benchmarks,
which is what a grading costs without any defence, and by Orchard's own. Ends with 1 when a gold patch is
refused that resolves its task by the published rules. DIR keeps downloads and results; a task in it is not
graded twice.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from orchard.injector.client import AsyncSandboxClient
from orchard.pipelines.domains.swe.packages import PackageCache
from orchard.pipelines.domains.swe.releases import catalogue
from orchard.pipelines.domains.swe.repairs import Split, build_repair_image, repair_tasks
from orchard.pipelines.domains.swe.synthesize import Synthesizer
from orchard.pipelines.tasks.sandboxes import as_ready, open_sandbox
from orchard.schemas.tasks import Task
from orchard.storage.blobs import BlobStore
from orchard.workers.failures import InfrastructureError
from orchard.workers.graders import grade
from tests.sandbox_service import LocalService

console = Console(width=160)


async def graded(client: AsyncSandboxClient, blobs: BlobStore, task: Task) -> dict[str, Any]:
    """One task's gold patch under both rules."""
    fresh = partial(
        open_sandbox, client, task.image, purpose="gold", cpu=task.cpu, memory=task.memory, timeout=300.0
    )
    row: dict[str, Any] = {"task": task.task_id, "source": task.source}
    try:
        for name, published in (("published", True), ("own", False)):
            async with fresh() as machine:
                reward = await grade(
                    task,
                    task.gold_patch,
                    machine,
                    timeout=1800.0,
                    blobs=blobs,
                    pristine=fresh,
                    published=published,
                )
            row[name] = {
                "resolved": reward.resolved,
                "seconds": round(reward.seconds, 2),
                "cause": reward.cause,
                "detail": reward.detail,
                "sandboxes": reward.extra_sandboxes,
                "asked": len(reward.tests),
                "failing": {t: s for t, s in reward.tests.items() if s != "PASSED"},
            }
            if not reward.resolved:
                break
    except InfrastructureError as error:
        row["aborted"] = str(error)
    return row


async def tasks(
    client: AsyncSandboxClient, directory: Path, repairs: int, releases: int
) -> AsyncIterator[Task]:
    """The repair tasks, then those of the catalogue as they are made."""
    cache = PackageCache(directory / "packages")
    if repairs:
        made = list(repair_tasks(repairs, 0, Split.TRAIN))
        await build_repair_image(client, cache, made)
        for task in made:
            yield task
    if releases:
        async for result in Synthesizer(client, cache).many(catalogue(), limit=releases):
            if isinstance(result, Task):
                yield result


async def measure(directory: Path, repairs: int, releases: int, concurrency: int) -> list[dict[str, Any]]:
    """A row for each task."""
    directory.mkdir(parents=True, exist_ok=True)
    results = directory / "results.jsonl"
    rows = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    known = {row["task"] for row in rows}
    service = LocalService(directory / "state")
    try:
        async with AsyncSandboxClient(service.url) as client:
            blobs = BlobStore(str(directory / "store"))
            waiting = [t async for t in tasks(client, directory, repairs, releases) if t.task_id not in known]
            async for row in as_ready(
                waiting, lambda task: graded(client, blobs, task), concurrency=concurrency
            ):
                rows.append(row)
                with results.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                if not row.get("own", {}).get("resolved"):
                    console.print(row)
    finally:
        service.stop()
    return rows


def main() -> None:
    """Print one line for each source."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repairs", type=int, default=200)
    parser.add_argument("--releases", type=int, default=20)
    parser.add_argument("--concurrency", type=int, default=2)
    parser.add_argument("--directory", type=Path, required=True)
    chosen = parser.parse_args()
    rows = asyncio.run(measure(chosen.directory, chosen.repairs, chosen.releases, chosen.concurrency))
    refused = 0
    for source in sorted({row["source"] for row in rows}):
        fit = [row for row in rows if row["source"] == source and row.get("published", {}).get("resolved")]
        both = [row for row in fit if row.get("own", {}).get("resolved")]
        refused += len(fit) - len(both)
        if not both:
            continue
        plain = sum(row["published"]["seconds"] for row in both) / len(both)
        own = sum(row["own"]["seconds"] for row in both) / len(both)
        extra = sum(row["own"]["sandboxes"] for row in both) / len(both)
        unasked = sum(bool(row["own"]["without"]) for row in both)
        console.print(
            f"{source}: {len(fit)} gold patches, {len(fit) - len(both)} refused; "
            f"seconds {plain:.2f} published, {own:.2f} own; "
            f"{extra:.2f} extra sandboxes; {unasked} with tests that cannot be asked"
        )
    sys.exit(1 if refused else 0)


if __name__ == "__main__":
    main()
