"""Files and patches are data: any bytes, any size, any path inside the sandbox, no path outside it."""

import asyncio
import hashlib
import os
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import psutil
import pytest

from orchard.injector.agent import files
from orchard.injector.agent.uploads import FileUpload, discarded
from orchard.injector.client import AsyncSandbox
from orchard.injector.errors import SandboxFileMissing, SandboxRequestInvalid
from orchard.streams.tasks import end

if TYPE_CHECKING:
    from tests.injector.conftest import Service

ALL_BYTES = bytes(range(256)) * 20_000
PATCH = "--- a/greeting\n+++ b/greeting\n@@ -1 +1 @@\n-hello\n+hello, world\n"


async def test_files_of_this_machine_go_and_come(sandbox: AsyncSandbox, tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(ALL_BYTES)
    await sandbox.upload_file(tmp_path / "there", "/tmp/file")
    await sandbox.download_file("/tmp/file", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == ALL_BYTES


async def test_a_shorter_upload_replaces_the_whole_file(sandbox: AsyncSandbox) -> None:
    await sandbox.exec("echo a longer text > f; chmod 755 f")
    await sandbox.upload_content("short", "/workspace/f")
    assert (await sandbox.exec("cat f; stat -c ' %a' f")).stdout == "short 755\n"


async def test_empty_files_can_be_written_one_after_another(sandbox: AsyncSandbox) -> None:
    """aiohttp has one object for all bodies of no bytes; read a second time it once never ended."""
    for name in ("a", "b", "c"):
        async with asyncio.timeout(60.0):
            await sandbox.upload_content(b"", f"/workspace/{name}")
    assert (await sandbox.exec("cat a b c; ls")).stdout == "a\nb\nc\n"


async def test_a_missing_file_is_a_file_not_found_error(sandbox: AsyncSandbox) -> None:
    for missing in (sandbox.download_content("/nope"), sandbox.list_files("/nope")):
        with pytest.raises(FileNotFoundError) as error:
            await missing
        assert isinstance(error.value, SandboxFileMissing)


@pytest.mark.parametrize("path", ["/workspace", "/dev/zero", "/workspace/pipe", "/dev/tty", "..", "nul\0"])
async def test_only_regular_files(sandbox: AsyncSandbox, path: str) -> None:
    """A device or pipe would block the agent, or be read for ever."""
    await sandbox.exec("mkfifo pipe")
    with pytest.raises(SandboxRequestInvalid):
        await sandbox.download_content(path)
    with pytest.raises(SandboxRequestInvalid):
        await sandbox.upload_content(b"x", path)


async def test_a_listing_is_by_name_with_types(sandbox: AsyncSandbox) -> None:
    await sandbox.exec("mkdir b; echo 12345 > c; ln -s /etc a; mkfifo d")
    entries = await sandbox.list_files("/workspace")
    assert [(entry.name, entry.type) for entry in entries] == [
        ("a", "directory"),
        ("b", "directory"),
        ("c", "file"),
        ("d", "other"),
    ]
    assert entries[2].size == 6


async def test_links_and_dots_cannot_lead_out(sandbox: AsyncSandbox, tmp_path: Path) -> None:
    """Absolute links, climbing paths and magic links, on reading and on writing."""
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    await sandbox.exec(f"ln -s {secret} absolute; ln -s ../../../../../..{secret} climbing; ln -s / root")
    for path in (
        "/workspace/absolute",
        "/workspace/climbing",
        f"/../../..{secret}",
        f"/workspace/root{secret}",
    ):
        with pytest.raises(SandboxFileMissing):
            await sandbox.download_content(path)
    await sandbox.upload_content("inside", f"/workspace/root{secret}")
    for path in (
        f"/proc/self/root{secret}",
        "/proc/1/root/etc/hostname",
        "/proc/self/fd/0",
        "/proc/self/cwd/x",
    ):
        with pytest.raises((SandboxRequestInvalid, SandboxFileMissing)):
            await sandbox.download_content(path)
        with pytest.raises((SandboxRequestInvalid, SandboxFileMissing)):
            await sandbox.upload_content("x", path)
    await sandbox.exec("ln -s /proc/self/oom_score_adj adjustment; ln -s /proc/sys/vm/swappiness setting")
    for path in ("/workspace/adjustment", "/workspace/setting", "/proc/1/environ"):
        with pytest.raises(SandboxRequestInvalid):
            await sandbox.upload_content("100", path)
        with pytest.raises(SandboxRequestInvalid):
            await sandbox.download_content(path)
    assert secret.read_text() == "of the host"
    assert (await sandbox.exec(["cat", str(secret)])).stdout == "inside"


async def test_a_patch_is_applied(sandbox: AsyncSandbox) -> None:
    await sandbox.upload_content("hello\n", "/workspace/greeting")
    result = await sandbox.apply_patch(PATCH)
    assert (result.success, result.exit_code, result.error) == (True, 0, None)
    assert await sandbox.download_content("/workspace/greeting") == b"hello, world\n"


async def test_a_patch_beside_the_root_of_a_repository_is_not_left_out_silently(
    sandbox: AsyncSandbox,
) -> None:
    await sandbox.exec("git init -q .; mkdir -p sub; echo hello > sub/greeting")
    result = await sandbox.apply_patch(PATCH, cwd="/workspace/sub")
    assert result.success
    assert await sandbox.download_content("/workspace/sub/greeting") == b"hello, world\n"


async def test_a_patch_that_does_not_fit_changes_nothing(sandbox: AsyncSandbox) -> None:
    await sandbox.upload_content("goodbye\n", "/workspace/greeting")
    new = "--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+x\n"
    result = await sandbox.apply_patch(new + PATCH)
    assert (result.success, result.error) == (False, "the patch does not apply")
    assert result.stderr
    assert [entry.name for entry in await sandbox.list_files("/workspace")] == ["greeting"]


async def test_a_patch_cannot_leave_its_directory(sandbox: AsyncSandbox) -> None:
    patch = "--- /dev/null\n+++ b/../../etc/evil\n@@ -0,0 +1 @@\n+x\n"
    assert not (await sandbox.apply_patch(patch)).success
    assert (await sandbox.exec("test -e /etc/evil")).exit_code == 1


async def test_a_missing_directory_for_a_patch_is_an_error(sandbox: AsyncSandbox) -> None:
    result = await sandbox.apply_patch(PATCH, cwd="/nope")
    assert not result.success
    assert "/nope" in (result.error or "")


async def test_a_large_file_comes_in_pieces(sandbox: AsyncSandbox) -> None:
    job = await sandbox.exec("head -c 50000000 /dev/urandom > large; sha256sum < large")
    data = await sandbox.download_content("/workspace/large")
    assert hashlib.sha256(data).hexdigest() == job.stdout.split()[0]


def in_pieces(pieces: "asyncio.Queue[bytes | None]") -> AsyncIterator[bytes]:
    async def taken() -> AsyncIterator[bytes]:
        while (piece := await pieces.get()) is not None:
            yield piece

    return taken()


@pytest.mark.parametrize("before", ["old", None])
async def test_an_upload_that_is_cut_off_leaves_what_was_there_and_nothing_else(
    service: "Service",
    sandbox: AsyncSandbox,
    eventually: Callable[[Callable[[], bool], str], None],
    before: str | None,
) -> None:
    if before is not None:
        await sandbox.upload_content(before, "/workspace/d/file")
    await sandbox.exec("mkdir -p d")
    upper = service.state / "sandboxes" / sandbox.sandbox_id / "upper" / "workspace" / "d"
    pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
    url = f"{service.url}/sandboxes/{sandbox.sandbox_id}/files"
    params = {"path": "/workspace/d/file"}
    headers = {"Content-Type": "application/octet-stream"}
    async with aiohttp.ClientSession() as http:
        sending = asyncio.create_task(http.post(url, params=params, headers=headers, data=in_pieces(pieces)))
        pieces.put_nowait(b"x" * 3_000_000)
        while not (beside := list(upper.glob(".upload-*"))) or not beside[0].stat().st_size:
            await asyncio.sleep(0.01)
        seen = (await sandbox.exec("cat d/file 2>/dev/null || echo none")).stdout.strip()
        await end(sending)
    eventually(lambda: not list(upper.glob(".upload-*")), "what was sent so far is gone")
    assert seen == (before or "none")
    left = [entry.name for entry in await sandbox.list_files("/workspace/d")]
    assert left == ([] if before is None else ["file"])
    if before is not None:
        assert await sandbox.download_content("/workspace/d/file") == b"old"


@pytest.mark.needs_root("files of other owners")
async def test_an_upload_keeps_mode_owner_and_links_of_what_it_replaces(sandbox: AsyncSandbox) -> None:
    await sandbox.exec(
        "mkdir real; echo old > real/file; chown 12:34 real/file; chmod 4751 real/file;"
        "ln -s real/file near; ln -s /workspace/near far; ln -s missing new"
    )
    for path in ("real/file", "near", "far", "new"):
        await sandbox.upload_content(f"by {path}", f"/workspace/{path}")
        said = (await sandbox.exec("stat -c '%a %u:%g' real/file; cat real/file; readlink near far")).stdout
        assert said.startswith(f"4751 12:34\nby {path if path != 'new' else 'far'}")
        assert said.endswith("real/file\n/workspace/near\n")
    assert (await sandbox.exec("cat missing; stat -c '%a %u' missing")).stdout == "by new644 0\n"


async def test_what_is_no_file_is_refused(sandbox: AsyncSandbox) -> None:
    await sandbox.exec("mkfifo pipe; sleep 1009 <> pipe &")
    for path in ("/dev/null", "/dev/pts", "/workspace/", "/", "/workspace/..", "/workspace/pipe"):
        with pytest.raises(SandboxRequestInvalid):
            await sandbox.upload_content("x", path)
    assert not [entry for entry in await sandbox.list_files("/workspace") if entry.name != "pipe"]


@pytest.mark.needs_root("mounts")
def test_a_file_that_is_mounted_is_written_over(tmp_path: Path) -> None:
    """It cannot be replaced: /etc/hosts in a Pod."""
    for name in ("file", "mounted"):
        (tmp_path / name).write_text("a longer text")
    subprocess.run(["mount", "--bind", tmp_path / "file", tmp_path / "mounted"], check=True)
    root, upload = os.open("/", os.O_PATH), FileUpload()
    try:
        upload.open(root, str(tmp_path / "mounted"))
        upload.write(b"new")
        assert (tmp_path / "mounted").read_text() == "a longer text"
        upload.finish()
        upload.discard()
        assert (tmp_path / "mounted").read_text() == (tmp_path / "file").read_text() == "new"
        assert {path.name for path in tmp_path.iterdir()} == {"file", "mounted"}
    finally:
        os.close(root)
        subprocess.run(["umount", tmp_path / "mounted"], check=True)


def test_an_upload_that_is_discarded_first_does_nothing(tmp_path: Path) -> None:
    root, upload = os.open("/", os.O_PATH), FileUpload()
    upload.discard()
    upload.open(root, str(tmp_path / "d" / "file"))
    os.close(root)
    assert list(tmp_path.iterdir()) == []


async def test_a_cancelled_request_discards_its_upload_once_a_thread_is_free(tmp_path: Path) -> None:
    """The only thread is busy when the request is cancelled, so the discarding has not begun."""
    free, busy = threading.Event(), threading.Event()
    root, upload = os.open("/", os.O_PATH), FileUpload()
    before = psutil.Process().num_fds()
    upload.open(root, str(tmp_path / "file"))
    with ThreadPoolExecutor(1) as thread:
        asyncio.get_running_loop().set_default_executor(thread)
        thread.submit(lambda: (busy.set(), free.wait()))
        busy.wait()
        request = asyncio.ensure_future(discarded(upload))
        await asyncio.sleep(0)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        free.set()
    assert psutil.Process().num_fds() == before
    assert list(tmp_path.iterdir()) == []
    os.close(root)


async def test_files_have_the_mode_that_is_asked_for(sandbox: AsyncSandbox) -> None:
    await sandbox.upload_content("#!/bin/sh\necho ran\n", "tool", mode=0o750)
    assert (await sandbox.exec("stat -c %a /tool; /tool")).stdout == "750\nran\n"
    await sandbox.upload_content("other", "/tool")
    assert (await sandbox.exec("stat -c %a /tool")).stdout == "750\n"
    await sandbox.upload_content("other", "/tool", mode=0o4600)
    assert (await sandbox.exec("stat -c %a /tool")).stdout == "4600\n"


async def test_what_is_moved_or_removed_is_that_very_thing(sandbox: AsyncSandbox) -> None:
    await sandbox.exec(
        "mkdir -p d/e /other; echo x > d/e/f; ln -s /other link; echo y > /other/kept; echo z > g"
    )
    await sandbox.move("/workspace/d", "/new/place")
    assert await sandbox.download_content("/new/place/e/f") == b"x\n"
    await sandbox.move("/workspace/g", "/new/place/e/f")
    assert await sandbox.download_content("/new/place/e/f") == b"z\n"
    await sandbox.remove("/workspace/link")
    await sandbox.remove("/new/")
    assert (await sandbox.exec("ls -A /workspace; ls -A /other; ls -d /new")).stdout == "kept\n"
    for path in ("/new", "/nowhere/x"):
        with pytest.raises(SandboxFileMissing):
            await sandbox.remove(path)
        with pytest.raises(SandboxFileMissing):
            await sandbox.move(path, "/tmp/x")
    for path in ("/", "/workspace/..", "/proc/1/comm", "/other/kept/x"):
        with pytest.raises(SandboxRequestInvalid):
            await sandbox.remove(path)
    await sandbox.exec("mkdir /full; touch /full/x")
    with pytest.raises(SandboxRequestInvalid):
        await sandbox.move("/other", "/full")


async def test_jobs_are_listed_without_what_they_printed(sandbox: AsyncSandbox) -> None:
    first = await sandbox.exec("echo printed")
    second = await sandbox.exec(["sleep", "1000"], wait=False)
    listed = await sandbox.list_jobs()
    assert [(job.job_id, job.command, job.stdout, job.stdout_bytes) for job in listed] == [
        (first.job_id, "echo printed", "", 8),
        (second.job_id, ["sleep", "1000"], "", 0),
    ]
    assert [job.is_complete for job in listed] == [True, False]


def test_what_is_removed_while_it_is_listed_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("kept", "removed"):
        (tmp_path / name).touch()
    scandir = os.scandir

    @contextmanager
    def and_removed(directory: int) -> Iterator[Iterator[os.DirEntry[str]]]:
        with scandir(directory) as entries:
            found = list(entries)
        (tmp_path / "removed").unlink()
        yield iter(found)

    monkeypatch.setattr(os, "scandir", and_removed)
    root = os.open(tmp_path, os.O_PATH)
    try:
        assert [entry["name"] for entry in files.listing(root, "/")] == ["kept"]
    finally:
        os.close(root)
