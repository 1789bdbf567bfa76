"""Builds datasets through a queue, records them in the log, and imports trajectories."""

import asyncio
import gc
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from orchard.actions.reporter import Reporter
from orchard.actions.session import Session
from orchard.pipelines.datasets.importing import Found, Imported, import_trajectories
from orchard.pipelines.datasets.manifest import Manifest
from orchard.schemas.datasets import DatasetBuilt
from orchard.schemas.events import make_event
from orchard.schemas.identity import digest
from orchard.schemas.positions import Position
from orchard.streams.entries import QueueEntry
from orchard.streams.publisher import Publisher
from orchard.streams.topology import declare


async def build_through_queue(session: Session, build_it: Callable[..., Manifest]) -> Manifest:
    """Builds in a thread, while `orchard dataset worker` processes make the shards offered here."""
    from orchard.pipelines.datasets.queueing import QUEUE, through_queue

    loop = asyncio.get_running_loop()
    async with session.connection("dataset build") as connection:
        await declare(connection, session.config.nats, [QUEUE])
        publisher = Publisher(connection)

        def offer(entries: Sequence[QueueEntry]) -> None:
            asyncio.run_coroutine_threadsafe(publisher.offer_absent(entries), loop).result()

        return await asyncio.to_thread(partial(build_it, shards_by=through_queue(offer)))


async def announce(session: Session, manifest: Manifest, seconds: float) -> bool:
    """Records the build in the log, with its manifest as a blob; False if this machine has no stream of
    the store."""
    blob = session.blobs.put(msgspec.json.encode(manifest), "application/json")
    reached = Position.of(manifest.range.last)
    data = DatasetBuilt(
        name=manifest.name,
        sha256=manifest.sha256,
        first_sequence=manifest.range.first,
        last_sequence=reached.last(0),
        last_sequences=tuple(reached) if len(reached) > 1 else (),
        code_version=manifest.code_version,
        config_hash=manifest.config_hash,
        rows=manifest.rows,
        tokens=manifest.tokens,
        trained_tokens=manifest.trained_tokens,
        resolved=manifest.resolved,
        tokenizer=manifest.tokenizer,
        tokenizer_sha256=manifest.tokenizer_sha256,
        counts=manifest.counts,
        manifest=blob,
        seconds=seconds,
    )
    event = make_event(
        data,
        id=digest(["dataset.built", manifest.name, manifest.sha256, manifest.range, manifest.config_hash]),
        source="orchard/dataset/build",
        campaign="datasets",
        subject=f"datasets/{manifest.name}",
    )
    local = (session.directory / "nats").is_dir()
    if not (session.config.nats.url or session.up() or local):
        # A new stream under tables that were written from another would part the two for ever.
        return False
    async with session.connection_or_server("dataset build") as connection:
        await declare(connection, session.config.nats, [])
        await Publisher(connection).event(event)
    return True


async def import_rollouts(
    session: Session, found: Found | Callable[[], Found], campaign: str, dataset: str, told: Reporter
) -> tuple[Imported, str]:
    """Imports trajectories into a campaign; a function that returns them is called in a process of its own.
    Returns the counts, and a note if no writer takes the events."""
    gc.freeze()  # modules, which each collection would look through
    async with session.connection_or_server("import", bulk=True) as connection:
        await declare(connection, session.config.nats, [])
        done = await import_trajectories(
            Publisher(connection),
            session.blobs,
            found,
            campaign=campaign,
            dataset=dataset,
            told=lambda rollouts: told.progress("importing", rollouts, None),
        )
        return done, await session.waiting(connection)
