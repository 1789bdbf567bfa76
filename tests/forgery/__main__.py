"""`make bench-forgery`: submissions on layouts and real tasks through the real grader; the result as a page.

What is on record for this state of the grader is not graded again: a run that was stopped goes on. Writes
docs/benchmarks/forgery.md, unless only some were asked for. Ends with 1 when a goal is missed.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from tests.forgery.grading import run_layouts
from tests.forgery.honest import HONEST
from tests.forgery.layouts import all_layouts
from tests.forgery.page import page
from tests.forgery.real.bench import run_real
from tests.forgery.real.tasks import RELEASES, REPAIRS, grader_digest
from tests.forgery.records import Records, chosen, goals_missed
from tests.forgery.table import SUITES, try_all
from tests.forgery.tricks import TRICKS

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks" / "forgery.md"
console = Console()


def main() -> None:
    """Run all, or what the options ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "words",
        nargs="*",
        help="only submissions with one of these in name, family or task; in-place, claw, gui: those suites",
    )
    parser.add_argument("--sample", type=int, help="so many submissions of real tasks, drawn as if by chance")
    parser.add_argument(
        "--forgers", type=int, help="so many forgers of each real task, drawn as if by chance"
    )
    parser.add_argument("--releases", type=int, default=RELEASES, help="tasks of package releases")
    parser.add_argument("--repairs", type=int, default=REPAIRS, help="repair tasks")
    parser.add_argument("--layout", action="append", help="only these layouts")
    parser.add_argument(
        "--directory", type=Path, default=Path(sys.prefix) / "forgery", help="of the real tasks"
    )
    parser.add_argument("--real", action="store_true", help="only real tasks")
    parser.add_argument("--concurrency", type=int, default=2)
    parser.add_argument(
        "--logs", action="store_true", help="print what the grader kept of each run on a layout"
    )
    parser.add_argument("--output", type=Path, help=f"where the page goes; {PAGE.name} when all are run")
    given = parser.parse_args()
    if suites := [name for name in SUITES if name in given.words]:
        words = [word for word in given.words if word not in SUITES]
        sys.exit(try_all(suites, words, concurrency=given.concurrency))
    records = Records(given.directory / grader_digest() / "results.jsonl")
    names = [layout.name for layout in all_layouts()] if given.layout is None else given.layout
    pairs = [
        (trick, name)
        for trick in (*HONEST, *TRICKS)
        for name in names
        if chosen((f"{trick.family}: {trick.name}",), given.words) and trick.not_on != name
    ]
    started = time.monotonic()
    if pairs and not (given.real or given.sample):
        with tempfile.TemporaryDirectory(prefix="forgery-") as directory:
            asyncio.run(
                run_layouts(
                    Path(directory), pairs, records, console, concurrency=given.concurrency, logs=given.logs
                )
            )
    if given.releases or given.repairs:
        asyncio.run(
            run_real(
                given.directory,
                records,
                console,
                releases=given.releases,
                repairs=given.repairs,
                concurrency=given.concurrency,
                only=given.words,
                sample=given.sample,
                forgers=given.forgers,
            )
        )
    text = page(records.all, time.monotonic() - started, given.concurrency)
    complete = not (given.words or given.sample or given.layout or given.real) and given.releases >= RELEASES
    if output := given.output or (PAGE if complete else None):
        output.write_text(text)
        console.print(f"written: {output}")
    console.print(text.split("## Each submission")[0], markup=False, highlight=False)
    missed = goals_missed(records.all)
    for each in missed:
        console.print(each, markup=False, highlight=False)
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
