"""A sandbox as harnesses and graders see it: commands in, outcomes out, failures of ours raised."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

import msgspec

from orchard.workers.episode.pictures import Picture


class CommandOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a command did. `output` is stdout and stderr merged in order; a time-out is the command's own."""

    output: str
    returncode: int
    """-1 when it was stopped for time."""
    seconds: float
    timed_out: bool = False
    out_of_memory: bool = False
    """Whether the kernel killed something in the sandbox for memory meanwhile, the command itself or not."""
    pictures: tuple[Picture, ...] = ()
    """What the model is shown beside the text."""


READ_LIMIT = 16 * 1024 * 1024
"""Bytes taken from a sandbox at once, unless the caller says another number."""


class FileTooLarge(Exception):
    """A file of the sandbox has more bytes than its reader takes. Whoever made it meant it so."""


class Tunnel(Protocol):
    """A way from inside the sandbox to a server of the worker."""

    port: int
    """On loopback of the sandbox."""
    breaks: int
    """How often the line broke and came back: connections of that moment were reset."""


class Machine(Protocol):
    """One sandbox. Every method raises InfrastructureError when the sandbox, and not the command, failed:
    LimitExceeded where it failed because what runs in it took more than it may."""

    async def run(
        self,
        command: str,
        *,
        timeout: float,
        cwd: str,
        env: dict[str, str] | None = None,
        stdin: str | None = None,
    ) -> CommandOutcome:
        """Run `bash -c command` (`sh` without bash) in a fresh process group; `timeout` in seconds."""

    async def write(self, path: str, content: bytes) -> None:
        """Create or replace the file at the absolute `path`, with its parent directories. Raises NotWritable
        where what is there does not let it."""

    async def read(self, path: str, *, limit: int = READ_LIMIT) -> bytes:
        """The bytes of the file at the absolute `path`.

        Raises FileNotFoundError when there is no regular file, FileTooLarge beyond `limit` bytes.
        """

    async def copy_out(self, path: str, target: Path, *, limit: int) -> None:
        """Copy what is in the directory at the absolute `path` into the local, empty directory `target`.

        Raises FileNotFoundError when there is no directory, FileTooLarge beyond `limit` bytes.
        """

    def forward(self, port: int) -> AbstractAsyncContextManager[str]:
        """The URL at which this process reaches what listens at `port` of the sandbox's loopback address,
        while the block lasts."""

    def reverse(self, port: int, inside: int = 0) -> AbstractAsyncContextManager[Tunnel]:
        """Programs inside reach this process's loopback `port`, and nothing else, while the block lasts.
        They find it at the port `inside`; 0 takes any that is free.

        A tunnel that ends before its block raises InfrastructureError at the block's end.
        """
