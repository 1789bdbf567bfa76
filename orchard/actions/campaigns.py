"""Submits, follows, pauses, cancels and resumes campaigns."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from orchard.actions.audit import begin
from orchard.actions.campaign_rows import VIEWS, made_and_proven
from orchard.actions.campaign_status import (
    CampaignView,
    PipelineView,
    State,
    Status,
    read_status,
    recorded,
)
from orchard.actions.reporter import SILENT, Reporter
from orchard.actions.session import Session
from orchard.actions.submission import (
    added_fields,
    check_prices,
    check_programs,
    check_workers,
    sandbox_copies,
)
from orchard.configuration.config import ConfigError
from orchard.configuration.flags import with_endpoint
from orchard.schemas.access import UserRole
from orchard.schemas.campaigns import CampaignRecord, CampaignSpec, CampaignState
from orchard.schemas.health import alive
from orchard.schemas.llm_calls import ModelKind
from orchard.storage.reader import open_tables, position
from orchard.streams.campaigns import CampaignBook
from orchard.streams.connection import Connection
from orchard.streams.event_streams import log_end
from orchard.streams.health import reports
from orchard.streams.topology import declare

if TYPE_CHECKING:
    from orchard.pipelines.campaigns.commands import Campaigns, OfferProgress
    from orchard.pipelines.tasks.registry import Needs

STUCK_LOOKS = 30
"""Consecutive checks that find an open campaign without workers before it is followed no more."""


async def submit_campaign(
    session: Session,
    spec: CampaignSpec,
    needs: Mapping[str, "Needs"] | None = None,
    told: Reporter = SILENT,
    *,
    trial: bool = False,
) -> None:
    """Submits a campaign; after a cancellation, the same call resumes it. With `trial`, each endpoint is
    asked first what it serves, once (`check_endpoints`).

    With the `needs` of its tasks, raises ConfigError for tasks that would lack a network (`check_network`) or
    that the sandbox service cannot judge (`check_copies`), when workers serve the queue and none of them can
    run it (`check_workers`), and when its cap could not hold (`check_prices`).
    """
    from orchard.actions.needs import check_copies, check_network, needed_plugins

    spec = msgspec.structs.replace(spec, team=session.principal.team)
    notes = [] if needs is None else check_network(needs, session.config.sandbox.task_network)
    needed = None if needs is None else needed_plugins(spec, needs)
    async with session.connection("submit") as connection:
        if needed is not None:
            working = alive(await reports(connection))
            endpoints = session.endpoints()
            check_prices(spec, endpoints, working)
            notes += check_workers(spec, working, needed, sorted(endpoints))
            notes += added_fields(spec, endpoints)
            if trial and any(model.kind is not ModelKind.ORACLE for model in spec.actors):
                # a second that others need not wait
                from orchard.actions.tried_endpoints import check_endpoints

                here = with_endpoint(session.config, None, None).endpoints
                notes += await check_endpoints(session.directory, spec, here)
            for note in notes:
                told.note(note, "note:")
            await check_programs(session, spec.harnesses)
        if needs is not None and any(each.stopped for each in needs.values()):
            check_copies(needs, await sandbox_copies(session))
        await begin(session, connection, "submit", UserRole.SUBMIT, spec.name)
        await declare(connection, session.config.nats, [spec.queue], session.config.teams)
        await _follow(_campaigns(session, connection).submit(spec), f"submitting {spec.name}", told)


async def grow_campaign(session: Session, spec: CampaignSpec, planned: int) -> None:
    """Submits a campaign, or adds the tasks that `spec` has beyond those of the campaign of its name, which
    is not over before it has `planned` rollouts.

    Raises CampaignError where it differs in anything else, or the campaign is not running.
    """
    spec = msgspec.structs.replace(spec, team=session.principal.team)
    async with session.connection("submit") as connection:
        await begin(session, connection, "submit", UserRole.SUBMIT, spec.name)
        await declare(connection, session.config.nats, [spec.queue], session.config.teams)
        async for _ in _campaigns(session, connection).grow(spec, planned=planned):
            pass


async def resume_campaign(
    session: Session,
    name: str,
    *,
    aborted: bool = True,
    max_cost_usd: float | None = None,
    told: Reporter = SILENT,
) -> int:
    """Resumes a campaign and returns how many rollouts were offered again."""
    options = {"aborted": str(aborted).lower()}
    if max_cost_usd is not None:
        options["max_cost"] = f"{max_cost_usd:g}"
    async with session.connection("resume") as connection:
        await begin(session, connection, "resume", UserRole.OPERATE, name, options)
        steps = _campaigns(session, connection).resume(name, aborted=aborted, max_cost_usd=max_cost_usd)
        return await _follow(steps, f"resuming {name}", told)


async def pause_campaign(session: Session, name: str) -> None:
    """Sets the state, which workers see at their next claim."""
    async with session.connection("pause") as connection:
        await begin(session, connection, "pause", UserRole.OPERATE, name)
        await _campaigns(session, connection).pause(name)


async def cancel_campaign(session: Session, name: str, told: Reporter = SILENT) -> int:
    """Cancels a campaign and returns how many rollouts were aborted here."""
    async with session.connection("cancel") as connection:
        await begin(session, connection, "cancel", UserRole.OPERATE, name)
        return await _follow(_campaigns(session, connection).cancel(name), f"cancelling {name}", told)


class StoreStatus(NamedTuple):
    """All campaigns of a store."""

    campaigns: list[CampaignView]
    pipeline: PipelineView | None = None
    """None where no pipeline runs, so that the campaigns are what the tables have."""
    held: str = ""
    """Why nothing is published; empty: no reason."""
    tasks: tuple[int, int] = (0, 0)
    """Numbers of tasks, and of those that are proven; counted only without a campaign."""


async def all_campaigns(session: Session) -> StoreStatus:
    """The status of every campaign, from the tables alone where no pipeline runs."""
    if session.config.nats.url is None and session.up() is None:
        found = await asyncio.to_thread(_recorded, session.config.store)
    else:
        async with session.reading_connection("status") as connection:
            held = await session.held(connection)
            book = {name: record for name, (record, _) in (await CampaignBook(connection).list()).items()}
            status = await read_status(session, connection, book, await _queues(session, book))
        found = StoreStatus(status.campaigns, status.pipeline, held)
    if found.campaigns:
        return found
    return found._replace(tasks=await asyncio.to_thread(_tasks, session.config.store))


def _recorded(store: str) -> StoreStatus:
    with open_tables(store, views=VIEWS) as tables:
        return StoreStatus(recorded(tables))


def _tasks(store: str) -> tuple[int, int]:
    if not position(store):
        return 0, 0
    with open_tables(store, views=("tasks",)) as tables:
        return made_and_proven(tables)


async def unfinished_campaigns(session: Session) -> list[CampaignView]:
    """Running campaigns that have rollouts without an outcome, once the tables have what the stream has, for
    which it waits some seconds."""
    async with session.reading_connection("up") as connection:
        book = await CampaignBook(connection).list()
        records = {name: one for name, (one, _) in book.items() if one.state is CampaignState.RUNNING}
        if not records:
            return []
        await session.waiting(connection)
        status = await read_status(session, connection, records, await _queues(session, records))
    return [view for view in status.campaigns if not view.over]


async def follow_campaign(session: Session, name: str, every: float) -> AsyncIterator[Status]:
    """The status of one campaign every so many seconds, until it is over, stopped or stuck.

    Tables that lack yet what was said before, as by a resume, are waited for: they show the outcomes that it
    took back. Raises ConfigError for a name that no campaign has.
    """
    async with session.reading_connection("watch") as connection:
        book, before = CampaignBook(connection), await log_end(connection)
        queues: dict[str, str] = {}
        looks = 0
        while (known := await book.get(name)) is not None:
            records = {name: known[0]}
            current = (await asyncio.to_thread(position, session.config.store)).reaches(before)
            queues = queues or await _queues(session, records)
            status = await read_status(session, connection, records, queues)
            yield status
            view = status.campaigns[0]
            waits = not view.running and view.state in (State.STUCK, State.CANCELLED)
            looks = looks + 1 if waits else 0
            paused = view.state is State.PAUSED and not view.running
            if (view.over and current) or paused or looks > STUCK_LOOKS:
                return
            await asyncio.sleep(every)
    raise ConfigError(f"there is no campaign {name!r}: `orchard status` lists them")


async def known_plan(session: Session, name: str) -> CampaignSpec | None:
    """Reads the plan of the campaign of this name, if there is one."""
    async with session.reading_connection("submit") as connection:
        known = await CampaignBook(connection).get(name)
    return None if known is None else await campaign_spec(session, known[0])


async def campaign_spec(session: Session, record: CampaignRecord) -> CampaignSpec:
    """Reads the plan of a campaign from its blob."""
    raw = await asyncio.to_thread(session.blobs.get, record.spec)
    return msgspec.json.decode(raw, type=CampaignSpec)


async def usual_harnesses(
    session: Session, name: str, domain: str, needs: Mapping[str, "Needs"]
) -> tuple[str, ...]:
    """Default harnesses: those of the campaign that is resumed, else the default for the tasks."""
    from orchard.actions.needs import by_patch, default_harness

    by_state = not all(map(by_patch, needs.values()))  # they had another default before
    if by_state and (plan := await known_plan(session, name)) is not None:
        return plan.harnesses
    return (default_harness(domain, needs),)


def _campaigns(session: Session, connection: Connection) -> "Campaigns":
    from orchard.pipelines.campaigns.commands import Campaigns  # a status need not wait for it

    return Campaigns(connection, session.blobs, session.principal.user)


async def _follow(steps: "AsyncIterator[OfferProgress]", title: str, told: Reporter) -> int:
    """Reports each step and returns how many rollouts were offered."""
    offered = 0
    async for step in steps:
        offered = step.offered
        doing = " (queue full: waiting for workers)" if step.waiting else ""
        told.progress(title, step.done, step.total, doing)
    return offered


async def _queues(session: Session, records: Mapping[str, CampaignRecord]) -> dict[str, str]:
    return {
        name: record.queue or (await campaign_spec(session, record)).queue.consumer
        for name, record in records.items()
    }
