"""Directories as tar streams: what goes out comes in again, and nothing that comes in gets out."""

import asyncio
import io
import os
import resource
import signal
import tarfile
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchard.injector.agent import archives, directories
from orchard.injector.agent.errors import RequestInvalid
from orchard.injector.errors import SandboxFileMissing, SandboxRequestInvalid
from orchard.schemas.sandboxes import CreateSandbox, ExecRequest, Job
from tests.injector.direct import Direct

if TYPE_CHECKING:
    from tests.injector.conftest import Service


class Box:
    """One sandbox and its directories."""

    def __init__(self, backend: Direct, sandbox_id: str) -> None:
        self.backend = backend
        self.sandbox_id = sandbox_id

    async def run(self, command: str) -> str:
        job = await self.backend.exec(self.sandbox_id, ExecRequest(command=command, wait=True))
        assert isinstance(job, Job)
        return job.stdout + job.stderr

    async def read(self, path: str) -> bytes:
        async with self.backend.read("archive", self.sandbox_id, path) as pieces:
            return b"".join([piece async for piece in pieces])

    async def write(self, path: str, content: bytes) -> int:
        return (await self.backend.write("archive", self.sandbox_id, path, content)).size


@pytest.fixture
async def make_box(service: "Service") -> AsyncIterator[Callable[[], "asyncio.Future[Box]"]]:
    backend = Direct(service.state, start_agent=False)
    await backend.open()
    made = []

    async def make() -> Box:
        sandbox = await backend.create(CreateSandbox(image="host"), None)
        made.append(sandbox.sandbox_id)
        assert (await backend.wait(sandbox.sandbox_id, 60)).ready
        return Box(backend, sandbox.sandbox_id)

    yield lambda: asyncio.ensure_future(make())
    for sandbox_id in made:
        await backend.delete(sandbox_id)
    await backend.close()


@pytest.fixture
async def box(make_box: Callable[[], "asyncio.Future[Box]"]) -> Box:
    return await make_box()


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as made:
        for member, content in members:
            member.size = len(content)
            made.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    return info


TREE = """
mkdir -p src/a/b 'src/with space' src/empty; cd src
printf 'x%.0s' $(seq 5000) > a/long; echo run > a/b/tool; chmod 4755 a/b/tool
echo 1 > a/one; ln a/one a/two; ln -s ../a/one a/link; ln -s /etc/passwd absolute; ln -s nowhere broken
mkfifo pipe; chown -h 12:34 broken a/one; printf x > $(printf 'bad\\377name'); echo deep > 'with space/ü'
chmod 0500 empty; touch -d @1000000000 a/one a
python3 -c "import socket; socket.socket(socket.AF_UNIX).bind('sock')"
"""
LOOK = (
    "cd {}; find . ! -name sock -printf '%p %y %m %U %G %l %n\\n' | sort;"
    " find . -type f | sort | xargs -d '\\n' md5sum; stat -c %Y a a/one"
)


async def test_a_directory_comes_back_as_it_was_in_another_sandbox(
    make_box: Callable[[], "asyncio.Future[Box]"],
) -> None:
    first, second = await make_box(), await make_box()
    await first.run(TREE)
    content = await first.read("/workspace/src")
    with tarfile.open(fileobj=io.BytesIO(content)) as opened:
        names = opened.getnames()
    assert "." in names and "sock" not in names and "a/b/tool" in names
    await second.write("/else/where", content)
    expected = await first.run(LOOK.format("src"))
    assert await second.run(LOOK.format("/else/where")) == expected
    assert (await second.run("cd /else/where; test a/one -ef a/two && echo linked")) == "linked\n"


async def test_large_files_stream(make_box: Callable[[], "asyncio.Future[Box]"]) -> None:
    first, second = await make_box(), await make_box()
    await first.run("mkdir d; head -c 30000000 /dev/urandom > d/x")
    async with first.backend.read("archive", first.sandbox_id, "/workspace/d") as pieces:
        written = await second.backend.write("archive", second.sandbox_id, "/workspace/d", pieces)
    assert written.size == 30_000_000
    assert await second.run("md5sum d/x") == await first.run("md5sum d/x")


async def test_reading_stops_with_its_reader(box: Box) -> None:
    await box.run("mkdir d; head -c 30000000 /dev/zero > d/x")
    async with box.backend.read("archive", box.sandbox_id, "/workspace/d") as pieces:
        assert await anext(pieces)
    assert await box.run("echo fine") == "fine\n"


async def test_the_kernels_own_directories_are_empty(box: Box) -> None:
    with tarfile.open(fileobj=io.BytesIO(await box.read("/proc"))) as opened:
        assert opened.getnames() == ["."]


async def test_a_tree_that_is_too_deep_is_refused_before_an_archive_begins(box: Box) -> None:
    """An archive that is broken off looks as if the service had failed: whoever made such a tree would have
    another try for it."""
    await box.run("mkdir odd even; cd even; for _ in $(seq 150); do mkdir x; cd x; done")
    await box.run("cd odd; for _ in $(seq 300); do mkdir x; cd x; done")
    with pytest.raises(SandboxRequestInvalid, match="more than 200 levels"):
        await box.read("/workspace/odd")
    assert await box.read("/workspace/even")


async def test_what_is_not_there_and_what_is_no_directory(box: Box) -> None:
    with pytest.raises(SandboxFileMissing):
        await box.read("/nothing")
    await box.run("echo x > file; ln -s /proc/self/root root")
    for path in ("/workspace/file", "/workspace/root/etc", "workspace/file"):
        with pytest.raises(SandboxRequestInvalid):
            await box.read(path)
        with pytest.raises(SandboxRequestInvalid):
            await box.write(path, archive())


OUTSIDE = {
    "an absolute name": entry("/tmp/evil"),
    "dots": entry("../evil"),
    "dots inside": entry("a/../../evil"),
    "a device": entry("disk", tarfile.BLKTYPE),
    "a character device": entry("mem", tarfile.CHRTYPE),
    "a hard link to an absolute name": entry("h", tarfile.LNKTYPE, "/etc/passwd"),
    "a hard link with dots": entry("h", tarfile.LNKTYPE, "../../etc/passwd"),
    "a hard link to nothing": entry("h", tarfile.LNKTYPE, "nothing"),
    "a file through a link": entry("out/evil"),
    "a directory through a link": entry("out/evil", tarfile.DIRTYPE),
    "a directory in place of a link": entry("out", tarfile.DIRTYPE),
    "a hard link through a link": entry("h", tarfile.LNKTYPE, "out/hosts"),
    "a file in place of a directory": entry("full"),
    "a file without a name": entry("."),
    "an unknown kind": entry("x", b"Z"),
}


@pytest.mark.parametrize("what", OUTSIDE)
async def test_what_leads_out_is_refused_by_name(box: Box, what: str) -> None:
    await box.run("mkdir -p d/full; touch d/full/x; ln -s /etc d/out; ls /etc > /tmp/before")
    bad = OUTSIDE[what]
    content = archive((entry("good"), b"1"), (bad, b""), (entry("after"), b"2"))
    with pytest.raises(SandboxRequestInvalid) as refused:
        await box.write("/workspace/d", content)
    assert f"`{bad.name}`" in str(refused.value)
    look = "cat d/good; test -e d/after || echo; ls /etc | diff - /tmp/before; ls /tmp /workspace"
    assert await box.run(look) == "1\n/tmp:\nbefore\n\n/workspace:\nd\n"


async def test_links_in_the_archive_are_kept_but_not_followed(box: Box) -> None:
    link = entry("etc", tarfile.SYMTYPE, "/etc")
    with pytest.raises(SandboxRequestInvalid, match=r"etc/evil.*leads through a link"):
        await box.write("/workspace/d", archive((link, b""), (entry("etc/evil"), b"x")))
    assert await box.run("readlink d/etc; ls /etc/evil") == (
        "/etc\nls: cannot access '/etc/evil': No such file or directory\n"
    )


async def test_files_and_links_in_the_way_are_replaced(box: Box) -> None:
    await box.run("mkdir d; ln -s /etc/hosts d/a; echo old > d/b; ln d/b d/other; cp /etc/hosts /tmp/hosts")
    await box.write("/workspace/d", archive((entry("a"), b"new"), (entry("b"), b"new")))
    assert await box.run("cat d/a d/b d/other; diff /etc/hosts /tmp/hosts; stat -c %F d/a") == (
        "newnewold\nregular file\n"
    )


@pytest.mark.parametrize("content", [b"no archive" * 100, b"", archive((entry("a"), b"x" * 9000))[:3000]])
async def test_what_is_no_archive(box: Box, content: bytes) -> None:
    with pytest.raises(SandboxRequestInvalid, match="no tar archive"):
        await box.write("/workspace/d", content)


async def test_a_header_without_end_is_not_read_into_memory(box: Box) -> None:
    huge = entry("x", tarfile.XHDTYPE)
    huge.size = 1 << 40
    with pytest.raises(SandboxRequestInvalid, match="extended header"):
        await box.write("/workspace/d", huge.tobuf(tarfile.GNU_FORMAT) + b"x" * 1024)


async def test_a_signal_cuts_no_archive(tmp_path: Path) -> None:
    """One that arrives at the thread that packs, while the reader is slow."""
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "large").write_bytes(b"x" * 10_000_000)
    root = os.open(tmp_path, os.O_RDONLY)
    # One that arrives after the handler is gone must not end the process: nobody minds this signal.
    before = signal.signal(signal.SIGURG, lambda *_: None)
    known = set(threading.enumerate())
    read = io.BytesIO()
    try:
        async with archives.packed(root, "/packed") as pieces:
            async for piece in pieces:
                read.write(piece)
                for thread in set(threading.enumerate()) - known:
                    if thread.ident is not None:
                        signal.pthread_kill(thread.ident, signal.SIGURG)
    finally:
        signal.signal(signal.SIGURG, before)
        os.close(root)
    with tarfile.open(fileobj=io.BytesIO(read.getvalue())) as archive:
        assert [len(archive.extractfile(one).read()) for one in archive if one.isreg()] == [10_000_000]  # type: ignore[union-attr]


async def test_a_file_without_room_is_no_shorter_file(tmp_path: Path) -> None:
    """The system writes as much as there is room for, and says so only at the next write."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        entry = tarfile.TarInfo("large")
        entry.size = 150_000
        archive.addfile(entry, io.BytesIO(bytes(150_000)))
    packed.seek(0)
    root = os.open(tmp_path, os.O_RDONLY)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(RequestInvalid, match="`large`: File too large"):
            directories.unpack(root, "/made", packed)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        os.close(root)
