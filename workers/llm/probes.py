"""The requests that find out whether an endpoint answers at all, apart from what it was asked last.

The shortest request that it has answered before proves most. Without one, the request that it refused is
tried again, and then a few words: a request may be the reason for its own failure, and some servers fail at a
few words.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

HELLO: Mapping[str, Any] = MappingProxyType({"role": "user", "content": "Say yes."})
TRUSTED_PROBES = 3
"""Probes of a few words whose internal errors are believed, in a process that has not sent a request yet."""


class ProbeRequests:
    def __init__(self) -> None:
        self._answered: dict[str, bytes] = {}
        self._refused: dict[str, bytes] = {}

    def answered(self, model: str, request: bytes) -> None:
        before = self._answered.get(model)
        if before is None or len(request) < len(before):
            self._answered[model] = request
        self._refused.pop(model, None)

    def refused(self, model: str, request: bytes) -> None:
        self._refused[model] = request

    def of(self, model: str, few_words: bytes) -> list[bytes]:
        """Returns the probes in order, each for one token; a later one is sent only if the one before failed
        with an error that its own content may cause."""
        if (answered := self._answered.get(model)) is not None:
            return [_short(answered)]
        refused = self._refused.get(model)
        return [few_words] if refused is None else [_short(refused), few_words]

    def believed(self, model: str, number: int) -> bool:
        """Whether an internal error at probe `number` shows that the endpoint fails. Otherwise the rest ends
        on trial, and the next one is longer."""
        return model in self._answered or model in self._refused or number < TRUSTED_PROBES


def _short(request: bytes) -> bytes:
    body = msgspec.json.decode(request)
    body["max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"] = 1
    return msgspec.json.encode(body)
