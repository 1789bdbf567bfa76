"""The process that starts all others: forked from the agent before it grows, so that a fork is cheap.

It takes requests on a stream socket, with file descriptors attached, and reports on a SEQPACKET one:

    launch  a program of the host (slirp4netns), by posix_spawn
    begin   the first process of a sandbox, which makes calls that the agent compiled (`local.building`)
    enter   a command, in the namespaces and cgroups of a sandbox, without the host's privileges
            (`entering` compiles its system calls)
    kill    a process group that it started

Every report is `{"id", "exit": wait status}` or, before it, `{"id", "failed": Failure}`; a command on a
terminal reports `{"id", "started": pid, "inner": pid as the sandbox sees it}` once the terminal is its own
and signals reach it, and so does a launch on request. It never blocks on a single child, and ends with the
agent: with it end all first processes, and with those their sandboxes.
"""

import array
import contextlib
import errno
import gc
import json
import os
import resource
import select
import signal
import socket
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from orchard.injector.agent import entering, kernel, syscall_program
from orchard.injector.agent.command_lines import SCRIPT

HEADER = struct.Struct("!II")
"""Length of the JSON that follows; number of file descriptors attached."""
MAX_DESCRIPTORS = 16
DESCRIPTOR_MARK = "@fd:"
"""`@fd:N` at the end of a launch's argument is replaced by the number of the N-th descriptor."""

LOW_DESCRIPTORS = 8
"""The spawner opens no descriptor below this number, where the entry program expects its own."""


def start(
    die_with_agent: bool = True, *, among_tasks: bool = False
) -> tuple[int, socket.socket, socket.socket]:
    """Fork the spawner. Returns its pid, the socket for requests and the socket of reports.

    Call it before threads exist and before anything large is imported. `among_tasks`: commands see this very
    process, so none may look into it; it adopts their orphans, and when memory runs out the kernel kills its
    children before the agent.
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


class _Command(NamedTuple):
    name: str
    calls: int = -1
    request: Mapping[str, Any] = {}


class _Spawner:
    def __init__(self, requests: socket.socket, reports: socket.socket) -> None:
        self._requests = requests
        self._reports = reports
        self._running: dict[int, _Command] = {}
        self._bearing: dict[int, _Command] = {}
        """Processes that run the first part of their calls; a child of theirs runs the second."""
        self._pids: dict[str, int] = {}
        self._told: dict[int, str] = {}
        """Pipes of commands whose terminal is not yet their own."""
        _occupy(LOW_DESCRIPTORS)
        self._nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit[1], limit[1]))  # one list of calls for each command
        self._program = syscall_program.open_program(os.uname().machine)
        self._given_up = entering.privileges(limit)
        self._ready = select.epoll()

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
        for descriptor in (requests, woken):
            self._ready.register(descriptor, select.EPOLLIN)
        gc.collect()
        gc.freeze()
        while True:
            ready = {descriptor for descriptor, _ in self._ready.poll()}
            for descriptor in ready & self._told.keys():
                self._tell(descriptor)
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
            if pid in self._bearing:
                self._borne(pid, status)
                continue
            if pid not in self._running:  # nobody's, or the one that bore it has not been seen to end
                for parent in [parent for parent in self._bearing if self._child(parent) == pid]:
                    self._hand_over(parent, pid)
                    os.waitpid(parent, 0)  # it is about to end, and has the command's output open until then
            self._ended(self._running.pop(pid, None), status)

    def _ended(self, command: _Command | None, status: int) -> None:
        if command is not None:
            del self._pids[command.name]
            self._report_failure(command)
            self._report({"id": command.name, "exit": status})

    def _borne(self, parent: int, status: int) -> None:
        """Handle the end of the first part of the calls: with a child, or with the failure that prevented
        one."""
        child = self._child(parent)
        if not child:
            self._ended(self._bearing.pop(parent), status)
            return
        self._hand_over(parent, child)
        if os.WIFSIGNALED(status):  # killed, before or while it got the child
            os.kill(child, signal.SIGKILL)

    def _child(self, parent: int) -> int:
        return syscall_program.child(self._bearing[parent].calls)

    def _hand_over(self, parent: int, child: int) -> None:
        command = self._bearing.pop(parent)
        self._remember(child, command)
        if command.request["do"] == "begin":
            self._report({"id": command.name, "started": child, "inner": 1})

    def _report_failure(self, command: _Command) -> None:
        if command.calls < 0:
            return
        failed = syscall_program.failure(command.calls)
        os.close(command.calls)
        if failed is not None:
            number, step = failed
            if "steps" in command.request:
                failure = f"{command.request['steps'][step]}: {os.strerror(number)}", number, False
            else:
                failure = _never_entered(command.request, number, step)
            self._report({"id": command.name, "failed": failure})

    def _tell(self, told: int) -> None:
        name = self._told.pop(told)
        pid = self._pids.get(name)
        if os.read(told, 1) and pid is not None:
            pid = self._child(pid) if pid in self._bearing else pid
            self._report({"id": name, "started": pid, "inner": _inner_pid(pid)})
        os.close(told)  # and with it the registration

    def _remember(self, pid: int, command: _Command, *, bearing: bool = False) -> None:
        (self._bearing if bearing else self._running)[pid] = command
        self._pids[command.name] = pid

    def _kill(self, request: dict[str, Any], _descriptors: list[int]) -> None:
        pid = self._pids.get(request["id"])
        if pid is None:
            return
        child = self._child(pid) if pid in self._bearing else 0
        for one in filter(None, (pid, child)):
            try:
                os.killpg(one, request["signal"])
            except ProcessLookupError:  # not yet the leader of its group, so still alone
                os.kill(one, request["signal"])

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
            self._never_ran(request, (f"{arguments[0]}: {error.strerror}", error.errno or 0, True))
            return
        self._remember(pid, _Command(request["id"]))
        if request["tell"]:
            self._report({"id": request["id"], "started": pid, "inner": pid})

    def _begin(self, request: dict[str, Any], descriptors: list[int]) -> None:
        out, written, program = descriptors
        places = [(self._nothing, 0), (out, 1), (self._nothing, 2)]
        places += [(written, syscall_program.DESCRIPTOR), (program, request["program"])]
        try:
            pid = self._play(places)
        except OSError as error:
            self._never_ran(request, (f"{request['steps'][0]}: {error.strerror}", error.errno or 0, False))
            return
        descriptors.remove(written)
        self._remember(pid, _Command(request["id"], written, request), bearing=True)

    def _enter(self, request: dict[str, Any], descriptors: list[int]) -> None:
        """Start a command; closes what it opens with the request's descriptors, except what the command
        needs."""
        stdio = descriptors[:3]
        target = descriptors[3] if request["namespaces"] else self._nothing
        script = descriptors[-1] if request["script"] else self._nothing
        told, tells = -1, self._nothing
        try:
            written = entering.program(request, self._given_up).open()
            descriptors.append(written)
            if request["terminal"]:
                told, tells = os.pipe2(os.O_CLOEXEC)
                descriptors += [told, tells]
            places = [*zip(stdio, (0, 1, 2), strict=True), (written, syscall_program.DESCRIPTOR)]
            places += [(target, entering.TARGET), (tells, entering.TOLD), (script, SCRIPT)]
            pid = self._play(places)
        except OSError as error:
            self._never_ran(request, _why_not_started(request, error))
            return
        descriptors.remove(written)
        self._remember(pid, _Command(request["id"], written, request), bearing=request["namespaces"])
        if told >= 0:
            descriptors.remove(told)
            self._told[told] = request["id"]
            self._ready.register(told, select.EPOLLIN)

    def _never_ran(self, request: Mapping[str, Any], failure: tuple[str, int, bool]) -> None:
        self._report({"id": request["id"], "failed": failure})
        self._report({"id": request["id"], "exit": 127 << 8})

    def _play(self, places: list[tuple[int, int]]) -> int:
        """Start the entry program; `places` are pairs of descriptors, here and in the new process."""
        actions = [(os.POSIX_SPAWN_DUP2, here, there) for here, there in places]
        program = f"/proc/self/fd/{self._program}"
        return os.posix_spawn(program, ["enter"], {}, file_actions=actions, setsigmask=())


def _why_not_started(request: Mapping[str, Any], error: OSError) -> tuple[str, int, bool]:
    if error.errno in (errno.E2BIG, errno.EINVAL):
        return _never_entered(request, error.errno, entering.EXECUTE)
    return f"no more processes can be started: {error.strerror}", error.errno or 0, False


def _never_entered(request: Mapping[str, Any], number: int, step: int) -> tuple[str, int, bool]:
    return entering.explanation(request, number, step), number, step == entering.EXECUTE


def _occupy(below: int) -> None:
    """Occupy all descriptors below `below`, so that later ones can be moved there in any order."""
    while (descriptor := os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) < below:
        pass
    os.close(descriptor)


def _inner_pid(pid: int) -> int:
    """Process id in the innermost pid namespace; 0 for a process that has ended."""
    with contextlib.suppress(FileNotFoundError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("NSpid:"):
                return int(line.split()[-1])
    return 0


def _receive_with_descriptors(source: socket.socket, size: int) -> tuple[bytes, list[int]]:
    """Receive like `socket.recv_fds`, which drops its flags: these descriptors must never survive an
    execve."""
    descriptors = array.array("i")
    space = socket.CMSG_SPACE(MAX_DESCRIPTORS * descriptors.itemsize)
    data, ancillary, _, _ = source.recvmsg(size, space, socket.MSG_CMSG_CLOEXEC)
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
    return data, list(descriptors)


def _worse_score() -> int:
    """oom_score_adj of a process that the kernel kills before the agent."""
    return min(int(Path("/proc/self/oom_score_adj").read_text()) + entering.OOM_SCORE_OF_COMMANDS, 1000)


def _write(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)
