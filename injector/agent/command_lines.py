"""A command as the spawner starts it: an argument list, or a line for the image's shell."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from orchard.injector.agent.kernel import sealed_file

SCRIPT = 6
"""Descriptor at which a shell finds a line that is too long for an argument."""
LONGEST = 100_000
"""Bytes of a line that is passed as an argument (the kernel takes 128 KiB); a longer one becomes a file."""
LOGIN = 'if [ -f ~/.bashrc ]; then . ~/.bashrc; fi; (eval "shift; $1")'
"""Script of a bash login shell, whose arguments are the line and its words.

The shell is interactive, because most ~/.bashrc do nothing otherwise; the subshell is not, so it prints only
what the command prints.
"""


class CommandLine(NamedTuple):
    """`argv` is executed as it is; where it is empty, the image's shell runs `line` with `words` as `$@`."""

    argv: Sequence[str]
    line: str
    words: Sequence[str]
    login: bool
    script: int = -1
    """Descriptor of the file that `line` reads; -1: none."""


@contextmanager
def command_line(command: str | Sequence[str], login: bool) -> Iterator[CommandLine]:
    """Prepare a command: a shell line or an argument list, with or without a login shell."""
    if not isinstance(command, str):
        yield CommandLine((), 'exec "$@"', command, True) if login else CommandLine(command, "", (), False)
        return
    try:
        content = os.fsencode(command)
    except UnicodeEncodeError:  # it has no bytes, and is refused where it would be executed
        content = b""
    if len(content) <= LONGEST:
        yield CommandLine((), command, (), login)
        return
    script = sealed_file("command", b"exec %d<&-; " % SCRIPT + content)
    try:
        yield CommandLine((), f". /proc/self/fd/{SCRIPT}", (), login, script)
    finally:
        os.close(script)


def shell_words(shell: str, line: str, words: Sequence[str], login: bool) -> list[str]:
    if not login:
        return [shell, "-c", line]  # words are a login shell's only
    if shell != "bash":
        return [shell, "-lc", line, shell, *words]
    return [shell, "--login", "-i", "-c", LOGIN, shell, line, *words]
