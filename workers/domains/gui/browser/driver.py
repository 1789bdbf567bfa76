"""Runs Playwright's driver: one process per worker for all its browsers. Playwright is an optional extra."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from orchard.schemas.gui import BrowserSettings
from orchard.schemas.installation import install_command
from orchard.schemas.outcomes import AbortCause
from orchard.workers.domains.gui.browser.tabs import Tabs
from orchard.workers.failures import InfrastructureError

if TYPE_CHECKING:
    from playwright.async_api import Browser, Playwright

CONNECTION_SECONDS = 30.0
CLOSING_SECONDS = 10.0


class Driver:
    """The driver's process. It starts with the first browser; if it died, the next connection replaces it."""

    def __init__(self) -> None:
        self._playwright: Playwright | None = None
        self._turn = asyncio.Lock()

    @asynccontextmanager
    async def tabs(self, url: str, settings: BrowserSettings) -> AsyncIterator[Tabs]:
        """Yields the tabs of the browser whose debugging port is at `url`, in a new context. Raises
        InfrastructureError."""
        from playwright.async_api import Error

        browser = await self._connected(url)
        try:
            try:
                context = await browser.new_context(
                    viewport={"width": settings.width, "height": settings.height}, accept_downloads=False
                )
                tabs = Tabs(context)
                await tabs.start()
            except Error as error:
                raise InfrastructureError(AbortCause.SANDBOX_DIED, f"no browser: {error}") from error
            yield tabs
        finally:
            with suppress(Error, TimeoutError):  # it is gone already, or goes with its sandbox
                async with asyncio.timeout(CLOSING_SECONDS):
                    await browser.close()

    async def close(self) -> None:
        if self._playwright is not None:
            await self._forget(self._playwright)

    async def _connected(self, url: str) -> "Browser":
        playwright = await self._started()
        from playwright.async_api import Error

        for again in (True, False):
            try:
                return await playwright.chromium.connect_over_cdp(url, timeout=CONNECTION_SECONDS * 1000)
            except Error as error:
                if not again or "Connection closed" not in error.message:
                    raise InfrastructureError(AbortCause.SANDBOX_DIED, f"no browser: {error}") from error
            await self._forget(playwright)
            playwright = await self._started()
        raise AssertionError("unreachable: the second try returns or raises")

    async def _started(self) -> "Playwright":
        try:
            from playwright.async_api import async_playwright
        except ImportError as error:
            raise InfrastructureError(
                AbortCause.HARNESS_MISSING, f"browser tasks need Playwright: {install_command('gui')}"
            ) from error
        async with self._turn:
            if self._playwright is None:
                self._playwright = await async_playwright().start()
            return self._playwright

    async def _forget(self, playwright: "Playwright") -> None:
        from playwright.async_api import Error

        async with self._turn:
            if self._playwright is playwright:
                self._playwright = None
                with suppress(Error, TimeoutError):
                    async with asyncio.timeout(CLOSING_SECONDS):
                        await playwright.stop()
