"""The operator's program: makes the tasks' image on each sandbox host, registers tasks, follows the log.

`python -m tests.infra.hosts.laptop TASKS URL=KEY...` prints a line of JSON when all is prepared, and one for
each start and outcome of an attempt then.
"""

import asyncio
import sys

import msgspec

from orchard.actions.session import Session
from orchard.configuration.config import load
from orchard.injector.client import AsyncSandboxClient
from orchard.pipelines.tasks.registry import TaskRegistry
from orchard.schemas.subjects import EVENTS_PREFIX
from orchard.streams.errors import StreamsError
from orchard.streams.health import reports
from orchard.streams.publisher import Publisher
from orchard.streams.replay import replay
from tests.tiny_tasks import build_tiny_image, tiny_task


class Line(msgspec.Struct):
    """What is printed."""

    type: str
    rollout: str = ""
    worker: str = ""
    attempt: int = 0


def say(line: Line) -> None:
    """Print it at once."""
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.flush()


async def main(count: int, services: list[tuple[str, str]]) -> None:
    """Until ended."""
    session = Session(load())
    authority = session.config.sandbox.tls_ca

    async def image(url: str, key: str) -> None:
        async with AsyncSandboxClient(url, api_key=key, tls_ca=authority) as client:
            await build_tiny_image(client, count)

    async with asyncio.TaskGroup() as building:
        for url, key in services:
            building.create_task(image(url, key))
        building.create_task(register(session, count, len(services)))
    say(Line("prepared"))
    async with session.reading_connection("follower") as connection:
        subjects = [f"{EVENTS_PREFIX}.done.>", f"{EVENTS_PREFIX}.started.>"]
        async for stored in replay(connection, subjects=subjects, follow=True):
            if (event := stored.event) is not None:
                say(Line(event.type, event.rollout_id or "", event.source, event.attempt or 0))


async def register(session: Session, count: int, workers: int) -> None:
    """Once the log is there, which the writer makes; returns when so many workers have reported."""
    while True:
        try:
            async with session.connection("register") as connection:
                registry = TaskRegistry(Publisher(connection), session.blobs)
                await registry.register(tiny_task(number) for number in range(count))
                await session.committed(connection)
                while sum(heard.report.kind == "worker" for heard in await reports(connection)) < workers:
                    await asyncio.sleep(0.1)
                return
        except StreamsError:
            await asyncio.sleep(0.2)


if __name__ == "__main__":
    pairs = [tuple(word.split("=", 1)) for word in sys.argv[2:]]
    asyncio.run(main(int(sys.argv[1]), [(url, key) for url, key in pairs]))
