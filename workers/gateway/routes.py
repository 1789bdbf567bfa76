"""Maps the addresses that clients use to wires, or to an estimate of tokens. Pure."""

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from orchard.workers.gateway.anthropic import ANTHROPIC
from orchard.workers.gateway.chat import CHAT
from orchard.workers.gateway.completions import COMPLETIONS
from orchard.workers.gateway.gemini import GEMINI, GEMINI_LIST
from orchard.workers.gateway.responses import COMPACT, RESPONSES
from orchard.workers.gateway.wire_types import ProgramRequest, Wire

PATH = re.compile(r"/r/([^/]+)/+(?:api/+)?((?:v1(?:beta1?)?/+)*)(.*)", re.DOTALL)
"""Matches the access key, the version and the address; clients put version paths before the address, some
twice."""
_METHOD = re.compile(r"(?:.*/)?models/(.+):(\w+)")
"""Matches model and method of Gemini's addresses."""


class Route(NamedTuple):
    wire: Wire
    counted: Callable[[int], dict[str, Any]] | None = None
    """Forms the answer from a number of tokens, where no model is asked."""
    model: str | None = None
    """Name of the model, where it is part of the address; else it is in the request."""
    stream: bool = False
    """Whether an address with a model asks for server-sent events."""

    def read(self, raw: bytes) -> ProgramRequest:
        """Parses a request. Raises BadProgramRequest."""
        ask = self.wire.read(raw)
        if self.model is None:
            return ask
        return msgspec.structs.replace(ask, model=self.model, stream=self.stream)


_ROUTES = {
    "chat/completions": Route(CHAT),
    "completions": Route(COMPLETIONS),
    "responses": Route(RESPONSES),
    "responses/compact": Route(COMPACT),
    "responses/input_tokens": Route(
        RESPONSES, lambda tokens: {"object": "response.input_tokens", "input_tokens": tokens}
    ),
    "messages": Route(ANTHROPIC),
    "messages/count_tokens": Route(ANTHROPIC, lambda tokens: {"input_tokens": tokens}),
}


def route_of(address: str, alternative: str) -> Route | None:
    """Returns the route of an address of POST; None for an unknown one. `alternative` is the query's `alt`,
    with which Gemini's clients ask for `sse`."""
    if (found := _METHOD.fullmatch(address)) is None:
        return _ROUTES.get(address)
    model, method = found.groups()
    if method == "countTokens":
        return Route(GEMINI, lambda tokens: {"totalTokens": tokens}, model)
    if method == "generateContent":
        return Route(GEMINI, model=model)
    if method == "streamGenerateContent":
        events = alternative == "sse"
        return Route(GEMINI if events else GEMINI_LIST, model=model, stream=events)
    return None


def is_gemini(version: str, headers: Mapping[str, str]) -> bool:
    """Whether a request for an address that several vendors have, or none, comes from a client of Gemini."""
    return version.startswith("v1beta") or "x-goog-api-key" in headers
