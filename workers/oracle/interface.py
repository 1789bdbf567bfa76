"""The interface of each domain's part of the oracle."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import msgspec

from orchard.schemas.tasks import Task
from orchard.workers.oracle.behaviours import Behaviour
from orchard.workers.oracle.replies import Reply, text_of

MODEL = "oracle"
"""Name of the model; `oracle/WORD` asks for one behaviour."""


class OracleRequest(msgspec.Struct, frozen=True):
    """The fields of a chat completion's request that the oracle reads; it accepts all others."""

    messages: list[dict[str, Any]]
    model: str = MODEL
    tools: list[dict[str, Any]] | None = None
    seed: int | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None

    @property
    def tool_names(self) -> list[Any]:
        return [(tool.get("function") or {}).get("name") for tool in self.tools or ()]

    @property
    def variant(self) -> str:
        """The part of the model's name after `oracle/`; empty for `oracle` alone."""
        return self.model.partition("/")[2]

    def spoken(self, *roles: str) -> str:
        return "\n".join(text_of(message) for message in self.messages if message.get("role") in roles)


class CannotPlay(Exception):
    """The oracle cannot answer the request; `status` is the HTTP status and `code` OpenAI's code for that."""

    def __init__(self, why: str, status: int = 400, code: str | None = None) -> None:
        super().__init__(why)
        self.status = status
        self.code = code


class OraclePlayer(Protocol):
    """A domain's part of the oracle. It is stateless: the conversation shows which task and turn it is."""

    async def start(self) -> None:
        """Reads what there is to play, once, before the first request."""

    def plays(self, request: OracleRequest) -> bool: ...

    async def reply(self, request: OracleRequest) -> Reply:
        """Returns the next message of a conversation that it plays. Raises CannotPlay."""


MakePlayer = Callable[[Callable[[], Iterable[Task]], Mapping[Behaviour, float]], OraclePlayer]
"""Makes a player of a source of tasks, which it may read again, and a mix of behaviours."""
