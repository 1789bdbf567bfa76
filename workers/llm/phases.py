"""How far a request got, for the words of a time-out."""

from dataclasses import dataclass
from enum import StrEnum
from types import SimpleNamespace
from typing import Any

import aiohttp


class Phase(StrEnum):
    """What had not happened yet when the time was up."""

    CONNECTING = "could not be connected to"
    WAITING = "took the request and sent no answer"
    ANSWERING = "began to answer and did not come to an end"


@dataclass
class Reached:
    """Of one request."""

    phase: Phase = Phase.CONNECTING


def phases() -> aiohttp.TraceConfig:
    """Keeps the phase of each request of a session that is given a Reached as its context."""

    async def connected(_session: aiohttp.ClientSession, context: SimpleNamespace, _params: Any) -> None:
        context.trace_request_ctx.phase = Phase.WAITING

    trace = aiohttp.TraceConfig()
    trace.on_connection_create_end.append(connected)
    trace.on_connection_reuseconn.append(connected)
    return trace
