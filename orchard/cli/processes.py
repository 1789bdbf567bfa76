"""Commands that run until told to stop: `up` and the processes it is made of."""

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Coroutine, Mapping
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from typing import Annotated, Any

import msgspec
import typer
import uvloop

from orchard.config import Config, checked
from orchard.pipelines.archiving import Archiving
from orchard.pipelines.reconciling import Reconciler
from orchard.pipelines.tasks.registry import read_tasks
from orchard.schemas import plugins
from orchard.schemas.health import ProcessReport
from orchard.schemas.plugins import Kind
from orchard.session import Session
from orchard.storage.allocation import save_memory
from orchard.storage.writer import Writer
from orchard.streams.campaigns import CampaignBook
from orchard.streams.claims import Claims
from orchard.streams.connection import Connection
from orchard.streams.guard import WRITER_SETTLE_SECONDS
from orchard.streams.health import reporting
from orchard.streams.publisher import Publisher
from orchard.streams.settings import Queue
from orchard.streams.tasks import end
from orchard.streams.topology import declare
from orchard.terminal import console
from orchard.up import Supervisor
from orchard.workers.harnesses import HARNESS_NAMES
from orchard.workers.keeper import keep
from orchard.workers.llm.client import EndpointSettings, ModelClient
from orchard.workers.llm.oracle.server import OracleServer
from orchard.workers.rollout import AttemptDependencies
from orchard.workers.worker import Worker

HELD_SECONDS = 0.5
"""Between two looks of the writer at whether the stream is whole."""


def stop_on_signals(loop: asyncio.AbstractEventLoop) -> asyncio.Event:
    """An event that SIGTERM and SIGINT set."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


def start_logging() -> None:
    """One line a record on stderr; secrets never reach a record."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
    for noisy in ("httpx", "openai", "nats", "aiohttp.access"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def replaced(config: Config, section: str, **changes: object) -> Config:
    """The configuration with given flags of one section; None means the flag was not given.
    Raises ConfigError."""
    given = {name: value for name, value in changes.items() if value is not None}
    tree = msgspec.to_builtins(config)
    tree[section] |= given
    return checked(tree)


def with_endpoint(config: Config, base_url: str | None, api_key_env: str | None) -> Config:
    """The configuration with the endpoint `default` as the flags, or OPENAI_BASE_URL, name it."""
    known = config.endpoints.get("default")
    url = base_url or (known.base_url if known else None) or os.environ.get("OPENAI_BASE_URL")
    if url is None:
        return config
    key = api_key_env or (known.api_key_env if known else None)
    if key is None and "OPENAI_API_KEY" in os.environ:
        key = "OPENAI_API_KEY"
    endpoint = (
        msgspec.structs.replace(known, base_url=url, api_key_env=key)
        if known
        else EndpointSettings(base_url=url, api_key_env=key)
    )
    return msgspec.structs.replace(config, endpoints={**config.endpoints, "default": endpoint})


def endpoint_environment(config: Config) -> dict[str, str]:
    """The endpoint `default` for child processes. The key itself stays in the variable it is in."""
    endpoint = config.endpoints.get("default")
    if endpoint is None:
        return {}
    prefix = "ORCHARD_ENDPOINTS__DEFAULT__"
    key = {f"{prefix}API_KEY_ENV": endpoint.api_key_env} if endpoint.api_key_env else {}
    return {f"{prefix}BASE_URL": endpoint.base_url, **key}


BaseUrl = Annotated[
    str | None, typer.Option(help="OpenAI-compatible endpoint, http://HOST/v1.", envvar="OPENAI_BASE_URL")
]
ApiKeyEnv = Annotated[
    str | None,
    typer.Option(help="Name of the environment variable with the key.", show_default="OPENAI_API_KEY"),
]


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""

    @app.command()
    def up(
        context: typer.Context,
        workers: Annotated[int | None, typer.Option(help="Worker processes.", min=0)] = None,
        slots: Annotated[int | None, typer.Option(help="Rollouts at once in each worker.", min=1)] = None,
        base_url: BaseUrl = None,
        api_key_env: ApiKeyEnv = None,
    ) -> None:
        """Run the whole pipeline here: NATS server, sandboxes, oracle, workers, writer. Ctrl-C drains.

        Tables and blobs live in --store, what belongs to this machine in --state (default: the store, if it
        is a directory). All goes on where it stopped; a process that dies is started again.
        """
        session: Session = context.obj
        config = replaced(session.config, "up", workers=workers)
        config = with_endpoint(replaced(config, "worker", slots=slots), base_url, api_key_env)
        start_logging()
        uvloop.run(_up(config))

    @app.command()
    def worker(
        context: typer.Context,
        name: Annotated[str | None, typer.Option(help="Name in events.", show_default="host and pid")] = None,
        slots: Annotated[int | None, typer.Option(help="Rollouts at once.", min=1)] = None,
        idle_exit: Annotated[
            float | None, typer.Option(help="Exit after so many seconds without work.", min=0)
        ] = None,
        base_url: BaseUrl = None,
        api_key_env: ApiKeyEnv = None,
    ) -> None:
        """Run one worker: claims rollouts until SIGTERM, which drains it."""
        session: Session = context.obj
        config = replaced(session.config, "worker", slots=slots, idle_exit_seconds=idle_exit)
        start_logging()
        uvloop.run(run_worker(Session(with_endpoint(config, base_url, api_key_env)), name))

    @app.command()
    def writer(context: typer.Context) -> None:
        """Run the writer: commits the event stream to the store's tables. One for each store."""
        start_logging()
        uvloop.run(run_writer(context.obj))

    @app.command()
    def steward(context: typer.Context) -> None:
        """Run the steward: forwards delayed requests when due, buries those that nobody could finish, and
        offers open rollouts again that are on no queue."""
        start_logging()
        uvloop.run(run_steward(context.obj))

    @app.command()
    def oracle(
        context: typer.Context,
        port: Annotated[int, typer.Option(help="Port on loopback; 0 chooses one.")] = 8790,
    ) -> None:
        """Run the oracle teacher: an OpenAI-compatible server that plays gold patches. Not a model.

        The model `oracle` does each of resolves, wrong_edit, gives_up, malformed and out_of_steps by its
        share in [oracle.mix] of the configuration; `oracle/wrong_edit`, for example, does nothing else.
        """
        start_logging()
        uvloop.run(run_oracle(context.obj, port))


async def _up(config: Config) -> None:
    stop = stop_on_signals(asyncio.get_running_loop())
    ready = asyncio.Event()
    supervisor = Supervisor(config, announce=console.print, environment=up_environment(config))

    async def greet() -> None:
        await ready.wait()
        console.print(
            f"[bold green]up[/] on {config.store}: NATS {supervisor.nats_url.rpartition('@')[2]}, "
            f"sandboxes {supervisor.sandbox_url}"
        )
        console.print(f"{config.up.workers} workers x {config.worker.slots} slots. Ctrl-C drains and stops.")

    greeting = asyncio.create_task(greet())
    await supervisor.run(stop, ready)
    greeting.cancel()
    console.print("stopped: what was not finished is on the queue and goes on at the next `orchard up`")


def up_environment(config: Config) -> dict[str, str]:
    """What the children of `up` must know beside the file and the environment: flags given to `up`."""
    return {**endpoint_environment(config), "ORCHARD_WORKER__SLOTS": str(config.worker.slots)}


async def run_worker(session: Session, name: str | None) -> None:
    """One worker process until drained."""
    config = session.config
    queue = Queue(kind="rollout", domain=config.worker.domain, priority=config.worker.priority)
    name = name or f"{socket.gethostname()}-{os.getpid()}"
    usable = plugins.check({Kind.HARNESS: HARNESS_NAMES})
    async with AsyncExitStack() as stack:
        connection = await stack.enter_async_context(session.reading_connection(f"worker {name}"))
        await declare(connection, config.nats, [queue])
        await stack.enter_async_context(session.guard(connection, hold=True))
        models = ModelClient(config.endpoints)
        stack.push_async_callback(models.close)
        dependencies = AttemptDependencies(
            worker=name,
            publisher=Publisher(connection),
            blobs=session.blobs,
            sandboxes=await stack.enter_async_context(session.sandboxes()),
            sandbox_settings=config.sandbox,
            models=models,
        )
        claims = await stack.enter_async_context(Claims(connection, queue))
        worker = Worker(
            dependencies,
            claims,
            CampaignBook(connection),
            config.worker,
            shutdown_seconds=config.up.shutdown_seconds,
        )
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, worker.drain)
        look = partial(_worker_report, worker, usable)
        await stack.enter_async_context(reporting(connection, "worker", name, look, serves=queue.consumer))
        await worker.run()


def _worker_report(worker: Worker, usable: Mapping[Kind, list[str]], report: ProcessReport) -> ProcessReport:
    return msgspec.structs.replace(
        report,
        numbers={"running": float(worker.running), "slots": float(worker.slots)},
        plugins={kind.value: names for kind, names in usable.items()},
    )


async def run_writer(session: Session) -> None:
    """The writer until told to stop; it commits what the stream holds before it ends.

    While the stream is not whole it lets go of the store, for `store restore-stream`.
    """
    save_memory()
    stop = stop_on_signals(asyncio.get_running_loop())
    async with session.reading_connection("writer") as connection:
        await declare(connection, session.config.nats, [])
        async with session.guard(connection, hold=True, settle=WRITER_SETTLE_SECONDS):
            while not stop.is_set():
                if connection.held:
                    await asyncio.sleep(HELD_SECONDS)
                else:
                    await _write_while_whole(session, connection, stop)


async def _write_while_whole(session: Session, connection: Connection, stop: asyncio.Event) -> None:
    """One run of the writer, until `stop` is set or the guard holds."""
    config, pause = session.config, asyncio.Event()
    writer = Writer(config.store, connection, config.writer, config.archive)

    def look(report: ProcessReport) -> ProcessReport:
        return msgspec.structs.replace(report, numbers={"position": float(writer.position)})

    async with reporting(connection, "writer", "writer", look), asyncio.TaskGroup() as tasks:
        archiving = None
        if (days := config.archive.after_days) is not None:
            work = Archiving(connection, config.store, session.blobs, config.archive)
            archiving = tasks.create_task(work.run(timedelta(days=days)))
        writing = tasks.create_task(writer.run(pause))
        while not writing.done():
            await asyncio.wait({writing}, timeout=HELD_SECONDS)
            if connection.held or stop.is_set():
                pause.set()
        if archiving is not None:
            await end(archiving)


async def run_until(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Run `work` until `stop` is set; what it raises is raised."""
    stopping, working = asyncio.create_task(stop.wait()), asyncio.create_task(work)
    await asyncio.wait({stopping, working}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    await end(working)
    if not working.cancelled():
        working.result()


async def run_steward(session: Session) -> None:
    """The housekeeping of the queues until told to stop."""
    stop = stop_on_signals(asyncio.get_running_loop())
    async with session.reading_connection("steward") as connection:
        await declare(connection, session.config.nats, [])
        async with session.guard(connection, hold=True), asyncio.TaskGroup() as tasks:
            reconciling = tasks.create_task(Reconciler(connection, session.blobs).run())
            async with reporting(connection, "steward", f"steward on {socket.gethostname()}"):
                await run_until(stop, keep(connection))
            await end(reconciling)


async def run_oracle(session: Session, port: int) -> None:
    """The oracle over every task of the store."""
    stop = stop_on_signals(asyncio.get_running_loop())

    config = session.config
    async with OracleServer(partial(read_tasks, config.store), config.oracle.mix, port=port):
        await stop.wait()
