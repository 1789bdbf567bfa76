"""An endpoint of a test's own, over HTTP."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(models: Handler, chat: Handler) -> AsyncIterator[str]:
    """The base URL at which the two handlers answer."""
    routes = web.Application(client_max_size=2**26)
    routes.router.add_get("/v1/models", models)
    routes.router.add_post("/v1/chat/completions", chat)
    runner = web.AppRunner(routes)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()
