"""Client methods: pause, resume, snapshot, restore."""

from orchard.injector import operations
from orchard.injector.sandbox_files import SandboxFiles
from orchard.schemas.sandboxes import (
    Acknowledgement,
    RestoreSandbox,
    SandboxInfo,
    Snapshot,
    SnapshotDeleted,
)


class SandboxStates(SandboxFiles):
    """State methods of AsyncSandbox; see there for the errors that all methods raise."""

    async def pause(self) -> None:
        """Freeze all processes; does nothing if they are frozen.

        Memory and files stay, files can be read and written, and commands are refused (SandboxConflict,
        `paused`) until `resume`. Timeouts continue: a command over its timeout is killed, at the latest when
        it is resumed, and the sandbox expires like any other. Raises SandboxUnsupported where it cannot be
        frozen.
        """
        await self._call(Acknowledgement, operations.PAUSE)

    async def resume(self) -> None:
        """Let all processes continue; does nothing if they run."""
        await self._call(Acknowledgement, operations.RESUME)

    async def take_snapshot(self, name: str) -> Snapshot:
        """Keep the current file system under a name, as long as the sandbox exists.

        An existing snapshot of the name is replaced; there are at most 16. `pause` first if files must be
        consistent. Raises SandboxUnsupported where there are no copies.
        """
        return await self._call(Snapshot, operations.TAKE_SNAPSHOT, params={"name": name})

    async def list_snapshots(self) -> list[Snapshot]:
        """List the named snapshots, oldest first."""
        return await self._call(list[Snapshot], operations.SNAPSHOTS)

    async def delete_snapshot(self, name: str) -> None:
        """Delete a snapshot; forks that started from it stay. Raises SandboxNotFound (`snapshot_missing`)."""
        await self._call(SnapshotDeleted, operations.DELETE_SNAPSHOT, params={"name": name})

    async def restore(self, name: str) -> SandboxInfo:
        """Restore the file system of a snapshot. All processes end; their output can still be read.

        Raises SandboxNotFound (`snapshot_missing`).
        """
        return await self._call(SandboxInfo, operations.RESTORE, body=RestoreSandbox(name=name))
