"""The interface of a sandbox for harnesses and graders. Infrastructure failures are raised, all else is an
outcome."""

import asyncio
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import IO, Protocol

import msgspec

from orchard.workers.episode.pictures import Picture


class CommandOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a command. `output` is stdout and stderr merged in order; a time-out is the command's
    own."""

    output: str
    returncode: int
    """The exit status; -1 when it was stopped for time."""
    seconds: float
    timed_out: bool = False
    out_of_memory: bool = False
    """Whether the kernel killed a process of the sandbox for memory meanwhile, the command itself or another
    one."""
    cut: bool = False
    """Whether the middle of the output is left out, as it was more than is kept."""
    pictures: tuple[Picture, ...] = ()
    """Pictures that the model is shown with the text."""


READ_LIMIT = 16 * 1024 * 1024
"""Default limit, in bytes, of one read from a sandbox."""


class FileTooLarge(Exception):
    """A file of the sandbox has more bytes than its reader takes, as the agent or the task chose."""


class ReverseTunnel(Protocol):
    """Lets programs inside the sandbox reach a server of the worker."""

    port: int
    """Port on the sandbox's loopback address."""
    breaks: int
    """Number of times that the line broke and came back; connections open then were reset."""
    interrupted: int
    """Number of those connections on which a program waited for an answer."""


class ServicesBeside(Protocol):
    """Programs of other images that run beside a sandbox, each in one of its own."""

    def sandbox(self, name: str) -> "Machine | None":
        """Returns that of the service whose first name it is, if there is one."""

    def reached_from(self, machine: "Machine") -> AbstractAsyncContextManager[None]:
        """Lets another sandbox reach the services by their names, while the block lasts."""


class Machine(Protocol):
    """One sandbox. Every method raises InfrastructureError if the sandbox, and not the command, failed:
    LimitExceeded if what runs in it took more than it may."""

    services: ServicesBeside | None
    """The services beside it; None: it has none."""

    async def run(
        self,
        command: str,
        *,
        timeout: float,
        cwd: str,
        env: dict[str, str] | None = None,
        stdin: str | None = None,
        user: str | None = None,
        stop: asyncio.Event | None = None,
    ) -> CommandOutcome:
        """Runs `bash -c command` (`sh` without bash) in a fresh process group; `timeout` in seconds. It runs
        as `user`, a name or number in the sandbox, else as the image says. Once `stop` is set it is stopped,
        as it is for time."""

    async def write(self, path: str, content: bytes) -> None:
        """Creates or replaces the file at the absolute `path`, with its parent directories. Raises
        NotWritable if something at that path prevents it."""

    async def read(self, path: str, *, limit: int = READ_LIMIT) -> bytes:
        """Returns the bytes of the file at the absolute `path`.

        Raises FileNotFoundError if there is no regular file, FileTooLarge beyond `limit` bytes.
        """

    async def copy_out(self, path: str, target: Path, *, limit: int) -> None:
        """Copies the contents of the directory at the absolute `path` into the local, empty directory
        `target`.

        Raises FileNotFoundError if there is no directory, FileTooLarge beyond `limit` bytes.
        """

    async def archive(self, path: str, target: IO[bytes], *, limit: int) -> None:
        """Writes the contents of the directory at the absolute `path` to `target` as a tar archive.

        Raises FileNotFoundError if there is no directory that can be archived, FileTooLarge beyond `limit`
        bytes.
        """

    async def replace_directory(self, path: str, archive: IO[bytes]) -> None:
        """Makes the contents of a tar archive those of the directory at the absolute `path`. Raises
        NotWritable if the archive cannot be unpacked there."""

    async def remove(self, path: str) -> None:
        """Removes the file, link or directory at the absolute `path`, if there is one."""

    async def freeze(self) -> None:
        """Stops all processes, as far as the service can; files can still be read."""

    async def resume(self) -> None:
        """Lets processes that `freeze` stopped continue."""

    async def end_processes(self) -> None:
        """Ends all processes; the files stay. Raises InfrastructureError (INVALID_REQUEST) if the service
        cannot."""

    def forward(self, port: int) -> AbstractAsyncContextManager[str]:
        """Gives the URL at which this process reaches `port` of the sandbox's loopback address, while the
        block lasts. Raises at its end as `reverse` does."""

    def reverse(
        self, port: int, inside: int = 0, *, asks_again: bool = False
    ) -> AbstractAsyncContextManager[ReverseTunnel]:
        """Lets programs inside reach this process's loopback `port`, and nothing else, while the block lasts.
        They find it at the port `inside`; 0 takes any free one.

        Raises InfrastructureError at the block's end if the tunnel has ended before, and SANDBOX_UNAVAILABLE
        if its line broke while a program waited for an answer: what it made of that is not the agent's doing.
        With `asks_again` such a program may ask again, and the caller judges the breaks.
        """
