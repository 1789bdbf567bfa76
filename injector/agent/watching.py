"""Streams changes of the files below a directory as server-sent events: `watching`, then one for each change.

    created, removed   {"path", "directory"}: also of what is moved in, or out
    changed            the same: content or attributes
    lost               {}: more happened than was kept; list the directory again
    end                {}: the directory, or the sandbox, is gone, or time is up

A new directory is reported with all its contents; what happens in it at that moment may be reported twice,
but is not missed. Changes of one file that come together are one event.
"""

import asyncio
import errno
import json
import os
import threading
from collections.abc import AsyncGenerator, Iterator

from orchard.injector.agent import inotify
from orchard.injector.agent.errors import AgentError, RequestInvalid
from orchard.injector.agent.files import KERNEL_INTERFACES, explained
from orchard.injector.agent.kernel import filesystem_type, open_beneath

MOST_DIRECTORIES = 4096
MOST_CHANGES = 10_000
QUIET = 15.0
"""Seconds without changes after which a comment is sent, so that both ends notice a broken connection."""
GATHERING = 0.05
"""Seconds between reports: a file that is written in pieces is reported once, not for each piece."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY

Change = tuple[str, str, bool]
LOST: Change = ("lost", "", False)


class Unwatched(AgentError):
    """The machine has no more watches; the sentence names the setting."""

    status = 503
    reason = "watches_exhausted"


class DirectoryWatch:
    """Watches the directory at `path` below `root` recursively. Its methods block: call them in a thread.

    Raises NotFound, Unwatched, and RequestInvalid for what is no directory or has too many below it.
    Directories that the agent may not read are not watched.
    """

    fd = -1

    def __init__(self, root: int, path: str) -> None:
        self._top = path.rstrip("/") or "/"
        self._paths: dict[int, str] = {}
        self._lock = threading.Lock()
        self._over = False
        with explained(path):
            top = open_beneath(root, path, _DIRECTORY)
        try:
            if filesystem_type(top) in KERNEL_INTERFACES:
                raise RequestInvalid(
                    f"{path} is an interface of the kernel, which reports no changes: watch another directory"
                )
            self._begin()
            self._root = os.dup(root)
            for _ in self._followed(self._top, top):
                pass
        finally:
            os.close(top)

    def _begin(self) -> None:
        try:
            self.fd = inotify.opened()
        except OSError as error:
            raise _exhausted(error, "fs.inotify.max_user_instances") from error

    def read(self) -> tuple[list[Change], bool]:
        """Return the changes since the last call, and whether no more can come."""
        with self._lock:
            if self.fd < 0:
                return [], True
            return _together(self._changes()), self._over

    def close(self) -> None:
        with self._lock:
            if self.fd >= 0:
                os.close(self.fd)
                os.close(self._root)
                self.fd = -1

    __del__ = close  # of one that was made for a request that had been given up

    def _changes(self) -> Iterator[Change]:
        for news in inotify.read(self.fd):
            if news.mask & inotify.OVERFLOW:
                yield LOST
            above = self._paths.get(news.watch)
            if above is None:
                continue
            if news.mask & (inotify.DELETE_SELF | inotify.MOVE_SELF | inotify.IGNORED):
                self._over = self._over or above == self._top  # of others the directory above tells
                continue
            if not news.name:
                continue  # its own attributes
            path, directory = _join(above, news.name), bool(news.mask & inotify.IS_DIRECTORY)
            if news.mask & (inotify.DELETE | inotify.MOVED_FROM):
                if directory:
                    self._leave(path)
                yield "removed", path, directory
            elif news.mask & (inotify.CREATE | inotify.MOVED_TO):
                yield "created", path, directory
                if directory:
                    yield from self._entered(path)
            else:
                yield "changed", path, directory

    def _entered(self, path: str) -> Iterator[Change]:
        """Watch a new directory; yields its contents as changes."""
        try:
            yield from self._followed(path)
        except (RequestInvalid, Unwatched):
            yield LOST

    def _followed(self, path: str, opened: int | None = None) -> Iterator[Change]:
        """Watch a directory, which may be open already, and those below; yields their contents."""
        waiting = [path]
        while waiting:
            above = waiting.pop()
            try:
                fd = os.dup(opened) if opened is not None else self._open(above)
            except OSError:
                continue  # it is gone, or is a link by now
            opened = None
            try:
                if filesystem_type(fd) in KERNEL_INTERFACES:
                    continue
                self._add(fd, above)
                with os.scandir(fd) as entries:
                    for entry in entries:
                        below, directory = _join(above, entry.name), entry.is_dir(follow_symlinks=False)
                        yield "created", below, directory
                        if directory:
                            waiting.append(below)
            finally:
                os.close(fd)

    def _open(self, path: str) -> int:
        return open_beneath(self._root, path, _DIRECTORY | os.O_NOFOLLOW)

    def _add(self, fd: int, path: str) -> None:
        if len(self._paths) >= MOST_DIRECTORIES:
            raise RequestInvalid(f"{self._top} has more than {MOST_DIRECTORIES} directories: watch one below")
        try:
            self._paths[inotify.add(self.fd, fd)] = path
        except OSError as error:
            raise _exhausted(error, "fs.inotify.max_user_watches") from error

    def _leave(self, path: str) -> None:
        for watch, below in list(self._paths.items()):
            if below == path or below.startswith(f"{path}/"):
                del self._paths[watch]
                inotify.drop(self.fd, watch)


async def events(
    watch: DirectoryWatch, ended: asyncio.Event, seconds: float | None
) -> AsyncGenerator[bytes, None]:
    """Yield events until `ended`, the end of the directory, or `seconds` have passed. Close it before the
    watch."""
    loop = asyncio.get_running_loop()
    deadline = None if seconds is None else loop.time() + seconds
    news = asyncio.Event()
    ending = loop.create_task(ended.wait())
    loop.add_reader(watch.fd, news.set)
    try:
        yield _event("watching", {})
        over = False
        while not over:
            coming = loop.create_task(news.wait())
            most = QUIET if deadline is None else max(0.0, min(QUIET, deadline - loop.time()))
            try:
                await asyncio.wait({coming, ending}, timeout=most, return_when=asyncio.FIRST_COMPLETED)
            finally:
                coming.cancel()
            news.clear()
            # Before the last look: what happened until then is reported.
            last = ended.is_set() or (deadline is not None and loop.time() >= deadline)
            changes, over = await asyncio.to_thread(watch.read)
            over = over or last
            for what, path, directory in changes:
                yield _event(what, {"path": path, "directory": directory} if path else {})
            if not (changes or over):
                yield b":\n\n"
            await asyncio.wait({ending}, timeout=GATHERING)
        yield _event("end", {})
    finally:
        loop.remove_reader(watch.fd)
        ending.cancel()


def _together(changes: Iterator[Change]) -> list[Change]:
    """Merge repeated changes of a file in one report."""
    found: list[Change] = []
    last: dict[str, str] = {}
    for change in changes:
        what, path, _ = change
        if what == "changed" and last.get(path) in ("changed", "created"):
            continue
        if len(found) < MOST_CHANGES:
            found.append(change)
            last[path] = what
        elif found[-1] != LOST:
            found.append(LOST)
    return found


def _join(above: str, name: str) -> str:
    return f"{above.rstrip('/')}/{name}"


def _exhausted(error: OSError, setting: str) -> AgentError:
    if error.errno in (errno.EMFILE, errno.ENOSPC):
        return Unwatched(f"this machine allows no more watches of files: raise {setting} with sysctl")
    return AgentError(f"files cannot be watched here: {error.strerror}", reason="watch_failed")


def _event(name: str, content: object) -> bytes:
    text = json.dumps(content, separators=(",", ":"))
    return f"event: {name}\ndata: {text}\n\n".encode()
