"""Runs the suite on real tasks: what is on record is not done again."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from orchard.pipelines.domains.swe.packages import PackageCache
from orchard.pipelines.tasks.sandboxes import as_ready
from tests.forgery.real.grading import Job, RealBench, jobs_of
from tests.forgery.real.tasks import TaskDirectory
from tests.forgery.records import Group, Records, chosen


async def run_real(
    directory: Path,
    records: Records,
    console: Console,
    *,
    releases: int,
    repairs: int,
    concurrency: int,
    only: Sequence[str] = (),
    sample: int | None = None,
    forgers: int | None = None,
    packages: Sequence[str] = (),
) -> None:
    """Makes the tasks, then grades all submissions in an order as if by chance, or `sample` of them; of each
    task's forgers the first `forgers` in that order, or all."""
    tasks = TaskDirectory(directory, console)
    cache = PackageCache(directory / "packages")
    async with tasks.client() as client:
        console.print(f"making and proving {releases + repairs} tasks in {directory}")
        proven = await tasks.proven(client, releases, repairs, packages=packages, concurrency=concurrency)
        bench = RealBench(client, tasks)
        known = {task.task.task_id: await bench.known(task, cache) for task in proven}
        jobs: list[Job] = [
            job
            for task in proven
            for job in drawn(jobs_of(task, cache, known[task.task.task_id]), forgers)
            if chosen((job.key,), only)
        ]
        jobs = sorted(jobs, key=lambda job: job.rank)[:sample]
        left = [job for job in jobs if not records.has(job.key)]
        with Progress(console=console, transient=True) as bar:
            row = bar.add_task("real tasks", total=len(jobs), completed=len(jobs) - len(left))
            async for record in as_ready(left, bench.one, concurrency=concurrency):
                records.add(record)
                bar.advance(row)
                if record.wrong:
                    bar.console.print(
                        f"{record.key}: {record.layer} {record.laxer or ''}", highlight=False, markup=False
                    )


def drawn(jobs: Iterable[Job], forgers: int | None) -> Iterator[Job]:
    """Yields all jobs of a task but those of more than so many forgers."""
    ordered = sorted(jobs, key=lambda job: (job.group is not Group.FORGER, job.rank))
    count = sum(job.group is Group.FORGER for job in ordered)
    yield from ordered[: min(count, forgers) if forgers is not None else count]
    yield from ordered[count:]
