"""Runs the oracle's server."""

import asyncio
from functools import partial

from orchard.actions.session import Session
from orchard.pipelines.tasks.registry import read_tasks
from orchard.processes.signals import stop_on_signals
from orchard.streams.loopback import loopback
from orchard.workers.oracle.server import OracleServer


async def run_oracle(session: Session, port: int) -> None:
    """Serves the oracle with all tasks of the store."""
    stop = stop_on_signals(asyncio.get_running_loop())
    config = session.config
    tasks = partial(read_tasks, config.store)
    async with OracleServer(tasks, config.oracle.mix, host=loopback(), port=port):
        await stop.wait()
