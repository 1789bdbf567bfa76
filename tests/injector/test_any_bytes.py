"""A path need not be UTF-8: its bytes arrive as they are, whatever carries them."""

from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import msgspec
import pytest
from yarl import URL

from orchard.injector import wire
from orchard.injector.client import AsyncSandbox, AsyncSandboxClient
from orchard.injector.errors import SandboxFileMissing, SandboxRequestInvalid
from orchard.schemas.sandboxes import FileEntry, MoveFile
from tests.injector.in_pod import pod_agent

if TYPE_CHECKING:
    from tests.injector.conftest import Service

ODD = "/workspace/f\udcff"
"""b"f\\xff": beside `/workspace/f`, which it must not be taken for."""


@pytest.mark.parametrize("text", ["plain", "é", "\U0001f480", "f\udcff", "\udc80 \U0001f480 \udcfe"])
def test_texts_come_back_from_json_and_from_queries(text: str) -> None:
    moved = MoveFile(path=text, target="b")
    assert wire.decode(wire.encode(moved), MoveFile) == moved
    assert wire.decode(wire.encode({"a": [text]}), dict[str, list[str]]) == {"a": [text]}
    assert wire.url("http://a/b c", {"path": text}).raw_path == "/b%20c"


def test_a_text_that_has_no_bytes_is_refused() -> None:
    for attempt in (lambda: wire.encode({"a": "\ud800"}), lambda: wire.url("http://a", {"path": "\ud800"})):
        with pytest.raises(SandboxRequestInvalid, match="surrogates"):
            attempt()


def test_what_is_no_json_stays_none() -> None:
    for data in (b'{"name": "\\udcff"', b'["\\udcff"]', b'{"name": "\\ud800 \\udcff"}'):
        with pytest.raises(msgspec.DecodeError):
            wire.decode(data, FileEntry)


async def test_a_path_names_its_own_file_in_every_method(sandbox: AsyncSandbox, tmp_path: Path) -> None:
    await sandbox.upload_content("another", "/workspace/f")
    written = await sandbox.upload_content("odd", ODD, mode=0o600)
    large = tmp_path / "large"
    large.write_bytes(bytes(3_000_000))
    await sandbox.upload_file(large, "/workspace/large\udcfe")
    assert (written.path, await sandbox.download_content(ODD)) == (ODD, b"odd")
    assert await sandbox.download_content("/workspace/f") == b"another"
    assert [entry.name for entry in await sandbox.list_files("/workspace")] == ["f", "f\udcff", "large\udcfe"]
    await sandbox.move(ODD, "/workspace/d\udc80/g\udc81")
    assert (await sandbox.exec(["cat", "g\udc81"], cwd="/workspace/d\udc80")).stdout == "odd"
    assert (await sandbox.exec("od -An -tx1", stdin="\udcff", env={"A": "\udcfe"})).stdout.split() == ["ff"]
    patch = "--- /dev/null\n+++ b/p\n@@ -0,0 +1 @@\n+\udcff\n"
    assert (await sandbox.apply_patch(patch, cwd="/workspace/d\udc80")).success
    assert await sandbox.download_content("/workspace/d\udc80/p") == b"\xff\n"
    await sandbox.upload_content("\udcff", "/workspace/large\udcfe")
    assert await sandbox.download_content("/workspace/large\udcfe") == b"\xff"
    await sandbox.remove("/workspace/large\udcfe")
    with pytest.raises(SandboxFileMissing):
        await sandbox.download_content(ODD)
    assert sorted(await sandbox.download_directory("/workspace", tmp_path / "copy")) == []
    assert (tmp_path / "copy" / "d\udc80" / "g\udc81").read_bytes() == b"odd"
    await sandbox.upload_directory(tmp_path / "copy", "/workspace/again\udc82")
    assert await sandbox.download_content("/workspace/again\udc82/d\udc80/g\udc81") == b"odd"


async def test_a_change_of_it_is_told_by_its_name(sandbox: AsyncSandbox) -> None:
    async with sandbox.watch("/workspace") as changes:
        await sandbox.exec(["mkdir", ODD])
        assert (await anext(changes)).path == ODD


async def test_on_the_wire_a_byte_is_an_escape(service: "Service", sandbox: AsyncSandbox) -> None:
    await sandbox.upload_content("another", "/workspace/f")
    files, kind = f"/sandboxes/{sandbox.sandbox_id}/files", {"Content-Type": "application/json"}
    async with aiohttp.ClientSession(service.url) as http:
        for body in (
            rb'{"path":"/workspace/f\udcff","content":"eHg="}',
            rb'{"content":"eHg=","path":"/workspace/f\udcff"}',
        ):
            assert (await http.post(files, data=body, headers=kind)).status == 200
        refused = await http.post(files, data=body.replace(b"dcff", b"d800"), headers=kind)
        assert (refused.status, (await refused.json())["detail"][0]["type"]) == (422, "json_invalid")
        read = await http.get(URL(f"{service.url}{files}?path=/workspace/f%FF", encoded=True))
        assert await read.read() == rb'{"path":"/workspace/f\udcff","content":"eHg=","size":2}'
        assert rb'"name":"f\udcff"' in await (await http.get(f"{files}/list")).read()
    assert await sandbox.download_content("/workspace/f") == b"another"


async def test_where_no_byte_can_be_it_is_refused_by_name(client: AsyncSandboxClient) -> None:
    with pytest.raises(SandboxRequestInvalid, match="a byte that is not UTF-8"):
        await client.create_sandbox("host", env={"A": "\udcff"})


@pytest.mark.long
async def test_so_it_is_in_a_pod(payload: Path, busybox: Path) -> None:
    async with pod_agent(payload, busybox) as agent:
        await agent.run("mkdir -p /tmp; echo another > /tmp/f")
        await agent.write("/tmp/f\udcff", b"odd")
        assert (await agent.run("ls /tmp | od -An -c; cat /tmp/f")).stdout.split()[-1] == "another"
        assert await agent.read("/tmp/f\udcff") == b"odd"
