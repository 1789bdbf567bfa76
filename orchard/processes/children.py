"""Makes child processes end with the process that started them."""

import ctypes
import signal

PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None).prctl
"""Looked up at import: between fork and exec the loader's lock may be held by a thread that does not exist
in the child."""


def die_with_parent() -> None:
    """Makes the kernel kill this child when its parent dies; for `preexec_fn`."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
