"""What waits, by image: `orchard sandbox prepull` fetches it, and the steward tells it to a cluster."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from orchard.processes.queue_demand import waiting_images
from orchard.streams.server import EmbeddedServer
from tests.attempts_world import SECONDS, World, world
from tests.injector.conftest import Archives, Service
from tests.injector.registry import Registry
from tests.tiny_tasks import tiny_task

pytestmark = [pytest.mark.long, pytest.mark.needs_root("layers have owners")]


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry().serving() as running:
        yield running


@pytest.fixture
async def place(nats_server: EmbeddedServer, tmp_path: Path) -> AsyncIterator[World]:
    service = Service(tmp_path / "service" / "state")
    async with world(nats_server.url, service.url, tmp_path / "store", ()) as made:
        yield made
    service.stop()


async def command(place: World, *words: str, **changes: str) -> tuple[int, str]:
    """Exit status and output of an `orchard` command, with `changes` of its environment."""
    line = [sys.executable, "-m", "orchard", *words]
    env = {**os.environ, **place.environment, **changes}
    run = await asyncio.to_thread(subprocess.run, line, env=env, capture_output=True, text=True)
    return run.returncode, run.stdout + run.stderr


async def test_images_of_a_campaign_are_fetched_and_a_missing_one_is_named(
    place: World, registry: Registry, tmp_path: Path
) -> None:
    registry.push("1", Archives(tmp_path).layer(("x", b"", 0o644)))
    there, none = f"{registry.address}/tools/tiny:1", f"{registry.address}/tools/tiny:2"
    tasks = [tiny_task(1, image=there), tiny_task(2, image=none), tiny_task(3, image=there)]
    await place.submit(*tasks, samples=2)
    assert await place.rows("select count(*) from requests") == [(6,)]

    assert waiting_images(str(place.store)) == {there: 4, none: 2}
    assert sum(waiting_images(str(place.store), limit=3).values()) == 3

    status, said = await command(place, "sandbox", "prepull", "--campaign", "demo")
    assert status == 1, said
    assert f"image_missing: {none}" in said
    assert "1 of 2 images are there" in said
    assert [image.name for image in await place.sandboxes.list_images()] == [there]

    status, said = await command(place, "sandbox", "prepull", "--campaign", "nobody's")
    assert (status, "there is no campaign" in said) == (1, True)


NOWHERE = {"image": "some:1", "pulled": 0}
EVICTED = {**NOWHERE, "failed": 2, "reason": "image_unavailable", "message": "The node was low on resource"}


CLUSTERS: list[tuple[int, int, dict[str, object], int, str]] = [
    (0, 0, NOWHERE, 1, "no_nodes: some:1: no node takes sandboxes"),
    (2, 0, EVICTED, 1, "image_unavailable: some:1: The node was low on resource (on 2 of 2 nodes)"),
    (2, 2, NOWHERE, 1, "not_there: some:1: on 0 of 2 nodes; 2 have no room"),
    (2, 1, {**NOWHERE, "pulled": 1}, 0, "1 of 1 images are there; nodes without room: 1"),
]
"""Nodes, those that were skipped, what is told of the image; exit status and words of the command."""


async def test_only_an_image_on_every_node_with_room_is_there(place: World) -> None:
    told: dict[str, object] = {}

    async def prepare(_: web.Request) -> web.Response:
        return web.json_response(told)

    app = web.Application()
    app.router.add_post("/images/prepare", prepare)
    await place.submit(tiny_task(1, image="some:1"), samples=1)
    await place.rows("select 1 from requests")
    async with TestServer(app) as cluster:
        url = str(cluster.make_url("")).rstrip("/")
        for nodes, skipped, image, status, words in CLUSTERS:
            told |= {"nodes": nodes, "skipped": skipped, "done": True, "images": [image]}
            asked = ("sandbox", "prepull", "--campaign", "demo")
            found, said = await command(place, *asked, ORCHARD_SANDBOX__URL=url)
            assert found == status and words in said, said


async def test_the_steward_tells_it_again_and_again(place: World, registry: Registry) -> None:
    image = f"{registry.address}/tools/tiny:1"
    told: asyncio.Queue[bytes] = asyncio.Queue()

    async def demand(request: web.Request) -> web.Response:
        assert request.headers["X-API-Key"] == "a key"
        told.put_nowait(await request.read())
        return web.json_response({"images": {}})

    app = web.Application()
    app.router.add_put("/images/demand", demand)
    await place.submit(tiny_task(1, image=image), samples=3)
    await place.rows("select 1 from requests")
    async with TestServer(app) as cluster:
        changes = {
            "ORCHARD_SANDBOX__URL": str(cluster.make_url("")).rstrip("/"),
            "ORCHARD_SANDBOX__FOLLOW_QUEUE": "true",
            "SANDBOX_API_KEY": "a key",
        }
        line = [sys.executable, "-m", "orchard", "steward"]
        steward = await asyncio.create_subprocess_exec(
            *line, env={**os.environ, **place.environment, **changes}
        )
        try:
            async with asyncio.timeout(SECONDS):
                for _ in range(2):
                    assert msgspec.json.decode(await told.get()) == {"images": {image: 3}}
        finally:
            steward.terminate()
            await steward.wait()
