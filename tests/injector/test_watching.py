"""Changes of files below a directory, told while they happen."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import pytest

from orchard import Change, SandboxClient
from orchard.injector.agent import watching
from orchard.injector.agent.errors import RequestInvalid
from orchard.injector.client import AsyncSandbox, AsyncSandboxClient
from orchard.injector.errors import (
    SandboxConflict,
    SandboxFileMissing,
    SandboxRequestInvalid,
    SandboxUnavailable,
)

if TYPE_CHECKING:
    from tests.injector.conftest import Service


async def until(changes: AsyncIterator[Change], path: str, kind: str = "created") -> list[tuple[str, str]]:
    """What is told up to this."""
    told: list[tuple[str, str]] = []
    async for change in changes:
        told.append((change.kind, change.path))
        if told[-1] == (kind, path):
            return told
    raise AssertionError(f"never: {kind} {path}; but {told}")


async def test_what_is_made_changed_moved_and_removed_is_told(sandbox: AsyncSandbox) -> None:
    await sandbox.exec("mkdir -p old/deep; echo 1 > old/deep/file")
    async with sandbox.watch() as changes:
        await sandbox.exec("echo 2 >> old/deep/file; touch done1")
        told = await until(aiter(changes), "/workspace/done1")
        assert told == [("changed", "/workspace/old/deep/file"), ("created", "/workspace/done1")]
        await sandbox.exec("mkdir -p new/a/b; echo x > new/a/b/c; touch done2")
        told = await until(aiter(changes), "/workspace/done2")
        assert {("created", f"/workspace/new{rest}") for rest in ("", "/a", "/a/b", "/a/b/c")} <= set(told)
        await sandbox.exec("mv new other; echo y > other/a/b/d; touch done3")
        told = await until(aiter(changes), "/workspace/done3")
        assert ("removed", "/workspace/new") in told and ("created", "/workspace/other/a/b/d") in told
        assert not [path for _, path in told if path.startswith("/workspace/new/")]
        await sandbox.exec("rm -r other; chmod 600 old/deep/file; touch done4")
        told = await until(aiter(changes), "/workspace/done4")
        assert ("removed", "/workspace/other") in told and ("changed", "/workspace/old/deep/file") in told


async def test_it_sees_what_the_service_itself_does_and_what_the_image_had(sandbox: AsyncSandbox) -> None:
    async with sandbox.watch("/etc") as changes:
        await sandbox.exec("echo 127.0.0.1 here >> /etc/hosts")  # a file of the layer below, copied up
        await sandbox.upload_content("x", "/etc/uploaded")
        await sandbox.move("/etc/uploaded", "/etc/moved")
        told = await until(aiter(changes), "/etc/moved")
        assert any(path == "/etc/hosts" for _, path in told)


async def test_the_directorys_end_and_the_sandboxs_are_the_end(client: AsyncSandboxClient) -> None:
    sandbox = await client.create_sandbox("host")
    await sandbox.exec("mkdir below")
    async with sandbox.watch("/workspace/below") as changes:
        await sandbox.exec("touch below/last; rm -r below")
        told = [(change.kind, change.path.rpartition("/")[2]) async for change in changes]
        assert told[-1] == ("removed", "last")
    async with sandbox.watch() as changes:
        await sandbox.delete()
        assert [change async for change in changes] == []


async def test_what_cannot_be_watched_is_said(sandbox: AsyncSandbox) -> None:
    await sandbox.exec("touch file; ln -s /proc way")
    with pytest.raises(SandboxFileMissing):
        await sandbox.watch("/none").__aenter__()
    for path, says in (
        ("/workspace/file", "Not a directory"),
        ("/proc", "interface"),
        ("/workspace/way", "interface"),
    ):
        with pytest.raises(SandboxRequestInvalid, match=says):
            await sandbox.watch(path).__aenter__()
    await sandbox.exec("mkdir -p wide && cd wide && seq 5000 | xargs mkdir")
    with pytest.raises(SandboxRequestInvalid, match="4096 directories"):
        await sandbox.watch("/workspace/wide").__aenter__()


async def test_a_sandbox_has_eight_and_what_ends_makes_room(sandbox: AsyncSandbox) -> None:
    held = [sandbox.watch() for _ in range(8)]
    for watch in held:
        await watch.__aenter__()
    with pytest.raises(SandboxConflict, match="8 watches"):
        await sandbox.watch().__aenter__()
    for watch in held:
        await watch.__aexit__(None, None, None)
    while True:  # the service learns of it with the next line that it sends: give it one
        await sandbox.exec("touch file; rm file")
        try:
            async with sandbox.watch():
                return
        except SandboxConflict:
            continue


async def test_what_is_cut_off_is_no_silence(own_service: "Service") -> None:
    async with own_service.client() as client:
        sandbox = await client.create_sandbox("host")
        async with sandbox.watch() as changes:
            own_service.kill()
            with pytest.raises(SandboxUnavailable):
                await anext(changes)
        own_service.start()


async def test_on_the_wire_it_is_server_sent_events(service: "Service", sandbox: AsyncSandbox) -> None:
    async with aiohttp.ClientSession(service.url) as http:
        place = f"/sandboxes/{sandbox.sandbox_id}/files/watch"
        reply = await http.get(place, params={"path": "/workspace", "timeout": "0"})
        assert (reply.status, reply.content_type) == (200, "text/event-stream")
        assert (await reply.text()) == "event: watching\ndata: {}\n\nevent: end\ndata: {}\n\n"


def test_blocking_code_watches_too(service: "Service") -> None:
    with (
        SandboxClient(service.url) as client,
        client.create_sandbox("host") as sandbox,
        sandbox.watch() as changes,
    ):
        sandbox.exec("mkdir directory")
        made = Change(kind="created", path="/workspace/directory", directory=True)
        assert next(iter(changes)) == made
        sandbox.delete()
        assert list(changes) == []


def test_a_report_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "MOST_CHANGES", 3)
    monkeypatch.setattr(watching, "MOST_DIRECTORIES", 3)
    with open_root(tmp_path) as root:
        watch = watching.DirectoryWatch(root, "/")
        (tmp_path / "file").write_text("1")
        (tmp_path / "file").write_text("2")
        assert watch.read() == ([("created", "/file", False)], False)
        for number in range(5):
            (tmp_path / f"file{number}").touch()
        told, _ = watch.read()
        assert [what for what, _, _ in told] == ["created"] * 3 + ["lost"]
        for number in range(3):
            (tmp_path / f"directory{number}").mkdir()
        assert watching.LOST in watch.read()[0]
        watch.close()
        assert watch.read() == ([], True)
        with pytest.raises(RequestInvalid, match="more than 3 directories"):
            watching.DirectoryWatch(root, "/")


def test_a_machine_without_watches_left_says_which_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(*_: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(watching.inotify, "add", none_left)
    with open_root(tmp_path) as root, pytest.raises(watching.Unwatched, match="max_user_watches"):
        watching.DirectoryWatch(root, "/")


@contextmanager
def open_root(place: Path) -> Iterator[int]:
    fd = os.open(place, os.O_PATH | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


async def test_who_gave_up_waiting_is_not_told_that_the_directory_is_gone(sandbox: AsyncSandbox) -> None:
    async with sandbox.watch() as changes:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await anext(changes)
        with pytest.raises(SandboxUnavailable, match="cut off"):
            await anext(changes)


async def test_what_happens_until_the_end_is_told(tmp_path: Path) -> None:
    """The second file comes after the last report, and then the watch ends."""
    ended = asyncio.Event()
    with open_root(tmp_path) as root:
        watch = watching.DirectoryWatch(root, "/")
        events = watching.events(watch, ended, None)
        assert (await anext(events)).startswith(b"event: watching")
        (tmp_path / "first").touch()
        assert b'"/first"' in await anext(events)
        (tmp_path / "second").touch()
        ended.set()
        told = [event async for event in events]
        watch.close()
    assert any(b'"/second"' in event for event in told)
    assert told[-1].startswith(b"event: end")
