"""Reads ahead in a process of its own."""

import atexit
import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from orchard.pipelines.datasets.errors import DatasetError

T = TypeVar("T")
_items: Iterator[Any] = iter(())
"""What this process reads, if it is such a one."""


def in_own_process(make: Callable[[], Iterator[T]]) -> Iterator[T]:
    """Yields the items of `make()`, which is called in a new process and is one item ahead. `make` and the
    items are pickled. Raises what making them raises, and DatasetError if the process is killed."""
    with ProcessPoolExecutor(
        1, mp_context=multiprocessing.get_context("spawn"), initializer=_begin, initargs=(make,)
    ) as pool:
        try:
            following = pool.submit(_next)
            while (item := following.result()) is not None:
                following = pool.submit(_next)
                yield item
        except BrokenProcessPool as error:
            raise DatasetError(
                "the process that reads was killed, perhaps for want of memory: run the command again, which "
                "goes on with what is missing"
            ) from error


def _begin(make: Callable[[], Iterator[Any]]) -> None:
    global _items
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: its parent ends it
    threading.Thread(target=end_with_parent, daemon=True).start()
    gc.freeze()  # the modules, which each collection would look through
    _items = make()
    atexit.register(_stop)


def _next() -> Any:
    return next(_items, None)


def _stop() -> None:
    """Closes what reads while its modules are still there."""
    global _items
    _items = iter(())


def end_with_parent() -> None:
    """End this process when its parent dies: it would wait forever for work from one that was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
