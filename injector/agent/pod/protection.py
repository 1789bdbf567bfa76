"""What keeps the commands of a container out of the agent that runs as the same user beside them."""

import resource
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from orchard.injector.agent import kernel

THREADS = 4


def protect() -> None:
    """Let no process without CAP_SYS_PTRACE look into this one: no ptrace, no /proc/PID/mem, no core file.

    Call it before there is anything to be seen.
    """
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def started_threads() -> ThreadPoolExecutor:
    """Threads that are there already when commands have used up all processes of the container."""
    executor = ThreadPoolExecutor(THREADS, "agent")
    barrier = Barrier(THREADS + 1)
    for _ in range(THREADS):
        executor.submit(barrier.wait)
    barrier.wait()
    return executor
