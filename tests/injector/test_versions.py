"""An orchestrator beside an agent of another version: what both know works, the rest says why not."""

import os
import tomllib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import pytest
from aiohttp import web
from aiohttp.typedefs import Handler

from orchard.injector.agent.protocol import VERSION, VERSION_HEADER
from orchard.injector.agent_connection import AgentConnection
from orchard.injector.errors import SandboxError
from orchard.injector.unix_http import ConnectionPool, Sized
from orchard.schemas.sandboxes import FileWritten, Health, SandboxInfo

if TYPE_CHECKING:
    from tests.injector.conftest import Service


@pytest.fixture(params=["0.0.7", None])
async def older(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[AgentConnection, str]]:
    """A line to an agent that knows two routes, and answers one of them as nobody does any more."""
    version: str | None = request.param
    headers = {} if version is None else {VERSION_HEADER: version}

    async def health(_request: web.Request) -> web.Response:
        return web.json_response({"status": "healthy"}, headers=headers)

    async def sandbox(_request: web.Request) -> web.Response:
        return web.json_response({"id": 7}, headers=headers)

    @web.middleware
    async def told(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPException as error:
            error.headers.update(headers)
            raise

    async def written(request: web.Request) -> web.Response:
        size = len(await request.read())
        return web.json_response({"success": True, "path": "f", "size": size}, headers=headers)

    app = web.Application(middlewares=[told])
    app.add_routes([web.get("/health", health), web.get("/sandboxes/x", sandbox)])
    app.add_routes([web.put("/sandboxes/x/files", written)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.UnixSite(runner, str(tmp_path / "agent.sock")).start()
    path = str(tmp_path / "agent.sock")
    line = AgentConnection(aiohttp.UnixConnector(path), pool=ConnectionPool(path))
    yield line, version or "unknown"
    await line.close()
    await runner.cleanup()


async def test_what_both_know_works(older: tuple[AgentConnection, str]) -> None:
    line, _ = older
    assert (await line.call(Health, "GET", "/health")).status == "healthy"


async def test_a_content_whose_size_is_known_goes_to_an_agent_that_takes_pieces_only(
    older: tuple[AgentConnection, str],
) -> None:
    line, _ = older

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"1234567"

    written = await line.call(FileWritten, "PUT", "/sandboxes/x/files", body=Sized(pieces(), 21))
    assert written.size == 21


async def test_what_one_does_not_know_is_a_sentence_with_both_versions_and_the_remedy(
    older: tuple[AgentConnection, str],
) -> None:
    line, version = older

    async def reading() -> None:
        async with line.stream("/sandboxes/x/archive", {"path": "/"}):
            pass

    for work in (
        line.call(SandboxInfo, "GET", "/sandboxes/x"),
        line.call(SandboxInfo, "POST", "/sandboxes/x", body=b"{}"),
        line.call(SandboxInfo, "POST", "/sandboxes/x/new"),
        line.line("/sandboxes/x/exec/pty"),
        reading(),
    ):
        with pytest.raises(SandboxError) as refused:
            await work
        assert (refused.value.reason, refused.value.status) == ("version_differs", 502)
        said = refused.value.detail
        assert f"agent has version {version} and this orchestrator version {VERSION}" in said
        assert "--stop" in said and "agent_image" in said and "\n" not in said


async def test_the_agent_says_its_version_on_every_answer(service: "Service") -> None:
    directory = os.open(service.state, os.O_PATH | os.O_DIRECTORY)
    connector = aiohttp.UnixConnector(f"/proc/self/fd/{directory}/agent.sock")
    async with aiohttp.ClientSession(connector=connector) as http:
        for path, status in (("/health", 200), ("/sandboxes/none", 404), ("/nothing", 404)):
            async with http.get(f"http://agent{path}") as reply:
                assert (reply.status, reply.headers[VERSION_HEADER]) == (status, VERSION)
    os.close(directory)


def test_it_is_the_version_of_the_project() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert project["project"]["version"] == VERSION
