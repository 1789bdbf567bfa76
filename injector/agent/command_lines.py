"""A command as the spawner starts it: words as they are, or a line for the image's shell."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from orchard.injector.agent.kernel import sealed_file

SCRIPT = 6
"""The descriptor that a shell has a long line at."""
LONGEST = 100_000
"""Bytes of a line that is an argument of the shell: the kernel takes 128 KiB. A longer one is a file."""
LOGIN = 'if [ -f ~/.bashrc ]; then . ~/.bashrc; fi; (eval "shift; $1")'
"""What a login shell that is bash runs, with the line and its words as arguments.

It is interactive, because most ~/.bashrc do nothing in another; the subshell is not, so it speaks only when
the command does.
"""


class CommandLine(NamedTuple):
    """`argv` is executed as it is; where it is empty, the image's shell runs `line` with `words` as `$@`."""

    argv: Sequence[str]
    line: str
    words: Sequence[str]
    login: bool
    script: int = -1
    """Descriptor of the file that `line` reads, if it does."""


@contextmanager
def command_line(command: str | Sequence[str], login: bool) -> Iterator[CommandLine]:
    """Of a command that is a line or a list of words, by a login shell or not."""
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
    """The arguments of a shell of this name."""
    if not login:
        return [shell, "-c", line]  # words are a login shell's only
    if shell != "bash":
        return [shell, "-lc", line, shell, *words]
    return [shell, "--login", "-i", "-c", LOGIN, shell, line, *words]
