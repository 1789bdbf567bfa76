"""Images: imported from archives nobody vouches for, unpacked once, committed from sandboxes by layering."""

import asyncio
import gzip
import os
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from orchard.injector.agent.errors import RequestInvalid
from orchard.injector.agent.local.archives import import_image
from orchard.injector.agent.local.images import ImageStore
from orchard.injector.client import AsyncSandbox, AsyncSandboxClient
from orchard.injector.errors import SandboxFailed, SandboxRequestInvalid

if TYPE_CHECKING:
    from tests.injector.conftest import Archives, Service


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def device(name: str, major: int, minor: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.devmajor, info.devminor = tarfile.CHRTYPE, major, minor
    return info


@pytest.mark.needs_root("its layers have owners")
@pytest.mark.parametrize("kind", ["docker", "oci"])
async def test_an_image_with_nothing_but_one_static_program_works(
    service: "Service", client: AsyncSandboxClient, archives: "Archives", tiny_shell: bytes, kind: str
) -> None:
    """No bash, no Python, no libc, no /tmp, no /workspace: string commands go to sh, lists are executed."""
    layer = archives.layer(("bin", None, 0o755), ("bin/sh", tiny_shell, 0o755))
    path = getattr(archives, kind)(f"tiny:{kind}", layer)
    import_image(service.state, path)
    async with await client.create_sandbox(f"tiny:{kind}") as sandbox:
        string = await sandbox.exec("a 'b c'")
        listed = await sandbox.exec(["/bin/sh", "x", "$y"], cwd="/")
        await sandbox.upload_content(b"\xff", "/data/x")
        assert await sandbox.download_content("/data/x") == b"\xff"
        patched = await sandbox.apply_patch("--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+x\n")
        names = {entry.name for entry in await sandbox.list_files("/")}
    assert (string.stdout, string.exit_code) == ("sh|-c|a 'b c'|", 7)
    assert (listed.stdout, listed.exit_code) == ("/bin/sh|x|$y|", 7)
    assert "neither git nor patch" in (patched.error or "")
    assert names >= {"bin", "tmp", "proc", "dev", "workspace", "data"}


@pytest.mark.needs_root("its layers have owners")
async def test_environment_and_working_directory_of_the_image_are_honoured(
    service: "Service", client: AsyncSandboxClient, archives: "Archives", tiny_shell: bytes
) -> None:
    layer = archives.layer(("opt", None, 0o755), ("opt/tool", tiny_shell, 0o755))
    config = {"Env": ["PATH=/opt", "GREETING=hi"], "WorkingDir": "/app"}
    import_image(service.state, archives.docker("configured:1", layer, config=config))
    async with await client.create_sandbox("configured:1") as sandbox:
        found = await sandbox.exec(["tool", "x"], cwd="sub/..", env={})
        missing = await sandbox.exec(["tool"], cwd="sub")
        await sandbox.upload_content(b"", "/app/sub/x")
        below = await sandbox.exec(["tool"], cwd="sub")
    assert "/app/sub" in (missing.error or "") and "/app/sub/.." in (found.error or "")
    assert below.stdout == "tool|"


@pytest.mark.needs_root("its layers have owners")
async def test_whiteouts_hide_what_lower_layers_have(
    service: "Service", client: AsyncSandboxClient, archives: "Archives"
) -> None:
    lower = archives.layer(
        ("gone", b"x", 0o644),
        ("kept", b"x", 0o644),
        ("emptied", None, 0o755),
        ("emptied/old", b"x", 0o644),
        ("replaced", None, 0o755),
        ("replaced/old", b"x", 0o644),
    )
    upper = archives.layer(
        (".wh.gone", b"", 0o644),
        ("emptied", None, 0o755),
        ("emptied/.wh..wh..opq", b"", 0o644),
        ("emptied/new", b"x", 0o644),
        (".wh.replaced", b"", 0o644),
        ("replaced", None, 0o755),
        ("replaced/new", b"x", 0o644),
    )
    import_image(service.state, archives.docker("whiteouts:1", lower, upper))
    async with await client.create_sandbox("whiteouts:1") as sandbox:
        top = {entry.name for entry in await sandbox.list_files("/")}
        emptied = [entry.name for entry in await sandbox.list_files("/emptied")]
        replaced = [entry.name for entry in await sandbox.list_files("/replaced")]
    assert "gone" not in top and "kept" in top
    assert (emptied, replaced) == (["new"], ["new"])


def hostile(name: str, archives: "Archives", outside: Path) -> bytes:
    layers = {
        "a path that climbs": [("../../outside", b"x", 0o644)],
        "a path that climbs in the middle": [("a/../../outside", b"x", 0o644)],
        "a link to outside and a file through it": [link("out", str(outside)), ("out/file", b"x", 0o644)],
        "a hard link to outside": [link("hard", str(outside / "secret"), tarfile.LNKTYPE)],
        "a hard link that climbs": [link("hard", f"../../../../../..{outside}/secret", tarfile.LNKTYPE)],
    }
    return archives.layer(*layers[name])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name",
    [
        "a path that climbs",
        "a path that climbs in the middle",
        "a link to outside and a file through it",
        "a hard link to outside",
        "a hard link that climbs",
    ],
)
@pytest.mark.needs_root("its layers have owners")
def test_a_hostile_layer_is_refused_and_touches_nothing(
    tmp_path: Path, archives: "Archives", name: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    state = tmp_path / "state"
    state.mkdir()
    with pytest.raises(RequestInvalid):
        import_image(state, archives.docker("evil:1", hostile(name, archives, outside)))
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert (outside / "secret").stat().st_nlink == 1
    assert ImageStore(state).names() == []
    assert list((state / "tmp").iterdir()) == [] and list((state / "layers").iterdir()) == []


@pytest.mark.needs_root("its layers have owners")
def test_a_file_over_a_link_replaces_the_link(tmp_path: Path, archives: "Archives") -> None:
    outside = tmp_path / "target"
    outside.write_text("untouched")
    layer = archives.layer(link("file", str(outside)), ("file", b"mine", 0o644))
    image = import_image(tmp_path / "state", archives.docker("over:1", layer))
    assert outside.read_text() == "untouched"
    assert (ImageStore(tmp_path / "state").layer(image.layers[0]) / "file").read_bytes() == b"mine"


@pytest.mark.needs_root("its layers have owners")
def test_devices_are_not_made(tmp_path: Path, archives: "Archives") -> None:
    """Neither of hosts nor 0:0, which would be a whiteout nobody sees."""
    layer = archives.layer(device("mem", 1, 1), device("sneaky", 0, 0), ("real", b"", 0o644))
    image = import_image(tmp_path / "state", archives.docker("devices:1", layer))
    place = ImageStore(tmp_path / "state").layer(image.layers[0])
    assert [path.name for path in place.iterdir()] == ["real"]


@pytest.mark.needs_root("its layers have owners")
def test_owners_modes_and_hard_links_are_kept(tmp_path: Path, archives: "Archives") -> None:
    owned = tarfile.TarInfo("owned")
    owned.uid, owned.gid, owned.mode = 1000, 1001, 0o640
    layer = archives.layer(owned, link("second", "owned", tarfile.LNKTYPE), link("soft", "/owned"))
    image = import_image(tmp_path / "state", archives.docker("owned:1", layer))
    place = ImageStore(tmp_path / "state").layer(image.layers[0])
    status = (place / "owned").stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode), status.st_nlink) == (
        1000,
        1001,
        0o640,
        2,
    )
    assert (place / "soft").readlink() == Path("/owned")


@pytest.mark.needs_root("its layers have owners")
def test_layers_are_unpacked_once_and_shared(tmp_path: Path, archives: "Archives") -> None:
    shared = archives.layer(("shared", b"x", 0o644))
    first = import_image(tmp_path / "state", archives.docker("one:1", shared))
    inode = ImageStore(tmp_path / "state").layer(first.layers[0]).stat().st_ino
    second = import_image(
        tmp_path / "state", archives.docker("two:1", shared, archives.layer(("more", b"", 0o644)))
    )
    assert second.layers[-1] == first.layers[0]
    assert ImageStore(tmp_path / "state").layer(first.layers[0]).stat().st_ino == inode


@pytest.mark.needs_root("its layers have owners")
def test_a_layer_that_is_not_what_the_image_says_is_refused(tmp_path: Path, archives: "Archives") -> None:
    path = archives.oci("tampered:1", archives.layer(("x", b"x", 0o644)))
    largest = max((path / "blobs/sha256").iterdir(), key=lambda blob: blob.read_bytes()[:2] == b"\x1f\x8b")
    largest.write_bytes(gzip.compress(archives.layer(("x", b"y", 0o644))))
    with pytest.raises(RequestInvalid, match="a layer has the digest"):
        import_image(tmp_path / "state", path)
    assert ImageStore(tmp_path / "state").names() == []


@pytest.mark.parametrize("content", [b"", b"not a tar", b"\x1f\x8bnot gzip"])
def test_what_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "image.tar").write_bytes(content)
    with pytest.raises(RequestInvalid):
        import_image(tmp_path / "state", tmp_path / "image.tar", "x:1")


def test_import_by_command_and_a_missing_archive(tmp_path: Path, archives: "Archives") -> None:
    line = [
        sys.executable,
        "-m",
        "orchard.injector.agent",
        "--state",
        str(tmp_path / "state"),
        "--import-image",
    ]
    path = archives.docker("named:1", archives.layer(("x", b"", 0o644)))
    done = subprocess.run(
        [*line, str(path), "--name", "other:2"], capture_output=True, text=True, check=False
    )
    missing = subprocess.run([*line, str(tmp_path / "no.tar")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "other:2\n")
    assert ImageStore(tmp_path / "state").names() == ["other:2"]
    assert missing.returncode == 1 and missing.stderr.count("\n") == 1 and "no.tar" in missing.stderr


def test_a_killed_import_leaves_nothing_visible(
    tmp_path: Path, archives: "Archives", eventually: Callable[[Callable[[], bool], str], None]
) -> None:
    """Killed while it unpacks, held there by an archive that never ends."""
    state = tmp_path / "state"
    layer = archives.layer(("x", os.urandom(8_000_000), 0o644))
    layout = archives.oci("slow:1", layer)
    blob = max((layout / "blobs/sha256").iterdir(), key=lambda path: path.stat().st_size)
    line = [
        sys.executable,
        "-m",
        "orchard.injector.agent",
        "--state",
        str(state),
        "--import-image",
        str(layout),
    ]
    content = blob.read_bytes()
    blob.write_bytes(content * 50)
    process = subprocess.Popen(line, stderr=subprocess.DEVNULL)
    eventually(lambda: (state / "tmp").is_dir() and any((state / "tmp").glob("*/*/x")), "it unpacks")
    process.kill()
    process.wait()
    store = ImageStore(state)
    assert store.names() == [] and list((state / "layers").iterdir()) == []
    store.clean()
    assert list((state / "tmp").iterdir()) == []


async def test_a_snapshot_is_an_image_of_the_sandbox_as_it_was(
    client: AsyncSandboxClient, sandbox: AsyncSandbox
) -> None:
    await sandbox.exec("echo one > f; rm /usr/bin/patch; mv /usr/share/perl5 /usr/share/moved; ln f /hard")
    made = await sandbox.snapshot("repo/snap:one")
    await sandbox.exec("echo two > f")
    assert (made.image, made.layers) == ("repo/snap:one", 3)
    async with await client.create_sandbox("repo/snap:one") as copy:
        job = await copy.exec(
            "cat f /hard; ls /usr/bin/patch /usr/share/perl5; ls -d /usr/share/moved", env={"LC_ALL": "C"}
        )
        await copy.exec("echo three > f")
        again = await copy.snapshot("repo/snap:two")
    assert job.stdout == "one\none\n/usr/share/moved\n"
    assert job.stderr.count("No such file") == 2
    assert again.layers == 4
    async with await client.create_sandbox("repo/snap:two") as second:
        assert (await second.exec("cat f; ls /usr/share/perl5", env={"LC_ALL": "C"})).stdout == "three\n"
    async with await client.create_sandbox("repo/snap:one") as first:
        assert (await first.exec("cat f")).stdout == "one\n"


async def test_a_snapshot_replaces_an_older_one_of_its_name(
    client: AsyncSandboxClient, sandbox: AsyncSandbox
) -> None:
    for text in ("old", "new"):
        await sandbox.exec(f"echo {text} > f")
        await sandbox.snapshot("again:1")
    async with await client.create_sandbox("again:1") as copy:
        assert (await copy.exec("cat f")).stdout == "new\n"


@pytest.mark.parametrize("name", ["host", " ", "with space:1"])
async def test_names_that_no_image_can_have(sandbox: AsyncSandbox, name: str) -> None:
    with pytest.raises(SandboxRequestInvalid):
        await sandbox.snapshot(name)


@pytest.mark.long
async def test_images_outlive_the_agent_and_sandboxes_wait_for_nothing(own_service: "Service") -> None:
    async with own_service.client() as client:
        sandbox = await client.create_sandbox("host")
        await sandbox.exec("echo kept > f")
        await sandbox.snapshot("kept:1")
        own_service.kill_agent()
        copies = await asyncio.gather(*(client.create_sandbox("kept:1") for _ in range(3)))
        assert [(await copy.exec("cat f")).stdout for copy in copies] == ["kept\n"] * 3
        with pytest.raises(SandboxFailed):
            await client.create_sandbox("kept:2")
