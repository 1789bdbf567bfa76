"""`judge`: judges a finished campaign again by another protocol or model, and measures judges against
graders."""

import asyncio
import signal
from contextlib import AsyncExitStack, aclosing
from functools import partial
from itertools import islice
from typing import Annotated

import msgspec
import typer
import uvloop

from orchard.actions.session import Session
from orchard.cli.facts import print_facts
from orchard.configuration.config import ConfigError
from orchard.pipelines.domains.gui.judging.again import (
    QUEUE,
    JudgingTally,
    OutcomeJudge,
    is_foreign,
    read_episodes,
    verdict_key,
)
from orchard.pipelines.domains.gui.judging.agreement import JudgeAgreement, agreement, read_pairs
from orchard.schemas.events import payload
from orchard.schemas.judging import JudgeRuled
from orchard.schemas.requests import JudgeRequest
from orchard.storage.reader import open_tables
from orchard.streams.answers import OfferedRequests, working
from orchard.streams.claims import Claims
from orchard.streams.consumer import Consumer
from orchard.streams.entries import QueueEntry
from orchard.streams.publisher import Publisher
from orchard.streams.topology import declare
from orchard.terminal.console import console, progress
from orchard.terminal.tables import rows_table
from orchard.workers.attempts.deadletters import DeadLetters
from orchard.workers.domains.gui import DOMAIN
from orchard.workers.episode.settings import JudgeSettings
from orchard.workers.llm.client import ModelClient
from orchard.workers.llm.endpoint_rests import RestTracker

AGREEMENT = "agreement"
_COLUMNS = [
    *("protocol", "prompts", "model", "rollouts", "tasks", "both", "judge only", "grader only", "neither"),
    *("agreed", "kappa", "95 %"),
]


class JudgeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One judge in `orchard judge agreement --json`."""

    protocol: str
    prompts: str
    """Digest of the protocol's prompts."""
    model: str
    tasks: int
    """Number of tasks of the compared rollouts."""
    agreement: JudgeAgreement


class JudgeListing(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `orchard judge agreement CAMPAIGN --json`."""

    judges: list[JudgeFacts]


def facts() -> dict[str, type]:
    return {"judge": JudgeListing}


def register(app: typer.Typer) -> None:
    app.command("judge")(judge)


def judge(
    context: typer.Context,
    campaign: Annotated[
        str, typer.Argument(help="Campaign of browser agents; or `agreement` and then the campaign.")
    ],
    of: Annotated[str | None, typer.Argument(help="With `agreement`: the campaign.")] = None,
    protocol: Annotated[
        str,
        typer.Option(
            help=f"{', '.join(DOMAIN.components['judges'])}, or a plug-in; without a version the newest."
        ),
    ] = "orchard",
    model: Annotated[
        str | None, typer.Option(help="Model that judges.", show_default="judge.model of the configuration")
    ] = None,
    endpoint: Annotated[
        str | None, typer.Option(help="Endpoint.", show_default="judge.endpoint of the configuration")
    ] = None,
    slots: Annotated[int, typer.Option(help="Maximum concurrent rollouts in this process.", min=1)] = 8,
    max_cost: Annotated[
        float | None,
        typer.Option(help="Cost of the calls in USD at which no further rollout is begun.", min=0.0),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="With `agreement`: one JSON object.")] = False,
) -> None:
    """Judge rollouts of browser agents again, without running them, and measure judges against graders.

    Old rewards stay; verdicts are in the view `judgements`. Run it again to resume. A judge that is down
    leaves rollouts without a verdict, and the same command asks about those again. `agreement` compares
    verdicts with the rewards that graders without a judge gave. For example:

        orchard judge shop --protocol webjudge --model gpt-4.1
        orchard judge agreement shop
    """
    session: Session = context.obj
    if as_json and of is None:
        raise typer.BadParameter("--json goes with `agreement`: orchard judge agreement CAMPAIGN --json")
    if of is not None:
        if campaign != AGREEMENT:
            raise ConfigError(f"`orchard judge {campaign} {of}` names two campaigns: judge one at a time")
        show_agreement(session, of, as_json=as_json)
        return
    known = session.config.judge
    wanted = msgspec.structs.replace(
        known, protocol=protocol, model=model or known.model, endpoint=endpoint or known.endpoint
    )
    try:
        whole = uvloop.run(judge_campaign(session, campaign, wanted, slots, max_cost))
    except asyncio.CancelledError:
        raise typer.Exit(128 + signal.SIGTERM) from None
    if not whole:
        raise typer.Exit(1)


async def judge_campaign(
    session: Session, campaign: str, wanted: JudgeSettings, slots: int = 8, max_cost: float | None = None
) -> bool:
    """Judges rollouts without a verdict; returns whether all have one now."""
    if wanted.model is None:
        raise ConfigError("no model judges: name one with --model, or set judge.model")
    endpoints = session.endpoints()
    settings = endpoints.get(wanted.endpoint)
    if settings is None:
        raise ConfigError(f"there is no endpoint {wanted.endpoint!r}: add [endpoints.{wanted.endpoint}]")
    if max_cost is not None and wanted.model not in settings.prices:
        raise ConfigError(
            f"--max-cost needs the price of {wanted.model}: add [endpoints.{wanted.endpoint}.prices.MODEL]"
        )
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with AsyncExitStack() as stack:
        connection = await stack.enter_async_context(session.connection("judge"))
        await declare(connection, session.config.nats, [QUEUE])
        await session.committed(connection)
        with open_tables(session.config.store) as tables:
            episodes = read_episodes(tables, campaign, wanted)
        if not episodes.open:
            if not episodes.judged:
                raise ConfigError(
                    f"no rollout of {campaign!r} has an outcome: `orchard status` lists the campaigns"
                )
            console.print(
                f"nothing to judge in {campaign}: all {episodes.judged} rollouts have their verdict"
            )
            return True
        foreign = await asyncio.to_thread(partial(_foreign, session, episodes.open))
        if len(foreign) == len(episodes.open):
            raise ConfigError(
                f"no rollout of {campaign!r} was handed in by a browser agent: nothing to judge"
            )
        requests = {key: one for one in episodes.open if (key := verdict_key(one)) not in foreign}
        tally = JudgingTally(max_cost)
        rests = await stack.enter_async_context(RestTracker(connection, "judge"))
        models = await stack.enter_async_context(ModelClient(endpoints, rests, waits=True))
        judge_ = OutcomeJudge(Publisher(connection), session.blobs, models)
        claims = await stack.enter_async_context(Claims(connection, QUEUE))
        consumer = Consumer(claims, DeadLetters(connection), {QUEUE.kind: judge_}, slots=slots)
        offered = OfferedRequests(connection, QUEUE.kind)

        def entry(key: str, fence: int, occasion: str) -> QueueEntry:
            return judge_.entry(msgspec.structs.replace(requests[key], fence=fence), occasion)

        bar = stack.enter_context(progress("rollouts"))
        done = episodes.judged + len(foreign)
        line = bar.add_task(campaign, total=done + len(requests), completed=done)
        left = iter(requests)
        # A cap holds for all workers together: no more is on the queue than may be under way.
        at_once = len(requests) if max_cost is None else slots
        try:
            await offered.offer(list(islice(left, at_once)), entry)
            async with working(offered, consumer), aclosing(offered.answers()) as answers:
                async for answer in answers:
                    bar.advance(line)
                    ruled = payload(answer.event) if answer.event is not None else None
                    tally.take(ruled if isinstance(ruled, JudgeRuled) else None, answer.reason)
                    if tally.stopped:
                        await offered.withdraw()
                    elif following := list(islice(left, 1)):
                        await offered.offer(following, entry)
        except asyncio.CancelledError:
            console.print("stopped: run the same command again to judge the rest")
            raise
        await session.committed(connection)
    return _tell(tally, len(requests), len(foreign))


def _foreign(session: Session, requests: list[JudgeRequest]) -> set[str]:
    return {verdict_key(one) for one in requests if is_foreign(one, session.blobs)}


def _tell(tally: JudgingTally, asked: int, foreign: int) -> bool:
    given = tally.verdicts.total()
    cost = "unknown: the model has no price" if tally.cost_usd is None else f"{tally.cost_usd:.4f} USD"
    console.print(
        f"[bold green]judged[/] {given} rollouts: {tally.verdicts[True]} SUCCESS, "
        f"{tally.verdicts[False]} NOT SUCCESS. Cost {cost}.",
        highlight=False,
    )
    if foreign:
        console.print(f"{foreign} were handed in by no browser agent and are left out")
    missing = asked - given
    if missing:
        why = f": {tally.stopped}" if tally.stopped else ""
        console.print(
            f"[yellow]{missing} have no verdict{why}[/]. The same command asks about them again.",
            highlight=False,
        )
    return not missing


def show_agreement(session: Session, campaign: str, *, as_json: bool = False) -> None:
    """Prints the agreement of each judge with the campaign's graders."""
    with open_tables(session.config.store) as tables:
        found = read_pairs(tables, campaign)
    if not found:
        raise ConfigError(
            f"no rollout of {campaign!r} has both a verdict and a reward that no judge gave: run `orchard "
            f"judge {campaign}` on a campaign of generated sites"
        )
    judges = [
        JudgeFacts(
            **dict(zip(("protocol", "prompts", "model"), who, strict=True)),
            tasks=len({pair.task_id for pair in pairs}),
            agreement=agreement(pairs),
        )
        for who, pairs in found.items()
    ]
    if as_json:
        print_facts(JudgeListing(judges=judges))
        return
    rows = []
    for judge_ in judges:
        one = judge_.agreement
        who = (judge_.protocol, judge_.prompts[:8], judge_.model)
        counts = (one.both, one.judge_only, one.grader_only, one.neither)
        rows.append((*who, one.rollouts, judge_.tasks, *counts, f"{one.agreed:.1%}", *_kappa(one)))
    console.print(rows_table(_COLUMNS, rows))


def _kappa(one: JudgeAgreement) -> tuple[str, str]:
    value = "-" if one.kappa is None else f"{one.kappa:.3f}"
    return value, "-" if one.low is None or one.high is None else f"{one.low:.3f} to {one.high:.3f}"
