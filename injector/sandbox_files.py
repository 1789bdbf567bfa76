"""Client methods for a sandbox's files."""

import asyncio
import uuid
from pathlib import Path
from typing import IO, Any, TypeVar

from orchard.injector import directories, operations, wire
from orchard.injector.agent.protocol import WORKSPACE
from orchard.injector.results import DirectoryEntry, DirectoryListing, PatchOutcome, UploadResult
from orchard.injector.transport import Transport
from orchard.injector.watching import AsyncWatch
from orchard.schemas.sandboxes import ApplyPatch, MoveFile, PathDone

IN_MEMORY_LIMIT = 256 * 1024 * 1024
ON_DISK_LIMIT = 16 * 1024 * 1024 * 1024
"""Default limits in bytes of one download."""

T = TypeVar("T")


class SandboxFiles:
    """File methods of AsyncSandbox; see there for the errors that all methods raise."""

    def __init__(self, transport: Transport, sandbox_id: str) -> None:
        self._transport = transport
        self.sandbox_id = sandbox_id

    async def apply_patch(
        self,
        patch: str,
        timeout: float = 30.0,
        *,
        cwd: str = WORKSPACE,
        idempotency_key: str | None = None,
    ) -> PatchOutcome:
        """Apply a unified diff (paths `a/...` and `b/...`, relative to `cwd`), wholly or not at all."""
        request = ApplyPatch(patch=patch, timeout_seconds=timeout, cwd=cwd)
        return await self._call(PatchOutcome, operations.APPLY_PATCH, body=request, key=idempotency_key)

    async def upload_content(
        self, content: bytes | str, remote_path: str, *, mode: int | None = None
    ) -> UploadResult:
        """Make or replace the file at `remote_path`, with its parent directories.

        `mode` (0o755) None keeps that of the replaced file, or is 0o644. Lone surrogates of a text are
        written as the bytes that Python decodes to them.
        """
        data = wire.text_bytes(content) if isinstance(content, str) else content
        return await self._call(UploadResult, operations.WRITE, body=data, params=_written(remote_path, mode))

    async def upload_file(
        self, local_path: str | Path, remote_path: str, *, mode: int | None = None
    ) -> UploadResult:
        """Upload a local file of any size; see `upload_content`."""
        params = _written(remote_path, mode)
        with await asyncio.to_thread(Path(local_path).open, "rb") as content:
            return await self._call(UploadResult, operations.WRITE, body=content, params=params)

    async def remove(self, remote_path: str) -> None:
        """Remove a file, a link or a directory with its contents. Raises SandboxFileMissing."""
        await self._call(PathDone, operations.REMOVE, params={"path": remote_path})

    async def move(self, remote_path: str, target: str) -> None:
        """Rename a file, a link or a directory; replaces a file or an empty directory at `target`.

        If the response is lost, the retry may raise SandboxFileMissing although the first request succeeded.
        """
        await self._call(PathDone, operations.MOVE, body=MoveFile(path=remote_path, target=target))

    async def download_content(self, remote_path: str, *, limit: int = IN_MEMORY_LIMIT) -> bytes:
        """Return the bytes of a file. Raises SandboxFileMissing (a FileNotFoundError) when there is none.

        A task can make a huge sparse file, which would exhaust the caller's memory: beyond `limit` bytes
        SandboxFileTooLarge is raised.
        """
        return await self._transport.content(
            operations.READ.at(self.sandbox_id), {"path": remote_path}, limit
        )

    async def download_file(
        self, remote_path: str, local_path: str | Path, *, limit: int = ON_DISK_LIMIT
    ) -> int:
        """Download into a local file, which appears when it is complete; returns its size in bytes."""
        target = Path(local_path)
        part = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        try:
            with await asyncio.to_thread(part.open, "xb") as content:
                await self._download(operations.READ, remote_path, content, limit)
                size = content.tell()
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
        return size

    async def upload_directory(self, local_path: str | Path, remote_path: str) -> UploadResult:
        """Copy the contents of a local directory into the absolute `remote_path`, which is made if missing.

        Existing files of the same name are replaced, others stay. Modes, times and links are kept; everything
        is owned by the superuser. Sockets and devices are left out.
        """
        with directories.temporary() as archive:
            await asyncio.to_thread(directories.pack, Path(local_path), archive)
            params = {"path": remote_path}
            return await self._call(UploadResult, operations.WRITE_ARCHIVE, body=archive, params=params)

    async def download_directory(
        self, remote_path: str, local_path: str | Path, *, limit: int = ON_DISK_LIMIT
    ) -> list[str]:
        """Copy the contents of a directory of the sandbox into a local one, which is made if missing.

        The sandbox is not trusted: nothing is written outside of `local_path`, nothing becomes set-user-ID,
        and everything is owned by the caller. Returns the names of what was left out: special files, and
        links that could lead out. Raises SandboxFileMissing when there is no such directory,
        SandboxFileTooLarge when all files together have more than `limit` bytes, and SandboxRequestInvalid
        for names that a directory cannot contain or for what is in the way here.
        """
        with directories.temporary() as archive:
            await self._download(operations.READ_ARCHIVE, remote_path, archive, limit)
            return await asyncio.to_thread(directories.unpack, archive, Path(local_path))

    async def download_archive(self, remote_path: str, target: IO[bytes], *, limit: int) -> None:
        """Write the contents of a directory of the sandbox to `target` as a tar archive, as they are.

        Names, links and modes in it are the sandbox's, which is not trusted. Raises SandboxFileMissing and
        SandboxFileTooLarge as `download_directory` does.
        """
        await self._download(operations.READ_ARCHIVE, remote_path, target, limit)

    async def upload_archive(self, source: IO[bytes], remote_path: str) -> UploadResult:
        """Unpack a tar archive, from its beginning, into the absolute `remote_path`.

        Owners and modes are the archive's. Existing files of the same name are replaced, others stay; no link
        is followed. Raises SandboxRequestInvalid for an entry that leads out.
        """
        params = {"path": remote_path}
        return await self._call(UploadResult, operations.WRITE_ARCHIVE, body=source, params=params)

    async def list_files(self, remote_path: str = "/") -> list[DirectoryEntry]:
        """List a directory, sorted by name. Raises SandboxFileMissing when there is none."""
        return (await self._call(DirectoryListing, operations.FILES, params={"path": remote_path})).files

    def watch(self, remote_path: str = WORKSPACE) -> AsyncWatch:
        """Watch changes of the files below a directory, within an `async with` block.

        Raises SandboxFileMissing, SandboxRequestInvalid for what is no directory or has more than 4096 below
        it, SandboxConflict for a ninth watch of one sandbox, and SandboxUnavailable when the machine has no
        watches left.
        """
        return AsyncWatch(self._transport, self.sandbox_id, remote_path)

    async def _call(self, kind: type[T], operation: operations.ApiOperation, **options: Any) -> T:
        return await self._transport.call(kind, operation, self.sandbox_id, **options)

    async def _download(
        self, operation: operations.ApiOperation, path: str, target: IO[bytes], limit: int
    ) -> None:
        media = operation.reply_media or operations.RAW
        await self._transport.download(operation.at(self.sandbox_id), {"path": path}, target, limit, media)


def _written(path: str, mode: int | None) -> dict[str, str]:
    return {"path": path, **({} if mode is None else {"mode": f"{mode:03o}"})}
