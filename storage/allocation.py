"""Keeping the writer's process small."""

import ctypes
import gc
import sys
from importlib.abc import MetaPathFinder

import pyarrow as pa

_M_MMAP_THRESHOLD = -3
_LARGE = 4 * 1024 * 1024


class _WithoutPandas(MetaPathFinder):
    """Arrow loads pandas where it is installed, 40 MiB, to ask of each value whether it is one of pandas'."""

    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("this process does without pandas", name="pandas")


def save_memory() -> None:
    """Makes this whole process spare with memory, and with the time to look after it: for one that only
    writes tables.

    Buffers of 4 MiB and more get memory of their own and give it back: the C library raises that limit by
    itself up to 32 MiB, and Arrow's pool keeps what it once had, which leaves holes of some megabytes. With
    events of 7 MB the peak was 480 MiB. Where the C library has no `mallopt`, that part is left out.
    What was imported lives as long as the process, so the collector need not look at it.
    """
    gc.freeze()
    sys.meta_path.insert(0, _WithoutPandas())
    pa.set_memory_pool(pa.system_memory_pool())
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE)
