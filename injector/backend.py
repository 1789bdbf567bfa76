"""What the orchestrator needs from whatever holds the sandboxes: one machine, a cluster."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

import aiohttp

from orchard.schemas.sandboxes import CreateSandbox, Health, Resources, SandboxInfo

T = TypeVar("T")


class Agent(Protocol):
    """The agent in one sandbox, which does what concerns no other: commands, files, terminals, copies.

    In a path `{id}` stands for the sandbox. Raises what the agent's answer stands for, and what is behind its
    silence: SandboxNotFound, SandboxFailed, SandboxConflict (`pending`), SandboxUnavailable. What was sent is
    not sent again.
    """

    async def call(
        self,
        kind: type[T],
        method: str,
        path: str,
        *,
        body: Any = None,
        params: Mapping[str, str] | None = None,
        key: str | None = None,
    ) -> T:
        """Send a request, whose body is a record, bytes or pieces of bytes; its JSON answer as `kind`.

        `key` is an idempotency key: the same again returns what the first request made.
        """

    def stream(
        self, path: str, params: Mapping[str, str]
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """The answer of a GET in pieces."""

    async def line(self, path: str) -> aiohttp.ClientWebSocketResponse:
        """A WebSocket for one terminal session, frames as in the contract; the caller closes it."""


class Backend(Protocol):
    """Makes and ends sandboxes. It is the only memory: an orchestrator may be replaced at any time.

    Every method raises the typed errors of `injector/errors.py`. Times are seconds.
    """

    async def open(self) -> None:
        """Get ready to serve."""

    async def close(self) -> None:
        """Let go of connections; sandboxes stay."""

    async def health(self) -> Health:
        """Raises SandboxUnavailable when sandboxes cannot be made or reached."""

    async def resources(self) -> Resources:
        """What there is and what is asked for."""

    async def create(self, request: CreateSandbox, key: str | None) -> SandboxInfo:
        """Begin to create a sandbox; it is `pending`. Raises SandboxConflict when the id is taken.

        `key` is an idempotency key.
        """

    async def get(self, sandbox_id: str) -> SandboxInfo:
        """Raises SandboxNotFound."""

    async def wait(self, sandbox_id: str, timeout: float) -> SandboxInfo:
        """The sandbox once it is ready or failed; SandboxWaitTimeout."""

    async def list(self, labels: Mapping[str, str]) -> list[SandboxInfo]:
        """Those that carry all `labels`."""

    async def delete(self, sandbox_id: str) -> None:
        """Gone when this returns; unknown ids too."""

    def agent(self, sandbox_id: str) -> Agent:
        """Of this sandbox; nothing is asked yet."""

    def images(self) -> Agent:
        """The agent that keeps the images; SandboxUnsupported where they are kept elsewhere."""
