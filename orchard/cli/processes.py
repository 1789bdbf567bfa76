"""Commands that run until SIGTERM: `up` and the processes that it starts."""

import asyncio
from typing import Annotated

import typer
import uvloop

from orchard.actions.reporter import plural
from orchard.actions.session import Session
from orchard.configuration.config import Config
from orchard.configuration.flags import replaced, up_environment, with_endpoint
from orchard.processes.signals import stop_on_signals
from orchard.storage.errors import StorageError
from orchard.streams.errors import StreamsError
from orchard.terminal.console import console
from orchard.terminal.logs import start_logging
from orchard.terminal.options import ApiKeyEnv, BaseUrl
from orchard.workers.episode.settings import WorkerSettings

COMMANDS = {
    "up": "Run the whole pipeline here: NATS server, sandboxes, oracle, workers, writer.",
    "worker": "Run one worker: it runs rollouts, or requests of other kinds, until SIGTERM; "
    "then it finishes what it has begun.",
    "writer": "Run the writer: commits the event stream to the store's tables.",
    "steward": "Run the steward: forwards delayed requests when due, moves those that nobody "
    "could finish to the dead letters, "
    "queues open rollouts again that are in no queue, and pauses campaigns whose cost has reached their cap.",
    "oracle": "Run the oracle teacher: an OpenAI-compatible server that plays gold patches.",
}

ProbePort = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=65535,
        help="Answer /healthy, /ready and /metrics (Prometheus) on this port of every address.",
    ),
]


def register(app: typer.Typer) -> None:
    @app.command()
    def up(
        context: typer.Context,
        workers: Annotated[int | None, typer.Option(help="Worker processes.", min=0)] = None,
        slots: Annotated[
            int | None, typer.Option(help="Maximum concurrent rollouts of each worker.", min=1)
        ] = None,
        base_url: BaseUrl = None,
        api_key_env: ApiKeyEnv = None,
    ) -> None:
        """Run the whole pipeline here: NATS server, sandboxes, oracle, workers, writer. Ctrl-C drains.

        Tables and blobs live in --store, what belongs to this machine in --state (default: the store, if it
        is a directory). Interrupted work resumes; a process that dies is started again.
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
        slots: Annotated[int | None, typer.Option(help="Maximum concurrent rollouts.", min=1)] = None,
        kinds: Annotated[
            str,
            typer.Option(
                help="Kinds of requests that it serves, separated by commas, the most urgent first; or `all`."
            ),
        ] = "rollout",
        domain: Annotated[
            str | None,
            typer.Option(help="Domain whose queue it serves.", show_default=WorkerSettings().domain),
        ] = None,
        priority: Annotated[
            str | None, typer.Option(help="Priority whose queue it serves.", show_default="normal")
        ] = None,
        idle_exit: Annotated[
            float | None, typer.Option(help="Exit after this many seconds without work in any slot.", min=0)
        ] = None,
        max_age: Annotated[
            float | None,
            typer.Option(
                help="Stop claiming work after this many seconds, or after half of them at the earliest; "
                "exit when done.",
                min=0,
            ),
        ] = None,
        base_url: BaseUrl = None,
        api_key_env: ApiKeyEnv = None,
    ) -> None:
        """Run one worker: it runs rollouts, or requests of other kinds, until SIGTERM; then it finishes what
        it has begun."""
        session: Session = context.obj
        config = replaced(
            session.config,
            "worker",
            slots=slots,
            domain=domain,
            priority=priority,
            idle_exit_seconds=idle_exit,
            max_age_seconds=max_age,
        )
        start_logging()
        from orchard.processes.worker import run_worker

        wanted = [kind.strip() for kind in kinds.split(",")]
        uvloop.run(run_worker(Session(with_endpoint(config, base_url, api_key_env)), name, wanted))

    @app.command()
    def writer(context: typer.Context, probe_port: ProbePort = None) -> None:
        """Run the writer: commits the event stream to the store's tables. One for each store."""
        start_logging()
        from orchard.processes.writer import run_writer

        uvloop.run(run_writer(context.obj, probe_port))

    @app.command()
    def steward(context: typer.Context, probe_port: ProbePort = None) -> None:
        """Run the steward: forwards delayed requests when due, moves those that nobody could finish to the
        dead letters, queues open rollouts again that are in no queue, and pauses campaigns whose cost has
        reached their cap."""
        start_logging()
        from orchard.processes.steward import run_steward

        uvloop.run(run_steward(context.obj, probe_port))

    @app.command()
    def oracle(
        context: typer.Context,
        port: Annotated[int, typer.Option(help="Port on loopback; 0 chooses one.")] = 8790,
    ) -> None:
        """Run the oracle teacher: an OpenAI-compatible server that plays gold patches. Not a model.

        The model `oracle` behaves as one of resolves, wrong_edit, gives_up, malformed and out_of_steps, in
        the shares of [oracle.mix] in the configuration; `oracle/wrong_edit`, for example, always does that.
        """
        start_logging()
        from orchard.processes.oracle import run_oracle

        uvloop.run(run_oracle(context.obj, port))


async def _up(config: Config) -> None:
    from orchard.processes.up import Supervisor

    stop = stop_on_signals(asyncio.get_running_loop())
    ready = asyncio.Event()
    supervisor = Supervisor(config, announce=console.print, environment=up_environment(config))

    async def greet() -> None:
        await ready.wait()
        console.print(
            f"[bold green]up[/] on {config.store}: NATS {supervisor.nats_url.rpartition('@')[2]}, "
            f"sandboxes {supervisor.sandbox_url}"
        )
        if supervisor.page_url:
            wanted = config.up.page_port
            taken = f" ({wanted} is taken)" if wanted not in (0, supervisor.page_port) else ""
            console.print(f"page: {supervisor.page_url}{taken}")
        workers, slots = plural(config.up.workers, "worker"), plural(config.worker.slots, "slot")
        console.print(f"{workers} x {slots}. Ctrl-C drains and stops.")
        await _tell_what_continues(Session(config))

    async def say_stopping() -> None:
        await stop.wait()
        console.print("stopping: running work ends or goes back to the queue")

    telling = [asyncio.create_task(greet()), asyncio.create_task(say_stopping())]
    await supervisor.run(stop, ready)
    for task in telling:
        task.cancel()
    console.print("stopped: unfinished work is on the queue and continues at the next `orchard up`")


async def _tell_what_continues(session: Session) -> None:
    from orchard.actions.campaigns import unfinished_campaigns

    try:
        for view in await unfinished_campaigns(session):
            console.print(f"continues {view.name}: {plural(view.size - view.done, 'rollout')} left")
    except (StorageError, StreamsError) as error:
        console.print(f"unfinished campaigns cannot be read now: {error}", markup=False)
