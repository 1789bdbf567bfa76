"""`make soak`: mixed load with faults for half an hour, then a page that says what broke, if anything did."""

import argparse
import asyncio
import shlex
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from tests.soak.engine import Plan, Soak
from tests.soak.local import LocalLeg
from tests.soak.record import Record
from tests.soak.report import judge_memory, page

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks" / "soak.md"
LEGS = ("local",)
UNLIMITED = 10**9

console = Console()


async def soak(leg: str, seconds: float, seed: int) -> Record:
    """One leg for so long."""
    plan = Plan(
        seed=seed,
        slots=6,
        operations=UNLIMITED,
        seconds=seconds,
        fault_every=(20, 60),
        checkpoints=max(3, round(seconds / 100)),
    )
    assert leg == "local"
    with tempfile.TemporaryDirectory(prefix="orchard-soak-") as place:
        async with LocalLeg(Path(place)) as service:
            record = await Soak(service, plan).run()
    judge_memory(record)
    return record


def main() -> int:
    """Run the legs one after the other and write the page. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="of all legs together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--legs", nargs="+", choices=LEGS, default=list(LEGS))
    parser.add_argument("--page", type=Path, default=PAGE, help="where the page is written")
    options = parser.parse_args()
    records = []
    for leg in options.legs:
        record = asyncio.run(soak(leg, options.minutes * 60 / len(options.legs), options.seed))
        records.append(record)
        console.print(f"{leg}: {record.total} operations, {len(record.findings)} broken promises")
        for finding in record.findings:
            console.print(f"  {finding}", markup=False)
    command = f'make soak ARGS="{shlex.join(sys.argv[1:])}"'
    options.page.write_text(page(records, command, datetime.now(UTC).strftime("%Y-%m-%d")))
    console.print(f"written: {options.page}")
    return 1 if any(record.findings for record in records) else 0


if __name__ == "__main__":
    sys.exit(main())
