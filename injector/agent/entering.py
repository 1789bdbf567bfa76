"""Enters a sandbox: what a process does before it becomes the command, as a program of system calls."""

import os
import resource
import struct
import termios
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from orchard.injector.agent import kernel, seccomp
from orchard.injector.agent.command_lines import SCRIPT, shell_words
from orchard.injector.agent.syscall_program import NOT_FOUND, SyscallProgram

TARGET, TOLD = 4, 5
"""Descriptors of the pidfd of the sandbox's first process, and of a pipe that gets a byte once the terminal
is the command's."""
_FREE = SCRIPT + 1
_CLOSE_RANGE_CLOEXEC = 4
_LAST = 0xFFFFFFFF

KEPT_CAPABILITIES = frozenset({0, 1, 3, 4, 5, 6, 7, 8, 10, 18, 31})
"""Docker's default capabilities without mknod, net_raw and audit_write.

By number: chown, dac_override, fowner, fsetid, kill, setgid, setuid, setpcap, net_bind_service, sys_chroot,
setfcap.
"""
OOM_SCORE_OF_COMMANDS = 500
"""oom_score_adj of commands (0 to 1000): the kernel kills them before the agent."""
SHELLS = ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash", "/bin/sh", "/usr/bin/sh")

_JOINED = (
    kernel.CLONE_NEWNS
    | kernel.CLONE_NEWNET
    | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWUTS
    | kernel.CLONE_NEWCGROUP
    | kernel.CLONE_NEWPID
)
_NO_CORE = (1, 1)
"""Limit in bytes. Where core_pattern names a program of the host, the kernel starts it at a limit of 0 but
not at 1."""
_OF_THE_ACCOUNT = {resource.RLIMIT_SIGPENDING: 8192, resource.RLIMIT_MSGQUEUE: 256 * 1024}
"""Limits that the kernel counts by account, the host's root included; lower ones for commands leave some to
the host."""
_ENTER, _DIRECTORY, _PRIVILEGES, EXECUTE, _ACCOUNT = range(5)


class Privileges(NamedTuple):
    dropped: tuple[int, ...]
    filter: bytes
    limits: tuple[tuple[int, tuple[int, int]], ...]


def privileges(descriptors: tuple[int, int]) -> Privileges:
    """Compute what commands give up; `descriptors` is the (soft, hard) limit that the agent was started with.

    Commands get half of it: descriptors in transit through sockets are counted by account too, and an
    unprivileged agent, which may not exceed the limit, sends some for each command.
    """
    soft, hard = descriptors
    half = hard // 2
    last = kernel.last_capability() if os.geteuid() == 0 else -1
    dropped = tuple(number for number in range(last + 1) if number not in KEPT_CAPABILITIES)
    limits = {resource.RLIMIT_CORE: _NO_CORE, resource.RLIMIT_NOFILE: (min(soft, half), half)}
    for limit, most in _OF_THE_ACCOUNT.items():
        own = resource.getrlimit(limit)[1]
        value = most if own == resource.RLIM_INFINITY else min(most, own // 2)
        limits[limit] = (value, value)
    return Privileges(dropped, seccomp.program(os.uname().machine), tuple(limits.items()))


def program(request: Mapping[str, Any], given_up: Privileges) -> SyscallProgram:
    """Compile the calls for the spawner's request `enter`.

    A process of the sandbox's pid namespace is visible there from its birth, can be stopped at once, and
    shows its mounts, network and command line to whoever asks. So it is born after all these are the
    sandbox's. Nobody can look into it: until execve it keeps all capabilities and is not dumpable; the
    bounding set drops the capabilities with the very call that starts the command. It joins the control
    groups by itself: a full group refuses a fork but admits a process. Raises OSError when a text contains a
    zero byte.
    """
    common = _common(
        given_up,
        bool(request["namespaces"]),
        len(request["cgroups"]),
        bool(request["terminal"]),
        bool(request["script"]),
        tuple((limit, value) for limit, value in request["rlimits"]),
    )
    calls = SyscallProgram(os.uname().machine, common)
    calls.open_files(request["cgroups"], _FREE)
    calls.append(common)
    calls.call("chdir", calls.text(request["cwd"]), step=_DIRECTORY)
    if request["account"]:
        uid, gid, groups = request["account"]
        calls.call(
            "setgroups", len(groups), calls.put(struct.pack(f"{len(groups)}I", *groups)), step=_ACCOUNT
        )
        calls.call("setgid", gid, step=_ACCOUNT)
        calls.call("setuid", uid, step=_ACCOUNT)
    if request["terminal"]:
        calls.call("write", TOLD, calls.put(b"1"), 1)
    _execute(calls, request)
    return calls


@lru_cache(maxsize=64)
def _common(
    given_up: Privileges,
    inside: bool,
    cgroups: int,
    terminal: bool,
    script: bool,
    rlimits: tuple[tuple[int, int], ...],
) -> SyscallProgram:
    """Compile the part that is equal for all commands with these options, once `cgroups` groups are open."""
    calls = SyscallProgram(os.uname().machine)
    if inside:
        calls.write_file("/proc/self/oom_score_adj", b"%d" % OOM_SCORE_OF_COMMANDS, _FREE + cgroups)
        calls.call("setns", TARGET, _JOINED)
        calls.call("prctl", kernel.PR_SET_DUMPABLE, 0)
        calls.bear()
    for group in range(_FREE, _FREE + cgroups):
        calls.write(group, b"0")
    calls.call("setsid")
    if terminal:
        calls.call("ioctl", 0, termios.TIOCSCTTY, 0)
    for first, last in ((3, SCRIPT - 1), (SCRIPT + 1, _LAST)) if script else ((3, _LAST),):
        calls.call("close_range", first, last, _CLOSE_RANGE_CLOEXEC)
    calls.call("umask", 0o022)
    own = {limit: (value, value) for limit, value in rlimits}
    for limit, values in {**dict(given_up.limits), **own}.items():
        calls.call("prlimit64", 0, limit, calls.put(_rlimit(*values)), 0)
    if inside:
        _give_up(calls, given_up)
    return calls


def explanation(request: Mapping[str, Any], number: int, step: int) -> str:
    what = {
        _ENTER: "could not enter the sandbox",
        _DIRECTORY: f"the working directory {request['cwd']} cannot be entered",
        _PRIVILEGES: "could not give up privileges",
        _ACCOUNT: f"could not become the user {(request['account'] or [0])[0]}",
        EXECUTE: "could not execute " + (request["argv"][0] if request["argv"] else "a shell"),
    }
    return f"{what[step]}: {os.strerror(number)}"


def _rlimit(soft: int, hard: int) -> bytes:
    return b"".join(value.to_bytes(8, "little", signed=value < 0) for value in (soft, hard))


def _give_up(calls: SyscallProgram, given_up: Privileges) -> None:
    calls.call("prctl", kernel.PR_CAP_AMBIENT, kernel.PR_CAP_AMBIENT_CLEAR_ALL, step=_PRIVILEGES)
    for capability in given_up.dropped:
        calls.call("prctl", kernel.PR_CAPBSET_DROP, capability, step=_PRIVILEGES)
    seccomp.load(calls, given_up.filter, step=_PRIVILEGES)


def _execute(calls: SyscallProgram, request: Mapping[str, Any]) -> None:
    """Execute `argv`, looked up on the PATH of the command's environment, or else the image's shell."""
    environment = calls.texts(f"{name}={value}" for name, value in request["env"].items())
    words = request["argv"]
    if words:
        argv = calls.texts(words)
        paths = [words[0]]
        if "/" not in words[0]:
            directories = request["env"].get("PATH", os.defpath).split(os.pathsep)
            paths = [os.path.join(directory, words[0]) for directory in directories]  # noqa: PTH118
        calls.search([(path, argv) for path in paths], environment, step=EXECUTE)
        return
    arguments = {
        name: calls.texts(shell_words(name, request["line"], request["words"], request["login"]))
        for name in ("bash", "sh")
    }
    for program in SHELLS:
        argv = arguments[program.rpartition("/")[2]]
        passed = NOT_FOUND if program != SHELLS[-1] else ()
        calls.call("execve", calls.text(program), argv, environment, step=EXECUTE, passing_over=passed)
