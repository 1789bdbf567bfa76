"""`make soak`: mixed load with faults for half an hour, then a page that says what broke, if anything did."""

import argparse
import asyncio
import os
import shlex
import subprocess
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
LEGS = ("local", "kubernetes")
INSIDE = "ORCHARD_SOAK_KUBECONFIG"
"""Environment variable: we run where the node of this kubeconfig can be reached."""
UNLIMITED = 10**9

console = Console()


async def soak(leg: str, seconds: float, seed: int) -> Record:
    """One leg for so long."""
    plan = Plan(
        seed=seed,
        slots=6 if leg == "local" else 4,
        operations=UNLIMITED,
        seconds=seconds,
        fault_every=(20, 60) if leg == "local" else (10, 30),
        checkpoints=max(3, round(seconds / 100)),
    )
    with tempfile.TemporaryDirectory(prefix="orchard-soak-") as place:
        if leg == "local":
            async with LocalLeg(Path(place)) as local:
                record = await Soak(local, plan).run()
        else:
            from tests.soak.cluster import ClusterLeg

            async with ClusterLeg(Path(os.environ[INSIDE]), Path(place)) as cluster:
                record = await Soak(cluster, plan).run()
    judge_memory(record)
    return record


async def all_legs(legs: list[str], seconds: float, seed: int) -> list[Record]:
    """Side by side, as they do not share anything but the machine."""
    return await asyncio.gather(*(soak(leg, seconds, seed) for leg in legs))


def on_a_node() -> int:
    """Run ourselves again in the network namespace of a node that was made for it."""
    from tests.kubernetes.images import NoImage
    from tests.kubernetes.node import NoNode, running_node

    try:
        with running_node() as node:
            command = node.inside(sys.executable, "-m", "tests.soak", *sys.argv[1:])
            return subprocess.call(command, env={**os.environ, INSIDE: str(node.kubeconfig)})
    except (NoNode, NoImage) as reason:
        console.print(f"{reason} Or leave Kubernetes out: --legs local", markup=False)
        return 2


def main() -> int:
    """Run the legs and write the page. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="of each leg")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--legs", nargs="+", choices=LEGS, default=list(LEGS))
    parser.add_argument("--page", type=Path, default=PAGE, help="where the page is written")
    options = parser.parse_args()
    if "kubernetes" in options.legs and INSIDE not in os.environ:
        return on_a_node()
    records = asyncio.run(all_legs(options.legs, options.minutes * 60, options.seed))
    for record in records:
        console.print(f"{record.leg}: {record.total} operations, {len(record.findings)} broken promises")
        for finding in record.findings:
            console.print(f"  {finding}", markup=False)
    command = f'make soak ARGS="{shlex.join(sys.argv[1:])}"'
    options.page.write_text(page(records, command, datetime.now(UTC).strftime("%Y-%m-%d")))
    console.print(f"written: {options.page}")
    return 1 if any(record.findings for record in records) else 0


if __name__ == "__main__":
    sys.exit(main())
