"""Protects the agent of a container from the commands that run as the same user."""

import resource
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from orchard.injector.agent import kernel

THREADS = 4


def protect() -> None:
    """Deny processes without CAP_SYS_PTRACE all access to this one: ptrace, /proc/PID/mem, core files.

    Call it before there is anything to protect.
    """
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def started_threads() -> ThreadPoolExecutor:
    """Return threads that exist already when commands have used up all processes of the container."""
    executor = ThreadPoolExecutor(THREADS, "agent")
    barrier = Barrier(THREADS + 1)
    for _ in range(THREADS):
        executor.submit(barrier.wait)
    barrier.wait()
    return executor
