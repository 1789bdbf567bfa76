"""`python -m orchard.workers.llm.oracle --tasks FILE`: the oracle alone, for any OpenAI-compatible client.

FILE holds one Task as JSON on each line and is read again when a conversation matches none of them.
`orchard oracle` serves the tasks of a store.
"""

import argparse
import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec

from orchard.schemas.tasks import Task
from orchard.workers.llm.oracle.behaviours import DEFAULT_MIX
from orchard.workers.llm.oracle.faults import FaultPlan
from orchard.workers.llm.oracle.server import OracleServer


def read_tasks(path: Path) -> Iterator[Task]:
    """The tasks of a JSONL file."""
    with path.open("rb") as lines:
        for line in lines:
            if line.strip():
                yield msgspec.json.decode(line, type=Task)


async def serve(arguments: argparse.Namespace) -> None:
    """Serve until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    mix = msgspec.json.decode(arguments.mix, type=dict[str, float]) if arguments.mix else DEFAULT_MIX
    faults = msgspec.json.decode(arguments.faults, type=FaultPlan) if arguments.faults else None
    path = Path(arguments.tasks)
    async with OracleServer(lambda: read_tasks(path), mix, port=arguments.port, faults=faults) as server:
        if arguments.port_file:
            target = Path(arguments.port_file)
            temporary = target.with_suffix(".new")
            temporary.write_text(f"{server.port}\n")
            temporary.rename(target)
        await stop.wait()


def main() -> None:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser(prog="python -m orchard.workers.llm.oracle", description=__doc__)
    parser.add_argument("--tasks", required=True, help="JSONL file of tasks")
    parser.add_argument("--port", type=int, default=0, help="0: any free port")
    parser.add_argument("--port-file", help="written, whole, once the server listens")
    parser.add_argument("--mix", help='JSON, for example {"resolves": 1}')
    parser.add_argument("--faults", help="JSON of a FaultPlan")
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
