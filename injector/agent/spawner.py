"""The process that starts the processes: forked from the agent before it grows, so that a fork costs little.

It takes requests on a stream socket, with file descriptors attached, and reports on a datagram-like one:

    launch  a program of the host (bubblewrap), by posix_spawn
    enter   a command, in the namespaces and cgroups of a sandbox, with nothing left of the host's privileges
    kill    a process group that it started

Every report is `{"id", "exit": wait status}` or, before it, `{"id", "failed": why it never ran}`; a command
on a terminal says `{"id", "started": pid, "inner": pid as the sandbox sees it}` once the terminal is its own
and signals reach it, and so does a launch that is to tell. It never waits for one child in particular, and it
ends with the agent: with it go all sandboxes (bubblewrap --die-with-parent).
"""

import array
import contextlib
import ctypes
import errno
import fcntl
import gc
import json
import os
import resource
import select
import signal
import socket
import struct
import termios
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from injector.agent import kernel, seccomp

HEADER = struct.Struct("!II")
"""Length of the JSON that follows; number of file descriptors attached."""
MAX_DESCRIPTORS = 16
DESCRIPTOR_MARK = "@fd:"
"""`@fd:N` at the end of a launch's argument becomes the number that the N-th descriptor has there."""

OOM_SCORE_OF_COMMANDS = 500
"""How much more willingly the kernel kills a command than the agent, from 0 to 1000."""

SHELLS = ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash", "/bin/sh", "/usr/bin/sh")

KEPT_CAPABILITIES = frozenset({0, 1, 3, 4, 5, 6, 7, 8, 10, 18, 31})
"""chown, dac_override, fowner, fsetid, kill, setgid, setuid, setpcap, net_bind_service, sys_chroot, setfcap.

Docker's default set without mknod, net_raw and audit_write.
"""
_JOINED = (
    kernel.CLONE_NEWNS
    | kernel.CLONE_NEWNET
    | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWUTS
    | kernel.CLONE_NEWCGROUP
)
_NOT_FOUND = (errno.ENOENT, errno.ENOTDIR)


def start(
    die_with_agent: bool = True, *, among_tasks: bool = False
) -> tuple[int, socket.socket, socket.socket]:
    """Fork the spawner. Returns its pid, the socket for requests and the socket of reports.

    Call it before threads exist and before anything large is imported. `among_tasks`: commands see this very
    process, so none may look into it; it takes in their orphans, and the kernel prefers its children to the
    agent when memory runs out.
    """
    requests, requests_there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    reports, reports_there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    agent = os.getpid()
    pid = os.fork()
    if pid:
        requests_there.close()
        reports_there.close()
        return pid, requests, reports
    try:
        requests.close()
        reports.close()
        if die_with_agent:
            kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != agent:
                os._exit(1)
        if among_tasks:
            _write("/proc/self/oom_score_adj", str(_worse_score()).encode())
            kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
            kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        _Spawner(requests_there, reports_there).serve()
    finally:
        os._exit(1)


class _Spawner:
    def __init__(self, requests: socket.socket, reports: socket.socket) -> None:
        self._requests = requests
        self._reports = reports
        self._running: dict[int, str] = {}
        self._pids: dict[str, int] = {}
        self._own_pid_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self._returns = _may_enter(self._own_pid_namespace)
        self._filter = _filter()
        last = kernel.last_capability() if os.geteuid() == 0 else -1
        self._dropped = [number for number in range(last + 1) if number not in KEPT_CAPABILITIES]

    def serve(self) -> NoReturn:
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        if os.geteuid() == 0:
            kernel.clear_inheritable_capabilities()
        os.setsid()  # a Ctrl-C is meant for the agent; we end with it
        for defaulted in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(defaulted, signal.SIG_DFL)
        woken, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        requests = self._requests.fileno()
        gc.collect()
        gc.freeze()
        while True:
            ready, _, _ = select.select([requests, woken], [], [])
            if woken in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(woken, 4096)
                self._reap()
            if requests in ready:
                self._take()

    def _take(self) -> None:
        header, descriptors = _receive_with_descriptors(self._requests, HEADER.size)
        if not header:
            os._exit(0)
        try:
            header += self._receive(HEADER.size - len(header))
            length, _ = HEADER.unpack(header)
            request = json.loads(self._receive(length))
            getattr(self, f"_{request['do']}")(request, descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self._requests.recv(size - len(data))
            if not piece:
                os._exit(0)
            data += piece
        return bytes(data)

    def _report(self, report: dict[str, Any]) -> None:
        self._reports.send(json.dumps(report).encode())

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            name = self._running.pop(pid, None)
            if name is not None:
                del self._pids[name]
                self._report({"id": name, "exit": status})

    def _remember(self, name: str, pid: int) -> None:
        self._running[pid] = name
        self._pids[name] = pid

    def _kill(self, request: dict[str, Any], _descriptors: list[int]) -> None:
        pid = self._pids.get(request["id"])
        if pid is None:
            return
        try:
            os.killpg(pid, request["signal"])
        except ProcessLookupError:  # not yet the leader of its group, so still alone
            os.kill(pid, request["signal"])

    def _launch(self, request: dict[str, Any], descriptors: list[int]) -> None:
        arguments = []
        for argument in request["argv"]:
            before, mark, index = argument.partition(DESCRIPTOR_MARK)
            if mark:
                descriptor = descriptors[int(index)]
                os.set_inheritable(descriptor, True)
                argument = f"{before}{descriptor}"
            arguments.append(argument)
        out, err = descriptors[0], descriptors[1]
        try:
            pid = os.posix_spawn(
                arguments[0],
                arguments,
                request["env"],
                file_actions=[(os.POSIX_SPAWN_DUP2, out, 1), (os.POSIX_SPAWN_DUP2, err, 2)],
                setsigmask=(),
                setpgroup=0,
            )
        except OSError as error:
            self._report({"id": request["id"], "failed": f"{arguments[0]}: {error.strerror}"})
            self._report({"id": request["id"], "exit": 127 << 8})
            return
        self._remember(request["id"], pid)
        if request["tell"]:
            self._report({"id": request["id"], "started": pid, "inner": pid})

    def _enter(self, request: dict[str, Any], descriptors: list[int]) -> None:
        try:
            pid = self._fork(descriptors[3] if request["namespaces"] else None)
        except OSError as error:
            full = error.errno == errno.EAGAIN or not request["namespaces"]
            why = "no more processes can be started" if full else "the sandbox is gone"
            self._report({"id": request["id"], "failed": f"{why}: {error.strerror}"})
            self._report({"id": request["id"], "exit": 127 << 8})
            return
        if pid == 0:
            self._become(request, descriptors)
        self._remember(request["id"], pid)

    def _fork(self, target: int | None) -> int:
        """Fork; the child is born in the pid namespace of the process behind the pidfd `target`."""
        if target is None:
            return os.fork()
        if not self._returns:
            return self._fork_aside(target)
        kernel.setns(target, kernel.CLONE_NEWPID)
        pid = -1
        try:
            pid = os.fork()
        finally:
            if pid:
                kernel.setns(self._own_pid_namespace, kernel.CLONE_NEWPID)
        return pid

    def _fork_aside(self, target: int) -> int:
        """The same where we could not come back: a child goes there and leaves us a child of its own."""
        answer, ask = os.pipe2(os.O_CLOEXEC)
        aside = os.fork()
        if aside:
            os.close(ask)
            with os.fdopen(answer, "rb") as pipe:
                said = pipe.read()
            os.waitpid(aside, 0)
            if not said:
                raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
            return int(said)
        try:
            kernel.setns(target, kernel.CLONE_NEWPID)
            pid = kernel.fork_sibling()
        except OSError:
            os._exit(1)
        if pid:
            os.write(ask, b"%d" % pid)
            os._exit(0)
        return 0

    def _become(self, request: dict[str, Any], descriptors: list[int]) -> NoReturn:
        """In the child: leave the host behind, then execute the command.

        Until execve it keeps all capabilities, so that no task in the same pid namespace may look into it;
        the bounding set makes them vanish with the very call that replaces this program.
        """
        step = "could not enter the sandbox"
        try:
            os.setsid()
            own = (
                int(Path("/proc/self").readlink().name) if request["terminal"] else 0
            )  # still the host's /proc
            for path in request["cgroups"]:
                _write(path, b"0")
            if request["namespaces"]:
                _write("/proc/self/oom_score_adj", str(OOM_SCORE_OF_COMMANDS).encode())
                kernel.setns(descriptors[3], _JOINED)
            for target in (0, 1, 2):
                os.dup2(descriptors[target], target)
            if request["terminal"]:
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            kernel.close_at_exec(3)
            os.umask(0o022)
            for limit, value in [(resource.RLIMIT_CORE, 0), *request["rlimits"]]:
                resource.setrlimit(limit, (value, value))
            step = f"the working directory {request['cwd']} cannot be entered"
            os.chdir(request["cwd"])
            step = "could not give up privileges"
            if request["namespaces"]:
                kernel.prctl(kernel.PR_CAP_AMBIENT, kernel.PR_CAP_AMBIENT_CLEAR_ALL)
                kernel.drop_from_bounding_set(self._dropped)
                kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
                kernel.prctl(kernel.PR_SET_SECCOMP, kernel.SECCOMP_MODE_FILTER, ctypes.byref(self._filter[0]))
            if request["terminal"]:
                self._report({"id": request["id"], "started": own, "inner": os.getpid()})
            step = "could not execute " + (request["argv"][0] if request["argv"] else "a shell")
            _execute(request["argv"], request["shell"], request["env"])
        except OSError as error:
            self._report({"id": request["id"], "failed": f"{step}: {error.strerror}"})
        finally:
            os._exit(127)


def _execute(argv: Sequence[str], shell: Sequence[str], env: dict[str, str]) -> None:
    """Execute `argv`, looked up on the PATH in `env`, or the image's shell with the arguments `shell`."""
    if argv:
        os.execvpe(argv[0], [*argv], env)
    last: OSError | None = None
    for program in SHELLS:
        try:
            os.execve(program, [Path(program).name, *shell], env)
        except OSError as error:
            if error.errno not in _NOT_FOUND:
                raise
            last = error
    assert last is not None
    raise last


def _receive_with_descriptors(source: socket.socket, size: int) -> tuple[bytes, list[int]]:
    """Like `socket.recv_fds`, which drops its flags: these descriptors must never cross an execve."""
    descriptors = array.array("i")
    space = socket.CMSG_SPACE(MAX_DESCRIPTORS * descriptors.itemsize)
    data, ancillary, _, _ = source.recvmsg(size, space, socket.MSG_CMSG_CLOEXEC)
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
    return data, list(descriptors)


def _may_enter(pid_namespace: int) -> bool:
    """Not ours, when it belongs to a user namespace above."""
    try:
        kernel.setns(pid_namespace, kernel.CLONE_NEWPID)
    except OSError:
        return False
    return True


def _worse_score() -> int:
    """For the kernel's choice of whom to kill for memory."""
    return min(int(Path("/proc/self/oom_score_adj").read_text()) + OOM_SCORE_OF_COMMANDS, 1000)


def _write(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def _filter() -> tuple[_Program, ctypes.Array[ctypes.c_char]]:
    """The system call filter in the kernel's form, with the buffer that must outlive it."""
    code = seccomp.program(os.uname().machine)
    buffer = ctypes.create_string_buffer(code, len(code))
    return _Program(len(code) // 8, ctypes.addressof(buffer)), buffer
