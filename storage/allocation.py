"""Keeping the writer's process small."""

import ctypes
import gc
import sys
import threading
import time
from collections.abc import Callable
from importlib.abc import MetaPathFinder

ARROW_ALLOCATOR = {"ARROW_DEFAULT_MEMORY_POOL": "system"}
"""Environment in which Arrow takes memory from the C library alone. Arrow reads it when it is loaded, so it
must be set before. With `pyarrow.set_memory_pool` Parquet still uses Arrow's own allocator, which keeps what
it once had: 70 MiB of the writer."""
_M_MMAP_THRESHOLD = -3
_LARGE = 512 * 1024
_M_ARENA_MAX = -8
_ARENAS = 2
"""Heaps that all threads share. Each keeps what it once had; by default there are 8 for each processor."""
_TRIM_SECONDS = 0.25
"""Between looks at whether there is free memory to give back."""
_TRIM_AFTER = 0.1
"""Seconds of processor time of the whole process, after which there may be."""


class _WithoutPandas(MetaPathFinder):
    """Arrow loads pandas where it is installed, 40 MiB, to ask of each value whether it is one of pandas'."""

    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("this process does without pandas", name="pandas")


def save_memory() -> None:
    """Makes this whole process spare with memory, and with the time to look after it: for one that only
    writes tables.

    Buffers of 512 KiB and more get memory of their own and give it back: the C library raises that limit by
    itself up to 32 MiB. Arrow's are among them under ARROW_ALLOCATOR. What smaller buffers leave is given
    back by a thread while the process works: of 636 MiB after 92,000 rollouts, 217 were free and kept in
    holes. Where the C library does not have these calls, that part is left out. What was imported lives as
    long as the process, so the collector need not look at it.
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
    """Gives free memory back to the system for ever, each time that the process has worked for a while."""
    worked = time.process_time()
    while True:
        time.sleep(_TRIM_SECONDS)
        if time.process_time() - worked >= _TRIM_AFTER:
            trim()
            worked = time.process_time()
