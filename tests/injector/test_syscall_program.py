"""A list of system calls, made by a program that is not Python."""

import errno
import os
import signal
from pathlib import Path

import pytest

from orchard.injector.agent import syscall_program
from orchard.injector.agent.entering import explanation
from orchard.injector.agent.syscall_program import SyscallProgram

MACHINE = os.uname().machine


def play(made: SyscallProgram) -> tuple[int, tuple[int, int] | None]:
    """The exit status of a process that ran the tape to its end, and what failed."""
    program, written = syscall_program.open_program(MACHINE), made.open()
    pid = os.fork()
    if pid == 0:
        os.dup2(program, 9)
        os.dup2(written, syscall_program.DESCRIPTOR)
        os.execve("/proc/self/fd/9", ["enter"], {})
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), syscall_program.failure(written)
    finally:
        os.close(program)
        os.close(written)


def execute(made: SyscallProgram, *words: str, **environment: str) -> None:
    variables = made.texts(f"{name}={value}" for name, value in environment.items())
    made.call("execve", made.text(words[0]), made.texts(words), variables)


def test_calls_are_made_in_order_and_the_last_becomes_the_command(tmp_path: Path) -> None:
    made = SyscallProgram(MACHINE)
    (tmp_path / "file").touch()
    made.call("chdir", made.text(str(tmp_path)))
    made.call("umask", 0o077)
    made.write_file("file", b"written", 4)
    execute(made, "/bin/sh", "-c", 'echo "$WORD $1" > new; exit 3', "sh", "a b", WORD="ü")
    assert play(made) == (3, None)
    assert (tmp_path / "file").read_text() == "written"
    assert (tmp_path / "new").read_text() == "ü a b\n"
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o600


def test_a_call_that_fails_ends_it_and_is_named() -> None:
    made = SyscallProgram(MACHINE)
    made.call("setsid", step=1)
    made.call("chdir", made.text("/nothing/here"), step=2)
    execute(made, "/bin/true")
    assert play(made) == (127, (errno.ENOENT, 2))


def test_only_the_named_errors_are_passed_over() -> None:
    for passed_over, outcome in (((errno.ENOENT,), (0, None)), ((errno.EPERM,), (127, (errno.ENOENT, 7)))):
        made = SyscallProgram(MACHINE)
        made.call("chdir", made.text("/nothing/here"), step=7, passing_over=passed_over)
        execute(made, "/bin/true")
        assert play(made) == outcome


def test_the_first_program_that_can_be_executed_is(tmp_path: Path) -> None:
    (tmp_path / "unfit").touch()
    names = [str(tmp_path / "missing"), str(tmp_path / "unfit"), "/bin/false"]
    for count, outcome in ((3, (1, None)), (2, (127, (errno.EACCES, 5))), (1, (127, (errno.ENOENT, 5)))):
        made = SyscallProgram(MACHINE)
        argv = made.texts(["word"])
        made.search([(name, argv) for name in names[:count]], made.texts([]), step=5)
        assert play(made) == outcome


def test_a_child_of_the_starter_does_the_rest() -> None:
    made = SyscallProgram(MACHINE)
    made.bear()
    execute(made, "/bin/sh", "-c", "exit 3")
    program, written = syscall_program.open_program(MACHINE), made.open()
    places = [(os.POSIX_SPAWN_DUP2, written, syscall_program.DESCRIPTOR)]
    pid = os.posix_spawn(f"/proc/self/fd/{program}", ["enter"], {}, file_actions=places)
    assert os.waitpid(pid, 0)[1] == 0
    assert os.waitstatus_to_exitcode(os.waitpid(syscall_program.child(written), 0)[1]) == 3
    os.close(program)
    os.close(written)


def test_a_tape_has_no_room_for_more_than_a_command_may_have() -> None:
    made = SyscallProgram(MACHINE)
    made.texts(["x" * 1_000_000] * 20)
    with pytest.raises(OSError) as refused:
        made.open()
    assert refused.value.errno == errno.E2BIG


def test_a_text_with_a_zero_byte_is_refused() -> None:
    with pytest.raises(OSError, match="zero byte"):
        SyscallProgram(MACHINE).text("a\0b")


def test_the_program_on_nothing_dies_and_does_no_harm() -> None:
    """Only of interest because it must not run wild: there is no tape at descriptor 3."""
    program = syscall_program.open_program(MACHINE)
    pid = os.posix_spawn(
        f"/proc/self/fd/{program}",
        ["enter"],
        {},
        file_actions=[(os.POSIX_SPAWN_CLOSE, syscall_program.DESCRIPTOR)],
    )
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGSEGV
    os.close(program)


def test_what_failed_is_said_in_a_sentence() -> None:
    request = {"cwd": "/here", "argv": ["git", "status"], "account": None}
    assert explanation(request, errno.ENOENT, 1) == (
        "the working directory /here cannot be entered: No such file or directory"
    )
    assert explanation(request, errno.EACCES, 3) == "could not execute git: Permission denied"
    assert explanation({**request, "argv": []}, errno.ENOENT, 3).startswith("could not execute a shell: ")


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_both_machines_know_all_calls(machine: str) -> None:
    assert set(syscall_program._NUMBERS[machine]) == set(syscall_program._NUMBERS["x86_64"])
    assert len(syscall_program._CODE[machine]) % (4 if machine == "aarch64" else 1) == 0
