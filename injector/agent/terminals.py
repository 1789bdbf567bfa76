"""Pseudo-terminals inside sandboxes, and the sessions of processes on them."""

import fcntl
import os
import signal
import struct
import termios
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from orchard.injector.agent import kernel
from orchard.injector.agent.errors import AgentError
from orchard.injector.agent.spawning import Entrance

_TIOCSPTLCK = 0x40045431
_TIOCGPTPEER = 0x5441
_ROUNDS = 100
"""Largest number of passes over all processes until none of a session is left."""


def open_pair(root: int) -> tuple[int, int]:
    """Open both ends, `master` (non-blocking) and `slave`, of a terminal of the sandbox whose root is `root`.

    It is one of the sandbox's own, so that its programs can name and reopen it. Raises AgentError.
    """
    master = -1
    try:
        master = kernel.open_beneath(root, "/dev/ptmx", os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
        fcntl.ioctl(master, _TIOCSPTLCK, struct.pack("i", 0))
        slave = fcntl.ioctl(master, _TIOCGPTPEER, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        if master >= 0:
            os.close(master)
        raise AgentError(f"there is no terminal to be had: {error.strerror}", reason="no_terminal") from error
    return master, slave


def resize(master: int, rows: int, cols: int) -> None:
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))


def foreground(master: int) -> int:
    """The foreground process group of the terminal; 0: none."""
    return int(struct.unpack("i", fcntl.ioctl(master, termios.TIOCGPGRP, b"\0\0\0\0"))[0])


def signal_number(name: object) -> signal.Signals | None:
    """Parse `TERM`, `SIGTERM` or 15; None for no signal."""
    try:
        if isinstance(name, int):
            return signal.Signals(name)
        return signal.Signals["SIG" + str(name).upper().removeprefix("SIG")]
    except (ValueError, KeyError):
        return None


class TerminalProcesses:
    """The processes on one terminal: those of the session that `leader` (as the agent sees it) began."""

    def __init__(self, leader: int, entrance: Entrance) -> None:
        """The control groups of `entrance` list the processes; without any, all of /proc does."""
        self._leader = leader
        self._lists = [Path(cgroup).with_name("cgroup.procs") for cgroup in entrance.cgroups]
        self._own_namespace = entrance.pidfd is not None
        self._namespace = self._namespace_of(leader)

    def signal(self, master: int, number: signal.Signals) -> None:
        """Signal the terminal's foreground; a signal that ends processes also goes to the leader."""
        groups = {foreground(master)}
        if number in (signal.SIGTERM, signal.SIGHUP, signal.SIGKILL):
            groups.add(self._leader)
        for group in groups - {0}:
            with suppress(ProcessLookupError):
                os.killpg(group, number)

    def terminate(self) -> None:
        for number in (signal.SIGTERM, signal.SIGCONT):
            for pid in self._members():
                with suppress(ProcessLookupError):
                    os.kill(pid, number)

    def runs(self) -> bool:
        return any(True for _ in self._members())

    def kill(self) -> None:
        """Kill all processes; one that began a session of its own has left this one."""
        for _ in range(_ROUNDS):
            members = list(self._members())
            if not members:
                return
            for pid in members:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _members(self) -> Iterator[int]:
        for pid in self._candidates():
            try:
                stat = Path(f"/proc/{pid}/stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            fields = stat.rpartition(")")[2].split()
            # Whose first thread has ended is a zombie, and runs as long as it has others.
            ours = int(fields[3]) == self._leader and (fields[0] not in "ZX" or int(fields[17]) > 1)
            if ours and self._namespace_of(pid) == self._namespace:
                yield pid

    def _namespace_of(self, pid: int) -> int | None:
        """Its pid namespace, if sandboxes have their own; None when the process is gone."""
        if not self._own_namespace:
            return None
        try:
            return Path(f"/proc/{pid}/ns/pid").stat().st_ino
        except (FileNotFoundError, ProcessLookupError):
            return None

    def _candidates(self) -> list[int]:
        if not self._lists:
            return [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit()]
        try:
            return [int(line) for line in self._lists[0].read_text().split()]
        except OSError:  # the group was removed, so nothing is left in it
            return []
