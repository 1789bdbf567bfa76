"""Reduces the memory of the writer's process."""

import ctypes
import gc
import sys
import threading
import time
from collections.abc import Callable
from importlib.abc import MetaPathFinder

ARROW_ALLOCATOR = {"ARROW_DEFAULT_MEMORY_POOL": "system"}
"""Environment in which Arrow allocates from the C library alone; it must be set before Arrow is loaded.

With `pyarrow.set_memory_pool` Parquet still uses Arrow's own allocator, which keeps what it once had: 70 MiB
of the writer.
"""
_M_MMAP_THRESHOLD = -3
_LARGE = 512 * 1024
_M_ARENA_MAX = -8
_ARENAS = 2
"""Heaps that all threads share. Each keeps what it once had; by default there are 8 for each processor."""
_TRIM_SECONDS = 0.25
"""Seconds between checks whether there is free memory to return."""
_TRIM_AFTER = 0.1
"""Processor seconds of the process, after which there may be."""


class _WithoutPandas(MetaPathFinder):
    """Hides pandas from Arrow, which would load it, 40 MiB, to test the type of each value."""

    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("this process does without pandas", name="pandas")


def save_memory() -> None:
    """Configure this process for low memory; for one that only writes tables.

    Buffers of 512 KiB and more get memory of their own and return it: the C library raises that limit by
    itself up to 32 MiB. Arrow's are among them under ARROW_ALLOCATOR. A thread returns what smaller buffers
    leave: of 636 MiB after 92,000 rollouts, 217 were free and kept in holes. Where the C library does not
    have these calls, that part is left out. Imported modules live as long as the process, so the garbage
    collector skips them.
    """
    gc.freeze()
    sys.meta_path.insert(0, _WithoutPandas())
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(_M_MMAP_THRESHOLD, _LARGE)
        library.mallopt(_M_ARENA_MAX, _ARENAS)
    if hasattr(library, "malloc_trim"):
        trim = library.malloc_trim
        threading.Thread(target=_trimming, args=(lambda: trim(0),), name="trim", daemon=True).start()


def _trimming(trim: Callable[[], object]) -> None:
    """Return free memory to the system each time the process has worked for a while, for ever."""
    worked = time.process_time()
    while True:
        time.sleep(_TRIM_SECONDS)
        if time.process_time() - worked >= _TRIM_AFTER:
            trim()
            worked = time.process_time()
