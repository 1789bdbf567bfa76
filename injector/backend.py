"""The interface of a backend: what the orchestrator needs from a machine or a cluster with sandboxes."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

import aiohttp

from orchard.schemas.sandboxes import CreateSandbox, Health, Resources, SandboxInfo

T = TypeVar("T")


class SandboxAgent(Protocol):
    """The agent in one sandbox, which handles what concerns no other: commands, files, terminals, copies.

    In a path `{id}` stands for the sandbox. Raises the error that the response stands for, or the cause of a
    missing one: SandboxNotFound, SandboxFailed, SandboxConflict (`pending`), SandboxUnavailable. Nothing is
    sent twice.
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
        """Send a request, whose body is a record, bytes or pieces of bytes; decodes the JSON response as
        `kind`.

        `key` is an idempotency key: the same again returns the result of the first request.
        """

    def stream(
        self, path: str, params: Mapping[str, str]
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]: ...

    async def line(self, path: str) -> aiohttp.ClientWebSocketResponse:
        """Open a WebSocket for one terminal session, with the contract's frames; the caller closes it."""


class Backend(Protocol):
    """Makes and deletes sandboxes. It holds all state: an orchestrator may be replaced at any time.

    Every method raises the typed errors of `injector/errors.py`. Times are seconds.
    """

    async def open(self) -> None: ...

    async def close(self) -> None:
        """Close connections; sandboxes stay."""

    async def health(self) -> Health:
        """Raises SandboxUnavailable when sandboxes cannot be made or reached."""

    async def resources(self) -> Resources:
        """Report capacity and what is requested of it."""

    async def create(self, request: CreateSandbox, key: str | None) -> SandboxInfo:
        """Begin to create a sandbox; it is `pending`. Raises SandboxConflict when the id is taken.

        `key` is an idempotency key.
        """

    async def get(self, sandbox_id: str) -> SandboxInfo:
        """Raises SandboxNotFound."""

    async def wait(self, sandbox_id: str, timeout: float) -> SandboxInfo:
        """Return the sandbox once it is ready or failed. Raises SandboxWaitTimeout."""

    async def list(self, labels: Mapping[str, str]) -> list[SandboxInfo]: ...

    async def delete(self, sandbox_id: str) -> None:
        """Delete a sandbox and wait until it is gone; ignores unknown ids."""

    def agent(self, sandbox_id: str) -> SandboxAgent:
        """Return the agent of a sandbox, without contacting it."""

    def images(self) -> SandboxAgent:
        """Return the agent that stores images. Raises SandboxUnsupported if they are stored elsewhere."""
