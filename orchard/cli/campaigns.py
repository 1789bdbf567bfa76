"""`submit`, `status`, `watch`, `pause`, `resume`, `cancel`: campaigns from the command line."""

import asyncio
from collections import Counter
from typing import Annotated

import msgspec
import typer
from rich.markup import escape

from orchard.actions.campaign_status import CampaignView, State
from orchard.actions.campaigns import (
    all_campaigns,
    cancel_campaign,
    follow_campaign,
    pause_campaign,
    resume_campaign,
    submit_campaign,
    usual_harnesses,
)
from orchard.actions.reporter import plural
from orchard.actions.session import Session
from orchard.actions.submission import endpoints_of, takeover_plan
from orchard.cli.campaign_facts import status_facts, watch_facts
from orchard.cli.facts import AsJson, print_facts
from orchard.configuration.config import ConfigError
from orchard.schemas.campaigns import Budget, CampaignSpec, ModelSpec, Timeouts
from orchard.schemas.llm_calls import ModelKind
from orchard.schemas.protection import Protected
from orchard.schemas.tasks import IMPOSSIBLE
from orchard.terminal.campaign_tables import status_table, watch_campaign
from orchard.terminal.console import console, reporting

COMMANDS = {
    "submit": "Queue a campaign: tasks x harnesses x models x samples.",
    "status": "Show all campaigns: state, outcomes, queue depth.",
    "watch": "Show live progress until the campaign is done: queue, running, outcomes, rate, time left, "
    "cost.",
    "pause": "Start no more rollouts; running ones finish.",
    "cancel": "Stop at once: running and waiting rollouts abort with the cause `cancelled`.",
    "resume": "Continue after a pause, a cancel, or a failure that aborted rollouts.",
}

_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(CampaignSpec)}

Name = Annotated[str, typer.Argument(help="Name of the campaign.")]


def register(app: typer.Typer) -> None:
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
        ] = _DEFAULTS["domain"],
        samples: Annotated[int, typer.Option(help="Rollouts for each task, harness and model.", min=1)] = 1,
        source: Annotated[str | None, typer.Option(help="Only tasks of this source.")] = None,
        repo: Annotated[str | None, typer.Option(help="Only tasks of this repository.")] = None,
        task: Annotated[
            list[str] | None, typer.Option(help="Only tasks with this id; * matches anything. Repeatable.")
        ] = None,
        limit: Annotated[int | None, typer.Option(help="Maximum number of tasks.", min=1)] = None,
        unproven: Annotated[bool, typer.Option(help="Also take tasks that are not proven.")] = False,
        min_protected: Annotated[
            Protected | None,
            typer.Option(help="Only tasks with at least this label (docs/own-tasks.md).", show_default="all"),
        ] = None,
        impossible: Annotated[
            float,
            typer.Option(
                help="Share of impossible tasks to mix in: a rollout that passes one has cheated.",
                min=0,
                max=0.9,
            ),
        ] = 0.0,
        steps: Annotated[int, typer.Option(help="Maximum turns of a rollout; 0 = no limit.", min=0)] = 250,
        cost: Annotated[
            float, typer.Option(help="Maximum cost of a rollout in USD; 0 = no limit.", min=0)
        ] = 3.0,
        max_cost: Annotated[
            float,
            typer.Option(help="Cost of the whole campaign in USD at which it is paused; 0 = no cap.", min=0),
        ] = 0.0,
        wall: Annotated[
            float | None,
            typer.Option(
                help="Maximum seconds of the agent's work; 0 = no limit.",
                min=0,
                show_default="what a task publishes, else 3600",
            ),
        ] = None,
        temperature: Annotated[
            float | None, typer.Option(help="Sampling temperature.", min=0, max=100)
        ] = None,
        max_tokens: Annotated[int | None, typer.Option(help="Maximum tokens of one answer.", min=1)] = None,
        logprobs: Annotated[bool, typer.Option(help="Ask for log-probabilities of sampled tokens.")] = False,
        max_tries: Annotated[
            int, typer.Option(help="Maximum attempts at a rollout after infrastructure failures.", min=1)
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
        takeover: Annotated[
            str | None,
            typer.Option(help="Teacher that takes over from the model; `oracle` is the built-in one."),
        ] = None,
        takeover_endpoint: Annotated[
            str | None,
            typer.Option(help="Its endpoint.", show_default="oracle or default, by its name"),
        ] = None,
        takeover_after: Annotated[
            str,
            typer.Option(
                help="Turns of the model before it: a number, or LEAST:MOST, drawn for each rollout."
            ),
        ] = "1",
        priority: Annotated[
            str, typer.Option(help="Queue priority; workers name the one they serve.")
        ] = "normal",
        trial: Annotated[
            bool,
            typer.Option(
                "--try/--no-try",
                help="Ask each endpoint first, once, whether it serves what the harness needs; costs a few "
                "tokens.",
            ),
        ] = True,
    ) -> None:
        """Queue a campaign: tasks x harnesses x models x samples. Run it again to resume an interrupted
        submission.

        For example:

            orchard submit first --model oracle --samples 3
            orchard submit nightly --model NAME --samples 8 --max-cost 50
            orchard submit desk --domain DOMAIN --model NAME
            orchard submit two --model NAME --endpoint E --model OTHER --endpoint F
            orchard submit dagger --model policy --takeover TEACHER --takeover-after 1:5
        """
        # a status need not wait for these
        from orchard.pipelines.tasks.protection import (
            BELOW,
            WITHOUT_LABEL,
            protected_tasks,
            without_label,
        )
        from orchard.pipelines.tasks.registry import (
            campaign_tasks,
            mixed,
            needs_of,
            read_task_refs,
            stored_tasks,
        )
        from orchard.workers.harnesses import get_harness

        session: Session = context.obj
        session.nats_url()  # that nothing runs is told before what else is missing
        for each in harness or ():
            get_harness(each)  # an unknown one is told now, not by a worker
        found = campaign_tasks(
            session.config.store, source=source, repo=repo, ids=task or [], only_valid=not unproven
        )
        if not found and not stored_tasks(session.config.store):
            raise ConfigError(
                "the store has no task yet: `orchard tasks synthesize --limit 20` makes some, `orchard tasks "
                "import` reads yours"
            )
        if not found:
            raise ConfigError(
                "no proven task matches: `orchard tasks list` shows all, `orchard tasks validate` proves "
                "them, --unproven takes them as they are"
            )
        counts = Counter[str]()
        refs = [each.ref for each in protected_tasks(found, min_protected, counts)[:limit]]
        if below := counts[BELOW]:
            console.print(f"[yellow]left out:[/] {below} tasks below --min-protected {min_protected}")
        if unknown := counts[WITHOUT_LABEL]:
            console.print(without_label(unknown), highlight=False)
        if not refs:
            raise ConfigError(
                f"no task that matches is at least `{min_protected}`: lower --min-protected, or leave it out"
            )
        if impossible:
            traps = read_task_refs(session.config.store, source=IMPOSSIBLE)
            refs = mixed(refs, traps, impossible, name)
        needs = needs_of(session.config.store, refs)
        harnesses = tuple(harness or ()) or asyncio.run(usual_harnesses(session, name, domain, needs))
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
            takeover=takeover_plan(takeover, takeover_endpoint, takeover_after),
        )
        with reporting() as told:
            asyncio.run(submit_campaign(session, spec, needs, told, trial=trial))
        size = f"{plural(spec.size, 'rollout')} of {plural(len(spec.tasks), 'task')}"
        console.print(f"[bold green]submitted[/] {name}: {size}. Follow it with: orchard watch {name}")

    @app.command()
    def status(context: typer.Context, as_json: AsJson = False) -> None:
        """Show all campaigns: state, outcomes, queue depth.

        The pass rate is the mean over tasks, with its 95 % interval. A cost of `-` is not known. Where no
        pipeline runs, the tables are read.
        """
        found = asyncio.run(all_campaigns(context.obj))
        if as_json:
            print_facts(status_facts(found))
            return
        if found.held:
            console.print(f"[bold red]held[/] {escape(found.held)}", highlight=False)
        if found.campaigns:
            console.print(status_table(found.campaigns, found.pipeline, console.width))
            return
        made, proven = found.tasks
        tasks = f"{plural(made, 'task')} made, {proven:,} proven; " if made else ""
        then = "`orchard submit --help` says how to queue one"
        console.print(
            f"{tasks}no campaign yet: "
            + (then if found.pipeline else "nothing runs here, start `orchard up`")
        )

    @app.command()
    def watch(
        context: typer.Context,
        name: Name,
        every: Annotated[float, typer.Option(help="Seconds between two refreshes.", min=0.1)] = 1.0,
        as_json: Annotated[
            bool, typer.Option("--json", help="One JSON object a line for each change, for programs.")
        ] = False,
    ) -> None:
        """Show live progress until the campaign is done: queue, running, outcomes, rate, time left, cost.

        Exit code 1 when rollouts aborted without a grade, or the campaign is paused, cancelled or stuck.
        """
        follow = watch_lines if as_json else watch_campaign
        view = asyncio.run(follow(context.obj, name, every))
        if view.aborted or view.state is not State.FINISHED:
            raise typer.Exit(1)

    @app.command()
    def pause(context: typer.Context, name: Name) -> None:
        """Start no more rollouts; running ones finish."""
        asyncio.run(pause_campaign(context.obj, name))
        console.print(f"{name} is paused: `orchard resume {name}` continues it")

    @app.command()
    def cancel(context: typer.Context, name: Name) -> None:
        """Stop at once: running and waiting rollouts abort with the cause `cancelled`. `resume` brings
        them back."""
        with reporting() as told:
            ended = asyncio.run(cancel_campaign(context.obj, name, told))
        console.print(
            f"{name} is cancelled, {ended} waiting rollouts are aborted: `orchard resume {name}` reopens them"
        )

    @app.command()
    def resume(
        context: typer.Context,
        name: Name,
        aborted: Annotated[
            bool, typer.Option(help="Reopen rollouts that infrastructure failures aborted.")
        ] = True,
        max_cost: Annotated[
            float | None,
            typer.Option(
                help="The campaign's cap in USD from now on; 0 = no cap.", min=0, show_default="unchanged"
            ),
        ] = None,
    ) -> None:
        """Continue after a pause, a cancel, or a failure that aborted rollouts. Outcomes are never redone.

        A campaign that was paused at its cap continues with a higher one: `orchard resume NAME --max-cost
        USD`.
        """
        session: Session = context.obj
        with reporting() as told:
            offered = asyncio.run(
                resume_campaign(session, name, aborted=aborted, max_cost_usd=max_cost, told=told)
            )
        console.print(f"[bold green]resumed[/] {name}: {plural(offered, 'rollout')} offered again")


async def watch_lines(session: Session, name: str, every: float) -> CampaignView:
    """Prints the campaign at each change until it is over, stopped or stuck, and returns the last view."""
    printed = None
    async for status in follow_campaign(session, name, every):
        if (facts := watch_facts(status)) != printed:
            print_facts(printed := facts)
    return status.campaigns[0]
