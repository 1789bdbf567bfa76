"""An event loop on a thread of its own, for blocking code that calls asynchronous code."""

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from orchard.injector import fork_safety

A = TypeVar("A", covariant=True)
T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")


class EventLoopThread:
    """Runs coroutines for callers on other threads.

    It starts with its first use, and anew in a forked child, which has none of its parent's threads.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starting = threading.Lock()
        fork_safety.watch(self)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the coroutine's result, or raise its exception; on an interrupt it is cancelled."""
        future = asyncio.run_coroutine_threadsafe(work, self._running())
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[[], T]) -> T:
        async def there() -> T:
            return function()

        return self.run(there())

    def stop(self) -> None:
        """End the thread; a later use starts it again."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._loop = None

    def forked(self) -> None:
        """Replace the lock, whose holder does not exist in the child, and drop the parent's loop."""
        self._starting = threading.Lock()
        if self._loop is not None:
            fork_safety.part_with(self._loop)
            self._loop = None

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                arguments = (self._loop,)
                threading.Thread(target=_serve, args=arguments, name="sandbox-client", daemon=True).start()
            return self._loop


class Blocking(Generic[A]):
    """The blocking version of an asynchronous object; `blocking` makes its methods."""

    def __init__(self, loop: EventLoopThread, awaited: A) -> None:
        self._loop = loop
        self._awaited = awaited

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.run(self._awaited.__aexit__(kind, error, trace))  # type: ignore[attr-defined]


@overload
def blocking(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Blocking[A], P], T]: ...
@overload
def blocking(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]], into: Callable[[EventLoopThread, T], R]
) -> Callable[Concatenate[Blocking[A], P], R]: ...
def blocking(method: Callable[..., Any], into: Callable[[EventLoopThread, Any], Any] | None = None) -> Any:
    """Make a method of a Blocking class from `method` of the asynchronous object.

    It has the same arguments, documentation and errors. `into` converts the result.
    """

    @functools.wraps(method)
    def call(self: Blocking[Any], *args: Any, **named: Any) -> Any:
        result = self._loop.run(method(self._awaited, *args, **named))
        return result if into is None else into(self._loop, result)

    return call


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()
