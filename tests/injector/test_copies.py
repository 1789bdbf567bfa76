"""Directories in and out of sandboxes, and sandboxes made from a sandbox."""

import io
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import pytest

from orchard.injector import directories
from orchard.injector.blocking import SandboxClient
from orchard.injector.client import AsyncSandbox, AsyncSandboxClient
from orchard.injector.errors import (
    SandboxConflict,
    SandboxFileMissing,
    SandboxNotFound,
    SandboxRequestInvalid,
)

if TYPE_CHECKING:
    from tests.injector.conftest import Service


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A directory with one of everything."""
    place = tmp_path / "tree"
    (place / "sub" / "empty").mkdir(parents=True)
    (place / "file").write_bytes(bytes(range(256)) * 4000)
    (place / "sub" / "program").write_text("#!/bin/sh\necho it runs\n")
    (place / "sub" / "program").chmod(0o755)
    (place / "ü -x\n").write_text("an odd name")
    (place / "sub" / "up").symlink_to("../file")
    os.link(place / "file", place / "same")
    (place / "closed").mkdir()
    (place / "closed" / "in").write_text("x")
    (place / "closed").chmod(0o555)
    os.utime(place / "file", (1e9, 1e9))
    return place


def listing(place: Path) -> dict[str, tuple[str, int, bytes]]:
    """Kind and mode, links, content by name."""
    found = {}
    for path in sorted(place.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        target = str(path.readlink()) if path.is_symlink() else ""
        found[str(path.relative_to(place))] = (
            stat.filemode(status.st_mode) + target,
            status.st_nlink,
            content,
        )
    return found


async def test_a_directory_survives_a_round_trip(sandbox: AsyncSandbox, tree: Path, tmp_path: Path) -> None:
    written = await sandbox.upload_directory(tree, "/var/tmp/deep/copy")
    ran = await sandbox.exec(
        "cd /var/tmp/deep/copy && sub/program && stat -c '%Y %u' file && readlink sub/up"
    )
    left_out = await sandbox.download_directory("/var/tmp/deep/copy", tmp_path / "back")
    assert ran.stdout == "it runs\n1000000000 0\n../file\n"
    assert (written.success, written.size) == (True, 1_024_000 + 23 + 11 + 1)
    assert left_out == []
    assert listing(tmp_path / "back") == listing(tree)


async def test_a_directory_goes_into_one_that_is_there(
    sandbox: AsyncSandbox, tree: Path, tmp_path: Path
) -> None:
    await sandbox.exec(
        "mkdir -p there/sub; echo old > there/file; echo kept > there/other; ln -s /etc there/same"
    )
    await sandbox.upload_directory(tree, "/workspace/there")
    assert (await sandbox.exec("cat there/other; wc -c < there/same; ls /etc | wc -l")).stdout.split()[
        :2
    ] == [
        "kept",
        "1024000",
    ]
    (tmp_path / "back" / "sub").mkdir(parents=True)
    (tmp_path / "outside").write_text("untouched")
    (tmp_path / "back" / "file").symlink_to(tmp_path / "outside")
    await sandbox.download_directory("/workspace/there", tmp_path / "back")
    assert (tmp_path / "outside").read_text() == "untouched"
    assert (tmp_path / "back" / "file").stat().st_size == 1_024_000


async def test_what_could_lead_out_or_is_special_is_left_out_and_named(
    sandbox: AsyncSandbox, tmp_path: Path
) -> None:
    await sandbox.exec(
        "mkdir -p d/e; cd d; ln -s /etc/passwd a; ln -s ../../x e/b; ln -s e/../.. c; mkfifo p"
    )
    await sandbox.exec("echo x > ok; chmod 6755 ok; ln -s e/../ok odd; ln -s ../ok e/ok", cwd="/workspace/d")
    left_out = await sandbox.download_directory("/workspace/d", tmp_path / "d")
    assert sorted(left_out) == ["a", "c", "e/b", "odd", "p"]
    assert stat.S_IMODE((tmp_path / "d" / "ok").stat().st_mode) == 0o755
    assert (tmp_path / "d" / "e" / "ok").read_text() == "x\n"


async def test_a_directory_that_is_not_there(sandbox: AsyncSandbox, tmp_path: Path) -> None:
    with pytest.raises(SandboxFileMissing):
        await sandbox.download_directory("/nowhere", tmp_path / "x")
    assert not (tmp_path / "x").exists()
    with pytest.raises(SandboxRequestInvalid, match="not a directory of this machine"):
        await sandbox.upload_directory(tmp_path / "y", "/workspace")
    await sandbox.upload_content("x", "/workspace/file")
    for path in ("/workspace/file", "relative"):
        with pytest.raises(SandboxRequestInvalid):
            await sandbox.download_directory(path, tmp_path / "x")


async def test_what_is_no_archive_is_refused(service: "Service", sandbox: AsyncSandbox) -> None:
    url = f"{service.url}/sandboxes/{sandbox.sandbox_id}/archive"
    async with aiohttp.ClientSession() as http:
        nonsense = await http.put(url, params={"path": "/workspace"}, data=b"x" * 5000)
        assert (nonsense.status, "archive" in (await nonsense.json())["detail"]) == (422, True)
        assert (await http.put(url, data=b"")).status == 422
    assert (await sandbox.exec("ls")).stdout == ""


Member = tuple[str, bytes, str]
"""Name, type, link name."""


def archive(*members: Member) -> io.BytesIO:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as made:
        for name, kind, link in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size = kind, link, 1 if kind == tarfile.REGTYPE else 0
            info.mode = 0o755
            made.addfile(info, io.BytesIO(b"x"))
    return target


FILE, LINK, HARD = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE


@pytest.mark.parametrize(
    "members",
    [
        [("../evil", FILE, "")],
        [("/evil", FILE, "")],
        [("a/../../evil", FILE, "")],
        [("link", LINK, ".."), ("link/evil", FILE, "")],
        [("link", LINK, "."), ("link", HARD, "link"), ("link/../evil", FILE, "")],
        [("evil", HARD, "../outside")],
        [("evil", HARD, "/etc/passwd")],
        [("", FILE, "")],
        [("a", FILE, ""), ("a/b", FILE, "")],
        [("a/b", FILE, ""), ("a", FILE, "")],
    ],
    ids=range(10),
)
def test_an_archive_of_a_hostile_sandbox_writes_nothing_outside(
    tmp_path: Path, members: list[Member]
) -> None:
    """The agent makes no such archive; whoever took its place might."""
    (tmp_path / "outside").write_text("before")
    try:
        directories.unpack(archive(*members), tmp_path / "in")
    except SandboxRequestInvalid:
        pass
    else:
        assert members[0][0] == "link"
    assert {path.name for path in tmp_path.iterdir()} == {"outside", "in"}
    assert (tmp_path / "outside").read_text() == "before"
    assert (tmp_path / "outside").stat().st_nlink == 1
    assert not any(path.is_symlink() for path in (tmp_path / "in").rglob("*"))


def test_an_archive_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    whole = archive(("a", FILE, ""), ("b", FILE, "")).getvalue()
    with pytest.raises(SandboxRequestInvalid, match="no whole archive"):
        directories.unpack(io.BytesIO(whole[:700]), tmp_path)


def test_a_path_that_is_too_long_for_this_machine_is_the_sandboxs_fault(tmp_path: Path) -> None:
    with pytest.raises(SandboxRequestInvalid, match="too long"):
        directories.unpack(archive(("/".join(30 * ["d" * 200]), FILE, "")), tmp_path)


async def test_forks_are_independent(client: AsyncSandboxClient, sandbox: AsyncSandbox) -> None:
    await sandbox.exec("echo shared > file; sleep 3001 &")
    one, two = await sandbox.fork(count=2)
    await one.exec("echo one > file")
    await sandbox.exec("echo origin > file")
    contents = [(await box.exec("cat file")).stdout for box in (sandbox, one, two)]
    assert contents == ["origin\n", "one\n", "shared\n"]
    assert "sleep 3001" not in (await two.exec("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")).stdout
    assert (one.info.cpu, one.info.memory, one.block_network) == (sandbox.info.cpu, sandbox.info.memory, True)
    await sandbox.delete()
    assert (await two.exec("cat file")).stdout == "shared\n"
    assert {one.sandbox_id, two.sandbox_id} <= set(client._created.ids())


async def test_forks_have_the_ids_and_labels_that_were_asked_for_once(
    client: AsyncSandboxClient, sandbox: AsyncSandbox
) -> None:
    ids = ["fork-a", "fork-b"]
    labels = {"of": "fork"}
    forks = await sandbox.fork(2, sandbox_ids=ids, labels=labels, idempotency_key="fork-1")
    again = await sandbox.fork(2, sandbox_ids=ids, labels=labels, idempotency_key="fork-1")
    assert [box.info for box in forks] == [box.info for box in again]
    assert [box.sandbox_id for box in forks] == ids
    assert len(await client.list_sandboxes({"of": "fork"})) == 2
    with pytest.raises(SandboxConflict):
        await sandbox.fork(2, sandbox_ids=["fork-c", "fork-a"])
    with pytest.raises(SandboxNotFound):
        await client.get_sandbox("fork-c")


@pytest.mark.parametrize("ids", [["a"], ["a", "a"], ["a", "b", "c"], ["a", "Not A Label"], []])
async def test_ids_of_forks_are_checked(sandbox: AsyncSandbox, ids: list[str]) -> None:
    with pytest.raises(SandboxRequestInvalid, match="sandbox_ids"):
        await sandbox.fork(2, sandbox_ids=ids)


@pytest.fixture
def blocking(service: "Service") -> Iterator[SandboxClient]:
    with SandboxClient(service.url) as client:
        yield client


def test_the_blocking_client_copies_too(blocking: SandboxClient, tree: Path, tmp_path: Path) -> None:
    box = blocking.create_sandbox("host")
    box.upload_directory(tree, "/workspace/tree")
    (fork,) = box.fork()
    assert fork.download_directory("/workspace/tree", tmp_path / "back") == []
    assert listing(tmp_path / "back") == listing(tree)
