"""Child processes that end with the process that started them."""

import ctypes
import signal

PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl
"""Looked up here: between fork and exec the loader's lock may be another thread's, which is not there."""


def die_with_parent() -> None:
    """Have the kernel kill this child when its parent dies; for `preexec_fn`, between fork and exec."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
