"""The browsers of a worker: those of its attempts, and started spares for the next attempts."""

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import msgspec

from orchard.injector.client import AsyncSandbox, AsyncSandboxClient
from orchard.injector.errors import SandboxError
from orchard.schemas.gui import WORLD, BrowserSettings, GuiWorld
from orchard.schemas.tasks import Task
from orchard.streams.tasks import end
from orchard.workers.domains.gui.browser.driver import Driver
from orchard.workers.domains.gui.browser.launching import launched
from orchard.workers.domains.gui.browser.tabs import Tabs
from orchard.workers.episode.machine import Machine
from orchard.workers.episode.sandboxes import SandboxMachine
from orchard.workers.episode.settings import SandboxSettings, WorkerSettings
from orchard.workers.episode.worlds import SharedResources
from orchard.workers.failures import InfrastructureError

SPARE = "spare-browser"
"""Value of the sandbox label `purpose` for spares, also after an attempt took one."""
_CREATION_SECONDS = 60.0

log = logging.getLogger("orchard.browser")


@dataclass(frozen=True)
class _Shape:
    """What a spare browser and an attempt must have in common."""

    image: str
    cpu: str
    memory: str
    block_network: bool
    width: int
    height: int


@dataclass(frozen=True)
class _Started:
    """A browser in its sandbox. The stack closes its connection and its tunnel."""

    sandbox: AsyncSandbox
    tabs: Tabs
    stack: AsyncExitStack


class Browsers:
    """One pool per worker. Without `keep`, every attempt starts its own browser."""

    def __init__(self) -> None:
        self.driver = Driver()
        self.taken = 0
        self._client: AsyncSandboxClient | None = None
        self._settings = SandboxSettings()
        self._spare = 0
        self._wanted: _Shape | None = None
        """The shape that the newest attempt needs."""
        self._waiting: list[tuple[_Shape, _Started]] = []
        self._given: dict[str, _Started] = {}
        """Taken browsers by sandbox id, until their attempt's world opens."""
        self._filling: asyncio.Task[None] | None = None

    def keep(self, client: AsyncSandboxClient, settings: SandboxSettings, spare: int) -> None:
        """Keeps `spare` browsers ready, of the shape that the newest attempt asked for."""
        self._client, self._settings, self._spare = client, settings, spare

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def take(self, task: Task, memory: str) -> AsyncSandbox | None:
        """Hands over a sandbox of the task's shape with a started browser, or None. `refill` replaces it."""
        if self._client is None or not self._spare or (shape := _shape(task, memory)) is None:
            return None
        self._wanted = shape
        fitting = [each for each in self._waiting if each[0] == shape and not each[1].tabs.ended]
        if fitting:
            self._waiting.remove(fitting[0])
        if not fitting:
            return None
        started = fitting[0][1]
        self._given[started.sandbox.sandbox_id] = started
        self.taken += 1
        return started.sandbox

    def refill(self) -> None:
        """Starts missing spares in the background. A starting browser uses whole cores for a second, so call
        it after an attempt's first screenshot; closing a world calls it as well."""
        if self._client and self._spare and (self._filling is None or self._filling.done()):
            self._filling = asyncio.get_running_loop().create_task(self._fill(self._client))

    @asynccontextmanager
    async def opened(self, machine: Machine, world: GuiWorld) -> AsyncIterator[Tabs]:
        """Yields the tabs of the sandbox's browser; starts it unless it was a spare. Raises
        InfrastructureError."""
        async with AsyncExitStack() as stack:
            stack.callback(self.refill)
            name = machine.sandbox.sandbox_id if isinstance(machine, SandboxMachine) else ""
            if (started := self._given.pop(name, None)) is not None:
                stack.push_async_exit(started.stack)
                yield started.tabs
            else:
                yield await self._start(stack, machine, world.browser, world.block_network)

    async def close(self) -> None:
        self._spare = 0
        if self._filling is not None:
            await end(self._filling)
        async with AsyncExitStack() as stack:  # each of them, whatever the others raise
            stack.push_async_callback(self.driver.close)
            for started in [*(kept for _, kept in self._waiting), *self._given.values()]:
                stack.push_async_callback(self._give_up, started)
            self._waiting.clear()
            self._given.clear()

    async def _start(
        self, stack: AsyncExitStack, machine: Machine, settings: BrowserSettings, block_network: bool
    ) -> Tabs:
        port = await launched(machine, settings, block_network)
        url = await stack.enter_async_context(machine.forward(port))
        return await stack.enter_async_context(self.driver.tabs(url, settings))

    async def _fill(self, client: AsyncSandboxClient) -> None:
        """Starts missing spares, and deletes those whose shape nobody needs any more."""
        try:
            for name in [name for name, given in self._given.items() if given.tabs.ended]:
                await _closed(self._given.pop(name))  # its attempt ended before its world was open
            while (shape := self._wanted) is not None and self._spare:
                for kept in [each for each in self._waiting if each[0] != shape or each[1].tabs.ended]:
                    self._waiting.remove(kept)
                    await self._give_up(kept[1])
                if len(self._waiting) >= self._spare:
                    return
                self._waiting.append((shape, await self._spared(client, shape)))
        except (SandboxError, InfrastructureError) as error:
            log.warning("no spare browser: %s", error)

    async def _spared(self, client: AsyncSandboxClient, shape: _Shape) -> _Started:
        sandbox = await client.create_sandbox(
            shape.image,
            cpu=shape.cpu,
            memory=shape.memory,
            block_network=shape.block_network,
            timeout=_CREATION_SECONDS,
            labels={"purpose": SPARE},
            ttl_seconds=self._settings.ttl_seconds,
            idempotency_key=f"{SPARE}-{uuid.uuid4().hex}",
        )
        stack = AsyncExitStack()
        try:
            sandbox.start_heartbeat(self._settings.heartbeat_seconds)
            settings = BrowserSettings(width=shape.width, height=shape.height)
            machine = SandboxMachine(sandbox, self._settings.output_limit)
            tabs = await self._start(stack, machine, settings, shape.block_network)
            await tabs.active.session.send("Page.captureScreenshot", {"format": "jpeg"})  # the first is slow
        except BaseException:
            try:
                await stack.aclose()
            finally:
                await asyncio.shield(sandbox.delete())
            raise
        return _Started(sandbox, tabs, stack)

    async def _give_up(self, started: _Started) -> None:
        try:
            await _closed(started)
        finally:
            try:
                await started.sandbox.delete()
            except SandboxError as error:
                log.warning("a spare browser is left to its time-to-live: %s", error)


async def _closed(started: _Started) -> None:
    """Closes what leads to a browser that nobody uses: that its sandbox is lost harms no attempt."""
    try:
        await started.stack.aclose()
    except InfrastructureError as error:
        log.info("a spare browser was lost: %s", error)


@asynccontextmanager
async def browsers() -> AsyncIterator[Browsers]:
    made = Browsers()
    try:
        yield made
    finally:
        await made.close()


async def spare_browsers(
    shared: SharedResources, client: AsyncSandboxClient, sandboxes: SandboxSettings, worker: WorkerSettings
) -> Browsers:
    """Opens the worker's pool and keeps as many spare browsers as its settings say."""
    pool = await shared.of(browsers)
    pool.keep(client, sandboxes, worker.spare_browsers)
    return pool


def _shape(task: Task, memory: str) -> _Shape | None:
    if isinstance(task.world, msgspec.UnsetType) or task.world.kind != WORLD:
        return None
    try:
        world = msgspec.convert(task.world.settings, GuiWorld)
    except msgspec.ValidationError:
        return None  # whoever opens it says so
    screen = world.browser
    return _Shape(task.image, task.cpu, memory, world.block_network, screen.width, screen.height)
