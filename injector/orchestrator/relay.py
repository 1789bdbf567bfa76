"""Relays WebSocket frames of terminal sessions and tunnels between a client and an agent."""

import asyncio
from contextlib import suppress

import aiohttp
from aiohttp import WSMsgType, web

from orchard.injector.agent.connections import keep_alive

Line = web.WebSocketResponse | aiohttp.ClientWebSocketResponse


async def relay(client: web.WebSocketResponse, agent: aiohttp.ClientWebSocketResponse) -> None:
    """Relay frames both ways until either end closes or vanishes, then close both.

    The agent closes after its last frame, so a client gets everything; a client that goes ends the session,
    because the agent then loses its own connection.
    """
    keep_alive(client.get_extra_info("socket"))
    both = [asyncio.ensure_future(_forward(client, agent)), asyncio.ensure_future(_forward(agent, client))]
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in both:
            one.cancel()
        await asyncio.wait(both)
        await agent.close()
        await client.close()


async def _forward(source: Line, target: Line) -> None:
    with suppress(ConnectionError):  # the target vanished; its own direction ends too
        async for message in source:
            if message.type is WSMsgType.TEXT:
                await target.send_str(message.data)
            elif message.type is WSMsgType.BINARY:
                await target.send_bytes(message.data)
