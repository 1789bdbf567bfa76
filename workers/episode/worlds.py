"""Worlds: what a task has beside its sandbox, as an attempt sees it. One interface for all domains.

A world is a plug-in. It lives in the worker's process, or in sandboxes that the agent cannot reach, so that
nothing that the agent can write is part of its record.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import msgspec

from orchard.injector.client import AsyncSandbox, AsyncSandboxClient
from orchard.schemas.campaigns import Budget
from orchard.schemas.messages import ToolCall
from orchard.schemas.outcomes import AbortCause, ExitStatus
from orchard.schemas.plugins import Kind, PluginError
from orchard.schemas.tasks import Task, WorldUse
from orchard.storage.blobs import BlobStore
from orchard.workers.discovery import load
from orchard.workers.domain import domains
from orchard.workers.episode.machine import CommandOutcome, Machine
from orchard.workers.episode.settings import SandboxSettings, WorkerSettings
from orchard.workers.failures import InfrastructureError
from orchard.workers.plugins import need

T = TypeVar("T")


class SharedResources:
    """Resources that the worlds of one worker share, such as a browser driver: each is made when it is first
    needed, and closed with the worker."""

    def __init__(self) -> None:
        self._made: dict[Callable[[], AbstractAsyncContextManager[Any]], Any] = {}
        self._stack = AsyncExitStack()
        self._turn = asyncio.Lock()

    async def of(self, make: Callable[[], AbstractAsyncContextManager[T]]) -> T:
        """Returns the resource that `make` makes, the same for each caller."""
        async with self._turn:
            if make not in self._made:
                self._made[make] = await self._stack.enter_async_context(make())
            made: T = self._made[make]
            return made

    async def close(self) -> None:
        self._made.clear()
        await self._stack.aclose()


@dataclass(frozen=True, kw_only=True)
class WorldContext:
    task: Task
    machine: Machine
    """The agent's sandbox, set up and untouched by the agent."""
    seed: int
    """Derived from the rollout's id: the same in each attempt."""
    name: str
    """The attempt's rollout and number."""
    publish: Callable[[msgspec.Struct], Awaitable[None]]
    """Publishes an event of the attempt; returns when it is stored."""
    blobs: BlobStore
    sandbox: Callable[[str, str], AbstractAsyncContextManager[Machine]]
    """Opens another sandbox, of an image and for a purpose (`services`), which the agent cannot reach."""
    command_seconds: float
    shared: SharedResources = field(default_factory=SharedResources)


class OpenWorld(Protocol):
    """A world while its attempt lasts. Its methods raise InfrastructureError for failures that are not the
    agent's."""

    tools: tuple[dict[str, Any], ...]
    """OpenAI tools that the model is told of, those on the sandbox's files included."""
    about: str
    """What a model must know of the world beside the task's statement: the date, for whom it works."""

    def bounded(self, budget: Budget) -> Budget:
        """Returns what the agent may use of what the campaign allows."""

    async def call(self, call: ToolCall) -> tuple[CommandOutcome, str]:
        """Executes one call of a harness; returns its outcome and the text that the model is shown. Every
        request of the model gets an answer."""

    def door(self) -> AbstractAsyncContextManager[tuple[int, str]]:
        """Opens the world to a program: port on loopback of this machine and path of its MCP server."""

    async def hand_in(self, ended: ExitStatus, messages: Sequence[Mapping[str, Any]]) -> str:
        """Returns the submission of an attempt that ended with this status, for grading. `messages` are the
        path to its last one. The sandbox still lives, and the agent is done."""


class World(Protocol):
    name: str
    settings: type[msgspec.Struct]
    """The settings that a task of this world must have.

    A kind whose agents need a network also has a method `blocks_network(settings) -> bool`.
    """

    def open(self, settings: Any, context: WorldContext) -> AbstractAsyncContextManager[OpenWorld]: ...


def blocks_network(task: Task) -> bool:
    """Whether the agent's sandbox has no network: the default, unless the task's world needs one. Raises
    PluginError."""
    if isinstance(task.world, msgspec.UnsetType):
        return True
    world, settings = get_world(task.world)
    asked = getattr(world, "blocks_network", None)
    return asked is None or bool(asked(settings))


def get_world(use: WorldUse) -> tuple[World, msgspec.Struct]:
    """Returns the kind of world that a task names, and the task's settings for it. Raises PluginError."""
    world: World = need(Kind.WORLD, use.kind)
    try:
        return world, msgspec.convert(use.settings, world.settings)
    except msgspec.ValidationError as error:
        raise PluginError(
            f"the task's settings for the world {use.kind!r} do not fit: {error}: correct them"
        ) from error


def open_world(context: WorldContext) -> AbstractAsyncContextManager[OpenWorld | None]:
    """Opens the world of the task; None if it has none. Raises InfrastructureError for one that is not
    installed."""
    if isinstance(context.task.world, msgspec.UnsetType):
        return nullcontext()
    try:
        world, settings = get_world(context.task.world)
    except PluginError as error:
        raise InfrastructureError(AbortCause.INVALID_REQUEST, f"{context.task.task_id}: {error}") from error
    return world.open(settings, context)


class Standby(Protocol):
    """A domain's pool of ready sandboxes."""

    def take(self, task: Task, memory: str) -> AsyncSandbox | None:
        """Returns a ready sandbox that suits the task, with that much memory, and hands it over to the
        caller; None if there is none."""


MakeStandby = Callable[
    [SharedResources, AsyncSandboxClient, SandboxSettings, WorkerSettings], Awaitable[Standby]
]
"""Makes the standby of a worker, which ends with the resources that its worlds share."""


async def standbys(
    shared: SharedResources, client: AsyncSandboxClient, sandboxes: SandboxSettings, worker: WorkerSettings
) -> tuple[Standby, ...]:
    makers: list[MakeStandby] = [load(each.standby) for each in domains().values() if each.standby]
    return tuple([await make(shared, client, sandboxes, worker) for make in makers])


def take_standby(standbys: Iterable[Standby], task: Task, memory: str) -> AsyncSandbox | None:
    return next((found for each in standbys if (found := each.take(task, memory)) is not None), None)
