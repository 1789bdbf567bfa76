"""An import of trajectories in ATIF: rows of nine messages, from a file into a real stream (a script).

Prints a JSON line for each tenth of the rows, with the processor seconds and the peak memory of importer and
server since the start. Run as `python -m tests.benchmarks.bench_import ROWS [DIRECTORY]`.
"""

import argparse
import asyncio
import gc
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from multiprocessing import active_children
from pathlib import Path
from typing import Any

from orchard.pipelines.datasets.importing import import_trajectories
from orchard.pipelines.interchange.reading import read_trajectories
from orchard.storage.blobs import BlobStore
from orchard.streams.connection import connect
from orchard.streams.publisher import Publisher
from orchard.streams.server import EmbeddedServer
from orchard.streams.settings import NatsSettings
from orchard.streams.topology import declare

TURNS = 4
"""Answers of the model, of which all but the last call a tool: with the task, nine messages."""


def rows(count: int) -> Iterator[dict[str, Any]]:
    """Seeded documents of about 6.7 KB, each with a task of its own."""
    chance = random.Random(1)
    words = [f"{chance.getrandbits(28):x}" for _ in range(5000)]

    def text(length: int) -> str:
        return " ".join(chance.choices(words, k=length))

    for row in range(count):
        steps: list[dict[str, Any]] = [
            {"source": "system", "message": "You are an agent. " + "Rules. " * 60},
            {"source": "user", "message": f"Repair {row}: {text(100)}"},
        ]
        for turn in range(TURNS):
            step = {"source": "agent", "message": text(30), "reasoning_content": text(20), "model_name": "m"}
            step["timestamp"] = f"2026-01-02T03:{turn:02}:05Z"
            step["metrics"] = {"prompt_tokens": 1000, "completion_tokens": 50, "cost_usd": 0.01}
            if turn < TURNS - 1:
                call = {
                    "tool_call_id": f"c{turn}",
                    "function_name": "bash",
                    "arguments": {"command": text(8)},
                }
                step["tool_calls"] = [call]
                step["observation"] = {"results": [{"source_call_id": f"c{turn}", "content": text(80)}]}
            steps.append(step)
        yield {
            "schema_version": "ATIF-v1.6",
            "session_id": f"s{row}",
            "agent": {"name": "mini", "version": "1", "model_name": "m"},
            "steps": [{"step_id": number, **step} for number, step in enumerate(steps, start=1)],
            "final_metrics": {"total_prompt_tokens": 4000, "total_completion_tokens": 200},
            "extra": {"instance": f"repo__x-{row}"},
        }


def cpu(pid: int) -> float:
    """User and system seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_mib(pid: int) -> int:
    """Zero of a process that has ended."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM:")), 0)


async def run(count: int, directory: Path) -> None:
    """As `orchard trajectories import` where no pipeline runs: its own server syncs once a second."""
    file = directory / "rows.jsonl"
    with file.open("w") as out:
        out.writelines(f"{json.dumps(row)}\n" for row in rows(count))
    gc.freeze()
    settings, blobs = NatsSettings(), BlobStore(directory / "store")
    async with (
        EmbeddedServer(directory / "nats", sync="1s") as server,
        connect(settings, name="import", url=server.url) as connection,
    ):
        await declare(connection, settings, [])
        wall, idle, served, due = time.perf_counter(), time.process_time(), cpu(server.pid), count // 10

        def told(rollouts: int) -> None:
            nonlocal due
            if rollouts < due:
                return
            due += count // 10
            reader = max((child.pid for child in active_children() if child.pid), default=0)
            figures = {
                "rows": rollouts,
                "seconds": round(time.perf_counter() - wall, 1),
                "publisher_cpu": round(time.process_time() - idle, 1),
                "reader_cpu": reader and round(cpu(reader), 1),
                "server_cpu": round(cpu(server.pid) - served, 1),
                "publisher_mib": peak_mib(os.getpid()),
                "reader_mib": reader and peak_mib(reader),
                "server_mib": peak_mib(server.pid),
            }
            sys.stdout.write(json.dumps(figures) + "\n")
            sys.stdout.flush()

        read = partial(read_trajectories, [file], blobs)
        done = await import_trajectories(
            Publisher(connection), blobs, read, campaign="import", dataset="d", told=told
        )
    assert (done.rollouts, done.left_out) == (count, [])


def main() -> None:
    """Run in a directory, which is deleted."""
    asked = argparse.ArgumentParser()
    asked.add_argument("rows", type=int)
    asked.add_argument("directory", type=Path, nargs="?", help="where the server and the store write")
    found = asked.parse_args()
    with tempfile.TemporaryDirectory(dir=found.directory) as directory:
        asyncio.run(run(found.rows, Path(directory)))


if __name__ == "__main__":
    main()
