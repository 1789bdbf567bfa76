"""What is asked to learn whether an endpoint answers at all, apart from what it was asked last.

The shortest request that it has answered before proves most. Without one, what it refused is tried again, and
then a few words: a request may be what it fails at, and some servers fail at a few words.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

HELLO: Mapping[str, Any] = MappingProxyType({"role": "user", "content": "Say yes."})
TRUSTED_QUESTIONS = 3
"""Questions of a few words, by a process that has seen no request yet, whose internal errors are believed."""


class Questions:
    """Of one endpoint and process, by model."""

    def __init__(self) -> None:
        self._answered: dict[str, bytes] = {}
        self._refused: dict[str, bytes] = {}

    def answered(self, model: str, request: bytes) -> None:
        """Take notice of a request that was answered."""
        before = self._answered.get(model)
        if before is None or len(request) < len(before):
            self._answered[model] = request
        self._refused.pop(model, None)

    def refused(self, model: str, request: bytes) -> None:
        """Take notice of a request that was not."""
        self._refused[model] = request

    def of(self, model: str, few_words: bytes) -> list[bytes]:
        """The requests to put to it, for one token each; a later one only where the one before met an error
        that may be of the request's own."""
        if (answered := self._answered.get(model)) is not None:
            return [_short(answered)]
        refused = self._refused.get(model)
        return [few_words] if refused is None else [_short(refused), few_words]

    def believed(self, model: str, number: int) -> bool:
        """Whether an internal error at question `number` says that the endpoint fails. Otherwise the rest
        ends for a trial, and the next one is longer."""
        return model in self._answered or model in self._refused or number < TRUSTED_QUESTIONS


def _short(request: bytes) -> bytes:
    """The request for one token."""
    body = msgspec.json.decode(request)
    body["max_completion_tokens" if "max_completion_tokens" in body else "max_tokens"] = 1
    return msgspec.json.encode(body)
