"""Named snapshots of one sandbox, kept as long as the sandbox, to restore it or to fork from."""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from orchard.injector.agent.errors import Conflict, NotFound, RequestInvalid, SandboxGone
from orchard.injector.agent.interfaces import RunningSandbox, Template

MOST = 16
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, kw_only=True)
class _Snapshot:
    template: Template
    size: int
    created_at: float


class Snapshots:
    """Snapshots of one sandbox, taken, used and deleted one at a time."""

    def __init__(self) -> None:
        self._kept: dict[str, _Snapshot] = {}
        self._using = asyncio.Lock()
        self._closed = False

    def all(self) -> list[dict[str, Any]]:
        return [_record(name, kept) for name, kept in self._kept.items()]

    def find(self, name: str) -> _Snapshot:
        if name not in self._kept:
            there = ", ".join(self._kept) or "none"
            raise NotFound(f"there is no snapshot `{name}`; there are: {there}", reason="snapshot_missing")
        return self._kept[name]

    async def take(self, machine: RunningSandbox, name: str) -> dict[str, Any]:
        """Take a snapshot of the current file system, replacing an older one of this name.

        Raises RequestInvalid for a bad name, Conflict for one too many, SandboxGone, and what
        `RunningSandbox.template` raises.
        """
        if not _NAME.fullmatch(name):
            raise RequestInvalid(
                f"`{name[:100]}` cannot be the name of a snapshot: use up to 64 letters,"
                " digits, `.`, `_` and `-`"
            )
        async with self._using:
            if self._closed:
                raise SandboxGone("the sandbox was deleted", reason="deleted")
            if name not in self._kept and len(self._kept) >= MOST:
                raise Conflict(
                    f"the sandbox has {MOST} snapshots, as many as it may have: delete one",
                    reason="too_many_snapshots",
                )
            template = await machine.template()
            try:
                made = _Snapshot(template=template, size=await template.size(), created_at=time.time())
            except BaseException:
                await asyncio.shield(template.release())
                raise
            older = self._kept.pop(name, None)
            self._kept[name] = made
            if older is not None:
                await older.template.release()
        return _record(name, made)

    async def delete(self, name: str) -> None:
        async with self._using:
            snapshot = self.find(name)
            del self._kept[name]
            await snapshot.template.release()

    async def close(self) -> None:
        async with self._using:
            self._closed = True
            while self._kept:
                _, snapshot = self._kept.popitem()
                await snapshot.template.release()

    @asynccontextmanager
    async def template(self, machine: RunningSandbox, name: str | None) -> AsyncIterator[Template]:
        """Yield the template of this name, which is not deleted meanwhile; None: a temporary one of
        `machine`.

        Raises NotFound, and what `RunningSandbox.template` raises.
        """
        if name is not None:
            async with self._using:
                yield self.find(name).template
            return
        made = await machine.template()
        try:
            yield made
        finally:
            await made.release()


def _record(name: str, snapshot: _Snapshot) -> dict[str, Any]:
    return {"name": name, "size": snapshot.size, "created_at": snapshot.created_at}
