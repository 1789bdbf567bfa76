"""`make bench-forgery`: every trick and every honest submission on every layout; the result as a page.

Writes docs/benchmarks/forgery.md, unless only some were asked for. Ends with 1 when anything was forged or an
honest submission was refused.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from orchard.injector.client import AsyncSandboxClient
from tests.forgery.grading import Bench, Tried
from tests.forgery.honest import HONEST
from tests.forgery.layouts import all_layouts, build_image
from tests.forgery.table import SUITES, try_all
from tests.forgery.trick import Trick
from tests.forgery.tricks import TRICKS
from tests.sandbox_service import LocalService, usage

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks" / "forgery.md"
console = Console()


async def run(
    directory: Path,
    pairs: Sequence[tuple[Trick, str]],
    names: Sequence[str],
    *,
    concurrency: int,
    logs: bool = False,
) -> tuple[list[Tried], float]:
    """Each submission on the layout beside it, honest ones first; `names` are the layouts that are used. Also
    the CPU seconds that all honest ones took, in sandboxes and in the service."""
    layouts = [layout for layout in all_layouts() if layout.name in names]
    service = LocalService(directory / "state")
    try:
        async with AsyncSandboxClient(service.url) as client:
            await build_image(client, tuple(layouts))
            bench = Bench(client, layouts, directory, concurrency=concurrency)
            found: list[Tried] = []
            seconds = [cpu_of(service)]
            with Progress(console=console, transient=True) as bar:
                row = bar.add_task("grading", total=len(pairs))
                for honest in (True, False):
                    async for tried in bench.many([pair for pair in pairs if pair[0].honest is honest]):
                        found.append(tried)
                        bar.advance(row)
                        if tried.wrong:
                            bar.console.print(
                                f"{tried.trick.family}: {tried.trick.name} on {tried.layout}: {tried.layer}",
                                highlight=False,
                            )
                        if logs:
                            bar.console.print(await bench.log(tried), markup=False, highlight=False)
                    seconds.append(cpu_of(service))
            return found, seconds[1] - seconds[0]
    finally:
        service.stop()


def cpu_of(service: LocalService) -> float:
    """Seconds that the service and the commands of its sandboxes have taken; this process does little."""
    return sum(usage(process).cpu for process in service.processes().values())


def page(found: Sequence[Tried], seconds: float, concurrency: int, cpu_of_honest: float = 0.0) -> str:
    """The result as Markdown."""
    tricks = [each for each in found if not each.trick.honest]
    honest = [each for each in found if each.trick.honest]
    layouts = sorted({each.layout for each in found})
    forged = [each for each in tricks if each.rewarded]
    aborted = [each for each in tricks if each.reward is None]
    refused = [each for each in honest if not each.rewarded]
    when = datetime.now(UTC).strftime("%Y-%m-%d")
    lines = [
        "# Forged rewards",
        "",
        f"Measured {when} by `make bench-forgery`: {len({each.trick.name for each in tricks})} tricks on "
        f"{len(layouts)} task layouts, {len(found)} gradings in {seconds:.0f} s, {concurrency} at a time.",
        "What the tricks and the layouts are: `tests/forgery/`.",
        "",
        "| | submissions | forged | aborted | honest refused |",
        "|---|---:|---:|---:|---:|",
        f"| tricks | {len(tricks)} | {len(forged)} | {len(aborted)} | |",
        f"| honest | {len(honest)} | | | {len(refused)} |",
        "",
        *([_cost(honest, cpu_of_honest), ""] if honest else []),
        "What decided, over the tricks:",
        "",
        "| layer | tricks |",
        "|---|---:|",
        *(f"| {name} | {count} |" for name, count in Counter(e.layer for e in tricks).most_common()),
        "",
        "By family, on each layout forged of tried:",
        "",
        "| family | " + " | ".join(layouts) + " |",
        "|---|" + "---:|" * len(layouts),
    ]
    for family in dict.fromkeys(each.trick.family for each in tricks):
        cells = []
        for layout in layouts:
            those = [e for e in tricks if (e.trick.family, e.layout) == (family, layout)]
            cells.append(f"{sum(e.rewarded for e in those)} of {len(those)}")
        lines.append(f"| {family} | " + " | ".join(cells) + " |")
    lines += ["", "## Each submission", "", "| family | submission | " + " | ".join(layouts) + " |"]
    lines.append("|---|---|" + "---|" * len(layouts))
    by_name: dict[tuple[str, str], dict[str, Tried]] = {}
    for each in sorted(found, key=lambda e: (e.trick.family, e.trick.name)):
        by_name.setdefault((each.trick.family, each.trick.name), {})[each.layout] = each
    for (family, name), row in by_name.items():
        cells = [_cell(row[layout]) if layout in row else "" for layout in layouts]
        lines.append(f"| {family} | {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cost(honest: Sequence[Tried], cpu: float) -> str:
    used = [1 + (each.reward.extra_sandboxes or 0) for each in honest if each.reward and each.rewarded]
    return (
        f"Each honest +1 took {cpu / len(honest):.1f} s of CPU time, and {sum(used) / max(len(used), 1):.2f} "
        f"sandboxes ({max(used, default=0)} at most)."
    )


def _cell(tried: Tried) -> str:
    if tried.rewarded:
        return "rewarded" if tried.trick.honest else "**forged**"
    return f"**refused: {tried.layer}**" if tried.trick.honest else tried.layer


def main() -> None:
    """Run all, or those whose name or family has a given word."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "words",
        nargs="*",
        help="only submissions with one of these in name or family; in-place, claw, gui: those suites",
    )
    parser.add_argument("--layout", action="append", help="only these layouts")
    parser.add_argument("--concurrency", type=int, default=2)
    parser.add_argument("--logs", action="store_true", help="print what the grader kept of each run")
    parser.add_argument("--output", type=Path, help=f"where the page goes; {PAGE.name} when all are run")
    given = parser.parse_args()
    if suites := [name for name in SUITES if name in given.words]:
        words = [word for word in given.words if word not in SUITES]
        sys.exit(try_all(suites, words, concurrency=given.concurrency))
    chosen = [
        each
        for each in (*HONEST, *TRICKS)
        if not given.words or any(word in f"{each.family}: {each.name}" for word in given.words)
    ]
    names = given.layout or [layout.name for layout in all_layouts()]
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="forgery-") as directory:
        found, cpu = asyncio.run(
            run(
                Path(directory),
                [(trick, name) for trick in chosen for name in names],
                names,
                concurrency=given.concurrency,
                logs=given.logs,
            )
        )
    text = page(found, time.monotonic() - started, given.concurrency, cpu)
    complete = not given.words and not given.layout
    if output := given.output or (PAGE if complete else None):
        output.write_text(text)
        console.print(f"written: {output}")
    console.print(text.split("## Each submission")[0], markup=False, highlight=False)
    sys.exit(any(each.wrong for each in found))


if __name__ == "__main__":
    main()
