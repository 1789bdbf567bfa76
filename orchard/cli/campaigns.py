"""`submit`, `status`, `watch`, `pause`, `resume`, `cancel`: campaigns from the command line."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from orchard.actions.reports import campaign_line, campaign_table, status_table
from orchard.actions.session import Session
from orchard.actions.standing import CampaignView, State, standing
from orchard.actions.submission import (
    added_fields,
    check_prices,
    check_programs,
    check_workers,
    endpoints_of,
    queue_of,
)
from orchard.actions.terminal import console
from orchard.configuration.config import ConfigError
from orchard.schemas.campaigns import Budget, CampaignRecord, CampaignSpec, ModelSpec, Timeouts
from orchard.schemas.health import alive
from orchard.schemas.llm_calls import ModelKind
from orchard.schemas.tasks import IMPOSSIBLE
from orchard.storage.reader import position
from orchard.streams import names
from orchard.streams.campaigns import CampaignBook
from orchard.streams.connection import Connection
from orchard.streams.health import reports
from orchard.streams.reading import bounds
from orchard.streams.topology import declare

if TYPE_CHECKING:
    from orchard.pipelines.campaigns.commands import Campaigns
    from orchard.pipelines.campaigns.commands import Progress as Step
    from orchard.pipelines.tasks.registry import Needs

PLAIN_SECONDS = 10.0
"""Between two lines of progress where the output is no terminal."""
STUCK_LOOKS = 30
"""Looks in a row at an open campaign that nobody works on, after which `watch` gives up."""

Name = Annotated[str, typer.Argument(help="Name of the campaign.")]


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""

    @app.command()
    def submit(
        context: typer.Context,
        name: Name,
        model: Annotated[
            list[str],
            typer.Option(help="Model name at its endpoint; `oracle` is the built-in teacher. Repeatable."),
        ],
        endpoint: Annotated[
            list[str] | None,
            typer.Option(
                help="Endpoint, as the workers' configuration names it: one for all models, or one for each, "
                "in their order.",
                show_default="default",
            ),
        ] = None,
        harness: Annotated[
            list[str] | None,
            typer.Option(
                help="Harness. Repeatable.",
                show_default="the domain's; orchard-bash for patches, else orchard-task",
            ),
        ] = None,
        domain: Annotated[
            str, typer.Option(help="Domain of the tasks: workers name the one they serve.")
        ] = "swe",
        samples: Annotated[int, typer.Option(help="Rollouts for each task, harness and model.", min=1)] = 1,
        source: Annotated[str | None, typer.Option(help="Only tasks of this source.")] = None,
        repo: Annotated[str | None, typer.Option(help="Only tasks of this repository.")] = None,
        task: Annotated[
            list[str] | None, typer.Option(help="Only this task id; * matches anything. Repeatable.")
        ] = None,
        limit: Annotated[int | None, typer.Option(help="At most so many tasks.", min=1)] = None,
        unproven: Annotated[bool, typer.Option(help="Take tasks that are not proven, too.")] = False,
        impossible: Annotated[
            float,
            typer.Option(
                help="Share of impossible tasks to mix in: passing one is cheating.", min=0, max=0.9
            ),
        ] = 0.0,
        steps: Annotated[int, typer.Option(help="Turns of each rollout at most; 0 = no limit.", min=0)] = 250,
        cost: Annotated[float, typer.Option(help="USD of each rollout at most; 0 = no limit.", min=0)] = 3.0,
        max_cost: Annotated[
            float,
            typer.Option(help="USD of the whole campaign before it is paused; 0 = no cap.", min=0),
        ] = 0.0,
        wall: Annotated[
            float | None,
            typer.Option(
                help="Seconds of the agent at most; 0 = no limit.",
                min=0,
                show_default="what a task publishes, else 3600",
            ),
        ] = None,
        temperature: Annotated[
            float | None, typer.Option(help="Sampling temperature.", min=0, max=100)
        ] = None,
        max_tokens: Annotated[int | None, typer.Option(help="Tokens of one answer, at most.", min=1)] = None,
        logprobs: Annotated[bool, typer.Option(help="Ask for log-probabilities of sampled tokens.")] = False,
        max_tries: Annotated[
            int, typer.Option(help="Attempts of a rollout, where infrastructure fails.", min=1)
        ] = 3,
        replay: Annotated[
            bool,
            typer.Option(help="Replay the turns of an attempt that died instead of paying for them again."),
        ] = True,
        published_rules: Annotated[
            bool,
            typer.Option(
                "--published-rules",
                help="Grade as published benchmarks do, to compare figures. Never train on such rewards.",
            ),
        ] = False,
        priority: Annotated[
            str, typer.Option(help="Queue priority; workers name the one they serve.")
        ] = "normal",
    ) -> None:
        """Queue a campaign: tasks x harnesses x models x samples. Run it again to go on after a break.

        For example:

            orchard submit first --model oracle --samples 3
            orchard submit nightly --model NAME --samples 8 --max-cost 50
            orchard submit desk --domain claw --model NAME
            orchard submit two --model NAME --endpoint E --model OTHER --endpoint F
        """
        from orchard.pipelines.tasks.registry import (
            mixed,
            needs_of,
            read_task_refs,
        )  # a status need not wait for it
        from orchard.workers.harnesses import get_harness

        session: Session = context.obj
        for each in harness or ():
            get_harness(each)  # an unknown one is told now, not by a worker
        refs = read_task_refs(
            session.config.store,
            source=source,
            repo=repo,
            ids=task or [],
            only_valid=not unproven,
            limit=limit,
        )
        if not refs:
            raise ConfigError(
                "no proven task matches: `orchard tasks list` shows all, `orchard tasks validate` proves "
                "them, --unproven takes them as they are"
            )
        if impossible:
            traps = read_task_refs(session.config.store, source=IMPOSSIBLE)
            refs = mixed(refs, traps, impossible, name)
        needs = needs_of(session.config.store, refs)
        harnesses = tuple(harness or ()) or asyncio.run(_harnesses(session, name, domain, needs))
        published = any(each.network is not None for each in needs.values())
        spec = CampaignSpec(
            name=name,
            tasks=tuple(refs),
            harnesses=harnesses,
            models=tuple(
                ModelSpec(
                    name=each,
                    endpoint=where,
                    kind=ModelKind.ORACLE if each == "oracle" else ModelKind.MODEL,
                    temperature=temperature,
                    max_tokens=max_tokens,
                    logprobs=logprobs,
                )
                for each, where in zip(model, endpoints_of(model, endpoint or []), strict=True)
            ),
            samples=samples,
            domain=domain,
            priority=priority,
            budget=Budget(
                steps=steps,
                cost_usd=cost,
                wall_seconds=3600.0 if wall is None else wall,
                wall_for_all=published and wall is not None,
            ),
            timeouts=Timeouts(),
            max_tries=max_tries,
            replay_attempts=replay,
            published_rules=published_rules,
            max_cost_usd=max_cost or None,
        )
        asyncio.run(submit_campaign(session, spec, needs))
        console.print(
            f"[bold green]submitted[/] {name}: {spec.size} rollouts of {len(spec.tasks)} tasks. "
            f"Follow it with: orchard watch {name}"
        )

    @app.command()
    def status(context: typer.Context) -> None:
        """All campaigns: state, outcomes, queue depth."""
        asyncio.run(_status(context.obj))

    @app.command()
    def watch(
        context: typer.Context,
        name: Name,
        every: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.1)] = 1.0,
    ) -> None:
        """Live progress until the campaign is done: queue, running, outcomes, rate, time left, cost.

        Exit code 1 when rollouts aborted without a grade, or the campaign is paused, cancelled or stuck.
        """
        view = asyncio.run(watch_campaign(context.obj, name, every))
        if view.aborted or view.state is not State.FINISHED:
            raise typer.Exit(1)

    @app.command()
    def pause(context: typer.Context, name: Name) -> None:
        """Start no more rollouts; the running ones are finished."""
        asyncio.run(pause_campaign(context.obj, name))
        console.print(f"{name} is paused: `orchard resume {name}` goes on")

    @app.command()
    def cancel(context: typer.Context, name: Name) -> None:
        """Stop at once: what runs or waits aborts with cause `cancelled`. `resume` brings it back."""
        ended = asyncio.run(cancel_campaign(context.obj, name))
        console.print(
            f"{name} is cancelled, {ended} waiting rollouts are aborted: `orchard resume {name}` reopens them"
        )

    @app.command()
    def resume(
        context: typer.Context,
        name: Name,
        aborted: Annotated[bool, typer.Option(help="Reopen rollouts that our side aborted.")] = True,
        max_cost: Annotated[
            float | None,
            typer.Option(
                help="The campaign's cap in USD from now on; 0 = no cap.", min=0, show_default="as it is"
            ),
        ] = None,
    ) -> None:
        """Go on after a pause, a cancel, or a failure that aborted rollouts. Outcomes are never redone.

        A campaign that has cost its cap goes on with a higher one: `orchard resume NAME --max-cost USD`.
        """
        session: Session = context.obj
        offered = asyncio.run(resume_campaign(session, name, aborted=aborted, max_cost_usd=max_cost))
        console.print(f"[bold green]resumed[/] {name}: {offered} rollouts offered again")


def _campaigns(session: Session, connection: Connection) -> "Campaigns":
    from orchard.pipelines.campaigns.commands import Campaigns

    return Campaigns(connection, session.blobs)


async def _harnesses(
    session: Session, name: str, domain: str, needs: Mapping[str, "Needs"]
) -> tuple[str, ...]:
    """Where none is named: those that the campaign has, where it goes on, else the default for its tasks."""
    from orchard.actions.needs import by_patch, default_harness

    if not all(map(by_patch, needs.values())):  # they had another default before
        async with session.connection("submit") as connection:
            if (known := await CampaignBook(connection).get(name)) is not None:
                return (await campaign_spec(session, known[0])).harnesses
    return (default_harness(domain, needs),)


async def submit_campaign(
    session: Session, spec: CampaignSpec, needs: Mapping[str, "Needs"] | None = None
) -> None:
    """Submit with a progress bar; Ctrl-C leaves a campaign that the same command goes on with.

    With the `needs` of its tasks, raises ConfigError for tasks that would lack a network (`check_network`),
    when workers serve the queue and none of them can run it (`check_workers`), and when its cap could not
    hold (`check_prices`).
    """
    from orchard.actions.needs import check_network, needed_plugins

    notes = [] if needs is None else check_network(needs, session.config.sandbox.task_network)
    needed = None if needs is None else needed_plugins(spec, needs)
    async with session.connection("submit") as connection:
        if needed is not None:
            working = alive(await reports(connection))
            endpoints = session.endpoints()
            check_prices(spec, endpoints, working)
            notes += check_workers(spec, working, needed, sorted(endpoints))
            notes += added_fields(spec, endpoints)
            for note in notes:
                console.print(f"[yellow]note:[/] {escape(note)}", highlight=False, soft_wrap=True)
            await check_programs(session, spec.harnesses)
        await declare(connection, session.config.nats, [queue_of(spec)])
        await _follow(_campaigns(session, connection).submit(spec), f"submitting {spec.name}")


async def resume_campaign(
    session: Session, name: str, *, aborted: bool = True, max_cost_usd: float | None = None
) -> int:
    """Resume with a progress bar; returns how many rollouts were offered again."""
    async with session.connection("resume") as connection:
        steps = _campaigns(session, connection).resume(name, aborted=aborted, max_cost_usd=max_cost_usd)
        return await _follow(steps, f"resuming {name}")


async def _follow(steps: "AsyncIterator[Step]", title: str) -> int:
    """Show the steps as a bar; returns how many rollouts were offered."""
    offered = 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        row = bar.add_task(title, total=None)
        async for step in steps:
            offered = step.offered
            note = " (queue full: waiting for workers)" if step.waiting else ""
            bar.update(row, total=step.total, completed=step.done, description=title + note)
    return offered


async def pause_campaign(session: Session, name: str) -> None:
    """Change the state; workers see it at their next claim."""
    async with session.connection("pause") as connection:
        await _campaigns(session, connection).pause(name)


async def cancel_campaign(session: Session, name: str) -> int:
    """Cancel with a progress bar; returns how many rollouts were aborted here."""
    async with session.connection("cancel") as connection:
        return await _follow(_campaigns(session, connection).cancel(name), f"cancelling {name}")


async def _status(session: Session) -> None:
    async with session.reading_connection("status") as connection:
        if held := await session.held(connection):
            console.print(f"[bold red]held[/] {escape(held)}", highlight=False)
        records = {name: record for name, (record, _) in (await CampaignBook(connection).list()).items()}
        if not records:
            console.print("no campaigns yet: `orchard submit --help` says how to queue one")
            return
        now = await standing(session, connection, records, await _queues(session, records))
    console.print(status_table(now.campaigns, now.pipeline))


async def watch_campaign(session: Session, name: str, every: float) -> CampaignView:
    """Show the campaign until it is over, stopped or stuck; returns the last view. Tables that lack yet
    what was said before, as by a resume, are waited for: they show the outcomes that it took back."""
    async with session.reading_connection("watch") as connection:
        book, before = CampaignBook(connection), (await bounds(connection, names.EVENTS)).last
        queues: dict[str, str] = {}
        shown, looks = time.monotonic(), 0
        with Live(console=console, refresh_per_second=4) as live:
            while (known := await book.get(name)) is not None:
                records = {name: known[0]}
                current = await asyncio.to_thread(position, session.config.store) >= before
                queues = queues or await _queues(session, records)
                now = await standing(session, connection, records, queues)
                view = now.campaigns[0]
                live.update(campaign_table(view, now.pipeline))
                if not console.is_terminal and time.monotonic() - shown > PLAIN_SECONDS:
                    shown = time.monotonic()
                    console.print(campaign_line(view, now.pipeline), highlight=False)
                waits = not view.running and view.state in (State.STUCK, State.CANCELLED)
                looks = looks + 1 if waits else 0
                paused = view.state is State.PAUSED and not view.running
                if (view.over and current) or paused or looks > STUCK_LOOKS:
                    live.stop()
                    console.print()
                    return view
                await asyncio.sleep(every)
    raise ConfigError(f"there is no campaign {name!r}: `orchard status` lists them")


async def _queues(session: Session, records: Mapping[str, CampaignRecord]) -> dict[str, str]:
    """The consumer of each campaign's queue."""
    found = {}
    for name, record in records.items():
        if record.queue:
            found[name] = record.queue
        else:
            spec = await campaign_spec(session, record)
            found[name] = queue_of(spec).consumer
    return found


async def campaign_spec(session: Session, record: CampaignRecord) -> CampaignSpec:
    """The plan of a campaign, from its blob."""
    raw = await asyncio.to_thread(session.blobs.get, record.spec)
    return msgspec.json.decode(raw, type=CampaignSpec)
