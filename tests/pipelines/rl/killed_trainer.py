"""`python -m tests.pipelines.rl.killed_trainer`: a trainer that kills itself with SIGKILL at one place."""

import asyncio
import sys

import msgspec

from orchard.pipelines.rl.engines import ServingEngine
from orchard.pipelines.rl.runs import planned
from orchard.pipelines.rl.settings import EngineKind, RlSettings
from orchard.pipelines.rl.trainer import RlTrainer
from orchard.pipelines.sft.checkpoints import Checkpoints
from orchard.pipelines.sft.processes import joined
from orchard.storage.blobs import BlobStore
from orchard.streams.connection import connect
from orchard.streams.settings import NatsSettings
from tests.pipelines.rl.killing import die, kill_at


async def main(url: str, store: str, server: str, key: str, place: str, raw: str) -> None:
    if place == "before checkpoint":
        Checkpoints.save = die  # type: ignore[method-assign,assignment]
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
