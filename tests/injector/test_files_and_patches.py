"""Files and patches are data: any bytes, any size, any path inside the sandbox, no path outside it."""

import hashlib
from pathlib import Path

import pytest

from injector.client import AsyncSandbox
from injector.errors import SandboxFileMissing, SandboxRequestInvalid

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


async def test_a_missing_file_is_a_file_not_found_error(sandbox: AsyncSandbox) -> None:
    for missing in (sandbox.download_content("/nope"), sandbox.list_files("/nope")):
        with pytest.raises(FileNotFoundError) as error:
            await missing
        assert isinstance(error.value, SandboxFileMissing)


@pytest.mark.parametrize("path", ["/workspace", "/dev/zero", "/workspace/pipe", "/dev/tty", "relative"])
async def test_only_regular_files_at_absolute_paths(sandbox: AsyncSandbox, path: str) -> None:
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
        ("a", "symlink"),
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
