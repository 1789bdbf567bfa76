"""Two checkouts' services in turns: `python -m tests.benchmarks.sandboxes.turns OLD NEW execs --count 300`.

Prints the processor time of an operation by process, of each round, with the context switches of all threads.
Both services live through the whole run and each has the driver of its own checkout, so both meet the same
other work; what the wall clock says is not printed.
"""

import argparse
import os
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
from rich.console import Console

from tests.benchmarks.sandboxes.driver import SCENARIOS
from tests.benchmarks.sandboxes.measuring import drive
from tests.sandbox_service import LocalService

console = Console()


def switches(process: psutil.Process) -> int:
    """How often the threads that it has now have waited."""
    found = 0
    for thread in process.threads():
        with suppress(FileNotFoundError):
            lines = Path(f"/proc/{process.pid}/task/{thread.id}/status").read_text().splitlines()
            found += sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_"))
    return found


def main() -> None:
    """Read the command line and run; the order changes with each round."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkouts", nargs=2, type=lambda text: Path(text).resolve())
    parser.add_argument("scenario", choices=SCENARIOS)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="orchard-bench-") as place, ExitStack() as stack:
        services = []
        for number, checkout in enumerate(options.checkouts):
            os.chdir(checkout)  # whose modules come first in its processes
            services.append((checkout, LocalService(Path(place) / f"state-{number}")))
            stack.callback(services[-1][1].stop)
        for number in range(options.rounds):
            for checkout, service in services if number % 2 == 0 else services[::-1]:
                watched = service.processes()
                before = {name: switches(process) for name, process in watched.items()}
                count = ("--count", str(options.count))
                run = drive(options.scenario, service.url, watched, *count, root=checkout)
                waits = {name: switches(process) - before[name] for name, process in watched.items()}
                told = [f"{name} {run.cpu[name] / options.count * 1e3:.2f} ms" for name in run.cpu]
                told.append(f"all {sum(run.cpu.values()) / options.count * 1e3:.2f} ms")
                told += [f"{name} {waits[name] / options.count:.0f} waits" for name in waits]
                console.print(f"{checkout.name}: {', '.join(told)}, {run.failed} failed", highlight=False)


if __name__ == "__main__":
    main()
