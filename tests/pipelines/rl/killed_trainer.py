"""`python -m tests.pipelines.rl.killed_trainer`: a trainer that kills itself with SIGKILL at one place."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable

import msgspec

from orchard.pipelines.rl.engines import ServingEngine
from orchard.pipelines.rl.runs import planned
from orchard.pipelines.rl.settings import EngineKind, RlSettings
from orchard.pipelines.rl.trainer import RlTrainer
from orchard.pipelines.sft.checkpoints import Checkpoints
from orchard.pipelines.sft.processes import joined
from orchard.storage.blobs import BlobStore
from orchard.streams.connection import connect
from orchard.streams.publisher import Publisher
from orchard.streams.settings import NatsSettings


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at(place: str) -> None:
    """Patch what comes at that place of the first step."""
    event: Callable[..., object] = Publisher.event

    async def before_event(self: Publisher, event_: object) -> object:
        kind = getattr(event_, "type", "")
        if (place, kind) == ("before update", "policy.updated"):
            die()
        found = await event(self, event_)  # type: ignore[misc]
        if (place, kind) == ("after update", "policy.updated"):
            die()
        return found

    if place == "before checkpoint":
        Checkpoints.save = die  # type: ignore[method-assign,assignment]
    Publisher.event = before_event  # type: ignore[method-assign,assignment]


async def main(url: str, store: str, server: str, key: str, place: str, raw: str) -> None:
    kill_at(place)
    settings = msgspec.json.decode(raw, type=RlSettings)
    blobs = BlobStore(store)
    with joined(1) as processes:
        async with connect(NatsSettings(), name="trainer", url=url) as connection:
            known = await planned(connection, blobs, settings.run)
            assert known is not None
            plan, start = known
            engine = ServingEngine(EngineKind.ORCHARD, server, plan.name, key=key)
            trainer = RlTrainer(settings, plan, connection, blobs, processes, engines=[engine])
            await trainer.run(start)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
